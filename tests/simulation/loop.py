"""
A loop on which hours pass in milliseconds, and where nothing depends on the machine.

Its selector does not wait: it adds the timeout to the time of the loop. What the daemon gives to
a thread is done in place, after as long as a disk might take.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio.to_thread

ResultT = TypeVar("ResultT")

MAX_TURNS = 60_000
"""Of the loop, in one play: many times what the longest one takes."""
_STUCK: list[object] = []
"""Tasks that are never run again, nor thrown away: that would run them."""
Threads = Callable[[Callable[[], Any]], Awaitable[Any]]


class Stuck(Exception):
    """Nothing is due any more, or it goes round in circles."""


class _Jump(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self._turns += 1
        if timeout is None:
            raise Stuck("everybody waits for somebody else")
        if self._turns > MAX_TURNS:
            raise Stuck(f"no end after {MAX_TURNS} turns of the loop")
        self.now += max(0.0, timeout)
        return []


class JumpLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run(main: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    loop = JumpLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        for task in asyncio.all_tasks(loop):  # of a play that is stuck: nothing can end them
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _STUCK.append(task)
        loop.close()


@contextmanager
def threads(run_in: Threads) -> Iterator[None]:
    """Give `run_in` what is meant for a worker thread."""

    async def run_sync(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return await run_in(lambda: work(*args))

    real = anyio.to_thread.run_sync
    anyio.to_thread.run_sync = run_sync  # type: ignore[assignment]
    try:
        yield
    finally:
        anyio.to_thread.run_sync = real
