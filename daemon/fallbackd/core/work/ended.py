"""Ends of attempts: the mark, a retry, the next candidate, or the answer."""

from typing import Literal

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.events import AttemptEnded
from fallbackd.core.failures import DAEMON_LOST_DETAIL, Failure
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, AttemptState, DelegationState, Session, Waiting
from fallbackd.core.scopes import find_backend
from fallbackd.core.watch import MAX_OUTSIDE, worse
from fallbackd.core.work.apply import advance, apply, give_up, withdraw_marks
from fallbackd.core.work.ask import about_part, done_by
from fallbackd.core.work.offline import own_trouble
from fallbackd.core.work.plan import plan
from fallbackd.core.work.resolution import (
    counted,
    entry_of,
    first_throttle,
    futile,
    is_form_error_twice,
    tell_return,
)
from fallbackd.core.work.retries import (
    backoff_s,
    budget_of,
    has_alternative,
    is_past_deadline,
    is_worth_waiting,
    may_retry,
    shown,
    stated_until,
)
from fallbackd.core.work.running import running_attempt
from fallbackd.core.work.sessions import (
    charged,
    may_try_otherwise,
    own_failure,
    remember,
    resume_at,
)
from fallbackd.core.work.steps import BY_CALLER, End, Step, Wait, deadline_passed, ended
from fallbackd.core.work.stopping import stop_below


def attempt_ended(case: Case, event: AttemptEnded) -> None:
    attempt = running_attempt(case, event.attempt)
    if attempt is None:
        return
    backend = find_backend(case.policy, attempt.backend)
    failure = _failure_of(case, attempt, event, backend)
    attempt = _record(case, attempt, event, failure)
    if backend is not None and (failure is None or event.answered):
        case.succeed(
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
        )
    case.wake_waiting()  # a place on the host is free
    stop_below(case)
    if failure is None:
        _succeeded(case, attempt, event)
    elif not event.gone:
        failure = give_up(case, failure, backend, luck=event.luck)
        _unproven_end(case, failure)
    elif case.delegation.cancelling:
        # What it had shown before it was stopped is known of its backend all the same.
        failure = give_up(case, failure, backend, luck=event.luck)
        message = case.delegation.message or BY_CALLER
        _end(case, ended("cancelled", message, failure=failure))
    elif is_past_deadline(case.delegation, case.now):
        give_up(case, failure, backend, luck=event.luck)
        _end(case, deadline_passed(now=case.now))
    else:
        _failed(case, failure, backend, luck=event.luck)


def _end(case: Case, step: Step) -> None:
    apply(case, step, event="attempt failed")


def _failure_of(
    case: Case, attempt: Attempt, event: AttemptEnded, backend: Backend | None
) -> Failure | None:
    """Return the failure of the attempt: the cause of a stop comes before what it says itself."""
    failure, ending = event.failure, attempt.ending
    # Silence while no daemon was there is no limit that a backend has passed.
    if failure is not None and ending is not None and not _is_lost(failure):
        failure = ending
    if case.delegation.cancelling:
        failure = failure or ending
    if failure is None:
        return None
    failure = own_trouble(case, backend, failure, has_route=event.has_route) or failure
    return own_failure(case, attempt, failure)


def _record(case: Case, attempt: Attempt, event: AttemptEnded, failure: Failure | None) -> Attempt:
    """Keep how it ended, in its delegation, its session, the meters and the journal."""
    state: AttemptState = "succeeded" if failure is None else "failed"
    if failure is not None and failure.reason is Reason.CANCELLED:
        state = "cancelled"
    answered_at = attempt.answered_at
    if answered_at is None and event.answered:
        answered_at = case.now
    effects, outside, unfinished = event.effects, event.outside, event.unfinished
    resumed = case.delegation.attempt(attempt.resumes) if attempt.resumes else None
    if resumed is not None:
        effects = worse(effects, resumed.effects)  # they belong to the conversation
        outside = tuple(dict.fromkeys((*resumed.outside, *outside)))
        unfinished = tuple(dict.fromkeys((*resumed.unfinished, *unfinished)))
    one = case.delegation
    attempt = structs.replace(
        attempt,
        state=state,
        ended_at=case.now,
        exit_code=event.exit_code,
        effects=effects,
        changed_files=event.changed_files[:50],
        outside=outside[:MAX_OUTSIDE],
        unfinished=unfinished[:MAX_OUTSIDE],
        failure=failure,
        ending=None,
        answered_at=answered_at,
        gone=event.gone,
    )
    case.update(
        attempts=(*one.attempts[:-1], attempt),
        usage=one.usage + event.usage,
        last_activity_at=case.now,
        warnings=(*one.warnings, *event.warnings),
    )
    case.keep_session(charged(case, case.session, attempt.backend, event.usage))
    case.meters.count_end(
        attempt.backend,
        state,
        reason=None if failure is None else failure.reason.value,
        started_at=attempt.started_at,
    )
    case.note(
        "attempt.ended",
        case.delegation,
        backend=attempt.backend,
        attempt=attempt.attempt,
        state=state,
        exit_code=event.exit_code,
        reason=None if failure is None else failure.reason.value,
        detail=None if failure is None else failure.detail,
    )
    return attempt


