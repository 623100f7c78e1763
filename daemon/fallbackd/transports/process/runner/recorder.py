"""
Writes what a program prints into its private directory, capped in size.

| file | holds |
| --- | --- |
| `output.log` | the first half of the cap: raw bytes of both streams in the order read |
| `output.idx` | one line per chunk of it: `time stream length end` |
| `output.START.log`, `.idx` | the newest output, in parts; START is the offset of its first byte |

Offsets count every byte that was printed, kept or not. A part is full when its log and its index
together reach their limit, so that many tiny chunks cannot outgrow the cap. When the parts are
used up the oldest goes, and the marker at the end of `output.log` says how many bytes are missing.

Order matters for those who follow: bytes first, then their index line, then the doorbell.
"""

import errno
import os
from typing import NamedTuple

HEAD = "output"
STDOUT = "o"
STDERR = "e"
_PARTS = 4
READ_BYTES = 65_536
MIN_LOG_BYTES = 65_536
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def part_name(start: int) -> str:
    return f"{HEAD}.{start:020d}"


def marker(dropped: int) -> bytes:
    """Make a marker of fixed width, so that the count can be corrected in place."""
    return (
        f"\n[fallbackd: the log has reached its limit; {dropped:016d} bytes are left out here; "
        "the newest output is in output.*.log beside this file]\n"
    ).encode()


class _Part(NamedTuple):
    name: str
    start: int


class Recorder:
    """
    Never raises: a disk that takes no more is noted in `error`, and nothing is tried again.

    What stays on disk then is the consistent beginning.
    """

    def __init__(self, directory: int, *, max_log_bytes: int) -> None:
        """`directory` is an open file descriptor of it."""
        self.position = 0
        self.lost_bytes = 0
        self.dropped_bytes = 0
        self.error = ""
        self._directory = directory
        max_log_bytes = max(max_log_bytes, MIN_LOG_BYTES)
        self._limit = max_log_bytes // 2
        self._part_limit = max_log_bytes // (2 * _PARTS)
        self.read_bytes = min(READ_BYTES, self._part_limit // 2)
        self._parts: list[_Part] = []
        self._marker_at: int | None = None
        self._head = self._log = self._index = -1
        self._log_bytes = self._index_bytes = 0
        try:
            self._open(HEAD)
            self._head = self._log
        except OSError as error:
            self._fail(error)

    def drops_next(self, size: int) -> int | None:
        """Start of the part that writing `size` more bytes would throw away, if any."""
        if self.error or len(self._parts) < _PARTS or self._has_room(size + 64):
            return None
        return self._parts[0].start

    def write(self, letter: str, data: bytes, *, at: float) -> bool:
        """Returns whether the disk took it."""
        end = self.position + len(data)
        if not self.error:
            line = f"{at:.6f} {letter} {len(data)} {end}\n".encode()
            try:
                if not self._has_room(len(data) + len(line)):
                    self._rotate()
                _write_all(self._log, data)
                _write_all(self._index, line)
            except OSError as error:
                self._fail(error)
            else:
                self._log_bytes += len(data)
                self._index_bytes += len(line)
                self.position = end
                return True
        self.position = end
        self.lost_bytes += len(data)
        return False

    def _has_room(self, size: int) -> bool:
        used = self._log_bytes + self._index_bytes
        return used == 0 or used + size <= (self._part_limit if self._parts else self._limit)

    def _open(self, name: str) -> None:
        log = os.open(f"{name}.log", _NEW, 0o600, dir_fd=self._directory)
        try:
            index = os.open(f"{name}.idx", _NEW, 0o600, dir_fd=self._directory)
        except OSError:
            os.close(log)
            raise
        self._log, self._index = log, index
        self._log_bytes = self._index_bytes = 0

    def _rotate(self) -> None:
        if self._marker_at is None:
            self._marker_at = self._log_bytes
            _write_all(self._log, marker(0))
        else:
            os.close(self._log)
        os.close(self._index)
        self._log = self._index = -1
        if len(self._parts) == _PARTS:
            self._drop_oldest()
        part = _Part(part_name(self.position), self.position)
        self._open(part.name)
        self._parts.append(part)

    def _drop_oldest(self) -> None:
        oldest = self._parts.pop(0)
        end = self._parts[0].start if self._parts else self.position
        for suffix in ("idx", "log"):
            try:
                os.unlink(f"{oldest.name}.{suffix}", dir_fd=self._directory)
            except FileNotFoundError:
                pass
        self.dropped_bytes += end - oldest.start
        if self._marker_at is not None:
            os.pwrite(self._head, marker(self.dropped_bytes), self._marker_at)

    def _fail(self, error: OSError) -> None:
        self.error = errno.errorcode.get(error.errno or 0, "EIO")
        for handle, size in ((self._log, self._log_bytes), (self._index, self._index_bytes)):
            if handle < 0 or (handle == self._head and self._marker_at is not None):
                continue
            try:
                os.ftruncate(handle, size)  # half a write and half a line go
            except OSError:
                pass


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
