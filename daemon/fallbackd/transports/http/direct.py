"""
Requests straight to their server, over connections that are kept: the way of nearly all of them.

A tenth of what the general client of `clients` takes for each request. That one goes through
proxies, and to addresses that are more than scheme, host, port and path.
"""

import os
import re
import select
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

import anyio
import anyio.abc
from msgspec import Struct

from fallbackd.core.protocol import HttpRequest, Tls
from fallbackd.transports.http.answering import Broken, Reading
from fallbackd.transports.http.clients import KEPT, LOOPBACK
from fallbackd.transports.http.tls import context_of, stamps

KEPT_S = 30.0
"""Servers close what is idle after a minute or more."""
WRITE_LIMIT_S = 60.0
READ_BYTES = 64 * 1024
AT_ONCE_BYTES = 256 * 1024
"""A long request is given so long for each part of it."""
SMALL_BYTES = 16 * 1024
"""The kernel takes it, whatever the server does."""
AGENT = "fallbackd"
UNWRITABLE = "the request could not be written: a header has characters that HTTP forbids"

_PLAIN = re.compile(r"https?://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?(?:[/?][!-~]*)?", re.A)
"""What needs no quoting, has no login in it, and whose host is no international name."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PORTS = {"http": 80, "https": 443}

_Place = tuple[object, ...]


class _Target(Struct, frozen=True):
    scheme: str
    host: str
    port: int
    authority: str
    path: str


class _Line:
    """One connection to a server."""

    def __init__(self, stream: anyio.abc.ByteStream, place: _Place) -> None:
        self.stream = stream
        self.place = place
        self._raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        self.is_used = False
        self.idle_since = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the server has closed it, or sent something unasked."""
        if self._raw.fileno() < 0:
            return True
        looking = select.poll()
        looking.register(self._raw, select.POLLIN)
        return bool(looking.poll(0))


class DirectPool:
    def __init__(self) -> None:
        self._lines: set[_Line] = set()
        """All that are open."""
        self._kept: deque[_Line] = deque()
        """Those without a request, the longest idle first."""
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
            fallbackd.transports.http.tls.TlsFiles: A certificate or key that cannot be read.
        """
        try:
            target = _target_of(call.url)
            data = _head_of(call.method, target, headers, body) + body
        except ValueError as error:
            raise Broken("LocalProtocolError", str(error)) from error
        place = (target.scheme, target.host, target.port, call.tls, *stamps(call.tls))
        context = None
        if target.scheme == "https" or call.tls is not None:
            context = self._context(call.tls)
        line = None if is_fresh else await self._take(place)
        if line is None:
            stream = await _connected(
                target,
                context if target.scheme == "https" else None,
                limit_s=call.connect_timeout_s,
            )
            line = _Line(stream, place)
            self._lines.add(line)
        answer = DirectAnswer(self, line, read_limit_s=call.read_timeout_s)
        try:
            await answer.begin(data)
        except BaseException:
            await self.drop(line)
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

    async def _take(self, place: _Place) -> _Line | None:
        """A kept connection that is open still; the one used last."""
        found: _Line | None = None
        left: list[_Line] = []
        now = anyio.current_time()
        for line in reversed(tuple(self._kept)):
            is_old = now - line.idle_since > KEPT_S
            if is_old or (found is None and line.place == place):
                self._kept.remove(line)
                if is_old or line.is_over:
                    left.append(line)
                else:
                    found = line
        for line in left:  # others take connections meanwhile
            await self.drop(line)
        return found

    async def keep(self, line: _Line) -> None:
        line.is_used = True
        line.idle_since = anyio.current_time()
        self._kept.append(line)
        while len(self._kept) > KEPT:
            await self.drop(self._kept.popleft())

    async def drop(self, line: _Line) -> None:
        self._lines.discard(line)
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(line.stream)

    async def aclose(self) -> None:
        """What is under way ends too."""
        self._kept.clear()
        for line in tuple(self._lines):
            await self.drop(line)


class DirectAnswer:
    """One answer, its body read as it is asked for. The server waits where it is not."""

    def __init__(self, pool: DirectPool, line: _Line, *, read_limit_s: float) -> None:
        self._pool = pool
        self._line: _Line | None = line
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

    async def begin(self, data: bytes) -> None:
        """
        Raises:
            Broken: No head came.
        """
        assert self._line is not None
        refused: Broken | None = None
        try:
            await self._write(data)
        except TimeoutError as error:
            raise Broken("WriteTimeout", "the server does not take the request") from error
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            # A server may refuse a long request before it has read it, and say why.
            refused = Broken("WriteError", str(error), is_unanswered=self._line.is_used)
        try:
            with anyio.fail_after(self._limit_s):
                while not self._reading.has_head:
                    await self._feed()
        except TimeoutError as error:
            raise Broken("ReadTimeout", f"silent for {self._limit_s:g} s") from error
        except Broken as error:
            if self._reading.is_touched:
                raise
            if refused is not None:
                raise refused from error
            raise Broken(error.name, error.text, is_unanswered=self._line.is_used) from error

    async def _write(self, data: bytes) -> None:
        assert self._line is not None
        if len(data) <= SMALL_BYTES:
            await self._line.stream.send(data)
            return
        for at in range(0, len(data), AT_ONCE_BYTES):
            with anyio.fail_after(WRITE_LIMIT_S):
                await self._line.stream.send(data[at : at + AT_ONCE_BYTES])

    async def read(self) -> bytes:
        """
        The next piece of the body; empty: it is over. The caller bounds the silence.

        Raises:
            Broken: It cannot be finished.
        """
        while not (data := self._reading.taken()):
            if self._reading.problem is not None:
                raise self._reading.problem
            if self._reading.is_over:
                await self._finish()
                return b""
            await self._feed()
        return data

    async def _feed(self) -> None:
        assert self._line is not None
        try:
            data = await self._line.stream.receive(READ_BYTES)
        except anyio.EndOfStream:
            self._reading.end()
            return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
            raise Broken("ReadError", str(error.__cause__ or error)) from error
        self._reading.feed(data)

    async def _finish(self) -> None:
        line, self._line = self._line, None
        if line is None:
            return
        if self._reading.may_be_kept:
            await self._pool.keep(line)
        else:
            await self._pool.drop(line)

    async def aclose(self) -> None:
        """Drop the connection where the answer is not over. Idempotent."""
        if self._reading.is_over:
            await self._finish()
        line, self._line = self._line, None
        if line is not None:
            await self._pool.drop(line)


async def _connected(
    target: _Target, context: ssl.SSLContext | None, *, limit_s: float
) -> anyio.abc.ByteStream:
    stream: anyio.abc.ByteStream | None = None
    try:
        with anyio.fail_after(limit_s):
            stream = await anyio.connect_tcp(target.host, target.port)
            if context is not None:
                from anyio.streams.tls import TLSStream  # the start needs none of it

                return await TLSStream.wrap(
                    stream, hostname=target.host, ssl_context=context, standard_compatible=False
                )
            return stream
    except BaseException as error:
        if stream is not None:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)
        if isinstance(error, TimeoutError):
            text = f"no connection to {target.authority} within {limit_s:g} s"
            raise Broken("ConnectTimeout", text) from error
        if isinstance(error, OSError | anyio.BrokenResourceError | anyio.EndOfStream):
            raise Broken("ConnectError", str(error) or str(error.__cause__ or "")) from error
        raise


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
