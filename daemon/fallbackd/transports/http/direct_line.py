"""One connection to a server: what arrives is read, and handed on, without a task in between."""

import asyncio

import anyio

from fallbackd.ports.passing import TakePiece
from fallbackd.transports.http.answering import Broken, Reading

WRITE_LIMIT_S = 60.0
AT_ONCE_BYTES = 256 * 1024
"""A long request is given so long for each part of it, and as much of an answer is held."""

LineKey = tuple[object, ...]
"""Where a connection leads, and how: those of the same place may be used for one another."""


class ServerLine(asyncio.Protocol):
    """
    One connection to a server.

    What arrives is read at once and given to `take` at once, without a task in between. Without a
    `take` the server waits.
    """

    def __init__(self, place: LineKey) -> None:
        self.place = place
        self.is_used = False
        self.idle_since = 0.0
        self.reading: Reading | None = None
        """Of the request under way."""
        self.take: TakePiece | None = None
        self.is_over = False
        """The server has closed it, or sent something unasked."""
        self._waiter: asyncio.Future[None] | None = None
        self._is_full = False
        self._is_paused = False
        self._is_refused = False
        self._fault: Exception | None = None
        """Of `take`."""

    async def write(self, data: bytes | memoryview) -> None:
        """
        Raises:
            TimeoutError: The server does not read.
        """
        for at in range(0, len(data), AT_ONCE_BYTES):
            if self.is_over:
                return
            self._transport.write(data[at : at + AT_ONCE_BYTES])
            if self._has_to_wait():
                with anyio.fail_after(WRITE_LIMIT_S):
                    while self._has_to_wait():
                        await self.news()

    def _has_to_wait(self) -> bool:
        return self._is_full and not self.is_over

    async def news(self) -> None:
        """Returns when anything has happened."""
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    async def handed_on(self, take: TakePiece) -> bool:
        """Pieces go to `take` until anything else happens. False: it wants no more."""
        self.take, self._is_refused = take, False
        try:
            await self.news()
        finally:
            self.take = None
        return not self._is_refused

    def abort(self) -> None:
        self.is_over = True
        self._transport.abort()

    def wake(self) -> None:
        """Let who waits for `news` look at the time."""
        self._tell()

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- called by the event loop ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        reading = self.reading
        if reading is None:
            self.abort()
            return
        try:
            reading.feed(data)
            if self.take is None:
                self._hold(reading)
            elif (found := reading.taken()) and not self.take(found):
                self._is_refused, self.take = True, None
            elif not reading.is_over and reading.problem is None:
                return
        except Broken as error:
            reading.problem = error
        except Exception as error:
            self._fault = error
        self._tell()

    def _hold(self, reading: Reading) -> None:
        if reading.held_bytes > AT_ONCE_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        self.is_over = True
        reading = self.reading
        if reading is not None and reading.problem is None and not reading.is_over:
            try:
                if error is not None:
                    raise Broken("ReadError", str(error))
                reading.end()
            except Broken as problem:
                reading.problem = problem
        self._tell()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._tell()
