"""A request of a caller as far as it has arrived: its head, and its body, maybe compressed."""

import re
import zlib

from msgspec import Struct

from fallbackd.backends.passage import Unreadable
from fallbackd.core.authority import Authority
from fallbackd.lib.unpacking import GZIP, Unpacking

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
    """Port at which it came in; None: through the Unix socket."""
    asker: Authority | None = None
    """Authority of the process that connected; None: its token says."""
    is_one_too_many: bool = False
    """True where as many callers as there are places for are being answered."""


class IncomingRequest:
    """One request, as far as it has come."""

    def __init__(self) -> None:
        self.method = ""
        self.url = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        """Content in one block, given back to the system at once: pieces would lie scattered."""
        self.size = 0
        """Size of the body, as far as it has come."""
        self.is_begun = self.has_head = False
        self.is_whole = False
        self.is_kept = False
        """The connection is kept for the next one."""
        self.is_head_only = False
        self.may_chunk = True

    def head(self, port: int | None, asker: Authority | None = None) -> HeadIn:
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
            asker=asker,
        )

    def stated_size(self, most: int) -> int:
        """Return the size of the body; in pieces it may have up to `most` bytes."""
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


# --- compressed bodies ---------------------------------------------------------------------------
# Bodies of requests that arrive compressed.

_MAGIC = b"\x1f\x8b"
_FED_BYTES = 16 * 1024
"""Bytes fed at once: behind each member the rest of what was fed is copied."""
MAX_MEMBERS = 10_000
"""Bound of one body: empty ones cost time, and add nothing to its size."""


class TooLong(Exception):
    """The body is longer than allowed when it is unpacked."""


class Body(Struct, frozen=True, kw_only=True):
    plain: bytes | None
    """The unpacked body. None: in an encoding that is not looked into."""
    packed: bytes | None = None
    """The body as it arrived; None: not compressed."""


def read_body(body: bytes, encoding: str, *, max_bytes: int) -> Body:
    """
    Raises:
        Unreadable: It is damaged.
        TooLong: See there.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return Body(plain=body)
    if name not in GZIP:
        return Body(plain=None, packed=body)
    return Body(plain=_unpacked(body, name, max_bytes=max_bytes), packed=body)


def _unpacked(body: bytes, name: str, *, max_bytes: int) -> bytes:
    if body[:2] != _MAGIC[: len(body)]:
        raise Unreadable(f"the body is not {name}")
    unpacking = Unpacking(name)
    pieces: list[bytes] = []
    size = 0
    try:
        for at in range(0, len(body), _FED_BYTES):
            piece = unpacking.feed(body[at : at + _FED_BYTES], max_bytes=max_bytes + 1 - size)
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise TooLong
            if unpacking.has_surplus:
                raise Unreadable(f"the {name} of the body is followed by something else")
            if unpacking.members > MAX_MEMBERS:
                raise Unreadable(f"the {name} of the body has more than {MAX_MEMBERS} members")
    except zlib.error as error:
        raise Unreadable(f"the body is not {name}: {error}") from error
    if not unpacking.is_whole:
        raise Unreadable(f"the {name} of the body breaks off")
    return b"".join(pieces)
