"""
HTTP/1.1 towards callers, on loopback and on a Unix socket.

One task for each connection, which answers its requests in turn.
"""

import asyncio
import re
import resource
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
import httptools
import structlog
from msgspec import structs

from fallbackd.core.authority import Authority
from fallbackd.fronts.gateway.answers import Aborted, AnswerHead, ToCaller
from fallbackd.fronts.gateway.incoming import HeadIn, IncomingRequest
from fallbackd.fronts.gateway.patience import Bounds
from fallbackd.fronts.gateway.room import Room, Share
from fallbackd.lib.descriptors import is_scarce, is_shortage

# --- one connection ------------------------------------------------------------------------------
# One connection of a caller: its requests as they arrive, its answers as they are made.
#
# What arrives is read at once; a caller that hangs up ends its request. An answer that cannot be
# finished ends by closing the connection behind what was sent, without the end that its framing
# demands.


class _Open(Protocol):
    def fileno(self) -> int: ...


class HangUpWatch:
    """
    Tells once, from the running event loop, that a peer has closed its connection, or its side.

    Args:
        connection: A stream, over TCP or Unix.
        tell: Called once at most, and not behind `close`.
    """

    def __init__(self, connection: socket.socket | _Open, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._found = select.epoll()
        # The loop asks for bytes alone; a set of epoll is readable when one of its events has come.
        self._found.register(connection.fileno(), select.EPOLLRDHUP)
        self._loop.add_reader(self._found.fileno(), self._hung_up)

    def _hung_up(self) -> None:
        self.close()
        self._tell()

    def close(self) -> None:
        """Idempotent."""
        if not self._found.closed:
            self._loop.remove_reader(self._found.fileno())
            self._found.close()


MAX_HEAD_BYTES = 64 * 1024
BODY_LIMIT_S = 120.0
SLOW_READER_S = 60.0
FAREWELL_S = 2.0
MAX_AHEAD_BYTES = 256 * 1024
"""Bound of what is not asked for yet: a body, and what stands behind the next request."""
FED_BYTES = 16 * 1024
"""Bytes fed to the parser at once: a packet may hold thousands of requests."""

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 59\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\n"
    b"The gateway has too many open connections; try again later."
)
_REASONS = {one.value: one.phrase.encode() for one in HTTPStatus}
_UNWRITABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class RequestLine(ToCaller, Protocol):
    """One request whose body is still to be read, and its answer."""

    async def body(self, max_bytes: int) -> bytes | None:
        """The body of the request; None: it is longer."""
        ...

    def holds_body(self, size: int) -> bool:
        """Return whether so much more of it may be held, which it has when it is unpacked."""
        ...


