"""Instants at which the core wants to look again."""

import heapq
import itertools
from collections.abc import Awaitable, Callable

import anyio

from fallbackd.core.effects import WakeAt
from fallbackd.ports.clock import Clock


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
