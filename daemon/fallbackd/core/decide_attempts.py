"""What an attempt shows, how it ends, and what follows from that."""

from msgspec import structs

from fallbackd.core.chain import candidate_key
from fallbackd.core.decide_admit import session_of, stopping
from fallbackd.core.draft import Draft
from fallbackd.core.effects import StopAttempt, WakeAt
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptEnded,
    AttemptGaveUp,
    AttemptRetrying,
    AttemptStarted,
    Woke,
)
from fallbackd.core.exchange import Usage
from fallbackd.core.failures import LOW_CONFIDENCE, Failure, Reason, make_failure
from fallbackd.core.ids import AttemptId
from fallbackd.core.meter import add_cost
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.scopes import find_backend, model_of
from fallbackd.core.state import Attempt, Delegation, Session, Waiting
from fallbackd.core.walk import end, end_by_deadline, request_of, walk
from fallbackd.core.watch import Limits, Passed, Watch, expiry

AGENT_STALL_S = 450.0
HTTP_STALL_S = 180.0
LOOPBACK_STALL_S = 900.0


def limits_of(draft: Draft, delegation: Delegation, backend: Backend) -> Limits:
    """The limits of one attempt, in seconds: the backend's own before the defaults."""
    defaults = draft.policy.defaults
    first_answer_s = backend.first_answer_s or defaults.first_answer_s
    if first_answer_s is None:
        first_answer_s = 120.0 if delegation.mode == "interactive" else 300.0
    stall_s = backend.stall_s or defaults.stall_s
    if stall_s is None:
        stall_s = AGENT_STALL_S
        if backend.kind.endswith("-http") or backend.kind == "hermes-api":
            stall_s = LOOPBACK_STALL_S if backend.loopback else HTTP_STALL_S
    return Limits(
        first_output_s=defaults.first_output_s or first_answer_s,
        first_answer_s=first_answer_s,
        stall_s=stall_s,
        busy_stall_s=backend.busy_stall_s or defaults.busy_stall_s,
        loop_steps=defaults.loop_steps,
        shows_answer=not backend.plain_output,
    )


class _Current:
    """The running attempt that an event names, with its delegation, session and backend."""

    def __init__(self, delegation: Delegation, attempt: Attempt, session: Session) -> None:
        self.delegation = delegation
        self.attempt = attempt
        self.session = session

    def updated(self, **fields: object) -> Delegation:
        """The delegation with the attempt changed."""
        after = structs.replace(self.attempt, **fields)
        return structs.replace(self.delegation, attempts=(*self.delegation.attempts[:-1], after))


def _current(draft: Draft, attempt: AttemptId) -> _Current | None:
    """None: the event is late, about an attempt that is over. `AttemptId` is the fence."""
    delegation = draft.snapshot.delegation
    if delegation is None:
        return None
    running = delegation.running
    if running is None or running.attempt != attempt:
        return None
    return _Current(delegation, running, session_of(draft, delegation))


def attempt_started(draft: Draft, event: AttemptStarted) -> None:
    current = _current(draft, event.attempt)
    if current is None or current.attempt.state == "running":
        return
    attempt = current.attempt
    if attempt.state == "stopping":
        draft.put_delegation(current.updated(pid=event.pid))
        return
    draft.put_delegation(current.updated(state="running", pid=event.pid))
    draft.note(
        "attempt.started",
        current.delegation,
        backend=attempt.backend,
        attempt=attempt.attempt,
        model=attempt.model,
        trial=attempt.trial,
        log_path=attempt.log_path,
    )
    backend = find_backend(draft.policy, attempt.backend)
    if backend is None:
        return
    limits = limits_of(draft, current.delegation, backend)
    # Silence after the first output may be over before the limits of the first output are.
    at = attempt.started_at + min(limits.first_output_s, limits.first_answer_s, limits.stall_s)
    if attempt.trial and backend.plain_output:
        at = min(at, attempt.started_at + draft.policy.defaults.trial_grace_s)
    if attempt.patience_until_at is not None:
        at = min(at, attempt.patience_until_at)
    draft.effects.append(_look_at(current, at))


def _look_at(current: _Current, at: float) -> WakeAt:
    return WakeAt(
        at=at,
        delegation=current.delegation.delegation,
        attempt=current.attempt.attempt,
        purpose="limits",
    )


