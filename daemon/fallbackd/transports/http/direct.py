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
from fallbackd.ports.passing import TakePiece
from fallbackd.transports.http.answering import Broken, Reading
from fallbackd.transports.http.clients import KEPT, LOOPBACK
from fallbackd.transports.http.direct_line import AT_ONCE_BYTES, LineKey, ServerLine
from fallbackd.transports.http.tls import context_of, stamps

CLOSED_BEFORE_S = 1.0
"""A request that met a closing connection fails within a packet's way; a later end is an answer."""
KEPT_S = 30.0
"""Servers close what is idle after a minute or more."""
NEXT_ADDRESS_S = 0.25
"""Before the next address of a host is tried beside the first."""
AGENT = "fallbackd"
UNWRITABLE = "the request could not be written: a header has characters that HTTP forbids"

_PLAIN = re.compile(r"https?://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?(?:[/?][!-~]*)?", re.A)
"""What needs no quoting, has no login in it, and whose host is no international name."""
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
        """What is under way ends too."""
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
