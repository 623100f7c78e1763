"""
Standard input and output as lines of JSON, and nothing else on standard output.

What the rest of the process prints goes to standard error: a stray line on standard output would
end the session of the client that reads it.
"""

from __future__ import annotations

import json
import os
import select
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fallbackd_client.calls import Json

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Twice what the daemon takes: a line that is too large for it is refused with its reason."""
_KEPT_BYTES = 4096
_CHUNK_BYTES = 65536
_PIECE_BYTES = select.PIPE_BUF
"""Written without waiting where there is room at all."""
_UNREAD_S = 2
"""How long a client that has closed its side is given to read what was said to it."""


class TooLong:
    """A line beyond the limit, of which only the two ends were kept."""

    __slots__ = ("head", "size_bytes", "tail")

    def __init__(self, head: bytes, tail: bytes, size_bytes: int) -> None:
        self.head = head
        self.tail = tail
        self.size_bytes = size_bytes


class LineReader:
    """Lines of a file descriptor. One that is too long is skipped, what follows is read again."""

    def __init__(self, descriptor: int, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._head = b""
        self._tail = b""

    def lines(self) -> Iterator[bytes | TooLong]:
        """Until the other side closes; an unfinished last line counts as one."""
        while data := self._read():
            *whole, rest = data.split(b"\n")
            for piece in whole:
                self._take(piece)
                yield self._cut()
            self._take(rest)
        if self._size_bytes:
            yield self._cut()

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK_BYTES)
        except OSError:
            return b""

    def _take(self, piece: bytes) -> None:
        if not piece:
            return
        self._size_bytes += len(piece)
        if self._size_bytes <= self._max_bytes:
            self._pieces.append(piece)
            return
        if self._pieces:
            held = b"".join(self._pieces)
            self._head, self._tail = held[:_KEPT_BYTES], held[-_KEPT_BYTES:]
            self._pieces = []
        self._head = self._head or piece[:_KEPT_BYTES]
        self._tail = (self._tail + piece)[-_KEPT_BYTES:]

    def _cut(self) -> bytes | TooLong:
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes > self._max_bytes:
            found = TooLong(self._head, self._tail, size_bytes)
            self._head = self._tail = b""
            return found
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class LineWriter:
    """
    Whole lines to a file descriptor, from any thread.

    Args:
        other: Where the same client's messages come from.
    """

    def __init__(self, descriptor: int, other: int) -> None:
        self._descriptor = descriptor
        self._other = other
        self._lock = threading.Lock()
        self._is_given_up = False

    def send(self, message: Json) -> None:
        """Nothing happens where the reader is gone: the end of the input says so too."""
        # ASCII only: any other text may hold what a client takes for the end of a line.
        data = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            try:
                while data and self._has_room():
                    data = data[os.write(self._descriptor, data[:_PIECE_BYTES]) :]
            except OSError:
                self._is_given_up = True

    def _has_room(self) -> bool:
        """
        A client may be slow for as long as it likes, unless it has closed its own side: then
        another process may hold the pipe open without ever reading.
        """
        room, ended = select.poll(), select.poll()
        room.register(self._descriptor, select.POLLOUT)
        ended.register(self._other, 0)
        while not self._is_given_up and not room.poll(_UNREAD_S * 1000):
            self._is_given_up = bool(ended.poll(0))
        return not self._is_given_up

    def is_read(self) -> bool:
        """False once the other end of a pipe or socket is closed."""
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return not poll.poll(0)


def take_over() -> tuple[int, int]:
    """
    The descriptors of standard input and output for this module alone.

    From now on the process has an empty standard input, and what it prints goes to standard
    error.
    """
    reading, writing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return reading, writing
