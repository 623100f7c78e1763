"""
Requests straight to their server, over connections that are kept: the way of nearly all of them.

A tenth of what the general client of `clients` takes for each request. That one goes through
proxies, and to addresses that are more than scheme, host, port and path.
"""

import asyncio
import os
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

import anyio
from msgspec import Struct

from fallbackd.core.protocol import HttpRequest, Tls
from fallbackd.lib.unpacking import Unpacking, unpacking_of
from fallbackd.ports.transport import TakePiece
from fallbackd.transports.http.clients import KEPT, LOOPBACK, context_of, stamps

# --- the answer ----------------------------------------------------------------------------------
# The answer to one request over HTTP/1.1, read from the bytes of its connection.

MAX_HEAD_BYTES = 128 * 1024


class Broken(Exception):
    """
    There is no answer, or no end of it.

    Attributes:
        name: What happened, as the general client names it.
        is_unanswered: A connection that was kept has ended before the server read the request.
    """

    def __init__(self, name: str, text: str, *, is_unanswered: bool = False) -> None:
        super().__init__(text)
        self.name = name
        self.text = text
        self.is_unanswered = is_unanswered


class Reading:
    def __init__(self) -> None:
        self.status = 0
        self.has_head = False
        self.is_over = False
        self.is_touched = False
        """A byte of it has come."""
        self.problem: Broken | None = None
        """Fault behind what could be read."""
        import httptools  # here and below: the start needs none of it, and no piece pays for it

        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[tuple[bytes, bytes]] = []
        self._headers: Mapping[str, str] | None = None
        self._pieces: list[bytes] = []
        self.held_bytes = 0
        """Bytes of the body, not yet taken."""
        self._head_bytes = 0
        self._ends_with_line = False
        self._is_kept = False
        self._has_surplus = False
        self._unpacking: Unpacking | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; what is said several times, in one."""
        if self._headers is None:
            found: dict[str, str] = {}
            for raw_name, raw in self._fields:
                name, value = raw_name.decode("latin-1").lower(), _text(raw)
                found[name] = f"{found[name]}, {value}" if name in found else value
            self._headers = found
        return self._headers

    @property
    def may_be_kept(self) -> bool:
        """Return whether the connection can carry another request."""
        return self.is_over and self._is_kept and not self._has_surplus

    @property
    def is_timeout(self) -> bool:
        """The server has waited for the request, and closes the connection (RFC 9110, 15.5.9)."""
        named = self.headers.get("connection", "").lower().split(",")
        return self.status == 408 and "close" in (one.strip() for one in named)

    def feed(self, data: bytes) -> None:
        """
        Raises:
            Broken: It is no HTTP.
        """
        self.is_touched = True
        if not self.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except Exception as error:
            self._refused(error)
        if not self.has_head and self._head_bytes > MAX_HEAD_BYTES:
            raise Broken("RemoteProtocolError", "the head of the answer is too long")

    def _refused(self, error: Exception) -> None:
        """Note a refusal of the parser."""
        import httptools

        if isinstance(error, httptools.HttpParserUpgrade):
            raise Broken("RemoteProtocolError", "the server changes the protocol") from error
        if not isinstance(error, httptools.HttpParserError):
            raise error
        if self.is_over:
            self._has_surplus = True
            return
        self.problem = Broken("RemoteProtocolError", f"not HTTP: {error}")
        if not self.has_head:
            raise self.problem from error

    def end(self) -> None:
        """
        The connection has ended.

        Raises:
            Broken: In the middle.
        """
        if not self.is_touched:
            text = "Server disconnected without sending a response."
            raise Broken("RemoteProtocolError", text)
        if self.is_over:
            return
        if not self.has_head or not self._ends_with_line:
            text = "the server closed the connection in the middle of its answer"
            raise Broken("RemoteProtocolError", text)
        self._is_kept = False
        self._complete()

    def taken(self) -> bytes:
        """Take what has come of the body since the last time."""
        if not self._pieces:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.held_bytes = 0
        return data

    # --- called by the parser --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_over:
            self._has_surplus = True
        elif not self.has_head:
            self._fields.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.has_head or status < 200:
            return
        self.status = status
        self.has_head = True
        self._is_kept = self._parser.should_keep_alive()
        named = self.headers
        self._ends_with_line = "content-length" not in named and "chunked" not in named.get(
            "transfer-encoding", ""
        )
        self._unpacking = unpacking_of(named.get("content-encoding", ""))
        if self._unpacking is not None:
            self._headers = {one: text for one, text in named.items() if one != "content-encoding"}

    def on_body(self, data: bytes) -> None:
        if self.is_over:
            return
        if self._unpacking is not None:
            data = self._unpacking.feed(data)
        if data:
            self._pieces.append(data)
            self.held_bytes += len(data)

    def on_message_complete(self) -> None:
        if self.has_head and not self.is_over:
            self._complete()

    def _complete(self) -> None:
        self.is_over = True
        if self._unpacking is not None and (rest := self._unpacking.end()):
            self._pieces.append(rest)
            self.held_bytes += len(rest)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


# --- one connection ------------------------------------------------------------------------------
# One connection to a server: what arrives is read, and handed on, without a task in between.

WRITE_LIMIT_S = 60.0
AT_ONCE_BYTES = 256 * 1024
"""A long request is given so long for each part of it, and as much of an answer is held."""

LineKey = tuple[object, ...]
"""Place that a connection leads to, and how: those of the same place are interchangeable."""


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
        """Answer of the request under way."""
        self.take: TakePiece | None = None
        self.is_over = False
        """The server has closed it, or sent something unasked."""
        self._waiter: asyncio.Future[None] | None = None
        self._is_full = False
        self._is_paused = False
        self._is_refused = False
        self._fault: Exception | None = None
        """Error of `take`."""

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


# --- the pool ------------------------------------------------------------------------------------

CLOSED_BEFORE_S = 1.0
"""A request that met a closing connection fails within a packet's way; a later end is an answer."""
KEPT_S = 30.0
"""Servers close what is idle after a minute or more."""
NEXT_ADDRESS_S = 0.25
"""Wait before the next address of a host is tried beside the first."""
AGENT = "fallbackd"
UNWRITABLE = "the request could not be written: a header has characters that HTTP forbids"

