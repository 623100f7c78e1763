"""
Who writes in which directory: one at a time in each, with what is above and below it.

A directory is known by its path and by its identity: another name of it, after a rename or through
a bind mount, is the same directory.

    admitted ── holds ──▶ asks, nothing done yet ── holds nothing ──▶ answered ── holds again
                                                          └─ not taken while another one writes
"""

from fallbackd.core.draft import Draft
from fallbackd.core.events import DelegateRequested
from fallbackd.core.policy import HTTP_KINDS, IN_SESSION_KIND, Entry, Policy
from fallbackd.core.scopes import find_backend
from fallbackd.core.state import Delegation, Snapshot
from fallbackd.core.stopping import below


def workspace_holder(
    draft: Draft, event: DelegateRequested, parent: Delegation | None
) -> Delegation | None:
    """Who writes in this directory, above it or below it. Readers hold nothing."""
    if event.permissions == "read":
        return None
    return _holder(draft, event.cwd, event.cwd_ids, beside=_family(draft, parent))


def writer_beside(draft: Draft, delegation: Delegation) -> Delegation | None:
    """Who writes in the directory of a delegation that has given it up while a person is asked."""
    if _holds(draft.policy, delegation) or not _writes(draft.policy, delegation):
        return None
    return _holder(draft, delegation.cwd, delegation.cwd_ids, beside=_family(draft, delegation))


def writer_at(
    snapshot: Snapshot, policy: Policy, delegation: Delegation, cwd_ids: tuple[str, ...]
) -> Delegation | None:
    """
    Which other delegation writes where this one is about to.

    Args:
        cwd_ids: Of its directory, seen now.
    """
    if not _writes(policy, delegation):
        return None
    draft = Draft(snapshot, policy, now=0.0)
    family = _family(draft, delegation) | {one.delegation for one in below(draft, delegation)}
    return _holder(draft, delegation.cwd, cwd_ids, beside=family)


def _holder(
    draft: Draft, cwd: str, cwd_ids: tuple[str, ...], *, beside: set[str]
) -> Delegation | None:
    if not cwd or draft.policy.defaults.workspace_lock == "off":
        return None
    for other in draft.snapshot.active.values():
        if other.delegation in beside or not _holds(draft.policy, other):
            continue
        if is_nested(cwd, other.cwd) or is_nested(other.cwd, cwd):
            return other
        if cwd_ids[:1] and cwd_ids[0] in other.cwd_ids:
            return other
        if other.cwd_ids[:1] and other.cwd_ids[0] in cwd_ids:
            return other
    return None


def _writes(policy: Policy, one: Delegation) -> bool:
    return bool(one.cwd) and one.permissions != "read" and may_write(policy, one.candidates)


def _holds(policy: Policy, one: Delegation) -> bool:
    """Whether nobody else may write where it works. What was begun there is not left to others."""
    if one.is_ended or not _writes(policy, one):
        return False
    is_begun = any(each.effects != "none" or each.gone is False for each in one.attempts)
    return one.question is None or is_begun or one.running is not None or bool(one.unstopped)


def may_write(policy: Policy, candidates: tuple[Entry, ...]) -> bool:
    """Whether one of them starts a process in the directory. A call over HTTP does not."""
    for entry in candidates:
        backend = find_backend(policy, entry.backend)
        if backend is None or backend.kind not in HTTP_KINDS | {IN_SESSION_KIND}:
            return True
    return False


def _family(draft: Draft, one: Delegation | None) -> set[str]:
    """It and those above it. A delegation from inside an attempt shares the lock of that one."""
    found: set[str] = set()
    while one is not None and one.delegation not in found:
        found.add(one.delegation)
        one = None if one.parent is None else draft.snapshot.active.get(one.parent)
    return found


def is_nested(inner: str, outer: str) -> bool:
    """Whether the real path `inner` is `outer` or below it."""
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def why_in_use(cwd: str, holder: Delegation) -> str:
    """What to do about a directory that somebody else writes in."""
    what_to_do = "wait for it"
    if (asked := holder.question) is not None:
        what_to_do = (
            f"it may have changed files there and asks {asked.question}: answer that "
            f"with `fallbackd-client answer {asked.question} CHOICE`"
        )
    return (
        f"{cwd} is in use by {holder.delegation}; {what_to_do}, or set "
        'workspace_lock = "off" if you isolate the work by yourself'
    )