def attempt_answered(draft: Draft, event: AttemptAnswered) -> None:
    current = _current(draft, event.attempt)
    if current is None:
        return
    attempt = current.attempt
    first_at = attempt.answered_at or draft.now
    draft.put_delegation(
        current.updated(answered_at=first_at, patience_until_at=None, failure=None)
    )
    backend = find_backend(draft.policy, attempt.backend)
    if backend is not None:
        draft.succeed(
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
        )


def attempt_retrying(draft: Draft, event: AttemptRetrying) -> None:
    """Patience with a program's own retries, counted from its first one."""
    current = _current(draft, event.attempt)
    if current is None or current.attempt.state == "stopping":
        return
    patience_s = draft.policy.patience_s(current.delegation.mode)
    until_at = current.attempt.patience_until_at or draft.now + patience_s
    waits_until_at = draft.now
    if event.wait_s is not None:
        waits_until_at = max(waits_until_at, draft.now + event.wait_s)
    if event.failure.wait_until_at is not None:
        waits_until_at = max(waits_until_at, event.failure.wait_until_at)
    hopeless = not event.failure.retryable
    if hopeless or waits_until_at > until_at or draft.now >= until_at:
        draft.tell(
            current.delegation,
            "attempt retrying",
            outcome=f"stops {current.attempt.attempt}: "
            + ("a retry cannot help" if hopeless else "it will wait longer than patience lasts"),
            evidence=event.failure.evidence,
            patience_s=patience_s,
            signature=event.failure.signature,
        )
        _stop(draft, current, event.failure, patience_until_at=until_at)
        return
    draft.put_delegation(current.updated(patience_until_at=until_at, failure=event.failure))
    draft.effects.append(_look_at(current, until_at))


def attempt_gave_up(draft: Draft, event: AttemptGaveUp) -> None:
    current = _current(draft, event.attempt)
    if current is None or current.attempt.state == "stopping":
        return
    _stop(draft, current, event.failure)


def _stop(draft: Draft, current: _Current, ending: Failure, **fields: object) -> None:
    draft.put_delegation(current.updated(state="stopping", ending=ending, **fields))
    draft.effects.append(
        StopAttempt(attempt=current.attempt.attempt, grace_s=draft.policy.defaults.stop_grace_s)
    )


def woke(draft: Draft, event: Woke) -> None:
    delegation = draft.snapshot.delegation
    if delegation is None or delegation.is_ended:
        return
    running = delegation.running
    session = session_of(draft, delegation)
    if running is None:
        walk(draft, delegation, session, event="woke")
        return
    deadline_at = delegation.deadline_at
    if running.state == "stopping":
        return
    if deadline_at is not None and draft.now >= deadline_at:
        draft.tell(delegation, "deadline", outcome=f"stops {running.attempt}")
        draft.put_delegation(
            stopping(draft, delegation, Reason.TIMEOUT, "the caller's own deadline is over")
        )
        return
    if event.watch is not None and event.attempt == running.attempt:
        _look(draft, _Current(delegation, running, session), event.watch)


def _look(draft: Draft, current: _Current, watch: Watch) -> None:
    """See whether a limit of the running attempt is over; else order the next look."""
    attempt, delegation, now = current.attempt, current.delegation, draft.now
    backend = find_backend(draft.policy, attempt.backend)
    if backend is None:
        return
    next_at = float("inf")
    if attempt.trial and backend.plain_output and not attempt.proven:
        grace_at = attempt.started_at + draft.policy.defaults.trial_grace_s
        if now >= grace_at and attempt.patience_until_at is None:
            draft.succeed(
                backend,
                model=attempt.model,
                credential=attempt.credential,
                started_at=attempt.started_at,
            )
            current = _Current(current.updated(proven=True), attempt, current.session)
            current.attempt = current.delegation.attempts[-1]
            draft.put_delegation(current.delegation)
        elif now < grace_at:
            next_at = grace_at
    if attempt.patience_until_at is not None and attempt.answered_at is None:
        if now < attempt.patience_until_at:
            next_at = min(next_at, attempt.patience_until_at)
        elif attempt.failure is not None or _has_alternative(draft, delegation, current.session):
            ending = attempt.failure or _inherited(delegation) or _patience_over(draft)
            draft.tell(
                delegation,
                "patience over",
                outcome=f"stops {attempt.attempt}",
                evidence=ending.evidence,
                patience_s=draft.policy.patience_s(delegation.mode),
            )
            _stop(draft, current, ending)
            return
    elif attempt.patience_until_at is not None:
        if now < attempt.patience_until_at:
            next_at = min(next_at, attempt.patience_until_at)
        elif attempt.failure is not None:
            _stop(draft, current, attempt.failure)
            return
    found = expiry(watch, limits_of(draft, delegation, backend), now=now)
    if isinstance(found, Passed):
        draft.tell(
            delegation,
            "limit passed",
            outcome=f"stops {attempt.attempt}",
            evidence=found.evidence,
        )
        _stop(draft, current, _limit_failure(draft, found))
        return
    draft.effects.append(_look_at(current, min(found, next_at)))


