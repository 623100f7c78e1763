"""Whose a server is, and who waits at it for the end of a turn."""

from collections.abc import Sequence
from functools import partial

from anyio import to_thread

from fallbackd.fronts.opencode.convert import EventFields, written_of
from fallbackd.ports.opencode import Link, Owner, Whose


class Around:
    """
    One server.

    Attributes:
        pid: Its process, as far as it can be seen.
        owner: Whose its turns are.
    """

    def __init__(self, whose: Whose, link: Link) -> None:
        self._whose = whose
        self._link = link
        self.pid: int | None = None
        self.owner: Owner = "person"

    async def look(self) -> Owner:
        self.owner = await to_thread.run_sync(self._look)
        return self.owner

    def _look(self) -> Owner:
        url = self._link.url
        self.pid = self._link.pid or (self._whose.server_at(url) if "://" in url else None)
        return self._whose.owner(self.pid)

    async def is_awaited(
        self,
        messages: Sequence[EventFields],
        message: str,
        *,
        certainly: bool = False,
    ) -> bool:
        """
        Whether a program waits for the turn of a message, which ends for it where it is stopped.

        Args:
            messages: Of the session, that one among them.
            certainly: False: as far as it cannot be ruled out.
        """
        if self.owner == "program":
            return True
        written = written_of(messages, message)
        ask = partial(self._whose.is_awaited, self._link.url, written, certainly=certainly)
        return await to_thread.run_sync(ask)

    async def stops(self, session: str, *, since_at: float) -> int | None:
        """How often a session was asked to stop; None: that is not known here."""
        ask = partial(self._whose.stops, self.pid, session, since_at=since_at)
        return await to_thread.run_sync(ask)
