"""
Work that is stopped when its callers have gone.

A delegation with `orphan_s` is followed by the connections that asked for it. When the last of
them closes, it has that long to be followed again: a caller that only lost the daemon comes back
within seconds, one that was killed does not.
"""

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from fallbackd.core.ids import DelegationId

ABANDONED = "its caller has gone without a word"


class Attendance:
    """
    Args:
        patience_s: How long a delegation may be without a caller; None: it may be, or has ended.
        stop: Stops one, with the words for its end.
    """

    def __init__(
        self,
        patience_s: Callable[[DelegationId], float | None],
        stop: Callable[[DelegationId, str], Awaitable[object]],
    ) -> None:
        self._patience_s = patience_s
        self._stop = stop
        self._tasks: TaskGroup | None = None
        self._callers: dict[DelegationId, set[int]] = {}
        self._since: dict[DelegationId, float] = {}
        """When those that have no caller lost their last one, on the clock of the loop."""

    def serve(self, tasks: TaskGroup) -> None:
        self._tasks = tasks

    def join(self, delegation: DelegationId, caller: int) -> bool:
        """
        A connection follows it.

        Returns:
            Whether it did not before.
        """
        self._since.pop(delegation, None)
        callers = self._callers.setdefault(delegation, set())
        is_new = caller not in callers
        callers.add(caller)
        return is_new

    def leave(self, delegation: DelegationId, caller: int) -> None:
        callers = self._callers.get(delegation)
        if callers is None:  # it has ended
            return
        callers.discard(caller)
        if not callers:
            self.watch(delegation)

    def watch(self, delegation: DelegationId) -> None:
        """Nothing follows it from now on."""
        self._callers.pop(delegation, None)
        if self._patience_s(delegation) is None or self._tasks is None:
            return
        self._since[delegation] = anyio.current_time()
        self._tasks.start_soon(self._stop_unless_followed, delegation)

    def forget(self, delegation: DelegationId) -> None:
        """It has ended."""
        self._callers.pop(delegation, None)
        self._since.pop(delegation, None)

    async def _stop_unless_followed(self, delegation: DelegationId) -> None:
        since = self._since.get(delegation)
        patience_s = self._patience_s(delegation)
        if since is None or patience_s is None:
            return
        await anyio.sleep(patience_s)
        is_same = self._since.get(delegation) == since
        if is_same and self._patience_s(delegation) is not None:
            await self._stop(delegation, ABANDONED)
