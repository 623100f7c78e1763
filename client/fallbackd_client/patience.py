"""How long a caller continues after a loss of the daemon. Standard library only, cheap to load."""

from fallbackd_client.calls import delay_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fallbackd_client.calls import Json


class Patience:
    """
    Of one call: `limit_s` from a loss, with growing pauses between the tries.

    A connection that held for longer than `limit_s` has ended the trouble: what is lost after
    that is lost anew. So a call that waits for hours outlives any number of restarts, and a daemon
    that dies each time at once is given up.
    """

    def __init__(self, limit_s: float, monotonic: "Callable[[], float]") -> None:
        self.give_up_at: float | None = None
        """None: nothing was lost yet."""
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._connected_at: float | None = None
        self._tries = 0

    def connected(self) -> None:
        self._connected_at = self._monotonic()

    def lost(self) -> bool:
        """Returns whether to try again."""
        now = self._monotonic()
        has_held = self._connected_at is not None and now - self._connected_at > self._limit_s
        self._connected_at = None
        if self.give_up_at is None or has_held:
            self.give_up_at = now + self._limit_s
            self._tries = 0
        return now < self.give_up_at

    def pause_s(self) -> float:
        """Before the next try."""
        self._tries += 1
        return delay_s(self._tries)


def what_is_left(
    method: str, params: "Mapping[str, Json]", elapsed_s: float
) -> "Mapping[str, Json]":
    """The same call, `elapsed_s` later: it waits no longer in all than it was asked to."""
    waits: tuple[str, ...]
    match method:
        case "delegation.wait":
            waits = ("timeout_s",)
        case "delegate":  # its `timeout_s` is about the work, and part of what makes it the same
            waits = ("wait_s", "settle_s")
        case _:
            return params
    given = {name: params[name] for name in waits if isinstance(params.get(name), int | float)}
    return {**params, **{name: max(0.0, value - elapsed_s) for name, value in given.items()}}
