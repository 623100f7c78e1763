"""What an attempt shows while it runs, and the limits that it may pass."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.effects import StopAttempt, WakeAt
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptGaveUp,
    AttemptRetrying,
    AttemptStarted,
    ConversationSeen,
    Woke,
)
from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import AttemptId
from fallbackd.core.policy import Backend
from fallbackd.core.records import Attempt, Delegation, Session
from fallbackd.core.watch import Limits, Passed, Watch, expiry
from fallbackd.core.work.resumption import not_resumed, resumed_conversation
from fallbackd.core.work.stopping import stopping
from fallbackd.core.work.waits import has_waited, stated_until, with_waited
from fallbackd.core.work.walk import walk

AGENT_STALL_S = 450.0
HTTP_STALL_S = 180.0
LOOPBACK_STALL_S = 900.0
HTTP_TOTAL_S = 3600.0
"""One answer takes minutes; only a stream without an end takes an hour. Not on loopback, where an
agent may work for longer."""


def limits_of(case: Case, delegation: Delegation, backend: Backend) -> Limits:
    """The limits of one attempt, in seconds: the backend's own before the defaults."""
    defaults = case.policy.defaults
    first_answer_s = backend.first_answer_s or defaults.first_answer_s
    if first_answer_s is None:
        first_answer_s = 120.0 if delegation.mode == "interactive" else 300.0
    stall_s = backend.stall_s or defaults.stall_s
    if stall_s is None:
        stall_s = AGENT_STALL_S
        if backend.is_http:
            stall_s = LOOPBACK_STALL_S if backend.loopback else HTTP_STALL_S
    total_s = backend.timeout_s
    if total_s is None and backend.is_http and not backend.loopback:
        total_s = HTTP_TOTAL_S
    return Limits(
        first_output_s=defaults.first_output_s or first_answer_s,
        first_answer_s=first_answer_s,
        stall_s=stall_s,
        busy_stall_s=backend.busy_stall_s or defaults.busy_stall_s,
        total_s=total_s,
        loop_steps=defaults.loop_steps,
        shows_answer=not backend.plain_output,
    )


class Current:
    """The running attempt that an event names, with its delegation, session and backend."""

    def __init__(self, delegation: Delegation, attempt: Attempt, session: Session) -> None:
        self.delegation = delegation
        self.attempt = attempt
        self.session = session

    def updated(self, **fields: object) -> Delegation:
        """The delegation with the attempt changed."""
        after = structs.replace(self.attempt, **fields)
        return structs.replace(self.delegation, attempts=(*self.delegation.attempts[:-1], after))


def current_of(case: Case, attempt: AttemptId) -> Current | None:
    """None: the event is late, about an attempt that is over. `AttemptId` is the fence."""
    delegation = case.snapshot.delegation
    if delegation is None:
        return None
    running = delegation.running
    if running is None or running.attempt != attempt:
        return None
    return Current(delegation, running, case.session)


def attempt_started(case: Case, event: AttemptStarted) -> None:
    current = current_of(case, event.attempt)
    if current is None or (current.attempt.state == "running" and not event.anew):
        return
    if event.anew:
        current.attempt = structs.replace(current.attempt, started_at=case.now)
    attempt = current.attempt
    if attempt.state == "stopping":
        case.keep_delegation(current.updated(pid=event.pid))
        return
    case.keep_delegation(current.updated(state="running", pid=event.pid))
    case.note(
        "attempt.started",
        current.delegation,
        backend=attempt.backend,
        attempt=attempt.attempt,
        model=attempt.model,
        credential=attempt.credential,
        trial=attempt.trial,
        log_path=attempt.log_path,
    )
    backend = find_backend(case.policy, attempt.backend)
    if backend is None:
        return
    limits = limits_of(case, current.delegation, backend)
    # Silence after the first output may be over before the limits of the first output are.
    first_s = min(limits.first_output_s, limits.first_answer_s, limits.stall_s)
    at = attempt.started_at + min(first_s, limits.total_s or first_s)
    if attempt.trial and backend.plain_output:
        at = min(at, attempt.started_at + case.policy.defaults.trial_grace_s)
    case.effects.append(_look_at(current, at))


def _look_at(current: Current, at: float) -> WakeAt:
    return WakeAt(
        at=at,
        delegation=current.delegation.delegation,
        attempt=current.attempt.attempt,
        purpose="limits",
    )


def conversation_seen(case: Case, event: ConversationSeen) -> None:
    """Keep what the program calls its conversation, and stop one that is not the resumed one."""
    current = current_of(case, event.attempt)
    if current is None or current.attempt.state == "stopping":
        return
    wanted = resumed_conversation(current.delegation, current.attempt)
    if wanted is not None and wanted != event.conversation:
        # It has begun a new one, in which it knows nothing of the task.
        case.tell(
            current.delegation,
            "conversation seen",
            outcome=f"stops {current.attempt.attempt}: it began another conversation",
        )
        stop(case, current, not_resumed(f"{event.conversation} is not {wanted}", now=case.now))
    elif current.attempt.conversation != event.conversation:
        case.keep_delegation(current.updated(conversation=event.conversation))


def attempt_answered(case: Case, event: AttemptAnswered) -> None:
    current = current_of(case, event.attempt)
    if current is None:
        return
    attempt = current.attempt
    first_at = attempt.answered_at or case.now
    patience_until_at = None if event.whole_step else attempt.patience_until_at
    case.keep_delegation(
        current.updated(answered_at=first_at, patience_until_at=patience_until_at, failure=None)
    )
    backend = find_backend(case.policy, attempt.backend)
    if backend is not None:
        case.succeed(
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
        )
    if attempt.answered_at is None and len(current.delegation.attempts) > 1:
        case.wake_waiting()  # whoever waits to make the same move sees that there is life


