"""
Says to the service manager that the daemon is alive, and only while it is.

A ping is sent when the loop runs this, when the thread that writes records has answered, and when
the last tick is not overdue. A timer alone would go on while the work stands still.
"""

import sqlite3
from collections.abc import Awaitable, Callable

import anyio
import structlog

from fallbackd.core.ids import DelegationId
from fallbackd.engine.ticker import TICK_S
from fallbackd.lib.sdnotify import Notifier
from fallbackd.ports.store import Store

OVERDUE_TICKS = 2.5
"""One tick may be late, behind a slow disk or a machine under load; the second may not."""
NO_DELEGATION = DelegationId("-")
"""Matches no delegation: only the way to the disk and back is tested."""

log = structlog.get_logger("watchdog")


class Watchdog:
    """
    Args:
        every_s: Between two pings; None: systemd does not watch this process.
        tick_s: How long a tick is expected to take to come again.
    """

    def __init__(
        self, notifier: Notifier, store: Store, *, every_s: float | None, tick_s: float = TICK_S
    ) -> None:
        self._notifier = notifier
        self._store = store
        self._every_s = every_s
        self._overdue_s = OVERDUE_TICKS * tick_s
        self._ticked_at = anyio.current_time()
        self._is_late = False

    def ticked(self) -> None:
        """A tick has been done."""
        self._ticked_at = anyio.current_time()

    async def run(self, *, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Ping until cancelled; return at once where systemd does not watch this process."""
        while self._every_s is not None:
            await self.look()
            await sleep(self._every_s)

    async def look(self) -> bool:
        """
        Ping if all is well. False where it was not.

        Waits for the writer as long as it takes: no answer from it, no ping.
        """
        try:
            # Through the lock and the thread that every commit goes through.
            await self._store.story(NO_DELEGATION)
        except (OSError, sqlite3.Error):
            pass  # A disk that fails is reported by the store. The writer has answered.
        overdue_s = anyio.current_time() - self._ticked_at
        is_late = overdue_s > self._overdue_s
        if is_late and not self._is_late:
            log.error("watchdog.withheld", since_last_tick_s=round(overdue_s, 1))
        self._is_late = is_late
        if not is_late:
            self._notifier.watchdog()
        return not is_late
