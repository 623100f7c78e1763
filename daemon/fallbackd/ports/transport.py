"""One way out of the daemon."""

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

from fallbackd.core.protocol import Call, Chunk, Exit


class Running(Protocol):
    """One call that is under way. `chunks` ends by itself, after `stop` too."""

    @property
    def pid(self) -> int | None: ...

    def chunks(self) -> AsyncIterator[Chunk]:
        """Yield what comes, in order, until the end. To be iterated once."""
        ...

    def stop(self, *, grace_s: float) -> None:
        """Ask it to end: politely, then by force after `grace_s`. Returns at once; idempotent."""
        ...

    @property
    def exit(self) -> Exit:
        """The end of the call. Only after `chunks` is exhausted."""
        ...

    @property
    def log_bytes(self) -> int:
        """Size of the log up to the last chunk that was yielded."""
        ...

    @property
    def recorded_bytes(self) -> int:
        """Size of the log when this was opened: 0, unless it was re-attached."""
        ...


class Unsent(Struct, frozen=True):
    """A call that was opened and, by its record, never sent: `attach` returns it."""


class Transport(Protocol):
    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> Running:
        """
        Start `call`. Never raises for what the other side does: that is an `Exit`.

        Args:
            attempt: Its id, for logs and for the environment of children.
            directory: Private directory of the attempt (exists, 0700); the log goes there.
            env: Variables that mark the children (`FALLBACKD_DELEGATION`, …).
        """
        ...

    async def attach(self, *, attempt: str, directory: str) -> Running | Unsent | None:
        """
        Re-attach to what an earlier daemon began in `directory`: it still runs, or has ended.

        Its chunks begin with the first byte that was recorded, with the times of then.

        Returns:
            Unsent: nothing was started there, and from now on nothing will be: a record proves it.
            None: the same, as far as can be seen: there is no record of any beginning.
        """
        ...

    async def detach(self) -> None:
        """Let go of what runs, for a later daemon to take it up."""
        ...

    async def aclose(self) -> None:
        """Stop whatever the transport itself keeps alive."""
        ...
