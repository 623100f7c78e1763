"""
Where the directories of unfinished work are now, and whether they are what they were.

Each is held open, so that it is found again after a rename.
"""

import os
import resource
from collections.abc import Iterator

from fallbackd.core.events import WorkspaceMoved
from fallbackd.core.ids import DelegationId
from fallbackd.core.policy import Policy
from fallbackd.core.records import Delegation, Snapshot
from fallbackd.core.work.workspaces import writer_at
from fallbackd.lib.directories import identities, identity

_PLENTY = 1024
"""Where a process may have fewer descriptors, they are for the work itself."""


class Workspaces:
    def __init__(self) -> None:
        self._held: dict[DelegationId, tuple[int, str]] = {}
        """A descriptor, and the path at which the directory was last seen."""

    def hold(self, one: Delegation) -> None:
        """Keep the directory in sight until `release`. One that is gone is not held."""
        if one.delegation in self._held or not one.cwd_ids or not _has_plenty():
            return
        places = [one.cwd]
        if one.running is not None and one.running.pid is not None:
            places.append(f"/proc/{one.running.pid}/cwd")  # it was moved while no daemon ran
        for place in places:
            try:
                handle = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            if identity(handle) == one.cwd_ids[0]:
                self._held[one.delegation] = (handle, one.cwd)
                return
            os.close(handle)

    def release(self, delegation: DelegationId) -> None:
        held = self._held.pop(delegation, None)
        if held is not None:
            os.close(held[0])

    def release_all(self) -> None:
        for name in list(self._held):
            self.release(name)

    def moved(self) -> Iterator[WorkspaceMoved]:
        """Those that lie elsewhere than when they were last looked at."""
        for name, (handle, path) in list(self._held.items()):
            now = os.readlink(f"/proc/self/fd/{handle}")
            if now == path:
                continue
            found = identities(now)
            if found[:1] == (identity(handle),):
                self._held[name] = (handle, now)
                yield WorkspaceMoved(delegation=name, cwd_ids=found)


def why_not_there(one: Delegation, seen: Snapshot, policy: Policy) -> str | None:
    """Why nothing may be started in the directory of a delegation; None: it may."""
    if not one.cwd_ids:
        return None
    found = identities(one.cwd)
    if not found:
        return "it is no longer there"
    if found[0] != one.cwd_ids[0]:
        return "it is another directory now than when the work was accepted"
    other = writer_at(seen, policy, one, found)
    if other is not None:
        return f"it is in use by {other.delegation} now"
    return None


def _has_plenty() -> bool:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or soft >= _PLENTY