def _limit_failure(draft: Draft, passed: Passed) -> Failure:
    return make_failure(
        passed.reason,
        now=draft.now,
        detail=passed.detail,
        confidence="structured",
        signature=f"fallbackd/{passed.detail}",
        evidence=passed.evidence,
    )


def _inherited(delegation: Delegation) -> Failure | None:
    return delegation.attempts[-2].failure if len(delegation.attempts) > 1 else None


def _patience_over(draft: Draft) -> Failure:
    return make_failure(
        Reason.TIMEOUT, now=draft.now, detail="patience", signature="fallbackd/patience"
    )


def _has_alternative(draft: Draft, delegation: Delegation, session: Session) -> bool:
    if not delegation.failover:
        return False
    request = request_of(draft, delegation, session)
    return draft.resolve(delegation.candidates, request).choice is not None


# --- the end of an attempt ---------------------------------------------------------------------


def attempt_ended(draft: Draft, event: AttemptEnded) -> None:
    current = _current(draft, event.attempt)
    if current is None:
        return
    now, attempt = draft.now, current.attempt
    session = current.session
    ending = attempt.ending
    failure = event.failure
    if failure is not None and ending is not None:
        failure = ending
    if current.delegation.cancelling:
        failure = failure or ending
    state = "succeeded" if failure is None else "failed"
    if failure is not None and failure.reason is Reason.CANCELLED:
        state = "cancelled"
    answered_at = attempt.answered_at
    if answered_at is None and event.answered:
        answered_at = now
    delegation = current.updated(
        state=state,
        ended_at=now,
        exit_code=event.exit_code,
        effects=event.effects,
        changed_files=event.changed_files[:50],
        failure=failure,
        ending=None,
        answered_at=answered_at,
        gone=event.gone,
    )
    delegation = structs.replace(
        delegation, usage=_added(delegation.usage, event.usage), last_activity_at=now
    )
    attempt = delegation.attempts[-1]
    draft.count_usage(attempt.backend, event.usage)
    draft.note(
        "attempt.ended",
        delegation,
        backend=attempt.backend,
        attempt=attempt.attempt,
        state=state,
        exit_code=event.exit_code,
        reason=None if failure is None else failure.reason.value,
        detail=None if failure is None else failure.detail,
    )
    backend = find_backend(draft.policy, attempt.backend)
    if backend is not None and (failure is None or event.answered):
        draft.succeed(
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
        )
    draft.put_delegation(delegation)
    draft.wake_waiting()  # a place on the host is free
    if failure is None:
        _succeeded(draft, delegation, session, attempt)
        return
    if not event.gone:
        is_over = delegation.deadline_at is not None and now >= delegation.deadline_at
        if not (delegation.cancelling or is_over):
            delegation = _give_up(draft, delegation, attempt, failure, backend, luck=event.luck)
        _unproven_end(draft, delegation, session, attempt)
        return
    if delegation.cancelling:
        draft.release(attempt)
        end(
            draft,
            delegation,
            session,
            state="cancelled",
            message="cancelled by the caller",
            failure=failure,
        )
        return
    if delegation.deadline_at is not None and now >= delegation.deadline_at:
        draft.release(attempt)
        end_by_deadline(draft, delegation, session)
        return
    _failed(draft, delegation, session, attempt, failure, backend, luck=event.luck)


def _added(left: Usage, right: Usage) -> Usage:
    return Usage(
        input_tokens=left.input_tokens + right.input_tokens,
        output_tokens=left.output_tokens + right.output_tokens,
        cost_usd=add_cost(left.cost_usd, right.cost_usd),
    )


def _unproven_end(draft: Draft, delegation: Delegation, session: Session, attempt: Attempt) -> None:
    """Two agents in one tree are worse than no answer: without the proof nothing follows."""
    draft.release(attempt)
    end(
        draft,
        delegation,
        session,
        state="cancelled" if delegation.cancelling else "failed",
        failure=attempt.failure,
        message=f"the attempt on {attempt.backend} could not be stopped: look for its processes "
        f"(pid {attempt.pid}) before you go on",
    )


