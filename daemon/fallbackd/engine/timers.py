"""
Work that moves without an event from outside: its time has come, a place is free, or its callers
have gone.

Work with `orphan_s` is followed by the connections that asked for it (`Attendance`); when the last
has closed and none follows within that time, it is cancelled. The MCP server asks for 60 s, since
clients kill it without a word, and takes it back (`delegation.keep`) when it gives out a handle.
"""

import heapq
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from fallbackd.core.decision import WakeAt
from fallbackd.core.events import Event, Woke
from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.core.records import Delegation
from fallbackd.core.work.plan import free_places, turns
from fallbackd.core.work.standby import in_order
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.live import LiveAttempt
from fallbackd.ports.store import Store
from fallbackd.ports.transport import Clock


class Wakes:
    """One task and one heap for all of them; a later order for the same key replaces."""

    def __init__(self, clock: Clock, on_wake: Callable[[WakeAt], Awaitable[None]]) -> None:
        self._clock = clock
        self._on_wake = on_wake
        self._heap: list[tuple[float, int, WakeAt]] = []
        self._current: dict[tuple[str, str | None, str], int] = {}
        self._number = itertools.count()
        self._changed = anyio.Event()

    def set(self, wake: WakeAt) -> None:
        number = next(self._number)
        self._current[_key(wake)] = number
        heapq.heappush(self._heap, (wake.at, number, wake))
        if self._heap[0][1] == number:
            self._changed.set()

    def forget(self, delegation: str) -> None:
        """Nothing of this delegation is of interest any more."""
        for key in [key for key in self._current if key[0] == delegation]:
            del self._current[key]

    def look(self) -> None:
        """The clock may say something else than was expected: look at it now."""
        self._changed.set()

    def shift(self, by_s: float) -> None:
        self._heap = [(at + by_s, number, wake) for at, number, wake in self._heap]
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed = anyio.Event()
            due = self._due()
            if due is not None:
                await self._on_wake(due)
                continue
            limit_s = None  # nothing to come: no CPU while idle
            if self._heap:
                limit_s = max(0.0, self._heap[0][0] - self._clock.now())
            with anyio.move_on_after(limit_s):
                await self._changed.wait()

    def _due(self) -> WakeAt | None:
        while self._heap:
            at, number, wake = self._heap[0]
            if self._current.get(_key(wake)) != number:
                heapq.heappop(self._heap)
                continue
            if at > self._clock.now():
                return None
            heapq.heappop(self._heap)
            del self._current[_key(wake)]
            return wake
        return None


def _key(wake: WakeAt) -> tuple[str, str | None, str]:
    return (wake.delegation, wake.attempt, wake.purpose)


ABANDONED = "its caller disconnected without cancelling it"


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
        """Time at which those without a caller lost their last one, on the clock of the loop."""

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
        """Drop a delegation that has ended."""
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


def _hears(delegation: Delegation) -> bool:
    """
    Test whether a change elsewhere may put it further: only a question about an outage can be
    closed by a change, and work that waits for a place is woken when there is one.
    """
    is_blocked = delegation.blocked_by is not None
    question = delegation.question
    asks = question is not None and question.kind == "outage"
    return delegation.state == "waiting" or is_blocked or delegation.cancelling or asks


class WakingHost(Protocol):
    store: Store
    settings: Settings
    world: World

    async def handle(self, event: Event) -> object: ...

    async def follow_clock(self) -> None: ...

    def live(self, attempt: AttemptId) -> LiveAttempt | None: ...

    def is_held(self, delegation: DelegationId) -> bool: ...


class Waking:
    def __init__(self, host: WakingHost) -> None:
        self._host = host

    async def wake(self, wake: WakeAt) -> None:
        host = self._host
        # Before the watch is taken: what it shows and the time of the decision are of one clock.
        with anyio.CancelScope(shield=True):
            await host.follow_clock()
        live = None if wake.attempt is None else host.live(wake.attempt)
        watch = None if live is None else live.watch
        if host.is_held(wake.delegation):
            await host.handle(
                Woke(
                    delegation=wake.delegation,
                    attempt=wake.attempt,
                    watch=watch,
                    luck=host.world.luck(),
                )
            )

    async def wake_waiting(self) -> None:
        host = self._host
        for name in [one.delegation for one in in_order(host.store.peek().active.values())]:
            delegation = host.store.peek().active.get(name)
            is_idle = delegation is not None and delegation.running is None
            if delegation is not None and is_idle and _hears(delegation):
                await host.handle(Woke(delegation=name, luck=host.world.luck()))
        await self.fill_places()

    async def fill_places(self) -> None:
        """Wake those that wait for a place, each in its turn, while there are free ones."""
        host = self._host
        woken: set[DelegationId] = set()
        while True:
            active = host.store.peek().active
            free = free_places(active, host.settings.policy.defaults.max_running)
            due = [one for one in turns(active) if one not in woken]
            is_nested = bool(due) and active[due[0]].parent is not None
            if not due or (free <= 0 and not is_nested):
                return
            woken.add(due[0])
            await host.handle(Woke(delegation=due[0], luck=host.world.luck()))
