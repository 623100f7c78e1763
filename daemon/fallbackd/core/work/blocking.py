"""
Work whose session or directory is in use: it is accepted, holds neither, and begins in its turn.

A delegation from inside an attempt waits for a bounded time only: the work that it waits for may
itself wait for the attempt that it comes from.
"""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.effects import WakeAt
from fallbackd.core.records import Delegation, Session, Waiting
from fallbackd.core.work.ends import end
from fallbackd.core.work.sessions import entered
from fallbackd.core.work.workspaces import blocker, why_blocked


def block(case: Case, delegation: Delegation, by: Delegation) -> None:
    """Queue the delegation behind another one, whose end wakes it."""
    if delegation.blocked_by != by.delegation:
        case.tell(delegation, "queued", outcome=f"waits: {why_blocked(delegation, by)}")
    waiting = delegation.waiting
    if waiting is None and delegation.parent is not None:
        limit_at = case.now + case.policy.wait_threshold_s(delegation.mode)
        waiting = Waiting(since_at=case.now, until_at=limit_at, limit_at=limit_at)
    blocked = structs.replace(delegation, state="queued", blocked_by=by.delegation, waiting=waiting)
    case.keep_delegation(blocked)
    if waiting is not None:
        case.effects.append(
            WakeAt(at=waiting.until_at, delegation=delegation.delegation, purpose="wait")
        )


def is_still_blocked(case: Case, delegation: Delegation, session: Session) -> bool:
    """Whether the delegation has to wait on; one that has waited too long is refused."""
    by = blocker(case, delegation)
    if by is None:
        return False
    if delegation.waiting is not None and case.now >= delegation.waiting.limit_at:
        end(case, delegation, session, state="refused", message=why_blocked(delegation, by))
    else:
        block(case, delegation, by)
    return True


def take_session(case: Case, delegation: Delegation) -> Session:
    """The session with the delegation as its running one; a new one where there is none."""
    session = case.snapshot.session
    session = entered(
        case,
        delegation.session,
        session if session is not None and session.session == delegation.session else None,
        role=delegation.role,
        named=delegation.requested if delegation.named else None,
        first=delegation.requested,
        running=delegation.delegation,
    )
    case.keep_session(session)  # held from now on, also while the work waits for a free place
    return session
