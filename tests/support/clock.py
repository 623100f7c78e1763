"""A clock that a test steers."""

import time


class ManualClock:
    """Advances as elapsed time does, and besides as the test says."""

    def __init__(self, start_at: float | None = None) -> None:
        self._offset_s = (time.time() if start_at is None else start_at) - time.monotonic()
        self._set_by_s = 0.0
        self._slept_s = 0.0

    def now(self) -> float:
        return self._offset_s + time.monotonic()

    def slept(self) -> float:
        slept_s, self._slept_s = self._slept_s, 0.0
        return slept_s

    def step(self) -> float:
        by_s, self._set_by_s = self._set_by_s, 0.0
        self._offset_s += by_s
        return by_s

    def boot_id(self) -> str:
        return "boot"

    def advance(self, by_s: float) -> None:
        """So much time goes by at once. Then let the engine look at it."""
        self._offset_s += by_s

    def sleep(self, for_s: float) -> None:
        """The machine was suspended, and knows it."""
        self._offset_s += for_s
        self._slept_s += for_s

    def set_wall(self, by_s: float) -> None:
        """Somebody sets the wall clock; the next `step` tells."""
        self._set_by_s += by_s
