"""Running attempts: what each shows, and the limits that it may pass."""

from math import inf

from fallbackd.core.case import Case
from fallbackd.core.decision import StopAttempt, WakeAt
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptGaveUp,
    AttemptRetrying,
    AttemptStarted,
    ConversationSeen,
    KeepRequested,
    Woke,
    WorkspaceMoved,
)
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.ids import AttemptId
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, Delegation
from fallbackd.core.scopes import find_backend
from fallbackd.core.watch import Passed, Watch, WatchLimits, expiry
from fallbackd.core.work.apply import advance
from fallbackd.core.work.retries import has_waited, is_past_deadline, stated_until, with_waited
from fallbackd.core.work.sessions import (
    continues,
    not_resumed,
    note_carried,
    own_conversation,
    resumed_conversation,
)
from fallbackd.core.work.standby import is_overtaken
from fallbackd.core.work.stopping import stop_running

AGENT_STALL_S = 450.0
HTTP_STALL_S = 180.0
LOOPBACK_STALL_S = 900.0
HTTP_TOTAL_S = 3600.0
"""One answer takes minutes; only a stream without an end takes an hour. Not on loopback, where an
agent may work for longer."""


def limits_of(case: Case, delegation: Delegation, backend: Backend) -> WatchLimits:
    """The limits of one attempt, in seconds: the backend's own before the defaults."""
    defaults = case.policy.defaults
    first_answer_s = backend.first_answer_s or defaults.first_answer_s
    if first_answer_s is None:
        first_answer_s = 120.0 if delegation.mode == "interactive" else 300.0
    first_output_s = defaults.first_output_s or first_answer_s
    running = delegation.running
    if running is not None and backend.greets and continues(running):
        first_output_s = min(first_output_s, case.policy.handoff.start_s)
    return WatchLimits(
        first_output_s=first_output_s,
        first_answer_s=first_answer_s,
        stall_s=backend.stall_s or defaults.stall_s or _stall_s(backend),
        busy_stall_s=backend.busy_stall_s or defaults.busy_stall_s,
        total_s=_total_s(backend),
        loop_steps=defaults.loop_steps,
        shows_answer=not backend.plain_output,
    )


def _total_s(backend: Backend) -> float | None:
    if backend.timeout_s is None and backend.is_http and not backend.loopback:
        return HTTP_TOTAL_S
    return backend.timeout_s


def _stall_s(backend: Backend) -> float:
    """Return how long a backend of its sort may be silent."""
    if not backend.is_http:
        return AGENT_STALL_S
    return LOOPBACK_STALL_S if backend.loopback else HTTP_STALL_S


def running_attempt(case: Case, name: AttemptId) -> Attempt | None:
    """None: the event is late, about an attempt that is over. `AttemptId` is the fence."""
    delegation = case.snapshot.delegation
    running = None if delegation is None else delegation.running
    return running if running is not None and running.attempt == name else None


def attempt_started(case: Case, event: AttemptStarted) -> None:
    attempt = running_attempt(case, event.attempt)
    if attempt is None or (attempt.state == "running" and not event.anew):
        return
    if event.anew:
        attempt = case.update_attempt(started_at=case.now)
    if attempt.state == "stopping":
        case.update_attempt(pid=event.pid)
        return
    case.update_attempt(state="running", pid=event.pid)
    note_carried(case, event)
    for warning in event.warnings:
        case.tell(case.delegation, "planted", outcome=warning)
        case.update(warnings=(*case.delegation.warnings, warning))
    case.note(
        "attempt.started",
        case.delegation,
        backend=attempt.backend,
        attempt=attempt.attempt,
        model=attempt.model,
        credential=attempt.credential,
        trial=attempt.trial,
        log_path=attempt.log_path,
        warnings=list(event.warnings),
    )
    backend = find_backend(case.policy, attempt.backend)
    if backend is None:
        return
    limits = limits_of(case, case.delegation, backend)
    # Silence after the first output may be over before the limits of the first output are.
    first_s = min(limits.first_output_s, limits.first_answer_s, limits.stall_s)
    at = attempt.started_at + min(first_s, limits.total_s or first_s)
    if attempt.trial and backend.plain_output:
        at = min(at, attempt.started_at + case.policy.defaults.trial_grace_s)
    _look_at(case, at)


def _look_at(case: Case, at: float) -> None:
    """Order the next look at the running attempt."""
    one = case.delegation
    name = one.attempts[-1].attempt
    case.effects.append(WakeAt(at=at, delegation=one.delegation, attempt=name, purpose="limits"))


def conversation_seen(case: Case, event: ConversationSeen) -> None:
    """Keep what the program calls its conversation, and stop one that is not the resumed one."""
    attempt = running_attempt(case, event.attempt)
    if attempt is None or attempt.state == "stopping":
        return
    wanted = resumed_conversation(case.delegation, attempt) or own_conversation(attempt)
    if wanted is None or wanted == event.conversation:
        case.update_attempt(conversation=event.conversation)
        return
    # It has begun a new one, in which it knows nothing of the task.
    case.tell(
        case.delegation,
        "conversation seen",
        outcome=f"stops {attempt.attempt}: it began another conversation",
    )
    stop(case, not_resumed(f"{event.conversation} is not {wanted}", now=case.now))


def attempt_answered(case: Case, event: AttemptAnswered) -> None:
    attempt = running_attempt(case, event.attempt)
    if attempt is None:
        return
    case.update_attempt(
        answered_at=attempt.answered_at or case.now,
        patience_until_at=None if event.whole_step else attempt.patience_until_at,
        failure=None,
    )
    _prove(case, attempt)
    if attempt.answered_at is None and len(case.delegation.attempts) > 1:
        case.wake_waiting()  # delegations held back from the same move may follow now