def _succeeded(draft: Draft, delegation: Delegation, session: Session, attempt: Attempt) -> None:
    draft.release(attempt)
    if attempt.gone is False:
        # Nothing is started in its place, so the answer counts; but somebody has to know.
        left = f"processes of {attempt.backend} (pid {attempt.pid}) may still run"
        delegation = structs.replace(delegation, warnings=(*delegation.warnings, left))
    returned = attempt.backend == session.original
    session = structs.replace(
        session,
        current=attempt.backend,
        current_model=attempt.model,
        depth=0 if returned else session.depth,
        notices_sent=() if returned else session.notices_sent,
        usage=_periods(session, attempt, delegation.usage),
    )
    estimate_s = delegation.metadata.get("estimate_s")
    if isinstance(estimate_s, int | float) and not isinstance(estimate_s, bool) and estimate_s > 0:
        draft.count_time(
            attempt.backend, actual_s=draft.now - attempt.started_at, estimate_s=float(estimate_s)
        )
    delegation = structs.replace(
        delegation, served_by=attempt.backend, active=attempt.backend, tier_served=attempt.tier
    )
    end(draft, delegation, session, state="succeeded")


def _periods(session: Session, attempt: Attempt, usage: Usage) -> tuple[tuple[str, Usage], ...]:
    """Usage of the session by backend, in the order of first use."""
    found = dict(session.usage)
    found[attempt.backend] = _added(found.get(attempt.backend, Usage()), usage)
    return tuple(found.items())


def _failed(
    draft: Draft,
    delegation: Delegation,
    session: Session,
    attempt: Attempt,
    failure: Failure,
    backend: Backend | None,
    *,
    luck: float,
) -> None:
    if failure.reason in (Reason.TASK_FAILED, Reason.APPROVAL_REQUIRED, Reason.CANCELLED):
        draft.release(attempt)
        why = "the agent ended with an error of the task itself"
        if failure.reason is Reason.CANCELLED:
            why = f"{attempt.backend} says that it was interrupted, and not by us"
        if failure.reason is Reason.APPROVAL_REQUIRED:
            why = f"{attempt.backend} asked for an approval that nobody can give here"
        end(draft, delegation, session, state="failed", failure=failure, message=why)
        return
    if _is_poison(delegation, failure):
        for made in delegation.marks:
            draft.withdraw(made)
        draft.release(attempt)
        draft.tell(
            delegation,
            "poison work",
            outcome="two backends ended alike: the task is the likely cause, nobody is marked",
            evidence=failure.evidence,
        )
        end(
            draft,
            structs.replace(delegation, marks=()),
            session,
            state="failed",
            failure=failure,
            message=f"two backends ended with {failure.reason.value}: the task is the likely cause",
        )
        return
    again = _retry_at(draft, delegation, attempt, failure, backend, luck=luck)
    if again is not None:
        _wait_to_retry(draft, delegation, attempt, failure, again)
        return
    delegation = _give_up(draft, delegation, attempt, failure, backend, luck=luck)
    if failure.reason in LOW_CONFIDENCE and not failure.hop:
        # Trouble of this machine: no place for the attempt, or none for its answer.
        end(draft, delegation, session, state="failed", failure=failure, message=failure.evidence)
        return
    if _same_form_error_twice(delegation, failure):
        end(
            draft,
            delegation,
            session,
            state="failed",
            failure=failure,
            message="two providers reject the form of the request",
        )
        return
    if attempt.effects != "none" and delegation.on_partial != "continue":
        end(
            draft,
            delegation,
            session,
            state="failed",
            failure=failure,
            message=f"{attempt.backend} had begun to change files (on_partial)",
        )
        return
    walk(draft, delegation, session, event="attempt failed")


def _is_poison(delegation: Delegation, failure: Failure) -> bool:
    """The same low-confidence reason on two candidates of one delegation."""
    if failure.reason not in LOW_CONFIDENCE or failure.confidence == "structured":
        return False
    own = delegation.attempts[-1]
    return any(
        one.failure is not None
        and one.failure.reason is failure.reason
        and one.failure.confidence != "structured"
        and (one.backend, one.model) != (own.backend, own.model)
        for one in delegation.attempts[:-1]
    )


def _same_form_error_twice(delegation: Delegation, failure: Failure) -> bool:
    return failure.reason is Reason.FORMAT_ERROR and any(
        one.failure is not None and one.failure.reason is Reason.FORMAT_ERROR
        for one in delegation.attempts[:-1]
    )


