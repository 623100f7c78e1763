"""
The clock of the daemon: wall time that advances as elapsed time does, sleep included.

Setting the wall clock moves nothing by itself. `step` reports that it was set, so that windows can
be shifted with it.
"""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

MAX_SKEW_S = 60.0
"""Differences up to here are no setting of the clock, and change nothing."""

MIN_SLEEP_S = 5.0
"""Shortest sleep of the machine that counts as one."""

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


def _elapsed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_clock() -> float:
    """The time that other programs write down. It may be set; of no use to measure with."""
    return time.clock_gettime(time.CLOCK_REALTIME)


SET_CLOCK_S = 60.0
"""A smaller difference to the last run is drift that was corrected, not a clock that was set."""


class Instant(NamedTuple):
    """One moment on the wall clock of the records and in the time of one boot, which none sets."""

    at: float
    elapsed_s: float
    boot_id: str

    def encode(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: str | None) -> "Instant | None":
        """Decode a record of the clock; None: there is none, or it is none."""
        try:
            found = json.loads(text or "")
            return cls(float(found["at"]), float(found["elapsed_s"]), str(found["boot_id"]))
        except (ValueError, TypeError, KeyError):
            return None


class SystemClock:
    def __init__(
        self,
        *,
        offset_s: float | None = None,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = _elapsed,
        awake: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            offset_s: `offset_s` of an earlier run in the same boot: a clock that was set in
                between is then noticed by the first `step`. None: believe the wall clock.
            wall: Unix seconds.
            elapsed: Seconds since some moment of this boot, sleep included.
            awake: The same, sleep not included.
        """
        self._wall = wall
        self._elapsed = elapsed
        self._awake = awake
        self._asleep_s = elapsed() - awake()
        self._offset_s = wall() - elapsed() if offset_s is None else offset_s

    def follow(self, last: Instant | None) -> float:
        """
        Go on from the last instant of an earlier run. Where the wall clock was set since then,
        within one boot, the first `step` says so.

        Returns:
            How many seconds have passed since that instant.
        """
        if last is None:
            return 0.0
        if last.boot_id != self.boot_id():
            return max(0.0, self.now() - last.at)
        offset_s = last.at - last.elapsed_s
        if abs(offset_s - self._offset_s) > SET_CLOCK_S:
            self._offset_s = offset_s
        return max(0.0, self._elapsed() - last.elapsed_s)

    def instant(self) -> Instant:
        return Instant(at=self.now(), elapsed_s=self._elapsed(), boot_id=self.boot_id())

    @property
    def offset_s(self) -> float:
        """Unix seconds at which elapsed time was zero. Holds for one boot."""
        return self._offset_s

    def now(self) -> float:
        return self._offset_s + self._elapsed()

    def step(self) -> float:
        skew_s = self._wall() - self.now()
        if abs(skew_s) <= MAX_SKEW_S:
            return 0.0
        self._offset_s += skew_s
        return skew_s

    def slept(self) -> float:
        asleep_s = self._elapsed() - self._awake()
        by_s = asleep_s - self._asleep_s
        if by_s < MIN_SLEEP_S:
            return 0.0
        self._asleep_s = asleep_s
        return by_s

    def boot_id(self) -> str:
        """Another one after each boot; empty where the kernel does not tell."""
        try:
            with open(_BOOT_ID_PATH, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""