def _prove(case: Case, attempt: Attempt) -> None:
    """The provider of an attempt answers."""
    backend = find_backend(case.policy, attempt.backend)
    if backend is not None:
        case.succeed(
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
        )


def attempt_retrying(case: Case, event: AttemptRetrying) -> None:
    """Patience with a program's own retries, counted from its first failure."""
    attempt = running_attempt(case, event.attempt)
    if attempt is None or attempt.state == "stopping":
        return
    one, now = case.delegation, case.now
    patience_s = case.policy.patience_s(one.mode)
    since_at = now if event.since_at is None else min(event.since_at, now)
    until_at = attempt.patience_until_at or since_at + patience_s
    stated_at = stated_until(event.failure, now=now)
    ends_at = max(now, now + (event.wait_s or 0.0), stated_at or now)
    why = _why_not_borne(case, attempt, event.failure, ends_at=ends_at, until_at=until_at)
    if why is not None:
        case.tell(
            one,
            "attempt retrying",
            outcome=f"stops {attempt.attempt}: {why}",
            evidence=event.failure.evidence,
            patience_s=patience_s,
            signature=event.failure.signature,
        )
        stop(case, event.failure, patience_until_at=until_at)
        return
    case.update_attempt(
        patience_until_at=until_at,
        tries_at=None if event.wait_s is None else ends_at,
        waits_until_at=attempt.waits_until_at if stated_at is None else stated_at,
        failure=event.failure,
    )
    if stated_at is not None:
        case.update(waited=with_waited(one, attempt))
    _look_at(case, until_at)


def _why_not_borne(
    case: Case, attempt: Attempt, failure: Failure, *, ends_at: float, until_at: float
) -> str | None:
    """
    Return why a program that retries by itself is stopped; None: it may continue.

    Args:
        ends_at: When its wait is over.
        until_at: How long patience lasts.
    """
    if not failure.retryable:
        return "a retry cannot help"
    if ends_at > until_at or case.now >= until_at:
        return "it will wait longer than patience lasts"
    is_stated = stated_until(failure, now=case.now) is not None
    if is_stated and has_waited(case.delegation, attempt, now=case.now):
        return "the time that its provider stated was waited for once already"
    return None


def attempt_gave_up(case: Case, event: AttemptGaveUp) -> None:
    attempt = running_attempt(case, event.attempt)
    if attempt is not None and attempt.state != "stopping":
        stop(case, event.failure)


def stop(case: Case, ending: Failure, **fields: object) -> None:
    """Order the end of the running attempt; `ending` is what it ends with."""
    attempt = case.update_attempt(state="stopping", ending=ending, **fields)
    case.effects.append(
        StopAttempt(attempt=attempt.attempt, grace_s=case.policy.defaults.stop_grace_s)
    )


def keep_requested(case: Case, event: KeepRequested) -> None:
    """Keep a delegation: it outlives its callers from now on."""
    if (found := case.snapshot.delegation) is not None and not found.is_ended:
        case.update(orphan_s=None)


def workspace_moved(case: Case, event: WorkspaceMoved) -> None:
    if (found := case.snapshot.delegation) is not None and not found.is_ended:
        case.update(cwd_ids=event.cwd_ids)


def woke(case: Case, event: Woke) -> None:
    delegation = case.snapshot.delegation
    if delegation is None or delegation.is_ended:
        return
    running = delegation.running
    if running is None and is_overtaken(case):
        case.wake_waiting()
        return
    if running is None:
        advance(case, event="woke")
        return
    if running.state == "stopping":
        return
    if is_past_deadline(delegation, case.now):
        case.tell(delegation, "deadline", outcome=f"stops {running.attempt}")
        stop_running(case, Reason.TIMEOUT, "the caller's own deadline has passed")
        return
    if event.watch is not None and event.attempt == running.attempt:
        _look(case, running, event.watch)


def _look(case: Case, attempt: Attempt, watch: Watch) -> None:
    """See whether a limit of the running attempt is over; else order the next look."""
    delegation, now = case.delegation, case.now
    backend = find_backend(case.policy, attempt.backend)
    if backend is None:
        return
    limits = limits_of(case, delegation, backend)
    next_at = inf
    if attempt.trial and backend.plain_output and not attempt.proven:
        next_at = _look_at_trial(case, attempt)
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
            stop(case, attempt.failure)
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
        stop(case, _limit_failure(case, attempt, backend, found))
        return
    # Output that comes from now on, or the end of a tool, begins the shorter limit of silence.
    _look_at(case, min(found, next_at, now + limits.stall_s))


def _look_at_trial(case: Case, attempt: Attempt) -> float:
    """
    Return when a trial without output of its provider has to be looked at: it then has passed.
    """
    grace_at = attempt.started_at + case.policy.defaults.trial_grace_s
    if case.now < grace_at:
        return grace_at
    if attempt.patience_until_at is None:
        _prove(case, attempt)
        case.update_attempt(proven=True)
    return inf


def _limit_failure(case: Case, attempt: Attempt, backend: Backend, passed: Passed) -> Failure:
    if passed.detail == "first_output" and backend.greets and continues(attempt):
        return not_resumed(passed.evidence, now=case.now)  # some hang on what they cannot read
    return make_failure(
        passed.reason,
        now=case.now,
        detail=passed.detail,
        confidence="structured",
        signature=f"fallbackd/{passed.detail}",
        evidence=passed.evidence,
    )