def _give_up(
    draft: Draft,
    delegation: Delegation,
    attempt: Attempt,
    failure: Failure,
    backend: Backend | None,
    *,
    luck: float,
) -> Delegation:
    """Leave a candidate: mark it once, give its lease back, tell."""
    made = None
    if backend is not None:
        made = draft.mark(
            failure,
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
            luck=luck,
        )
    draft.release(attempt)
    policy = draft.policy.reason(failure.reason, attempt.backend)
    draft.tell(
        delegation,
        "attempt failed",
        outcome=f"leaves {attempt.backend}: {failure.reason.value}"
        + ("" if made is None else f", marks {made.scope}"),
        evidence=failure.evidence,
        signature=failure.signature,
        confidence=failure.confidence,
        window_s=None if policy is None else policy.window_s,
        wait_s=failure.wait_s,
    )
    delegation = structs.replace(
        delegation, marks=delegation.marks if made is None else (*delegation.marks, made)
    )
    draft.put_delegation(delegation)
    return delegation


def _retry_at(
    draft: Draft,
    delegation: Delegation,
    attempt: Attempt,
    failure: Failure,
    backend: Backend | None,
    *,
    luck: float,
) -> float | None:
    """When the same candidate is tried again by ourselves; None: it is given up."""
    if attempt.effects != "none" or attempt.trial or backend is None:
        return None
    if len(delegation.attempts) >= delegation.budget:
        return None
    now = draft.now
    stated_s = failure.wait_s
    threshold_s = draft.policy.wait_threshold_s(delegation.mode)
    key = candidate_key(attempt.backend, attempt.model)
    if failure.reason is Reason.RATE_LIMIT:
        if stated_s is None or stated_s > threshold_s or key in delegation.waited:
            return None
        at = now + stated_s
    else:
        if not failure.retry_same:
            return None
        policy = draft.policy.reason(failure.reason, attempt.backend)
        allowed = 0 if policy is None else policy.retries
        if backend.retries is not None:
            allowed = backend.retries
        made = sum(
            1
            for one in delegation.attempts
            if (one.backend, one.model) == (attempt.backend, attempt.model)
        )
        if made > allowed:
            return None
        at = now + backoff_s(draft, backend, made, luck=luck)
        if stated_s is not None:
            if stated_s > threshold_s:
                return None
            at = max(at, now + stated_s)
    if delegation.deadline_at is not None and at >= delegation.deadline_at:
        return None
    return at


def backoff_s(draft: Draft, backend: Backend, retry: int, *, luck: float) -> float:
    """Wait before retry `retry` (from 1): exponential, jittered upwards by half, then capped."""
    defaults = draft.policy.defaults
    base_s = defaults.backoff_base_s if backend.backoff_base_s is None else backend.backoff_base_s
    max_s = defaults.backoff_max_s if backend.backoff_max_s is None else backend.backoff_max_s
    return min(max_s, base_s * 2.0 ** min(retry - 1, 60) * (1 + luck / 2))


def _wait_to_retry(
    draft: Draft, delegation: Delegation, attempt: Attempt, failure: Failure, at: float
) -> None:
    key = candidate_key(attempt.backend, attempt.model)
    stated = failure.wait_s is not None
    backend = find_backend(draft.policy, attempt.backend)
    entry = next(
        (
            one
            for one in delegation.candidates
            if one.backend == attempt.backend
            and backend is not None
            and model_of(one, backend) == attempt.model
        ),
        Entry(backend=attempt.backend, model=attempt.model),
    )
    waited = delegation.waited
    if failure.reason is Reason.RATE_LIMIT:
        waited = (*waited, key)
    draft.tell(
        delegation,
        "attempt failed",
        outcome=f"waits for {attempt.backend}, then tries it again",
        evidence=failure.evidence,
        signature=failure.signature,
        until_at=at,
        wait_threshold_s=draft.policy.wait_threshold_s(delegation.mode),
    )
    draft.put_delegation(
        structs.replace(
            delegation,
            state="waiting",
            waiting=Waiting(
                since_at=draft.now,
                until_at=at,
                limit_at=at,
                retry=entry,
                retry_of=attempt.attempt,
                is_stated=stated,
            ),
            waited=waited,
        )
    )
    draft.effects.append(WakeAt(at=at, delegation=delegation.delegation, purpose="wait"))
