"""
How the family of a program comes to its end.

```
            program ends           0.5 s
 RUNNING ------------------> LINGERING ----> ENDING ----> KILLING ----> (gives up after 10 s)
    |  stop: TERM to all                       ^    1 s      ^
    +-- program ends after a stop -------------+             |
    +-- grace is over ---------------------------------------+
 from everywhere: no process is left (ECHILD) -> the end is recorded
```
"""

import enum
import time
from collections.abc import Callable

from fallbackd.transports.process.runner import tree
from fallbackd.transports.process.runner.reaper import Reaper

_LINGER_S = 0.5
_ENDING_S = 1.0
_KILL_AGAIN_S = 0.05


class _Phase(enum.Enum):
    RUNNING = enum.auto()
    LINGERING = enum.auto()
    ENDING = enum.auto()
    KILLING = enum.auto()


class FamilyEnding:
    """
    Args:
        kill_bound_s: How long KILL may take before the family counts as not gone.
        now: The time that is recorded.
    """

    def __init__(self, reaper: Reaper, *, kill_bound_s: float, now: Callable[[], float]) -> None:
        self._reaper = reaper
        self._kill_bound_s = kill_bound_s
        self._now = now
        self._phase = _Phase.RUNNING
        self._deadline = 0.0
        self._stop_at: float | None = None
        """Monotonic time at which politeness ends."""
        self._was_asked = False
        self.ended_at: float | None = None
        """When the program itself ended."""
        self.is_gone = True
        """False: it was given up, and part of the family may live."""
        self.is_stopped = False
        """It was stopped while it ran."""
        self.notes: list[str] = []
        self.left: list[str] = []
        """Names of the programs that were alive when theirs had ended by itself."""

    @property
    def is_asked(self) -> bool:
        """A stop was asked for."""
        return self._stop_at is not None

    def timeout_s(self) -> float | None:
        """How long nothing has to be done; None: until something happens."""
        if self._phase is _Phase.KILLING:
            return _KILL_AGAIN_S
        deadline = self._deadline if self._phase is not _Phase.RUNNING else self._stop_at
        return None if deadline is None else max(0.0, deadline - time.monotonic()) + 0.001

    def is_over(self) -> bool:
        """Move through the phases. True when no process is left, or we have to give up."""
        reaper = self._reaper
        now = time.monotonic()
        if reaper.status is not None and self.ended_at is None:
            self.ended_at = self._now()
        if reaper.is_childless:
            return True
        if self._phase is _Phase.RUNNING:
            self._leave_running(now)
        if self._phase is _Phase.LINGERING and (now >= self._deadline or self.is_asked):
            self.left = sorted(tree.name_of(each.pid) for each in reaper.remaining())
            self._enter(_Phase.ENDING, now + _ENDING_S)
        if self._phase is _Phase.ENDING and now >= self._deadline:
            self._enter(_Phase.KILLING, now + self._kill_bound_s)
        if self._phase is _Phase.KILLING:
            if now >= self._deadline:
                self._give_up()
                return True
            reaper.kill()
            reaper.reap()
        return False

    def _leave_running(self, now: float) -> None:
        if self._reaper.status is not None:
            if self._stop_at is None:
                self._enter(_Phase.LINGERING, now + _LINGER_S)
            else:
                self._enter(_Phase.ENDING, now + _ENDING_S)
        elif self._stop_at is not None:
            if not self._was_asked:
                self._was_asked = True
                self._reaper.ask()
            if now >= self._stop_at:
                self._enter(_Phase.KILLING, now + self._kill_bound_s)

    def _enter(self, phase: _Phase, deadline: float) -> None:
        self._phase, self._deadline = phase, deadline
        if phase is _Phase.ENDING:
            self._reaper.ask()

    def ask(self, grace_s: float) -> None:
        """Stop politely. A later, shorter grace counts, a longer one does not."""
        stop_at = time.monotonic() + max(0.0, grace_s)
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)
        self.is_stopped = self.is_stopped or self._reaper.status is None

    def force(self) -> None:
        """End all processes now. Returns when none is left, or we have to give up."""
        until = time.monotonic() + self._kill_bound_s
        while not self._reaper.is_childless:
            if time.monotonic() >= until:
                self._give_up()
                return
            self._reaper.kill()
            time.sleep(_KILL_AGAIN_S)
            self._reaper.reap()

    def _give_up(self) -> None:
        left = self._reaper.remaining()
        self.is_gone = False
        pids = ", ".join(str(each.pid) for each in left) or "unknown"
        self.notes.append(f"not killed within {self._kill_bound_s:g} s: {pids}")