def attempt_retrying(case: Case, event: AttemptRetrying) -> None:
    """Patience with a program's own retries, counted from its first failure."""
    current = current_of(case, event.attempt)
    if current is None or current.attempt.state == "stopping":
        return
    patience_s = case.policy.patience_s(current.delegation.mode)
    attempt, now = current.attempt, case.now
    since_at = now if event.since_at is None else min(event.since_at, now)
    until_at = attempt.patience_until_at or since_at + patience_s
    stated_at = stated_until(event.failure, now=now)
    ends_at = max(now, now + (event.wait_s or 0.0), stated_at or now)
    why = None
    if not event.failure.retryable:
        why = "a retry cannot help"
    elif ends_at > until_at or now >= until_at:
        why = "it will wait longer than patience lasts"
    elif stated_at is not None and has_waited(current.delegation, attempt, now=now):
        why = "the time that its provider stated was waited for once already"
    if why is not None:
        case.tell(
            current.delegation,
            "attempt retrying",
            outcome=f"stops {attempt.attempt}: {why}",
            evidence=event.failure.evidence,
            patience_s=patience_s,
            signature=event.failure.signature,
        )
        stop(case, current, event.failure, patience_until_at=until_at)
        return
    delegation = current.updated(
        patience_until_at=until_at,
        tries_at=None if event.wait_s is None else ends_at,
        waits_until_at=attempt.waits_until_at if stated_at is None else stated_at,
        failure=event.failure,
    )
    if stated_at is not None:
        delegation = with_waited(delegation, attempt)
    case.keep_delegation(delegation)
    case.effects.append(_look_at(current, until_at))


def attempt_gave_up(case: Case, event: AttemptGaveUp) -> None:
    current = current_of(case, event.attempt)
    if current is None or current.attempt.state == "stopping":
        return
    stop(case, current, event.failure)


def stop(case: Case, current: Current, ending: Failure, **fields: object) -> None:
    """Order the end of the attempt; `ending` is what it ends with."""
    case.keep_delegation(current.updated(state="stopping", ending=ending, **fields))
    case.effects.append(
        StopAttempt(attempt=current.attempt.attempt, grace_s=case.policy.defaults.stop_grace_s)
    )


def woke(case: Case, event: Woke) -> None:
    delegation = case.snapshot.delegation
    if delegation is None or delegation.is_ended:
        return
    running = delegation.running
    session = case.session
    if running is None:
        walk(case, delegation, session, event="woke")
        return
    deadline_at = delegation.deadline_at
    if running.state == "stopping":
        return
    if deadline_at is not None and case.now >= deadline_at:
        case.tell(delegation, "deadline", outcome=f"stops {running.attempt}")
        case.keep_delegation(
            stopping(case, delegation, Reason.TIMEOUT, "the caller's own deadline is over")
        )
        return
    if event.watch is not None and event.attempt == running.attempt:
        _look(case, Current(delegation, running, session), event.watch)


def _look(case: Case, current: Current, watch: Watch) -> None:
    """See whether a limit of the running attempt is over; else order the next look."""
    attempt, delegation, now = current.attempt, current.delegation, case.now
    backend = find_backend(case.policy, attempt.backend)
    if backend is None:
        return
    limits = limits_of(case, delegation, backend)
    next_at = float("inf")
    if attempt.trial and backend.plain_output and not attempt.proven:
        grace_at = attempt.started_at + case.policy.defaults.trial_grace_s
        if now >= grace_at and attempt.patience_until_at is None:
            case.succeed(
                backend,
                model=attempt.model,
                credential=attempt.credential,
                started_at=attempt.started_at,
            )
            current = Current(current.updated(proven=True), attempt, current.session)
            current.attempt = current.delegation.attempts[-1]
            case.keep_delegation(current.delegation)
        elif now < grace_at:
            next_at = grace_at
    if attempt.patience_until_at is not None and attempt.failure is not None:
        # Nothing has come since it failed. What answers now has the limits of every answer.
        borne_until_at = attempt.patience_until_at
        if attempt.tries_at is not None:  # a wait that is seen is over then: the rest is the try
            borne_until_at = max(borne_until_at, attempt.tries_at + limits.first_answer_s)
        if now >= borne_until_at:
            case.tell(
                delegation,
                "patience over",
                outcome=f"stops {attempt.attempt}",
                evidence=attempt.failure.evidence,
                patience_s=case.policy.patience_s(delegation.mode),
            )
            stop(case, current, attempt.failure)
            return
        next_at = min(next_at, borne_until_at)
    found = expiry(watch, limits, now=now)
    if isinstance(found, Passed):
        case.tell(
            delegation,
            "limit passed",
            outcome=f"stops {attempt.attempt}",
            evidence=found.evidence,
        )
        stop(case, current, _limit_failure(case, found))
        return
    # Output that comes from now on, or the end of a tool, begins the shorter limit of silence.
    case.effects.append(_look_at(current, min(found, next_at, now + limits.stall_s)))


def _limit_failure(case: Case, passed: Passed) -> Failure:
    return make_failure(
        passed.reason,
        now=case.now,
        detail=passed.detail,
        confidence="structured",
        signature=f"fallbackd/{passed.detail}",
        evidence=passed.evidence,
    )
