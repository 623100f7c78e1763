"""Bodies of requests that arrive compressed."""

import zlib

from msgspec import Struct

from fallbackd.backends.passage import Unreadable

_GZIP = frozenset({"gzip", "x-gzip"})
_WITH_GZIP_HEAD = 31


class TooLong(Exception):
    """It is longer than allowed when it is unpacked."""


class Body(Struct, frozen=True, kw_only=True):
    plain: bytes | None
    """None: in an encoding that is not looked into."""
    packed: bytes | None = None
    """As it arrived; None: not compressed."""


def read(body: bytes, encoding: str, *, max_bytes: int) -> Body:
    """
    Raises:
        Unreadable: It is damaged.
        TooLong: See there.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return Body(plain=body)
    if name not in _GZIP:
        return Body(plain=None, packed=body)
    unpacking = zlib.decompressobj(_WITH_GZIP_HEAD)
    try:
        plain = unpacking.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise Unreadable(f"the body is no {name}: {error}") from error
    if len(plain) > max_bytes:
        raise TooLong
    if not unpacking.eof:
        raise Unreadable(f"the {name} of the body breaks off")
    return Body(plain=plain, packed=body)
