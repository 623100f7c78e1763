"""
HTTP/1.1 towards callers, on loopback and on a Unix socket.

One task for each connection. While an answer is under way a second one reads: a caller that hangs
up ends its request. An answer that cannot be finished ends by closing the connection behind what
was sent, without the end that its framing demands.
"""

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import anyio.abc
import h11
import structlog
from msgspec import Struct

from fallbackd.fronts.gateway.answers import Aborted, AnswerHead, ToCaller

log = structlog.get_logger("gateway")

MAX_HEAD_BYTES = 64 * 1024
HEAD_LIMIT_S = 10.0
"""For a head that has begun, and for the next request of a connection that is kept."""
IDLE_S = 75.0
BODY_LIMIT_S = 120.0
SLOW_READER_S = 60.0
MAX_CONNECTIONS = 256
READ_BYTES = 64 * 1024
FAREWELL_S = 2.0


class HeadIn(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    """Names in lower case, values as they came."""
    port: int | None
    """Where it came in; None: through the Unix socket."""


class RequestLine(ToCaller, Protocol):
    """One request whose body is still to be read, and its answer."""

    async def body(self, max_bytes: int) -> bytes | None:
        """The body of the request; None: it is longer."""
        ...


AnswerWith = Callable[[HeadIn, RequestLine], Awaitable[None]]
"""Answers one request: `begin`, then `send`. May raise `Aborted` in the middle."""


class GatewayServer:
    def __init__(self, handle: AnswerWith, *, allows: Callable[[socket.socket], bool]) -> None:
        """
        Args:
            allows: Whether the peer of a Unix connection may ask.
        """
        self._handle = handle
        self._allows = allows
        self._open = 0

    async def serve(self, listener: socket.socket) -> None:
        """Until cancelled. The listener is closed then."""
        listener.setblocking(False)
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    try:
                        accepted, _ = listener.accept()
                    except BlockingIOError:
                        await anyio.wait_readable(listener)
                        continue
                    except OSError as error:
                        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                            await anyio.sleep(0.1)
                        continue
                    await self._take(accepted, tasks)
        finally:
            listener.close()

    async def _take(self, accepted: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        is_unix = accepted.family == socket.AF_UNIX
        if self._open >= MAX_CONNECTIONS or (is_unix and not self._allows(accepted)):
            accepted.close()
            return
        port = None if is_unix else int(accepted.getsockname()[1])
        accepted.setblocking(False)
        if is_unix:
            stream: anyio.abc.ByteStream = await anyio.abc.UNIXSocketStream.from_socket(accepted)
        else:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = await anyio.abc.SocketStream.from_socket(accepted)
        self._open += 1
        tasks.start_soon(self._serve_one, stream, port)

    async def _serve_one(self, stream: anyio.abc.ByteStream, port: int | None) -> None:
        try:
            line = _Line(stream, port)
            while await line.serve(self._handle):
                pass
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            pass  # the caller has gone
        except Exception:
            log.exception("gateway.connection_broke")
        finally:
            self._open -= 1
            with anyio.CancelScope(shield=True):
                await stream.aclose()


class _Line:
    """One connection. See `RequestLine`."""

    def __init__(self, stream: anyio.abc.ByteStream, port: int | None) -> None:
        self._stream = stream
        self._port = port
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._whole = anyio.Event()
        """The request has been read: the end of the line is now the caller hanging up."""
        self._has_served = False
        self._is_head_only = False
        self._head = b""
        """Of the answer, until its first piece leaves: one packet carries both."""

    async def serve(self, handle: AnswerWith) -> bool:
        """Answer the next request. False: the connection is over."""
        try:
            request = await self._request()
            if request is None:
                return False
            await self._answer(request, handle)
            if self._http.our_state is h11.SEND_BODY:
                await self._send(self._http.send(h11.EndOfMessage()) or b"")
        except Aborted:
            await self._break_off()
            return False
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
            await self._break_off()
            return False
        if self._http.their_state is not h11.DONE:
            await self._break_off()  # what it still sends would turn a close into a reset
            return False
        if self._http.our_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._has_served = True
        return True

    async def _request(self) -> HeadIn | None:
        with anyio.move_on_after(IDLE_S if self._has_served else HEAD_LIMIT_S):
            event = await self._event()
            if not isinstance(event, h11.Request):
                return None
            named = {name for name, _ in event.headers}
            if not named & {b"content-length", b"transfer-encoding"}:
                await self._event()  # the end of a request without a body
            self._is_head_only = event.method == b"HEAD"
            path, _, query = event.target.decode("latin-1").partition("?")
            return HeadIn(
                method=event.method.decode("ascii"),
                path=path,
                query=query,
                headers=[
                    (name.decode("ascii"), value.decode("latin-1")) for name, value in event.headers
                ],
                port=self._port,
            )
        return None

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await self._stream.send(self._http.send(go_on) or b"")
            try:
                self._http.receive_data(await self._stream.receive(READ_BYTES))
            except anyio.EndOfStream:
                self._http.receive_data(b"")

    async def body(self, max_bytes: int) -> bytes | None:
        found = bytearray()
        with anyio.move_on_after(BODY_LIMIT_S):
            while True:
                event = await self._event()
                if isinstance(event, h11.Data):
                    found += event.data
                    if len(found) > max_bytes:
                        return None
                elif isinstance(event, h11.EndOfMessage):
                    self._whole.set()
                    return bytes(found)
                else:
                    break
        raise anyio.EndOfStream

    async def _answer(self, request: HeadIn, handle: AnswerWith) -> None:
        """
        Raises:
            anyio.EndOfStream: The caller has hung up; the handler was cancelled.
        """
        is_gone = False
        broken: Exception | None = None

        async def watch() -> None:
            nonlocal is_gone
            await self._whole.wait()  # until then the handler reads
            try:
                while True:
                    # What comes now is the next request, ahead of its time.
                    self._http.receive_data(await self._stream.receive(READ_BYTES))
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                is_gone = True
                tasks.cancel_scope.cancel()

        self._whole = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            try:
                await handle(request, self)
            except Exception as error:
                broken = error
            tasks.cancel_scope.cancel()
        if is_gone:
            raise anyio.EndOfStream
        if broken is not None:
            raise broken

    async def begin(self, reply: AnswerHead) -> None:
        headers = list(reply.headers)
        if self._http.their_state is not h11.DONE:
            headers.append(("connection", "close"))  # its body is not read
        head = h11.Response(status_code=reply.status, headers=headers)
        self._head = self._http.send(head) or b""

    async def send(self, data: bytes) -> None:
        if data and not self._is_head_only:
            await self._send(self._http.send(h11.Data(data=data)) or b"")

    async def _send(self, data: bytes) -> None:
        """A caller that stops reading is dropped."""
        head, self._head = self._head, b""
        data = head + data
        if not data:
            return
        with anyio.move_on_after(SLOW_READER_S):
            await self._stream.send(data)
            return
        raise Aborted

    async def _refuse(self, status: int) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = h11.Response(status_code=status, headers=[("content-length", "0")])
            await self._stream.send(self._http.send(head) or b"")

    async def _break_off(self) -> None:
        """Close behind what was sent: a reset would overtake it."""
        head, self._head = self._head, b""
        with anyio.move_on_after(FAREWELL_S):
            if head:
                await self._stream.send(head)
            await self._stream.send_eof()
            while True:
                await self._stream.receive(READ_BYTES)
