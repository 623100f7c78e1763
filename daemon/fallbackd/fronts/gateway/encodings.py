"""Bodies of requests that arrive compressed."""

import zlib

from msgspec import Struct

from fallbackd.backends.passage import Unreadable
from fallbackd.lib.unpacking import GZIP, Unpacking

_MAGIC = b"\x1f\x8b"
_FED_BYTES = 16 * 1024
"""At once: behind each member the rest of what was fed is copied."""
MAX_MEMBERS = 10_000
"""Of one body: empty ones cost time, and add nothing to its size."""


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
    if name not in GZIP:
        return Body(plain=None, packed=body)
    return Body(plain=_unpacked(body, name, max_bytes=max_bytes), packed=body)


def _unpacked(body: bytes, name: str, *, max_bytes: int) -> bytes:
    if body[:2] != _MAGIC[: len(body)]:
        raise Unreadable(f"the body is no {name}")
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
                raise Unreadable(
                    f"something that is no {name} stands behind the {name} of the body"
                )
            if unpacking.members > MAX_MEMBERS:
                raise Unreadable(f"the {name} of the body has more than {MAX_MEMBERS} members")
    except zlib.error as error:
        raise Unreadable(f"the body is no {name}: {error}") from error
    if not unpacking.is_whole:
        raise Unreadable(f"the {name} of the body breaks off")
    return b"".join(pieces)
