"""What an agent that a person has open writes into the files of its sessions, about its limits."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from fallbackd.core.protocol import Evidence


class PlanWindow(Struct, frozen=True, kw_only=True):
    """How much of a subscription is used within one of its windows, in percent."""

    window_s: float
    used_percent: float
    resets_at: float | None = None

    @property
    def is_spent(self) -> bool:
        return self.used_percent >= 100.0


class SessionSeen(Struct, frozen=True, kw_only=True):
    """
    Attributes:
        turn: The agent's id of the turn that failed last.
        failure: What it says of that failure; None: its last turn did not fail.
        windows: The last figures of its plan; empty: none were given.
        worked_at: When its provider answered last, by a turn that ended well or by figures.
        model: Of its last turn.
    """

    turn: str | None = None
    failure: Evidence | None = None
    windows: tuple[PlanWindow, ...] = ()
    worked_at: float | None = None
    model: str | None = None


class SessionFiles(Struct, frozen=True, kw_only=True):
    """
    Args:
        place: The directory below which they are, as `lib.homes` has it.
        read: Of the first bytes of a file, of lines at its end that may be new, and of the time.
    """

    place: str
    read: Callable[[bytes, Sequence[bytes], float], SessionSeen]
