"""Bodies of answers that came compressed. Nothing is asked to compress; some do."""

import zlib

_GZIP = frozenset({"gzip", "x-gzip"})
_MAGIC = b"\x1f"
"""Of a further member; anything else behind one is padding."""
_EITHER_HEAD, _NO_HEAD = 47, -15


class Unpacking:
    """One body, piece by piece. Raises `zlib.error` where it is damaged."""

    def __init__(self, coding: str) -> None:
        self._is_gzip = coding in _GZIP
        self._head = b""
        """Of `deflate`, too little to see whether it has a head: some send none."""
        self._inflate = zlib.decompressobj(_EITHER_HEAD) if self._is_gzip else None

    def feed(self, data: bytes) -> bytes:
        if self._inflate is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return b""
            self._inflate = zlib.decompressobj(_bits_of(data))
        made = self._inflate.decompress(data)
        while self._is_gzip and (rest := self._inflate.unused_data.lstrip(b"\0"))[:1] == _MAGIC:
            self._inflate = zlib.decompressobj(_EITHER_HEAD)
            made += self._inflate.decompress(rest)
        return made

    def end(self) -> bytes:
        return b"" if self._inflate is None else self._inflate.flush()


def unpacking_of(coding: str) -> Unpacking | None:
    """None: a body in this coding stays as it is."""
    name = coding.strip().lower()
    return Unpacking(name) if name in _GZIP or name == "deflate" else None


def _bits_of(data: bytes) -> int:
    """RFC 1950, 2.2: the method, and a check of it. A stream without a head begins with neither."""
    is_wrapped = data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0
    return _EITHER_HEAD if is_wrapped or data[:1] == _MAGIC else _NO_HEAD