def _unproven_end(case: Case, failure: Failure) -> None:
    """Two agents in one tree are worse than no answer: without the proof nothing follows."""
    attempt = case.delegation.attempts[-1]
    message = (
        f"the attempt on {attempt.backend} could not be stopped: look for its processes "
        f"(pid {attempt.pid}) before you go on"
    )
    state: DelegationState = "cancelled" if case.delegation.cancelling else "failed"
    _end(case, ended(state, message, failure=failure))


def _succeeded(case: Case, attempt: Attempt, event: AttemptEnded) -> None:
    case.release(attempt)
    one, session = case.delegation, case.session
    if attempt.gone is False:
        # Nothing is started in its place, so the answer counts; the caller is warned.
        left = f"processes of {attempt.backend} (pid {attempt.pid}) may still run"
        case.update(warnings=(*one.warnings, left))
    tell_return(case, attempt)
    returned = attempt.backend == session.original
    case.keep_session(counted(case, attempt))
    remember(case, attempt, event.usage)
    case.move(
        current=attempt.backend,
        current_model=attempt.model,
        answered_by=attempt.backend,
        answered_model=attempt.model,
        depth=0 if returned else session.depth,
        notices_sent=() if returned else _still_away(session, attempt.backend),
    )
    estimate_s = one.metadata.get("estimate_s")
    if isinstance(estimate_s, int | float) and not isinstance(estimate_s, bool) and estimate_s > 0:
        case.meters.count_time(
            attempt.backend, actual_s=case.now - attempt.started_at, estimate_s=float(estimate_s)
        )
    case.update(active=attempt.backend)
    apply(case, ended("succeeded"), event="attempt ended")


def _still_away(session: Session, answered_by: str) -> tuple[str, ...]:
    """The marks of notices without those of falls from the backend that is back."""
    return tuple(pair for pair in session.notices_sent if pair.rpartition(">")[0] != answered_by)


def _failed(case: Case, failure: Failure, backend: Backend | None, *, luck: float) -> None:
    """The mark, a retry, the next candidate, or the end."""
    attempt = case.delegation.attempts[-1]
    cause = futile(case.turn)
    if cause == "task":
        case.release(attempt)
        _end(case, ended("failed", _of_the_task(attempt, failure), failure=failure))
        return
    if cause == "poison":
        _poisoned(case, attempt, failure)
        return
    again_at = _retry_at(case, attempt, failure, backend, luck=luck)
    if again_at is not None:
        _end(case, _wait_to_retry(case, attempt, failure, again_at))
        return
    again_at = resume_at(case, attempt, failure, backend, luck=luck)
    if again_at is not None:
        _end(case, _wait_to_retry(case, attempt, failure, again_at, resumes=True))
        return
    failure = give_up(case, failure, backend, luck=luck)
    step = _without_another(case, attempt, failure)
    if step is not None:
        _end(case, step)
    else:
        advance(case, event="attempt failed")


def _of_the_task(attempt: Attempt, failure: Failure) -> str:
    if failure.reason is Reason.CANCELLED:
        return f"{attempt.backend} says that it was interrupted, and not by us"
    if failure.reason is Reason.APPROVAL_REQUIRED:
        return f"{attempt.backend} asked for an approval that cannot be given here"
    return "the agent ended with an error of the task itself"


def _poisoned(case: Case, attempt: Attempt, failure: Failure) -> None:
    withdraw_marks(case)
    case.release(attempt)
    case.tell(
        case.delegation,
        "poison work",
        outcome="two backends ended alike: the task is the likely cause; no backend is marked",
        evidence=failure.evidence,
    )
    message = f"two backends ended with {failure.reason.value}: the task is the likely cause"
    _end(case, ended("failed", message, failure=failure))


def _without_another(case: Case, attempt: Attempt, failure: Failure) -> Step | None:
    """The end, or the question, that keeps another candidate from being tried."""
    if failure.reason.row.about == "unclear" and not failure.hop:
        # Trouble of this machine: no place for the attempt, or none for its answer.
        return ended("failed", failure.evidence, failure=failure)
    if is_form_error_twice(case.turn):
        return ended("failed", "two providers reject the form of the request", failure=failure)
    match _after(case, attempt):
        case "continue":
            return None
        case "ask":
            return about_part(case, case.delegation.attempts[-1])
        case "fail":
            message = f"{attempt.backend} {done_by(attempt)} (on_partial)"
            return ended("failed", message, failure=failure)


