"""
Bytes in, whole lines out.

One message a line, UTF-8, ended by a line feed. A line may arrive in any number of pieces, and one
piece may hold many lines. Sans-IO: the reader of the socket feeds what came.
"""

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longest line that the daemon takes, its line end not counted."""


class LineTooLong(Exception):
    """No line end came within the limit. Where the next one begins is unknown: close."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"a line is longer than {max_bytes} bytes")
        self.max_bytes = max_bytes


class LineSplitter:
    """
    Cuts a byte stream into lines without copying what is still incomplete again and again.

    Args:
        max_bytes: Longest line, its line end not counted.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._pending_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Size of the unfinished line."""
        return self._pending_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """
        Take what was read; hand back the lines that are now whole, without their line ends.

        Raises:
            LineTooLong: Lines of the same piece before it are lost on purpose: a peer that breaks
                the limit gets an error, not half of its work.
        """
        if not self._pieces and data.find(b"\n") == len(data) - 1 < self._max_bytes and data:
            return [data[:-1]]  # one whole line, nothing else: nearly always
        head, *rest = data.split(b"\n")
        if self._pending_bytes + len(head) > self._max_bytes:
            raise LineTooLong(self._max_bytes)
        if not rest:
            if head:
                self._pieces.append(head)
                self._pending_bytes += len(head)
            return []
        self._pieces.append(head)
        lines = [b"".join(self._pieces), *rest[:-1]]
        tail = rest[-1]
        if len(tail) > self._max_bytes or any(len(line) > self._max_bytes for line in rest):
            raise LineTooLong(self._max_bytes)
        self._pieces = [tail] if tail else []
        self._pending_bytes = len(tail)
        return lines
