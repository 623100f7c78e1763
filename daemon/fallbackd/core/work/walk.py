"""
The next step of a delegation that has no attempt under way: start, wait, or end.

A hop is a move after a started attempt and counts; a candidate that is skipped costs nothing.
"""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.effects import WakeAt
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.policy import IN_SESSION_KIND
from fallbackd.core.records import Delegation, Session, Waiting
from fallbackd.core.routing.resolve import Choice, Request, Resolved
from fallbackd.core.work.ask import after_recovery, at_outage, forbidden_all, keep_asking, rests
from fallbackd.core.work.blocking import is_still_blocked, take_session
from fallbackd.core.work.ends import close, end, end_by_deadline, end_exhausted, hold
from fallbackd.core.work.fairness import has_place
from fallbackd.core.work.offers import resolved_by_person
from fallbackd.core.work.outages import guard
from fallbackd.core.work.resolution import failover_of, halted, request_of
from fallbackd.core.work.retry_budget import held_until, shown
from fallbackd.core.work.rotation import rotated, with_verdict
from fallbackd.core.work.starts import hand_back, start
from fallbackd.core.work.stopping import below
from fallbackd.core.work.waits import give_up, is_overtaken, with_waited

BY_CALLER = "cancelled by the caller"


def walk(case: Case, delegation: Delegation, session: Session, *, event: str) -> None:
    """Put the delegation one step further. It has no attempt under way and is not ended."""
    if below(case, delegation):
        hold(case, delegation)
        return
    if delegation.outcome is not None:
        close(case, delegation, session, delegation.outcome)
        return
    if delegation.cancelling:
        why = delegation.message or BY_CALLER
        end(case, delegation, session, state="cancelled", message=why)
        return
    if delegation.unstopped:
        last = delegation.attempts[-1].failure if delegation.attempts else None
        why = "nothing is started beside what may still run"
        end(case, delegation, session, state="failed", failure=last, message=why)
        return
    deadline_at = delegation.deadline_at
    if deadline_at is not None and case.now >= deadline_at:
        end_by_deadline(case, delegation, session)
        return
    if delegation.blocked_by is not None:
        if is_still_blocked(case, delegation, session):
            return
        delegation = structs.replace(delegation, blocked_by=None, waiting=None)
        session = take_session(case, delegation)
    if delegation.question is not None:
        recovered = after_recovery(case, delegation, session)
        if recovered is None:
            keep_asking(case, delegation, session, delegation.question)
            return
        delegation = recovered
    if delegation.forced is not None and _start_forced(case, delegation, session):
        return
    delegation = structs.replace(delegation, forced=None)
    waiting = delegation.waiting
    if waiting is not None and waiting.retry is not None:
        if is_overtaken(case, delegation, waiting):
            delegation = _leave(case, structs.replace(delegation, waiting=None))
        elif case.now < waiting.until_at:
            case.effects.append(_wake(delegation, waiting.until_at))
            return
        elif _is_full(case, delegation):
            _queue(case, delegation, waiting)
            return
        elif _retry(case, delegation, session, waiting):
            return
    failover = failover_of(delegation)
    candidates = failover.candidates
    if failover.tried:
        other = rotated(case, failover)
        if other is not None and other.choice is not None:
            delegation = structs.replace(
                delegation, verdicts=with_verdict(delegation.verdicts, other.verdicts[0])
            )
            if _is_full(case, delegation):
                _queue(case, delegation, None)
            elif not _is_held_back(case, delegation, session, other.choice, event=event):
                start(case, delegation, session, other.choice, event=event, rotates=True)
            return
        if not delegation.failover:
            why = "the caller wants no failover"
            end_exhausted(case, delegation, session, why=why, event=event)
            return
        candidates, halt = halted(case.policy, failover)
        if halt is not None:
            end_exhausted(case, delegation, session, why=halt.why, event=event)
            return
    request = request_of(case, delegation, session)
    resolved = case.resolve(candidates, request)
    resolved, out = guard(case, delegation, candidates, request, resolved)
    delegation = structs.replace(delegation, verdicts=resolved.verdicts)
    if out is not None:
        is_worth_it = out.in_trial or not out.is_first
        if is_worth_it and _wait(case, delegation, resolved, event=event):
            return
        at_outage(case, delegation, session, candidates, out, event=event)
        return
    may_doubt = delegation.on_outage == "fallback"
    if resolved.choice is None and may_doubt and not _may_wait(case, delegation, resolved):
        resolved = case.resolve(candidates, structs.replace(request, last_resort=True))
        delegation = structs.replace(delegation, verdicts=resolved.verdicts)
    if resolved.choice is not None:
        if resolved.choice.backend.kind == IN_SESSION_KIND:
            hand_back(case, delegation, session, resolved.choice, event=event)
            return
        if _is_full(case, delegation):
            _queue(case, delegation, None)
            return
        if not _is_held_back(case, delegation, session, resolved.choice, event=event):
            start(case, delegation, session, resolved.choice, event=event)
        return
    if _wait(case, delegation, resolved, event=event):
        return
    if forbidden_all(case, delegation, session, candidates, request, event=event):
        return
    if rests(case, delegation, session):
        return
    end_exhausted(case, delegation, session, why="nobody in the chain is usable", event=event)


