"""
Orders to end what runs: an attempt, and all that was delegated from inside it.

A nested delegation shares the workspace of the attempt that asked for it. So it ends with that
attempt, whatever the attempt ends with, and nothing follows before it is proven gone.
"""

from msgspec import structs

from fallbackd.core.case import Case, CaseView
from fallbackd.core.decision import StopAttempt
from fallbackd.core.failures import make_failure
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, Delegation


def stop_running(case: Case, reason: Reason, evidence: str) -> None:
    """Order the end of the running attempt of the delegation of the case."""
    case.update(attempts=stopping(case, case.delegation, reason, evidence))


def stopping(
    case: Case, delegation: Delegation, reason: Reason, evidence: str
) -> tuple[Attempt, ...]:
    """
    Order the end of the running attempt. What it ends with is kept in the attempt.

    Returns:
        The attempts of the delegation, with that one as stopping.
    """
    running = delegation.running
    assert running is not None
    if running.state == "stopping":
        return delegation.attempts
    failure = make_failure(
        reason,
        now=case.now,
        confidence="structured",
        signature=f"fallbackd/{reason.value}",
        evidence=evidence,
    )
    failure = structs.replace(failure, marks_health=False)  # it was us, or the caller
    case.effects.append(
        StopAttempt(attempt=running.attempt, grace_s=case.policy.defaults.stop_grace_s)
    )
    return (
        *delegation.attempts[:-1],
        structs.replace(running, state="stopping", ending=failure),
    )


def below(case: CaseView, delegation: Delegation) -> list[Delegation]:
    """Unfinished delegations that were asked for from inside this one, at any depth."""
    nested = [one for one in case.snapshot.active.values() if one.parent is not None]
    family = {delegation.delegation}
    found: list[Delegation] = []
    grown = bool(nested)
    while grown:
        more = [one for one in nested if one.parent in family and one.delegation not in family]
        family.update(one.delegation for one in more)
        found += more
        grown = bool(more)
    return found


def stop_below(case: Case) -> None:
    """Cancel what was delegated from inside the attempt that ends. Each ends by itself."""
    delegation = case.delegation
    why = f"cancelled: the attempt of {delegation.delegation} that asked for it has ended"
    found = [one for one in below(case, delegation) if not one.cancelling]
    for one in found:
        one = case.update_other(one.delegation, cancelling=True, message=why)
        case.tell(one, "cancelled with its parent", outcome="stops the work")
        if one.running is not None:
            case.update_other(one.delegation, attempts=stopping(case, one, Reason.CANCELLED, why))
    if found:
        case.wake_waiting()  # those that wait end at once
        case.tell(
            delegation,
            "attempt ended",
            outcome="stops what was delegated from inside it: "
            + ", ".join(one.delegation for one in found),
        )


def tell_parent(case: Case, one: Delegation) -> None:
    """Inform the parent: what is not proven gone keeps it from continuing in the same place."""
    parent = None if one.parent is None else case.snapshot.active.get(one.parent)
    last = one.attempts[-1] if one.attempts else None
    left = one.unstopped
    if last is not None and last.gone is False:
        what = f"the nested attempt {last.attempt} on {last.backend} could not be stopped"
        left = (*left, f"{what}: look for its processes (pid {last.pid}) before you go on")
    if parent is not None and left:
        case.update_other(parent.delegation, unstopped=(*parent.unstopped, *left))