def _after(case: Case, attempt: Attempt) -> Literal["continue", "ask", "fail"]:
    """
    Return what follows an attempt that has begun to work.

    What it has sent, published or committed would be done twice by the next one, and no look into
    the directory shows it: then a person chooses who continues, where there is a choice.
    """
    one = case.delegation
    if attempt.effects == "none":
        return "continue"
    if attempt.effects != "external" or one.on_partial != "continue" or one.replay != "ask":
        return one.on_partial
    return "continue" if isinstance(plan(case), End) else "ask"


def _retry_at(
    case: Case, attempt: Attempt, failure: Failure, backend: Backend | None, *, luck: float
) -> float | None:
    """Return when the daemon tries the same candidate again; None: it is given up."""
    one = case.delegation
    if backend is None or not _is_repeatable(attempt, failure):
        return None
    if len(one.counted) >= one.turn.budget:
        return None
    stated_at = stated_until(failure, now=case.now)
    if stated_at is not None and not is_worth_waiting(case, until_at=stated_at):
        return None
    if may_try_otherwise(attempt, failure):
        return case.now
    if failure.reason is Reason.RATE_LIMIT:
        at = case.now if _is_first_throttle(case, attempt, failure, backend) else stated_at
    else:
        at = _backed_off(case, attempt, failure, backend, stated_at, luck=luck)
    if at is None or is_past_deadline(one, at):
        return None
    if may_retry(case):
        return at
    why = "no retry: the budget of this host for further attempts is used up"
    case.tell(one, "attempt failed", outcome=why, retry_budget=shown(budget_of(case)))
    return None


def _is_repeatable(attempt: Attempt, failure: Failure) -> bool:
    """Return whether nothing was done that a second attempt would do twice, and it was no trial."""
    return attempt.effects == "none" and (not attempt.trial or _is_lost(failure))


def _is_first_throttle(case: Case, attempt: Attempt, failure: Failure, backend: Backend) -> bool:
    """Return whether it marks nothing yet. The second may come late: after a restart, or slowly."""
    before = case.delegation.attempt(attempt.retry_of) if attempt.retry_of else None
    known = None if before is None else before.failure
    if known is not None and known.reason is Reason.RATE_LIMIT:
        return False
    return first_throttle(
        case,
        backend,
        failure,
        model=attempt.model,
        credential=attempt.credential,
        started_at=attempt.started_at,
    )


def _backed_off(
    case: Case,
    attempt: Attempt,
    failure: Failure,
    backend: Backend,
    stated_at: float | None,
    *,
    luck: float,
) -> float | None:
    """
    Return when a failure that may pass is followed by a retry; None: as many were made as may be.
    """
    if not failure.retry_same:
        return None
    here = [
        one
        for one in case.delegation.attempts
        if (one.backend, one.model) == (attempt.backend, attempt.model)
    ]
    # What ended with a daemon was our end, not that of the backend: it uses up no retry.
    used = sum(not _is_lost(one.failure) for one in here)
    if not _is_lost(failure) and used > _retries(case, failure, backend):
        return None
    at = case.now + backoff_s(case, backend, len(here), luck=luck)
    if stated_at is not None:
        return max(at, stated_at)
    patience_at = attempt.patience_until_at
    if patience_at is not None and at >= patience_at and has_alternative(case):
        return None  # the program's own retries have used it up
    return at


def _retries(case: Case, failure: Failure, backend: Backend) -> int:
    """Return how often a failure is followed by a retry: as the backend says, else its reason."""
    if backend.retries is not None:
        return backend.retries
    policy = case.policy.reason(failure.reason, backend.id)
    return 0 if policy is None else policy.retries


def _is_lost(failure: Failure | None) -> bool:
    return failure is not None and failure.detail == DAEMON_LOST_DETAIL


def _wait_to_retry(
    case: Case, attempt: Attempt, failure: Failure, at: float, *, resumes: bool = False
) -> Wait:
    backend = find_backend(case.policy, attempt.backend)
    entry = Entry(backend=attempt.backend, model=attempt.model)
    if backend is not None:
        entry = entry_of(case.delegation.turn.candidates, attempt, backend)
    waiting = Waiting(
        since_at=case.now,
        until_at=at,
        limit_at=at,
        retry=entry,
        retry_of=attempt.attempt,
        resumes=resumes,
        credential=attempt.credential,
        is_stated=failure.wait_s is not None,
    )
    return Wait(
        waiting=waiting,
        outcome=f"waits for {attempt.backend}, then "
        + ("resumes its conversation" if resumes else "tries it again"),
        evidence=failure.evidence,
        numbers={
            "signature": failure.signature,
            "until_at": at,
            "wait_threshold_s": case.policy.wait_threshold_s(case.delegation.mode),
        },
    )
