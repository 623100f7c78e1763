"""One way out of the daemon."""

from collections.abc import AsyncIterator
from typing import Protocol

from fallbackd.core.exchange import Call, Chunk, Exit


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
        """How it ended. Only after `chunks` is exhausted."""
        ...

    @property
    def log_bytes(self) -> int:
        """Size of the log up to the last chunk that was yielded."""
        ...


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

    async def aclose(self) -> None:
        """Stop whatever the transport itself keeps alive."""
        ...