def _start_forced(case: Case, delegation: Delegation, session: Session) -> bool:
    """Start where a person said. False: that cannot be used any more, and is told."""
    if _is_full(case, delegation):
        _queue(case, delegation, None)
        return True
    assert delegation.forced is not None
    resolved = resolved_by_person(case, delegation, delegation.forced)
    if resolved.choice is not None:
        start(case, delegation, session, resolved.choice, event="chosen by a person")
        return True
    case.tell(
        delegation,
        "chosen by a person",
        outcome=f"{delegation.forced} cannot be used any more",
        verdicts=resolved.verdicts,
    )
    return False


def _is_full(case: Case, delegation: Delegation) -> bool:
    """Whether the host runs as many attempts as it may, or others come first."""
    max_running = case.policy.defaults.max_running
    return not has_place(case.snapshot.active, delegation, max_running)


def _is_held_back(
    case: Case, delegation: Delegation, session: Session, choice: Choice, *, event: str
) -> bool:
    """Whether a move has to wait for what others find there; then it waits, or ends."""
    if not delegation.attempts:
        return False
    until_at = held_until(case, delegation, choice)
    if until_at is None:
        return False
    before = delegation.waiting
    since_at = case.now if before is None or before.retry is not None else before.since_at
    limit_at = since_at + case.policy.wait_threshold_s(delegation.mode)
    if case.now >= limit_at:
        why = "the retry budget of this host is used up"
        end_exhausted(case, delegation, session, why=why, event=event)
        return True
    if delegation.state != "waiting" or before is None:
        case.tell(
            delegation,
            event,
            outcome=f"waits for a sign of life of {choice.backend.id}, which others try now",
            verdicts=delegation.verdicts,
            retry_budget=shown(case),
        )
    until_at = min(until_at, limit_at)
    waits = Waiting(since_at=since_at, until_at=until_at, limit_at=limit_at)
    if waits != before:  # many wait at once, and each is woken for each end of an attempt
        case.keep_delegation(structs.replace(delegation, state="waiting", waiting=waits))
    case.effects.append(_wake(delegation, until_at))
    return True


def _queue(case: Case, delegation: Delegation, waiting: Waiting | None) -> None:
    """Wait for a free place: the next end of an attempt wakes this delegation."""
    if delegation.state != "queued":
        case.tell(
            delegation,
            "queued",
            outcome="waits for a free place",
            max_running=case.policy.defaults.max_running,
        )
    case.keep_delegation(structs.replace(delegation, state="queued", waiting=waiting))
    if delegation.deadline_at is not None:
        case.effects.append(_wake(delegation, delegation.deadline_at))


def _wait_limit_at(case: Case, delegation: Delegation) -> float:
    if delegation.waiting is not None:
        limit_at = delegation.waiting.limit_at
    else:
        limit_at = case.now + case.policy.wait_threshold_s(delegation.mode)
    if delegation.deadline_at is not None:
        limit_at = min(limit_at, delegation.deadline_at)
    return limit_at


def _may_wait(case: Case, delegation: Delegation, resolved: Resolved) -> bool:
    limit_at = _wait_limit_at(case, delegation)
    if case.now >= limit_at:
        return False
    return resolved.in_trial or (resolved.stated_at is not None and resolved.stated_at <= limit_at)


def _wait(case: Case, delegation: Delegation, resolved: Resolved, *, event: str) -> bool:
    if not _may_wait(case, delegation, resolved):
        return False
    limit_at = _wait_limit_at(case, delegation)
    until_at = limit_at
    if resolved.stated_at is not None and resolved.stated_at <= limit_at:
        until_at = resolved.stated_at
    since_at = case.now if delegation.waiting is None else delegation.waiting.since_at
    waits = Waiting(since_at=since_at, until_at=until_at, limit_at=limit_at)
    if delegation.state != "waiting":
        case.tell(
            delegation,
            event,
            outcome="waits for a trial" if resolved.in_trial else "waits for a stated time",
            verdicts=resolved.verdicts,
            until_at=until_at,
            wait_threshold_s=case.policy.wait_threshold_s(delegation.mode),
        )
    case.keep_delegation(structs.replace(delegation, state="waiting", waiting=waits))
    case.effects.append(_wake(delegation, until_at))
    return True


def _wake(delegation: Delegation, at: float) -> WakeAt:
    return WakeAt(at=at, delegation=delegation.delegation, purpose="wait")


def _leave(case: Case, delegation: Delegation) -> Delegation:
    """Give up the candidate whose stated time is waited for."""
    last = delegation.attempts[-1]
    assert last.failure is not None
    backend = find_backend(case.policy, last.backend)
    return give_up(case, delegation, last, last.failure, backend, luck=case.luck)


def _retry(case: Case, delegation: Delegation, session: Session, waiting: Waiting) -> bool:
    """Start the candidate again whose wait is over; False: it cannot be used any more."""
    assert waiting.retry is not None
    request = Request(prompt_tokens=delegation.prompt_tokens, credential=waiting.credential)
    resolved = case.resolve((waiting.retry,), request)
    if resolved.choice is None:
        return False
    if waiting.is_stated:
        delegation = with_waited(delegation, delegation.attempts[-1])
    start(
        case,
        delegation,
        session,
        resolved.choice,
        event="waited",
        retry_of=None if waiting.resumes else waiting.retry_of,
        resumes=waiting.retry_of if waiting.resumes else None,
    )
    return True
