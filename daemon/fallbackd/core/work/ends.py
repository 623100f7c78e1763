"""The one answer of a delegation."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.effects import Answer
from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.questions import closed
from fallbackd.core.records import Delegation, DelegationState, HandedBack, Outcome, Session
from fallbackd.core.routing.families import UNKNOWN, family_of, family_of_model
from fallbackd.core.routing.resolve import NEVER_BY_TIME, without_choice
from fallbackd.core.views import fallback_from
from fallbackd.core.work.resolution import request_of
from fallbackd.core.work.stopping import below


def end(
    case: Case,
    delegation: Delegation,
    session: Session,
    *,
    state: DelegationState,
    failure: Failure | None = None,
    message: str | None = None,
    retry_at: float | None = None,
    handed_back: HandedBack | None = None,
) -> None:
    """Give the delegation its one answer, now or when nothing runs any more that it began."""
    outcome = Outcome(
        state=state, failure=failure, message=message, retry_at=retry_at, handed_back=handed_back
    )
    if below(case, delegation):
        hold(case, structs.replace(delegation, outcome=outcome))
        case.keep_session(session)
        return
    close(case, delegation, session, outcome)


def hold(case: Case, delegation: Delegation) -> None:
    """Go on when what was delegated from inside is gone: each of its ends brings a `Woke`."""
    case.keep_delegation(structs.replace(delegation, state="waiting"))


def close(case: Case, delegation: Delegation, session: Session, outcome: Outcome) -> None:
    """Give the delegation its one answer and its session back."""
    now = case.now
    state, message = outcome.state, outcome.message
    warnings = delegation.warnings
    if delegation.unstopped and state == "succeeded":
        warnings = (*warnings, *delegation.unstopped)
    elif delegation.unstopped:
        message = "; ".join([*((message,) if message else ()), *delegation.unstopped])
    served_by = delegation.attempts[-1] if state == "succeeded" else None
    ended = structs.replace(
        delegation,
        state=state,
        served_by=None if served_by is None else served_by.backend,
        tier_served="in_session"
        if state == "handed_back"
        else (None if served_by is None else served_by.tier),
        handed_back=outcome.handed_back,
        questions=closed(delegation.questions, now=now),
        forced=None,
        rests_until_at=None,
        failure=outcome.failure if state != "succeeded" else None,
        message=message,
        warnings=warnings,
        retry_at=outcome.retry_at,
        ended_at=now,
        waiting=None,
        phase=None,
        outcome=None,
    )
    _tell_parent(case, ended)
    case.keep_delegation(ended)
    if state in ("succeeded", "handed_back") and delegation.creative:
        session = structs.replace(session, author_family=_author(case, ended))
    if session.running == delegation.delegation:
        session = structs.replace(session, running=None, last_used_at=now)
    case.keep_session(session)
    case.note(
        "delegation.ended",
        ended,
        backend=ended.served_by or ended.active,
        state=state,
        served_by=ended.served_by,
        fallback_from=fallback_from(ended),
        reason=None if ended.failure is None else ended.failure.reason.value,
        detail=None if ended.failure is None else ended.failure.detail,
        retry_at=outcome.retry_at,
    )
    case.tell(ended, "ended", outcome=state + (f": {message}" if message else ""))
    case.effects.append(Answer(delegation=delegation.delegation))
    case.wake_waiting()


def _author(case: Case, ended: Delegation) -> str:
    """The family of whoever wrote the answer."""
    hint = ended.handed_back
    if hint is not None:
        return (hint.model and family_of_model(hint.model)) or UNKNOWN
    last = ended.attempts[-1]
    backend = find_backend(case.policy, last.backend)
    return (backend and family_of(backend, last.model)) or UNKNOWN


def _tell_parent(case: Case, ended: Delegation) -> None:
    """What is not proven gone below keeps the one above from going on in the same place."""
    parent = None if ended.parent is None else case.snapshot.active.get(ended.parent)
    last = ended.attempts[-1] if ended.attempts else None
    left = ended.unstopped
    if last is not None and last.gone is False:
        what = f"the nested attempt {last.attempt} on {last.backend} could not be stopped"
        left = (*left, f"{what}: look for its processes (pid {last.pid}) before you go on")
    if parent is not None and left:
        case.update_other(parent.delegation, unstopped=(*parent.unstopped, *left))


def end_by_deadline(case: Case, delegation: Delegation, session: Session) -> None:
    failure = make_failure(
        Reason.TIMEOUT,
        now=case.now,
        detail="deadline",
        confidence="structured",
        signature="fallbackd/deadline",
        evidence="the caller's own deadline is over",
    )
    end(
        case,
        delegation,
        session,
        state="failed",
        failure=structs.replace(failure, marks_health=False, retryable=False, hop=False),
        message="the time that the caller gave is over",
    )


def withdrawn(case: Case, delegation: Delegation) -> Delegation:
    """The delegation without the marks that it has made."""
    for made in delegation.marks:
        case.withdraw(made)
    return structs.replace(delegation, marks=())


def end_exhausted(
    case: Case, delegation: Delegation, session: Session, *, why: str, event: str
) -> None:
    """Nobody is left: `refused` with the earliest return, or `failed` where the task is why."""
    failures = [one.failure for one in delegation.attempts if one.failure is not None]
    if failures and all(one.reason is Reason.PERMISSION for one in failures):
        # Shared by all: it is about the request, its directory as a rule.
        delegation = withdrawn(case, delegation)
        why = "every backend that was tried was denied permission: check the directory of the work"
    candidates = delegation.candidates if delegation.failover else delegation.candidates[:1]
    final = case.resolve(candidates, request_of(case, delegation, session))
    final = without_choice(final, f"not used: {why}")
    delegation = structs.replace(delegation, verdicts=final.verdicts)
    last = delegation.attempts[-1].failure if delegation.attempts else None
    case.tell(delegation, event, outcome=why, verdicts=final.verdicts)
    if failures and all(one.reason.row.about == "request" for one in failures):
        end(
            case,
            delegation,
            session,
            state="failed",
            failure=last,
            message=f"every backend that was tried rejects the task itself; {why}",
        )
        return
    end(
        case,
        delegation,
        session,
        state="refused",
        failure=last,
        message=why,
        retry_at=earliest_return(case, delegation),
    )


def earliest_return(case: Case, delegation: Delegation) -> float | None:
    """When the first of the candidates is usable again, where a time is known."""
    known = [
        one.until_at
        for one in delegation.verdicts
        if one.until_at is not None
        and one.verdict not in NEVER_BY_TIME
        and (one.state in ("rate_limited", "broken") or one.verdict == "in_trial")
    ]
    return min(known, default=None)
