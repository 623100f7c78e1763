"""
Writers of directories: one at a time in each, with what is above and below it.

A directory is known by its path and by its identity: another name of it, after a rename or through
a bind mount, is the same directory.

    admitted ── holds ──▶ asks, nothing done yet ── holds nothing ──▶ answered ── holds again
       └─ in use: blocked, holds nothing ── first come, first served ─┘      └─ not while in use
"""

from msgspec import structs

from fallbackd.core.case import Case, CaseView
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Policy
from fallbackd.core.records import Delegation, Session, Snapshot
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.stopping import below


def blocker(case: CaseView, delegation: Delegation) -> Delegation | None:
    """
    The delegation that a new one has to wait for: it has the session or the directory, or came
    earlier and waits for either too.
    """
    family = _family(case, delegation)
    writes = _locks(case.policy, delegation)
    for other in case.snapshot.active.values():
        is_same_session = other.session == delegation.session
        if not (is_same_session or writes) or other.delegation == delegation.delegation:
            continue
        if other.blocked_by is not None and (
            delegation.parent is not None or _age(other) > _age(delegation)
        ):
            continue  # nested work is part of work that has its place
        if is_same_session:
            return other
        if other.delegation not in family and _meet(case.policy, delegation, other):
            return other
    return None


def writer_beside(case: CaseView, delegation: Delegation) -> Delegation | None:
    """
    Return the delegation that writes in the directory of a delegation that has given it up while a
    person is asked, or while it is on standby.
    """
    if _holds(case.policy, delegation):
        return None
    return _holder(case, delegation, beside=_family(case, delegation))


def writer_at(
    snapshot: Snapshot, policy: Policy, delegation: Delegation, cwd_ids: tuple[str, ...]
) -> Delegation | None:
    """
    Return the other delegation that writes where this one is about to.

    Args:
        cwd_ids: Of its directory, seen now.
    """
    case = Case(snapshot, policy, now=0.0)
    family = _family(case, delegation) | {one.delegation for one in below(case, delegation)}
    return _holder(case, structs.replace(delegation, cwd_ids=cwd_ids), beside=family)


def _holder(case: CaseView, delegation: Delegation, *, beside: set[str]) -> Delegation | None:
    if not _locks(case.policy, delegation):
        return None
    for other in case.snapshot.active.values():
        if other.blocked_by is not None or other.delegation in beside:
            continue
        if _meet(case.policy, delegation, other):
            return other
    return None


def _age(one: Delegation) -> tuple[float, str]:
    return one.created_at, one.delegation


def _locks(policy: Policy, delegation: Delegation) -> bool:
    """Return whether others may be in a delegation's way in a directory."""
    return policy.defaults.workspace_lock != "off" and _writes(policy, delegation)


def _meet(policy: Policy, delegation: Delegation, other: Delegation) -> bool:
    """Return whether another one writes, now or as soon as it begins, where one that locks does."""
    writes = _writes if other.blocked_by is not None else _holds
    return writes(policy, other) and _overlap(delegation, other)


def _overlap(one: Delegation, other: Delegation) -> bool:
    """
    Return whether one works in the directory of the other or below it, by path or by identity.
    """
    if is_nested(one.cwd, other.cwd) or is_nested(other.cwd, one.cwd):
        return True
    ours, theirs = one.cwd_ids, other.cwd_ids
    return bool(ours and ours[0] in theirs) or bool(theirs and theirs[0] in ours)


def _writes(policy: Policy, one: Delegation) -> bool:
    return bool(one.cwd) and may_write(policy, one.turn.candidates, reads=one.permissions == "read")


def _holds(policy: Policy, one: Delegation) -> bool:
    """
    Return whether a delegation keeps others out of its directory, as it does once it has begun
    there.
    """
    if one.is_ended or one.blocked_by is not None or not _writes(policy, one):
        return False
    is_begun = any(each.effects != "none" or each.gone is False for each in one.attempts)
    is_at_rest = one.question is not None or one.on_standby
    return not is_at_rest or is_begun or one.running is not None or bool(one.unstopped)


def may_write(policy: Policy, candidates: tuple[Entry, ...], *, reads: bool) -> bool:
    """
    Return whether one of them starts a process that may change the directory. A call over HTTP does
    not.

    Args:
        reads: The work may only read. Not every program can be held to that.
    """
    found = (find_backend(policy, entry.backend) for entry in candidates)
    return not all(one is not None and _is_harmless(policy, one, reads=reads) for one in found)


def _is_harmless(policy: Policy, backend: Backend, *, reads: bool) -> bool:
    if backend.is_http or backend.kind == IN_SESSION_KIND:
        return True
    is_held = policy.kernel_confines == "yes" and policy.confines(backend)
    return reads and (backend.keeps_to_reading or is_held)


def _family(case: CaseView, one: Delegation | None) -> set[str]:
    """
    Return a delegation and those above it. A delegation from inside an attempt shares the lock of
    that one.
    """
    found: set[str] = set()
    while one is not None and one.delegation not in found:
        found.add(one.delegation)
        one = None if one.parent is None else case.snapshot.active.get(one.parent)
    return found


def is_nested(inner: str, outer: str) -> bool:
    """Return whether the real path `inner` is `outer` or below it."""
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def is_hidden(session: Session | None, above: tuple[DelegationId, ...]) -> bool:
    """
    Return whether the session does not exist for work that is asked for inside these delegations.
    """
    return session is not None and bool(above) and above[0] not in session.above


def why_hidden(one: DelegationId, name: SessionId) -> str:
    return (
        f"delegation {one} has no session {name!r}, or not any more; leave it out, or give another "
        "name"
    )


def why_blocked(delegation: Delegation, by: Delegation) -> str:
    """Return what is in use, by which delegation, and what to do about it."""
    if delegation.session == by.session:
        return (
            f"session {delegation.session!r} is busy with {by.delegation}; "
            "wait for it, cancel it, or use another session"
        )
    what_to_do = "wait for it"
    if (asked := by.question) is not None:
        what_to_do = (
            f"it may have changed files there and asks {asked.question}: answer that "
            f"with `fallbackd-client answer {asked.question} CHOICE`"
        )
    return (
        f"{delegation.cwd} is in use by {by.delegation}; {what_to_do}, or set "
        'workspace_lock = "off" if you isolate the work by yourself'
    )