_PLAIN = re.compile(r"https?://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?(?:[/?][!-~]*)?", re.A)
"""Addresses without quoting, without a login, and whose host is no international name."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PORTS = {"http": 80, "https": 443}


class _Target(Struct, frozen=True):
    scheme: str
    host: str
    port: int
    authority: str
    path: str


class DirectPool:
    def __init__(self) -> None:
        self._lines: set[ServerLine] = set()
        """All that are open."""
        self._kept: deque[ServerLine] = deque()
        """Connections without a request, the longest idle first."""
        self._contexts: dict[tuple[object, ...], ssl.SSLContext] = {}

    @property
    def open(self) -> int:
        return len(self._lines)

    def takes(self, call: HttpRequest) -> bool:
        if call.own_listener or not _PLAIN.fullmatch(call.url):
            return False
        return bool(LOOPBACK.match(call.url)) or not _has_proxy(call.url.partition(":")[0])

    async def send(
        self, call: HttpRequest, headers: Mapping[str, str], body: bytes, *, is_fresh: bool
    ) -> "DirectAnswer":
        """
        Send a request, and wait for the head of its answer.

        Args:
            is_fresh: Over a connection of its own.

        Raises:
            Broken: There is no answer.
            fallbackd.transports.http.clients.TlsFiles: A certificate or key that cannot be read.
        """
        try:
            target = _target_of(call.url)
            head = _head_of(call.method, target, headers, body)
        except ValueError as error:
            raise Broken("LocalProtocolError", str(error)) from error
        place = (target.scheme, target.host, target.port, call.tls, *stamps(call.tls))
        context = None
        if target.scheme == "https" or call.tls is not None:
            context = self._context(call.tls)
        line = None if is_fresh else self._take(place)
        if line is None:
            line = await _connected(
                target,
                place,
                context if target.scheme == "https" else None,
                limit_s=call.connect_timeout_s,
            )
            self._lines.add(line)
        answer = DirectAnswer(self, line, read_limit_s=call.read_timeout_s)
        try:
            await answer.begin(head, body)
        except BaseException:
            self.drop(line)
            raise
        return answer

    def _context(self, tls: Tls | None) -> ssl.SSLContext:
        key = (tls, *stamps(tls))
        found = self._contexts.get(key)
        if found is None:
            found = context_of(tls or Tls())
            found.set_alpn_protocols(["http/1.1"])
            self._contexts[key] = found
        return found

    def _take(self, place: LineKey) -> ServerLine | None:
        """A kept connection that is open still; the one used last."""
        found: ServerLine | None = None
        now = anyio.current_time()
        while self._kept and now - self._kept[0].idle_since > KEPT_S:
            self.drop(self._kept.popleft())
        for line in reversed(tuple(self._kept)):
            if line.place != place:
                continue
            self._kept.remove(line)
            if not line.is_over:
                found = line
                break
            self.drop(line)
        return found

    def keep(self, line: ServerLine) -> None:
        line.is_used = True
        line.idle_since = anyio.current_time()
        self._kept.append(line)
        while len(self._kept) > KEPT:
            self.drop(self._kept.popleft())

    def drop(self, line: ServerLine) -> None:
        self._lines.discard(line)
        line.abort()

    async def aclose(self) -> None:
        """Close all; what is under way ends too."""
        self._kept.clear()
        for line in tuple(self._lines):
            self.drop(line)


class DirectAnswer:
    """One answer, its body read as it is asked for. The server waits where it is not."""

    def __init__(self, pool: DirectPool, line: ServerLine, *, read_limit_s: float) -> None:
        self._pool = pool
        self._line: ServerLine | None = line
        self._limit_s = read_limit_s
        self._reading = Reading()

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    @property
    def status_code(self) -> int:
        return self._reading.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._reading.headers

    async def begin(self, head: bytes, body: bytes) -> None:
        """
        Raises:
            Broken: No head came.
        """
        line, reading = self._line, self._reading
        assert line is not None
        line.reading = reading
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        try:
            await line.write(head + body[:AT_ONCE_BYTES])
            await line.write(memoryview(body)[AT_ONCE_BYTES:])
        except TimeoutError as error:
            raise Broken("WriteTimeout", "the server does not take the request") from error
        # A server may refuse a long request before it has read it, and say why.
        until = loop.time() + self._limit_s
        alarm = loop.call_at(until, line.wake)  # a scope of its own costs ten times of that
        try:
            while not reading.has_head and reading.problem is None:
                if loop.time() >= until:
                    raise Broken("ReadTimeout", f"silent for {self._limit_s:g} s")
                await line.news()
        finally:
            alarm.cancel()
        # Only on a connection that was kept: the server may have closed it as the request left.
        may_be_unread = line.is_used and loop.time() - sent_at < CLOSED_BEFORE_S
        if (problem := reading.problem) is not None and not reading.has_head:
            if reading.is_touched:
                raise problem
            raise Broken(problem.name, problem.text, is_unanswered=may_be_unread) from problem
        if may_be_unread and reading.is_timeout:
            text = "the server closed the connection, which had no request for too long (408)"
            raise Broken("RemoteProtocolError", text, is_unanswered=True)

    async def read(self) -> bytes:
        """
        The next piece of the body; empty: it is over. The caller bounds the silence.

        Raises:
            Broken: It cannot be finished.
        """
        while not (data := self._reading.taken()):
            if self._is_finished():
                return b""
            assert self._line is not None
            await self._line.news()
        return data

    async def flow(self, take: TakePiece) -> bool:
        """
        Hand each piece of the body to `take` as it arrives, until `take` says False or all is
        there. The caller bounds the silence.

        Returns:
            Whether it is over.

        Raises:
            Broken: It cannot be finished.
        """
        while True:
            data = self._reading.taken()
            if data and not take(data):
                return False
            if self._is_finished():
                return True
            line = self._line
            assert line is not None
            if not await line.handed_on(take):
                return False

    def _is_finished(self) -> bool:
        """
        Raises:
            Broken: It cannot be finished.
        """
        if self._reading.problem is not None:
            raise self._reading.problem
        if self._reading.is_over:
            self._finish()
            return True
        return self._line is None

    def _finish(self) -> None:
        line, self._line = self._line, None
        if line is None:
            return
        line.reading = None
        if self._reading.may_be_kept and not line.is_over:
            self._pool.keep(line)
        else:
            self._pool.drop(line)

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection where the answer is not over. Idempotent."""
        if self._reading.is_over:
            self._finish()
        line, self._line = self._line, None
        if line is not None:
            self._pool.drop(line)


