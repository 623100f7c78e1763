"""Not the same again and again, and not more than a person can read."""

from collections import deque
from collections.abc import Callable

HOUR_S = 3600.0


class Pacing:
    """
    Args:
        now: Any clock that only goes forward.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sent_at: dict[str, float] = {}
        self._last_hour: deque[float] = deque()
        self.left_out = 0
        """Since the last one that was let through."""

    def lets_through(self, key: str, *, repeat_after_s: float, max_per_hour: int) -> bool:
        now = self._now()
        longest_s = max(HOUR_S, repeat_after_s)
        self._sent_at = {one: at for one, at in self._sent_at.items() if now - at < longest_s}
        while self._last_hour and now - self._last_hour[0] >= HOUR_S:
            self._last_hour.popleft()
        if key in self._sent_at and now - self._sent_at[key] < repeat_after_s:
            return False
        if len(self._last_hour) >= max_per_hour:
            self.left_out += 1
            return False
        self._sent_at[key] = now
        self._last_hour.append(now)
        return True
