"""Bodies of requests and of answers that came compressed."""

import zlib

GZIP = frozenset({"gzip", "x-gzip"})
_MAGIC = b"\x1f"
"""Beginning of a further member."""
_EITHER_HEAD, _NO_HEAD = 47, -15


class Unpacking:
    """One body, piece by piece. In gzip it has one member or several (RFC 1952, 2.2)."""

    def __init__(self, coding: str) -> None:
        self._is_gzip = coding in GZIP
        self._head = b""
        """Bytes of `deflate`, too few to see whether it has a head: some send none."""
        self._inflate = zlib.decompressobj(_EITHER_HEAD) if self._is_gzip else None
        self.members = 1
        """Number of members that have begun."""
        self.has_surplus = False
        """Something stands behind its end that is neither a member nor padding of zeros."""

    @property
    def is_whole(self) -> bool:
        """Nothing is missing of the last member that has begun."""
        return self._inflate is not None and self._inflate.eof

    def feed(self, data: bytes, *, max_bytes: int = 0) -> bytes:
        """
        Decode a further piece.

        Args:
            max_bytes: Where it becomes as many, it is not read on; 0: it is read to its end.

        Raises:
            zlib.error: It is damaged.
        """
        if self._inflate is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return b""
            self._inflate = zlib.decompressobj(_bits_of(data))
        made = []
        size = 0
        while True:
            if self._inflate.eof:
                data = data.lstrip(b"\0")
                self.has_surplus |= bool(data) and not (self._is_gzip and data[:1] == _MAGIC)
                if not data or self.has_surplus:
                    break
                self._inflate = zlib.decompressobj(_EITHER_HEAD)
                self.members += 1
            made.append(self._inflate.decompress(data, max_bytes and max_bytes - size))
            size += len(made[-1])
            if not self._inflate.eof or size >= max_bytes > 0:
                break
            data = self._inflate.unused_data
        return b"".join(made)

    def end(self) -> bytes:
        return b"" if self._inflate is None else self._inflate.flush()


def unpacking_of(coding: str) -> Unpacking | None:
    """Return the decoder of a coding; None: a body in it stays as it is."""
    name = coding.strip().lower()
    return Unpacking(name) if name in GZIP or name == "deflate" else None


def _bits_of(data: bytes) -> int:
    """RFC 1950, 2.2: the method, and a check of it. A stream without a head begins with neither."""
    is_wrapped = data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0
    return _EITHER_HEAD if is_wrapped or data[:1] == _MAGIC else _NO_HEAD