class _Unreadable(Exception):
    """No request that could be answered. The status says why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class CallerLine(asyncio.Protocol):
    """See `RequestLine`. To be served by one task."""

    def __init__(self, port: int | None, room: Room, *, asker: Authority | None = None) -> None:
        """
        Args:
            asker: What the process at the other end may ask; None: its token says.
        """
        self._port = port
        self.asker = asker
        self._share = Share(room)
        """Share of the room, for the request that is answered."""
        self._parser: Any = httptools.HttpRequestParser(self)
        self._coming = IncomingRequest()
        self._head_bytes = 0
        """Bytes of heads that have arrived since the last request was whole."""
        self._waiting: deque[IncomingRequest] = deque()
        self._ahead = bytearray()
        """Bytes that have come behind them, as they came."""
        self._now = self._coming
        """The one that is answered."""
        self._refused: int | None = None
        """Status for what cannot be read; nothing behind it is."""
        self._is_gone = False
        self._is_over = False
        self._is_full = False
        self._has_begun = False
        self._is_chunked = False
        self._is_body_read = False
        self._held = b""
        """The head of the answer, until its first piece leaves: one packet carries both."""
        self._transport: asyncio.Transport | None = None
        self._watch: HangUpWatch | None = None
        """While nothing is read: the end of what comes is not met then."""
        self._waiter: asyncio.Future[None] | None = None
        self._scope: anyio.CancelScope | None = None

    # --- for the task that serves it -------------------------------------------------------------

    async def request(self, *, idle_s: float, head_s: float) -> HeadIn | None:
        """
        The next request; None: none came.

        Args:
            idle_s: For its first byte.
            head_s: For its head from there on.
        """
        await self._next(idle_s, is_begin_enough=True)
        await self._next(head_s if self._coming.is_begun else 0)
        if self._is_gone:
            return None
        if not self._waiting:
            await self._refuse()
            return None
        self._now = self._waiting.popleft()
        self._has_begun = self._is_chunked = False
        return self._now.head(self._port, self.asker)

    async def _next(self, limit_s: float, *, is_begin_enough: bool = False) -> None:
        """Wait until a request has come, or the time is over."""
        if self._waiting:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        alarm = loop.call_at(until, self._tell)
        try:
            while not (self._waiting or self._is_gone or self._refused) and loop.time() < until:
                if is_begin_enough and self._coming.is_begun:
                    break
                await self._news()
        finally:
            alarm.cancel()

    @property
    def is_idle(self) -> bool:
        """No byte of a request has come that is not answered yet."""
        return not (self._coming.is_begun or self._waiting or self._ahead)

    def while_there(self) -> anyio.CancelScope:
        """Cancel what is inside when the caller has hung up, until `end_answer`."""
        self._scope = anyio.CancelScope()
        if self._is_gone:
            self._scope.cancel()
        return self._scope

    async def end_answer(self, *, is_aborted: bool) -> bool:
        """False: the connection is over."""
        self._scope = None
        request = self._now
        if self._is_gone:
            return False
        if is_aborted or not self._has_begun:
            if self._refused is not None and not self._has_begun:
                await self._refuse()
            await self._break_off()
            return False
        if self._is_chunked and not request.is_head_only:
            self._held += b"0\r\n\r\n"
        self._flush()
        if self._refused is not None and not self._waiting and request.is_whole:
            await self._refuse()
            return False
        if not request.is_whole or not request.is_kept:
            await self._break_off()  # what it still sends would turn a close into a reset
            return False
        self._resume()
        return True

    def close(self) -> None:
        self._is_over = True
        if self._transport is not None:
            self._transport.close()

    # --- one request and its answer --------------------------------------------------------------

    @property
    def takes_pieces(self) -> bool:
        return self._now.may_chunk

    @property
    def has_left(self) -> bool:
        return self._is_gone

    async def body(self, max_bytes: int) -> bytes | None:
        request = self._now
        size = request.size if request.is_whole else request.stated_size(max_bytes)
        await self._share.take_for_body(size)
        if not request.is_whole:
            await self._rest_of_body(request, max_bytes)
        if request.size > max_bytes:
            return None
        self._share.has_body(request.size)
        found = bytes(request.body)
        request.body.clear()
        return found

    async def _rest_of_body(self, request: IncomingRequest, max_bytes: int) -> None:
        expects = next((value for name, value in request.fields if name == b"expect"), b"")
        is_waiting = expects.lower() == b"100-continue" and request.may_chunk
        if is_waiting and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._is_body_read = True
        with anyio.move_on_after(BODY_LIMIT_S):
            while not request.is_whole and request.size <= max_bytes:
                if self._is_gone or self._refused:
                    break
                self._resume()
                await self._news()
        self._is_body_read = False
        if not request.is_whole and request.size <= max_bytes:
            raise anyio.EndOfStream

    def holds_body(self, size: int) -> bool:
        return self._share.holds_body(size)

    def holds(self, size: int) -> bool:
        return self._share.holds(size)

    def give_back(self) -> None:
        """Nothing of the request and its answer is held any more."""
        self._share.give_back()

    def keep_no_longer(self) -> None:
        """The connection ends behind the answer."""
        self._now.is_kept = False

    def turn_away(self) -> None:
        """Close it; a caller whose request has not come yet finds out why."""
        if self._transport is not None and not (self._has_begun or self._is_over):
            self._transport.write(_FULL)
        self.close()

    async def begin(self, reply: AnswerHead) -> None:
        """
        Raises:
            Aborted: A part of another answer to the same request has left.
        """
        if self._has_begun:
            raise Aborted
        request = self._now
        lines = [b"HTTP/1.1 %d %s" % (reply.status, _REASONS.get(reply.status, b""))]
        has_length = False
        for name, value in reply.headers:
            has_length = has_length or name == "content-length"
            lines.append(f"{name}: {_UNWRITABLE.sub('?', value)}".encode())
        has_body = not request.is_head_only and reply.status not in (204, 304)
        self._is_chunked = has_body and not has_length and request.may_chunk
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked")
        if not request.is_whole or not request.is_kept:
            request.is_kept = False
            lines.append(b"connection: close")
        self._has_begun = True
        self._held = b"\r\n".join(lines) + b"\r\n\r\n"

    def write(self, data: bytes) -> bool:
        if data and not self._now.is_head_only:
            self._held += b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data
        self._flush()
        return not self._is_full

    async def send(self, data: bytes) -> None:
        if not self.write(data):
            await self.drained()

    async def drained(self) -> None:
        """A caller that stops reading is dropped."""
        with anyio.move_on_after(SLOW_READER_S):
            while self._is_full and not self._is_gone:
                await self._news()
            return
        raise Aborted

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and self._transport is not None and not self._is_gone:
            self._transport.write(held)

    async def _refuse(self) -> None:
        if self._refused is not None and self._transport is not None:
            reason = _REASONS.get(self._refused, b"")
            head = b"HTTP/1.1 %d %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self._transport.write(head % (self._refused, reason))
            await self._break_off()

    async def _break_off(self) -> None:
        """Close behind what was sent: a reset would overtake it."""
        self._is_over = True
        self._ahead.clear()
        self._flush()
        if self._transport is None or self._transport.is_closing():
            return
        with anyio.move_on_after(FAREWELL_S):
            self._transport.write_eof()
            while not self._is_gone:
                self._resume()
                await self._news()

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        """Read what is asked for now: of what is held, then of what comes."""
        if self._ahead and self._parser is not None:
            held, self._ahead = self._ahead, bytearray()
            self._read(held)
        if self._watch is not None and self._transport is not None and not self._is_far_ahead:
            self._unwatch()
            self._transport.resume_reading()

    @property
    def _is_far_ahead(self) -> bool:
        """Return whether enough is held of what is not asked for."""
        unasked = 0 if self._is_body_read else self._coming.size
        return not self._is_over and len(self._ahead) + unasked > MAX_AHEAD_BYTES

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # --- called by the event loop ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_over:  # it was closed before it could be read
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._read(data)
        if self._is_far_ahead and self._watch is None and self._transport is not None:
            self._transport.pause_reading()
            self._watch = HangUpWatch(self._transport.get_extra_info("socket"), self._leave)
        self._tell()

    def _read(self, data: bytes | bytearray) -> None:
        """Read as far as it is asked for; the rest is held."""
        left: bytes | bytearray | memoryview = memoryview(data)
        while left and not (self._ahead or self._is_over or self._refused):
            if len(self._waiting) > 1:
                break
            again = self._fed(bytes(left[:FED_BYTES]))
            left = left[FED_BYTES:] if again is None else again + left[FED_BYTES:]
        if not self._is_over:
            self._ahead += left

    def _fed(self, data: bytes) -> bytes | None:
        """Take what is to be fed in the place of what was left; None: nothing was."""
        if not self._coming.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if not self._coming.has_head and self._head_bytes > MAX_HEAD_BYTES:
                self._refused = 431
        except httptools.HttpParserUpgrade as offer:
            return self._declined(self._waiting[-1], data[offer.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refused = cause.status if isinstance(cause, _Unreadable) else 400
        return None

    def _declined(self, request: IncomingRequest, rest: bytes) -> bytes | None:
        """An offer of another protocol, for which the parser ends a request behind its head."""
        if request.method == "CONNECT":
            request.is_kept = False
            self._is_over = True  # what follows is of another protocol
            return None
        self._waiting.pop()
        head = request.without_upgrade(self._parser.get_http_version())
        self._parser = httptools.HttpRequestParser(self)
        return head + rest

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        # It knows this line, and each of them would keep the other, with a body in it.
        self._parser = None

    def _leave(self) -> None:
        self._is_gone = True
        self._unwatch()
        self._tell()
        if self._scope is not None:
            self._scope.cancel()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._tell()

    # --- called by the parser --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._coming.is_begun = True

    def on_url(self, url: bytes) -> None:
        self._coming.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._coming.has_head:  # else it stands behind the body
            self._coming.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        coming = self._coming
        size = len(coming.url) + sum(len(name) + len(value) + 4 for name, value in coming.fields)
        if size > MAX_HEAD_BYTES:
            raise _Unreadable(431)
        named = [name for name, _ in coming.fields]
        version = self._parser.get_http_version()
        if named.count(b"host") != 1 and (version != "1.0" or b"host" in named):
            raise _Unreadable(400)
        for name, value in coming.fields:
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                raise _Unreadable(501)
        method = self._parser.get_method()
        coming.method = method.decode("ascii")
        coming.is_head_only = method == b"HEAD"
        coming.may_chunk = version != "1.0"
        coming.has_head = True
        self._waiting.append(coming)

    def on_body(self, data: bytes) -> None:
        self._coming.body += data
        self._coming.size += len(data)

    def on_message_complete(self) -> None:
        self._coming.is_whole = True
        self._coming.is_kept = self._parser.should_keep_alive() and self._coming.may_chunk
        self._coming = IncomingRequest()
        self._head_bytes = 0


# --- the listeners -------------------------------------------------------------------------------

log = structlog.get_logger("gateway")

HEAD_LIMIT_S = 10.0
"""Limit of a head from its first byte on, and for the first byte on a connection."""
IDLE_S = 75.0
"""Limit of the first byte of the next request on a connection that is kept."""
NO_DESCRIPTOR_PAUSE_S = 0.1
MAX_CONNECTIONS = 256
"""Connections whose callers have shown that they may ask."""
MAX_STRANGERS = 512
"""Further ones, whose first request has not come, or was denied."""
ANY_STRANGERS = 32
"""Number of them where there are few descriptors, which those that are answered need."""

AnswerWith = Callable[[HeadIn, RequestLine], Awaitable[None]]
"""Answers one request: `begin`, then `send`. May raise `Aborted` in the middle."""


class _Strangers:
    """
    Connections of callers that are not known yet, the oldest first; of one listener, so that those
    of a port, which every user of the machine can reach, take no place at the Unix socket.
    """

    def __init__(self) -> None:
        self._lines: dict[CallerLine, socket.socket] = {}
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MAX_STRANGERS
        if limit != resource.RLIM_INFINITY:
            self._most = min(MAX_STRANGERS, max(ANY_STRANGERS, limit // 4))

    def add(self, line: CallerLine, accepted: socket.socket) -> None:
        """Another one gives way where there are too many."""
        self._lines[line] = accepted
        if len(self._lines) > self._most and not self.turned_away():
            self.drop(line)
            line.turn_away()

    def turned_away(self) -> bool:
        """Close the oldest whose bytes have been read. False: there is none."""
        found = self._lines.items()
        oldest = next((one for one, on in found if not _has_unread(on)), None)
        if oldest is None:
            return False
        self.drop(oldest)
        oldest.turn_away()
        return True

    def drop(self, line: CallerLine) -> None:
        self._lines.pop(line, None)


class GatewayServer:
    def __init__(
        self,
        handle: AnswerWith,
        *,
        allows: Callable[[socket.socket], Authority | None],
        knows: Callable[[HeadIn], bool] = lambda _: True,
        looks: Callable[[socket.socket, HeadIn], Awaitable[Authority | None]] | None = None,
    ) -> None:
        """
        Args:
            looks: What the peer of a TCP connection may ask, where it is a process of an attempt.
                Called before its first request, and until one shows that its caller may ask.
            allows: What the peer of a Unix connection may ask; None: nothing.
            knows: Whether a request shows that its caller may ask.
        """
        self._handle = handle
        self._allows = allows
        self._knows = knows
        self._looks = looks
        self._open = 0
        self._known: set[CallerLine] = set()
        self._idle: dict[CallerLine, socket.socket] = {}
        """Connections without a request since their last answer; the longest idle first."""
        self.room = Room(Bounds().max_memory_bytes)

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled. The listener is closed then."""
        listener.setblocking(False)
        strangers = _Strangers()
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    if self._open and is_scarce():
                        await anyio.wait_readable(listener)
                        if is_scarce():
                            if not strangers.turned_away():
                                self._closed_idle()
                            await anyio.sleep(NO_DESCRIPTOR_PAUSE_S)
                            continue
                    try:
                        accepted, _ = listener.accept()
                    except BlockingIOError:
                        await anyio.wait_readable(listener)
                        continue
                    except OSError as error:
                        if is_shortage(error):
                            await anyio.sleep(NO_DESCRIPTOR_PAUSE_S)
                        continue
                    self._take(accepted, strangers, tasks)
                    await anyio.lowlevel.checkpoint()  # those that were closed for it go first
        finally:
            listener.close()

    def _take(
        self, accepted: socket.socket, strangers: _Strangers, tasks: anyio.abc.TaskGroup
    ) -> None:
        is_unix = accepted.family == socket.AF_UNIX
        # Now, not with a request: the process that connected can be looked at while it is there.
        asker = self._allows(accepted) if is_unix else None
        if is_unix and asker is None:
            accepted.close()
            return
        port = None if is_unix else int(accepted.getsockname()[1])
        accepted.setblocking(False)
        line = CallerLine(port, self.room, asker=asker)
        tasks.start_soon(self._serve_one, line, accepted, strangers)

    def _has_place(self, line: CallerLine) -> bool:
        """Return whether one that is known now may ask: the longest idle one makes room."""
        is_full = line not in self._known and len(self._known) >= MAX_CONNECTIONS
        if is_full and not self._closed_idle():
            return False
        self._known.add(line)
        return True

    def _closed_idle(self) -> bool:
        """Close the connection that has been idle longest. False: all are in use."""
        found = self._idle.items()
        idle = next((one for one, on in found if one.is_idle and not _has_unread(on)), None)
        if idle is None:
            return False
        self._left(idle)
        idle.close()
        return True

    def _left(self, line: CallerLine) -> None:
        self._idle.pop(line, None)
        self._known.discard(line)

    async def _serve_one(
        self, line: CallerLine, accepted: socket.socket, strangers: _Strangers
    ) -> None:
        try:
            self._open += 1
            await asyncio.get_running_loop().connect_accepted_socket(lambda: line, accepted)
            is_kept = True
            while is_kept:
                is_known = line in self._known
                if is_known:
                    self._idle[line] = accepted
                else:
                    strangers.add(line, accepted)
                idle_s = IDLE_S if is_known else HEAD_LIMIT_S
                request = await line.request(idle_s=idle_s, head_s=HEAD_LIMIT_S)
                self._idle.pop(line, None)
                strangers.drop(line)
                if request is None:
                    break
                is_aborted = await self._answered(request, line, accepted)
                if line not in self._known:
                    strangers.add(line, accepted)  # the end takes as long as its caller wants
                is_kept = await line.end_answer(is_aborted=is_aborted)
        except OSError:
            pass  # the caller has gone
        except Exception:
            log.exception("gateway.connection_broke")
        finally:
            self._open -= 1
            strangers.drop(line)
            self._left(line)
            line.close()

    async def _answered(self, request: HeadIn, line: CallerLine, accepted: socket.socket) -> bool:
        """Answer one request. Returns whether its answer broke off."""
        is_known = line in self._known
        if not is_known and line.asker is None and self._looks is not None:
            line.asker = await self._looks(accepted, request)
            request = structs.replace(request, asker=line.asker)
        is_known = is_known or self._knows(request)
        if line.asker is not None and not line.asker.is_person:
            line.keep_no_longer()  # a helper server works for other attempts by its next request
        if is_known and not self._has_place(line):
            request = structs.replace(request, is_one_too_many=True)
            line.keep_no_longer()
        with line.while_there():
            try:
                await self._handle(request, line)
            except (Aborted, anyio.EndOfStream):
                return True
            finally:
                line.give_back()
        return False


def _has_unread(connection: socket.socket) -> bool:
    """Return whether bytes have come that the event loop has not read yet."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:  # none so far, or it is closed
        return False
