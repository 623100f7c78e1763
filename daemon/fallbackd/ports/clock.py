"""The clock: what time it is."""

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds, UTC, that advance with CLOCK_BOOTTIME (sleep of the machine included)."""
        ...

    def step(self) -> float:
        """
        Follow a wall clock that was set.

        Returns:
            Seconds by which `now` has just been shifted; 0.0 unless the wall clock differs by
            more than 60 s from what elapsed time says. The caller shifts its windows with it.
        """
        ...

    def slept(self) -> float:
        """Seconds that the machine was suspended since this was last asked; 0.0 for moments."""
        ...

    def boot_id(self) -> str: ...
