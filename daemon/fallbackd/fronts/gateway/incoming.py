"""A request of a caller as far as it has arrived, and its head."""

import asyncio
import re
from collections import deque
from contextlib import suppress

import anyio
from msgspec import Struct

MAX_BODIES_BYTES = 256 * 1024 * 1024
"""Of all that are longer than `SHORT_BYTES`, while they are answered."""
SHORT_BYTES = 1024 * 1024
ROOM_LIMIT_S = 30.0

_ABSOLUTE = re.compile(rb"http://([^/?#]*)(.*)", re.I | re.S)
"""A target as it is written to a proxy, which every server has to understand."""


class HeadIn(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    """
    Names in lower case, values as the bytes that came, in latin-1. Those for us alone, which go to
    no provider: in UTF-8.
    """
    port: int | None
    """Where it came in; None: through the Unix socket."""
    is_one_too_many: bool = False
    """As many callers as there are places for are being answered."""


class BodyRoom:
    """What the long bodies of all requests may take together: the others wait for their turn."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most = MAX_BODIES_BYTES if most_bytes is None else most_bytes
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> int:
        """
        Returns when there is room. What is returned is to be given back.

        Raises:
            TimeoutError: There was none for too long.
        """
        size = min(size, self._most)
        if size <= SHORT_BYTES:
            return 0
        if not self._waiting and self._taken + size <= self._most:
            self._taken += size
            return size
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            with anyio.fail_after(ROOM_LIMIT_S):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                with suppress(ValueError):  # it was left out when its turn came
                    self._waiting.remove((size, turn))
                self._next()
            raise
        return size

    def give(self, size: int) -> None:
        self._taken -= size
        self._next()

    def _next(self) -> None:
        while self._waiting and self._taken + self._waiting[0][0] <= self._most:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._taken += size
                turn.set_result(None)


class IncomingRequest:
    """One request, as far as it has come."""

    def __init__(self) -> None:
        self.method = ""
        self.url = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.size = 0
        self.is_begun = self.has_head = False
        self.is_whole = False
        self.is_kept = False
        """The connection is kept for the next one."""
        self.is_head_only = False
        self.may_chunk = True

    def head(self, port: int | None) -> HeadIn:
        target, fields = self.url, self.fields
        if (absolute := _ABSOLUTE.fullmatch(target)) is not None:
            # RFC 9112, 3.2.2: the host that it names counts in place of the header.
            fields = [one for one in fields if one[0] != b"host"] + [(b"host", absolute[1])]
            target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
        path, _, query = target.partition(b"?")
        return HeadIn(
            method=self.method,
            path=path.decode("latin-1"),
            query=query.decode("latin-1"),
            headers=[(name.decode("ascii"), _text(name, value)) for name, value in fields],
            port=port,
        )

    def stated_size(self, most: int) -> int:
        """Of the body; in pieces it may have up to `most` bytes."""
        stated = next((value for name, value in self.fields if name == b"content-length"), b"")
        return min(int(stated), most) if stated.isdigit() else most

    def without_upgrade(self, version: str) -> bytes:
        """The head once more, as of a caller that offers no other protocol."""
        lines = [b"%b %b HTTP/%b" % (self.method.encode(), self.url, version.encode())]
        lines += (b"%b: %b" % (name, _without_upgrade(name, text)) for name, text in self.fields)
        return b"\r\n".join(lines) + b"\r\n\r\n"


def _text(name: bytes, value: bytes) -> str:
    if name.startswith(b"x-fallbackd-"):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return value.decode("latin-1")


def _without_upgrade(name: bytes, value: bytes) -> bytes:
    """The value of a field, where the connection is not to be upgraded."""
    if name != b"connection":
        return value
    words = value.split(b",")
    return b",".join(word for word in words if word.strip().lower() != b"upgrade")
