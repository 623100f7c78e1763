"""
Failures that end within seconds: the same backend is asked once more, and stays in rotation.

A caller of an interactive program waits a moment for the backend that has its conversation cached
rather than move. All requests for that backend wait alike: it is not asked by others meanwhile.
"""

import anyio

from fallbackd.core.failures import Failure, Reason

Awaited = tuple[str, str | None, str | None]
"""Backend, model, credential."""

_CHANCE_S = 0.2
"""Before a server that broke once is asked again; up to twice that."""
_BUSY_S = 2.0
"""The same for one that has too much to do; up to three."""
_BLIPS = frozenset({Reason.NETWORK, Reason.OVERLOADED, Reason.SERVER_ERROR})


def before_second(
    failure: Failure | None,
    *,
    status: int | None,
    patience_s: float,
    luck: float,
    is_alone: bool,
) -> float | None:
    """
    How long to wait before the same backend is asked again; None: it is not.

    Args:
        is_alone: No other backend would answer instead.
    """
    if failure is None:
        return None
    if failure.reason is Reason.RATE_LIMIT and failure.wait_s is not None:
        return failure.wait_s if failure.wait_s <= patience_s else None
    is_chance = failure.reason is Reason.SERVER_ERROR and status == 500
    is_blip = is_alone and failure.reason in _BLIPS
    if failure.wait_s is not None or not (is_chance or is_blip):
        return None
    is_busy = failure.reason is Reason.OVERLOADED
    return _BUSY_S * (1 + luck / 2) if is_busy else _CHANCE_S * (1 + luck)


class Pauses:
    """Which candidates are waited for, and until when."""

    def __init__(self) -> None:
        self._until: dict[Awaited, float] = {}

    def begin(self, one: Awaited, wait_s: float) -> None:
        self._until[one] = max(self._until.get(one, 0.0), anyio.current_time() + wait_s)

    async def over(self, one: Awaited) -> None:
        """Return when the pause is over."""
        while (until := self._until.get(one)) is not None:
            if until <= anyio.current_time():
                del self._until[one]
                return
            await anyio.sleep_until(until)