async def _connected(
    target: _Target, place: LineKey, context: ssl.SSLContext | None, *, limit_s: float
) -> ServerLine:
    try:
        with anyio.fail_after(limit_s):
            _, line = await asyncio.get_running_loop().create_connection(
                lambda: ServerLine(place),
                target.host,
                target.port,
                ssl=context,
                server_hostname=None if context is None else target.host,
                happy_eyeballs_delay=NEXT_ADDRESS_S,
            )
            return line
    except TimeoutError as error:
        text = f"no connection to {target.authority} within {limit_s:g} s"
        raise Broken("ConnectTimeout", text) from error
    except (OSError, UnicodeError) as error:  # the latter: a name with an empty or too long part
        raise Broken("ConnectError", str(error)) from error


@lru_cache(maxsize=256)
def _target_of(url: str) -> _Target:
    parts = urlsplit(url)
    path = parts.path or "/"
    if parts.query:
        path += "?" + parts.query
    port = parts.port or _PORTS[parts.scheme]
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port == _PORTS[parts.scheme] else f"{shown}:{port}"
    return _Target(parts.scheme, host, port, authority, path)


def _head_of(method: str, target: _Target, headers: Mapping[str, str], body: bytes) -> bytes:
    """
    Raises:
        ValueError: A header that HTTP cannot carry. The text does not quote it: it may be the key.
    """
    own = {"host": target.authority, "accept": "*/*", "accept-encoding": "identity"}
    own["user-agent"] = AGENT
    if body or method not in ("GET", "HEAD"):
        own["content-length"] = str(len(body))
    lines = [f"{method} {target.path} HTTP/1.1"]
    for name, value in headers.items():
        if name.lower() == "content-length":
            continue
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(UNWRITABLE)
        own.pop(name.lower(), None)
        lines.append(f"{name}: {value.strip()}")
    lines[1:1] = [f"{name}: {value}" for name, value in own.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _has_proxy(scheme: str) -> bool:
    names = (f"{scheme}_proxy", "all_proxy")
    return any(os.environ.get(one) or os.environ.get(one.upper()) for one in names)
