"""How an attempt ends: its mark, a retry, the next candidate, or the answer."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.effects import WakeAt
from fallbackd.core.events import AttemptEnded
from fallbackd.core.failures import DAEMON_LOST_DETAIL, Failure, Reason
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.records import Attempt, Delegation, Session, Waiting
from fallbackd.core.watch import worse
from fallbackd.core.work.ask import ask_about_part
from fallbackd.core.work.ends import end, end_by_deadline, withdrawn
from fallbackd.core.work.offline import own_trouble
from fallbackd.core.work.recovery import counted, tell_return
from fallbackd.core.work.resolution import (
    entry_of,
    failover_of,
    is_form_error_twice,
    is_poison,
)
from fallbackd.core.work.resumption import own_failure, resume_at
from fallbackd.core.work.retry_budget import backoff_s, may_retry, shown
from fallbackd.core.work.rotation import first_throttle
from fallbackd.core.work.running import current_of
from fallbackd.core.work.sessions import charged
from fallbackd.core.work.stopping import stop_below
from fallbackd.core.work.waits import give_up, has_alternative, is_worth_waiting, stated_until
from fallbackd.core.work.walk import BY_CALLER, walk


def attempt_ended(case: Case, event: AttemptEnded) -> None:
    current = current_of(case, event.attempt)
    if current is None:
        return
    now, attempt = case.now, current.attempt
    session = current.session
    ending = attempt.ending
    failure = event.failure
    # Silence while no daemon was there is no limit that a backend has passed.
    is_lost = failure is not None and failure.detail == DAEMON_LOST_DETAIL
    if failure is not None and ending is not None and not is_lost:
        failure = ending
    if current.delegation.cancelling:
        failure = failure or ending
    state = "succeeded" if failure is None else "failed"
    if failure is not None and failure.reason is Reason.CANCELLED:
        state = "cancelled"
    answered_at = attempt.answered_at
    if answered_at is None and event.answered:
        answered_at = now
    backend = find_backend(case.policy, attempt.backend)
    effects = event.effects
    resumed = current.delegation.attempt(attempt.resumes) if attempt.resumes else None
    if resumed is not None:
        effects = worse(effects, resumed.effects)  # they belong to the conversation
    if failure is not None:
        failure = own_trouble(case, backend, failure, has_route=event.has_route) or failure
        failure = own_failure(case, current.delegation, attempt, failure)
    delegation = current.updated(
        state=state,
        ended_at=now,
        exit_code=event.exit_code,
        effects=effects,
        changed_files=event.changed_files[:50],
        failure=failure,
        ending=None,
        answered_at=answered_at,
        gone=event.gone,
    )
    delegation = structs.replace(
        delegation,
        usage=delegation.usage + event.usage,
        last_activity_at=now,
        warnings=(*delegation.warnings, *event.warnings),
    )
    attempt = delegation.attempts[-1]
    session = charged(case, session, attempt.backend, event.usage) or session
    if session != current.session:
        case.keep_session(session)
    case.count_end(attempt.backend, state)
    case.note(
        "attempt.ended",
        delegation,
        backend=attempt.backend,
        attempt=attempt.attempt,
        state=state,
        exit_code=event.exit_code,
        reason=None if failure is None else failure.reason.value,
        detail=None if failure is None else failure.detail,
    )
    if backend is not None and (failure is None or event.answered):
        case.succeed(
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
        )
    case.keep_delegation(delegation)
    case.wake_waiting()  # a place on the host is free
    stop_below(case, delegation)
    if failure is None:
        _succeeded(case, delegation, session, attempt)
        return
    if not event.gone:
        delegation = give_up(case, delegation, attempt, failure, backend, luck=event.luck)
        _unproven_end(case, delegation, session, delegation.attempts[-1])
        return
    is_late = delegation.deadline_at is not None and now >= delegation.deadline_at
    if delegation.cancelling or is_late:
        # What it had shown before it was stopped is known of its backend all the same.
        delegation = give_up(case, delegation, attempt, failure, backend, luck=event.luck)
        failure = delegation.attempts[-1].failure or failure
    if delegation.cancelling:
        end(
            case,
            delegation,
            session,
            state="cancelled",
            message=delegation.message or BY_CALLER,
            failure=failure,
        )
        return
    if is_late:
        end_by_deadline(case, delegation, session)
        return
    _failed(case, delegation, session, attempt, failure, backend, luck=event.luck)


def _unproven_end(case: Case, delegation: Delegation, session: Session, attempt: Attempt) -> None:
    """Two agents in one tree are worse than no answer: without the proof nothing follows."""
    case.release(attempt)
    end(
        case,
        delegation,
        session,
        state="cancelled" if delegation.cancelling else "failed",
        failure=attempt.failure,
        message=f"the attempt on {attempt.backend} could not be stopped: look for its processes "
        f"(pid {attempt.pid}) before you go on",
    )


def _succeeded(case: Case, delegation: Delegation, session: Session, attempt: Attempt) -> None:
    case.release(attempt)
    if attempt.gone is False:
        # Nothing is started in its place, so the answer counts; but somebody has to know.
        left = f"processes of {attempt.backend} (pid {attempt.pid}) may still run"
        delegation = structs.replace(delegation, warnings=(*delegation.warnings, left))
    tell_return(case, delegation, session, attempt)
    returned = attempt.backend == session.original
    session = structs.replace(
        counted(case, delegation, session, attempt),
        current=attempt.backend,
        current_model=attempt.model,
        answered_by=attempt.backend,
        answered_model=attempt.model,
        depth=0 if returned else session.depth,
        notices_sent=() if returned else _still_away(session, attempt.backend),
    )
    estimate_s = delegation.metadata.get("estimate_s")
    if isinstance(estimate_s, int | float) and not isinstance(estimate_s, bool) and estimate_s > 0:
        case.count_time(
            attempt.backend, actual_s=case.now - attempt.started_at, estimate_s=float(estimate_s)
        )
    delegation = structs.replace(delegation, active=attempt.backend)
    end(case, delegation, session, state="succeeded")


def _still_away(session: Session, answered_by: str) -> tuple[str, ...]:
    """The marks of notices without those of falls from the backend that is back."""
    return tuple(pair for pair in session.notices_sent if pair.rpartition(">")[0] != answered_by)


def _failed(
    case: Case,
    delegation: Delegation,
    session: Session,
    attempt: Attempt,
    failure: Failure,
    backend: Backend | None,
    *,
    luck: float,
) -> None:
    if failure.reason.row.about == "task":
        case.release(attempt)
        why = "the agent ended with an error of the task itself"
        if failure.reason is Reason.CANCELLED:
            why = f"{attempt.backend} says that it was interrupted, and not by us"
        if failure.reason is Reason.APPROVAL_REQUIRED:
            why = f"{attempt.backend} asked for an approval that nobody can give here"
        end(case, delegation, session, state="failed", failure=failure, message=why)
        return
    if is_poison(failover_of(delegation)):
        delegation = withdrawn(case, delegation)
        case.release(attempt)
        case.tell(
            delegation,
            "poison work",
            outcome="two backends ended alike: the task is the likely cause, nobody is marked",
            evidence=failure.evidence,
        )
        end(
            case,
            delegation,
            session,
            state="failed",
            failure=failure,
            message=f"two backends ended with {failure.reason.value}: the task is the likely cause",
        )
        return
    again = _retry_at(case, delegation, attempt, failure, backend, luck=luck)
    if again is not None:
        _wait_to_retry(case, delegation, attempt, failure, again)
        return
    again = resume_at(case, delegation, attempt, failure, backend, luck=luck)
    if again is not None:
        _wait_to_retry(case, delegation, attempt, failure, again, resumes=True)
        return
    delegation = give_up(case, delegation, attempt, failure, backend, luck=luck)
    failure = delegation.attempts[-1].failure or failure  # with the scope that was marked
    if failure.reason.row.about == "unclear" and not failure.hop:
        # Trouble of this machine: no place for the attempt, or none for its answer.
        end(case, delegation, session, state="failed", failure=failure, message=failure.evidence)
        return
    if is_form_error_twice(failover_of(delegation)):
        end(
            case,
            delegation,
            session,
            state="failed",
            failure=failure,
            message="two providers reject the form of the request",
        )
        return
    if attempt.effects != "none" and delegation.on_partial == "ask":
        ask_about_part(case, delegation, session, attempt)
        return
    if attempt.effects != "none" and delegation.on_partial != "continue":
        end(
            case,
            delegation,
            session,
            state="failed",
            failure=failure,
            message=f"{attempt.backend} had begun to change files (on_partial)",
        )
        return
    walk(case, delegation, session, event="attempt failed")


def _retry_at(
    case: Case,
    delegation: Delegation,
    attempt: Attempt,
    failure: Failure,
    backend: Backend | None,
    *,
    luck: float,
) -> float | None:
    """When the same candidate is tried again by ourselves; None: it is given up."""
    is_lost = failure.detail == DAEMON_LOST_DETAIL
    if attempt.effects != "none" or (attempt.trial and not is_lost) or backend is None:
        return None
    if len(delegation.attempts) >= delegation.budget:
        return None
    now = case.now
    stated_at = stated_until(failure, now=now)
    if stated_at is not None and not is_worth_waiting(case, delegation, until_at=stated_at):
        return None
    if failure.reason is Reason.RATE_LIMIT and first_throttle(
        case,
        backend,
        failure,
        model=attempt.model,
        credential=attempt.credential,
        started_at=attempt.started_at,
    ):
        at = now
    elif failure.reason is Reason.RATE_LIMIT:
        if stated_at is None:
            return None
        at = stated_at
    else:
        if not failure.retry_same:
            return None
        policy = case.policy.reason(failure.reason, attempt.backend)
        allowed = 0 if policy is None else policy.retries
        if backend.retries is not None:
            allowed = backend.retries
        here = [
            one.failure
            for one in delegation.attempts
            if (one.backend, one.model) == (attempt.backend, attempt.model)
        ]
        made = len(here)
        # What ended with a daemon was our end, not that of the backend: it uses up no retry.
        lost = [one for one in here if one is not None and one.detail == DAEMON_LOST_DETAIL]
        if not is_lost and made - len(lost) > allowed:
            return None
        at = now + backoff_s(case, backend, made, luck=luck)
        patience_at = attempt.patience_until_at
        if stated_at is not None:
            at = max(at, stated_at)
        elif patience_at is not None and at >= patience_at and has_alternative(case, delegation):
            return None  # the program's own retries have used it up
    if delegation.deadline_at is not None and at >= delegation.deadline_at:
        return None
    if may_retry(case):
        return at
    why = "no retry: the budget of this host for further attempts is used up"
    case.tell(delegation, "attempt failed", outcome=why, retry_budget=shown(case))
    return None


def _wait_to_retry(
    case: Case,
    delegation: Delegation,
    attempt: Attempt,
    failure: Failure,
    at: float,
    *,
    resumes: bool = False,
) -> None:
    stated = failure.wait_s is not None
    backend = find_backend(case.policy, attempt.backend)
    entry = Entry(backend=attempt.backend, model=attempt.model)
    if backend is not None:
        entry = entry_of(delegation.candidates, attempt, backend)
    case.tell(
        delegation,
        "attempt failed",
        outcome=f"waits for {attempt.backend}, then "
        + ("resumes its conversation" if resumes else "tries it again"),
        evidence=failure.evidence,
        signature=failure.signature,
        until_at=at,
        wait_threshold_s=case.policy.wait_threshold_s(delegation.mode),
    )
    case.keep_delegation(
        structs.replace(
            delegation,
            state="waiting",
            waiting=Waiting(
                since_at=case.now,
                until_at=at,
                limit_at=at,
                retry=entry,
                retry_of=attempt.attempt,
                resumes=resumes,
                credential=attempt.credential,
                is_stated=stated,
            ),
        )
    )
    case.effects.append(WakeAt(at=at, delegation=delegation.delegation, purpose="wait"))
