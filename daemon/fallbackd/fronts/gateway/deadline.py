"""How long a caller waits for the beginning of its answer, where it says so."""

import math
from collections.abc import Awaitable, Callable, Mapping

import anyio

from fallbackd.fronts.gateway.answers import Refusal

TIMEOUT = "x-fallbackd-timeout-s"


class CallerDeadline:
    """
    Args:
        named: The headers of the request.

    Raises:
        Refusal: The time is none.
    """

    def __init__(self, named: Mapping[str, str]) -> None:
        stated = named.get(TIMEOUT)
        self._limit_s = math.inf if stated is None else _seconds(stated)
        self._scope: anyio.CancelScope | None = None

    async def bounds(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """
        Do the work, which is cancelled when the time is over and `begun` was not called.

        Raises:
            Refusal: It was.
        """
        if self._limit_s == math.inf:
            return await work()
        with anyio.move_on_after(self._limit_s) as self._scope:
            return await work()
        raise Refusal(504, f"no answer within {self._limit_s:g} s ({TIMEOUT})", "timeout")

    @property
    def is_over(self) -> bool:
        return self._scope is not None and self._scope.cancel_called

    def begun(self) -> None:
        if self._scope is not None:
            self._scope.deadline = math.inf


def _seconds(stated: str) -> float:
    try:
        found = float(stated)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise Refusal(400, f"{TIMEOUT}: {stated[:40]!r} is no number of seconds", "timeout")
    return found
