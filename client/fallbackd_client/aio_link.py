"""One connection of the async client, and the calls that wait on it."""

from typing import Any

import anyio
import anyio.abc

from fallbackd_client.calls import MAX_ANSWER_BYTES, Lost, read_message
from fallbackd_client.errors import ClientError, ProtocolError
from fallbackd_client.wire.framing import LineSplitter, LineTooLong

Json = Any  # the raw call hands JSON through as it is


class Waiter:
    """One call under way: an event, then a message or the reason why none will come."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.message: dict[str, Json] | None = None
        self.failure: Exception | None = None


class Link:
    """One connection and the calls that wait on it."""

    def __init__(self, path: str, stream: anyio.abc.SocketStream) -> None:
        self.path = path
        self.stream = stream
        self.failure: Exception | None = None
        self.waiters: dict[int, Waiter] = {}
        self._sending = anyio.Lock()
        self._splitter = LineSplitter(MAX_ANSWER_BYTES)

    async def send(self, line: bytes) -> None:
        """
        Raises:
            Lost: The other side is gone.
        """
        async with self._sending:
            try:
                await self.stream.send(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                raise Lost from error
            except BaseException:  # cancelled amid a line: what follows would be read as its end
                self.fail(Lost())
                raise

    async def receive(self) -> list[dict[str, Json]]:
        """
        The next whole messages.

        Raises:
            Lost: The connection ended.
            NoDaemon: With cause bad_reply.
            ProtocolError: A line beyond the limit.
        """
        try:
            lines = self._splitter.feed(await self.stream.receive())
        except LineTooLong as error:
            raise ProtocolError(f"the daemon's answer is too large: {error}") from error
        except (
            anyio.EndOfStream,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            OSError,
        ) as error:
            raise Lost from error
        return [read_message(line, self.path) for line in lines]

    async def read(self) -> None:
        """Hand answers to those who wait, until the connection ends."""
        try:
            while True:
                for message in await self.receive():
                    self._answered(message)
        except (Lost, ClientError) as error:
            self.fail(error)
        finally:
            await self.close()

    async def close(self) -> None:
        """Hang up: the daemon begins nothing that it has not taken yet."""
        self.fail(Lost())
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self.stream)

    def _answered(self, message: dict[str, Json]) -> None:
        if "method" in message:
            return
        call_id = message.get("id")
        if call_id is None:  # it could not read what we sent: every call of this link is in doubt
            for waiter in self.waiters.values():
                waiter.message = message
                waiter.done.set()
            return
        waiter_of_id = self.waiters.get(call_id) if isinstance(call_id, int) else None
        if waiter_of_id is not None:
            waiter_of_id.message = message
            waiter_of_id.done.set()

    def fail(self, error: Exception) -> None:
        """No answer will come any more. The first reason stays."""
        if self.failure is None:
            self.failure = error
        for waiter in self.waiters.values():
            if not waiter.done.is_set():
                waiter.failure = self.failure
                waiter.done.set()
