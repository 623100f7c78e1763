"""
Reads what a runner recorded (`runner/recorder.py` has the layout), while it grows or afterwards.

Offsets count every byte that the program printed. What the size cap has dropped stays in the
count, so an offset means the same before and after.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import anyio
import msgspec
from msgspec import Struct

from fallbackd.core.protocol import Chunk, NotStarted, ProcessExit, StreamName
from fallbackd.lib import privatefile
from fallbackd.lib.descriptors import is_shortage
from fallbackd.transports.process.runner import recorder
from fallbackd.transports.process.runner.meeting import EXIT_FILE

_BATCH_BYTES = 256 * 1024
_MAX_CHUNK_BYTES = 64 * 1024 * 1024
"""Size of a whole log. Chunks that an index names beyond that were not written by us."""
_LINE_BYTES = 128
_OF_AN_END = frozenset({"code", "signal", "gone", "at", "stopped", "note"})
MAX_RECORD_BYTES = 1024 * 1024
"""Far more than a runner writes."""
_STREAMS: dict[str, StreamName] = {
    recorder.STDOUT: "stdout",
    recorder.STDERR: "stderr",
    "h": "http",
    "v": "event",
}
T = TypeVar("T")


class LogSlice(Struct, frozen=True, kw_only=True):
    """A piece of the log as people see it. Bytes, since it may begin inside a character."""

    data: bytes
    """Printed bytes, with a marker line that counts what the cap has dropped."""
    next_offset: int
    end_offset: int
    """The end of the log now."""
    dropped_bytes: int = 0
    """Bytes between the asked offset and `next_offset` that are no longer there."""


class _Part(NamedTuple):
    start: int
    log_path: str
    index_path: str


class Follower:
    """
    Rebuilds the chunks of a recording, from any offset.

    A part that is open stays readable when the runner throws it away, so a follower loses
    nothing but parts that came and went before it opened them; a chunk on stderr then says so.
    """

    def __init__(self, directory: str, *, offset: int = 0) -> None:
        self._directory = directory
        self.offset = offset
        self._part: _Part | None = None
        self._log = self._index = -1
        self._log_at = self._index_at = 0
        self._rest = b""
        self._is_damaged = False

    @property
    def part_start(self) -> int:
        """Start of the part that is held open; -1 while there is none."""
        return -1 if self._part is None else self._part.start

    def begin(self) -> None:
        """Open what is there, so that reading needs no further file descriptor for now."""
        if self._part is None and (first := self._following()) is not None:
            self._open(first)

    def read(self) -> list[Chunk]:
        """Up to about 256 KiB of what is new. Empty: nothing is, for now."""
        while not self._is_damaged:
            if chunks := self._read_part():
                return chunks
            following = self._following()
            if following is None:
                return []
            # Its successor exists, so this part is complete: but was it, when we looked?
            if chunks := self._read_part():
                return chunks
            gap = following.start - self.offset
            had_part = self._part is not None
            if self._open(following) and gap > 0 and had_part:
                self.offset = following.start
                return [Chunk("stderr", _gap(gap), self._time())]
        return []

    def close(self) -> None:
        for handle in (self._log, self._index):
            if handle >= 0:
                os.close(handle)
        self._log = self._index = -1

    def _following(self) -> _Part | None:
        parts = list_parts(self._directory)
        if self._part is None:
            # Start in the part that holds the offset, or in the first one behind it.
            before = [part for part in parts if part.start <= self.offset]
            return before[-1] if before else next(iter(parts), None)
        return next((part for part in parts if part.start > self._part.start), None)

    def _open(self, part: _Part) -> bool:
        handles: list[int] = []
        try:
            handles.append(_open(part.log_path))
            handles.append(_open(part.index_path))
        except OSError as error:
            for handle in handles:
                os.close(handle)
            if isinstance(error, FileNotFoundError):
                return False  # thrown away since it was listed
            raise
        self.close()
        self._log, self._index = handles
        self._part = part
        self._log_at = self._index_at = 0
        self._rest = b""
        return True

    def _time(self) -> float:
        line = os.pread(self._index, _LINE_BYTES, 0).partition(b" ")[0]
        try:
            return float(line) if line else 0.0
        except ValueError:
            return 0.0

    def _read_part(self) -> list[Chunk]:
        if self._index < 0:
            return []
        chunks: list[Chunk] = []
        size = 0
        while size < _BATCH_BYTES:
            line = self._next_line()
            if line is None:
                break
            try:
                at, letter, count, stop = _parsed(line)
            except (ValueError, KeyError):
                self._is_damaged = True
                chunks.append(Chunk("stderr", DAMAGED, 0.0))
                break
            start = self._log_at
            self._log_at += count
            if stop <= self.offset:
                continue
            skipped = max(0, self.offset - (stop - count))
            data = os.pread(self._log, count - skipped, start + skipped)
            self.offset = stop
            size += count
            chunks.append(Chunk(letter, data, at))
        return chunks

    def _next_line(self) -> bytes | None:
        line, newline, rest = self._rest.partition(b"\n")
        if not newline:
            if len(self._rest) > _LINE_BYTES:
                return self._rest  # no line of an index: it is reported as damage
            more = os.pread(self._index, 8192, self._index_at)
            self._index_at += len(more)
            self._rest += more
            line, newline, rest = self._rest.partition(b"\n")
            if not newline:
                return None
        self._rest = rest
        return line


def _parsed(line: bytes) -> tuple[float, StreamName, int, int]:
    """Raises `ValueError`, `KeyError`: no runner has written that."""
    at, letter, length, end = line.split()
    count, stop = int(length), int(end)
    if not 0 <= count <= min(stop, _MAX_CHUNK_BYTES):
        raise ValueError(f"{count} bytes")
    return float(at), _STREAMS[letter.decode()], count, stop


def read_chunks(directory: str, *, offset: int = 0) -> Iterator[Chunk]:
    """Everything that is recorded so far."""
    follower = Follower(directory, offset=offset)
    try:
        while chunks := follower.read():
            yield from chunks
    finally:
        follower.close()


def read_ends(directory: str, *, offset: int = 0) -> Iterator[tuple[Chunk, int]]:
    """Yield chunks, each with the offset behind it."""
    follower = Follower(directory, offset=offset)
    try:
        while chunks := follower.read():
            behind = [len(one.data) for one in chunks]
            for number, chunk in enumerate(chunks, start=1):
                yield chunk, follower.offset - sum(behind[number:])
    finally:
        follower.close()


def read_log(directory: str, *, offset: int = 0, max_bytes: int = _BATCH_BYTES) -> LogSlice:
    """
    The log from `offset` on, both streams as they came, at most `max_bytes` of output.

    Continue reading at `next_offset`; nothing is new while that equals `end_offset`.
    """
    spans = [(part, _end(part)) for part in list_parts(directory)]
    end_offset = max((end for _, end in spans), default=0)
    pieces: list[bytes] = []
    at, left, dropped = max(0, offset), max_bytes, 0
    for part, end in spans:
        if end <= at or left <= 0:
            continue
        if part.start > at:
            pieces.append(recorder.marker(part.start - at))
            dropped += part.start - at
            at = part.start
        try:
            with os.fdopen(_open(part.log_path), "rb") as file:
                data = os.pread(file.fileno(), min(left, end - at), at - part.start)
            if not data:  # its index promises more than there is
                break
        except FileNotFoundError:
            continue  # thrown away just now: the next part's start shows it
        pieces.append(data)
        at += len(data)
        left -= len(data)
    return LogSlice(
        data=b"".join(pieces),
        next_offset=min(at, max(end_offset, offset)),
        end_offset=end_offset,
        dropped_bytes=dropped,
    )


def recorded_bytes(directory: str) -> int:
    """Return how much was printed so far, kept or not."""
    return max((_end(part) for part in list_parts(directory)), default=0)


def repair(directory: str) -> int:
    """
    Cut off what a writer that was killed has half written to the first part.

    Returns:
        Its size: what its index tells of.
    """
    log, index = (os.path.join(directory, f"{recorder.HEAD}.{suffix}") for suffix in ("log", "idx"))
    try:
        end = _end(_Part(0, log, index))
        with os.fdopen(_open(index, writes=True), "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            tail = os.pread(file.fileno(), 2 * _LINE_BYTES, max(0, size - 2 * _LINE_BYTES))
            file.truncate(size - len(tail.rpartition(b"\n")[2]))
        with os.fdopen(_open(log, writes=True), "r+b") as file:
            if os.fstat(file.fileno()).st_size > end:
                file.truncate(end)
    except FileNotFoundError:
        return 0
    return end


def _open(path: str, *, writes: bool = False) -> int:
    """Raises `OSError`, also where something else than a regular file is."""
    directory = privatefile.open_directory(os.path.dirname(path))
    try:
        return privatefile.open_file(os.path.basename(path), directory=directory, writes=writes)
    finally:
        os.close(directory)


def read_exit(directory: str) -> ProcessExit | NotStarted | None:
    """
    The record that the runner left; None while there is none, or it is none of a runner.

    Raises:
        OSError: As `read_record`.
    """
    record = read_record(directory, EXIT_FILE)
    try:
        return None if record is None else exit_of(record)
    except msgspec.ValidationError:
        return None


def exit_of(record: dict[str, Any]) -> ProcessExit | NotStarted:
    """
    Raises:
        msgspec.ValidationError: It is no such record.
    """
    if isinstance(refused := record.get("refused"), dict):
        return msgspec.convert({**refused, "gone": True}, NotStarted)
    if not record.keys() >= _OF_AN_END:
        raise msgspec.ValidationError("fields are missing")
    found = msgspec.convert(record, ProcessExit)
    if not math.isfinite(found.at):
        raise msgspec.ValidationError("its time is none")
    return found


def clear_drafts(directory: str) -> None:
    """Remove the records that a runner was killed at. It must not live any more."""
    try:
        handle = privatefile.open_directory(directory)
    except OSError:
        return  # it is not there, or nothing of ours
    try:
        for name in os.listdir(handle):
            if name.startswith(".") and name.endswith(".new"):
                os.unlink(name, dir_fd=handle)
    except OSError:
        pass  # the next start of the daemon looks again
    finally:
        os.close(handle)


def read_record(directory: str, name: str) -> dict[str, Any] | None:
    """
    Read a record. None: there is none, or no such record. Its fields may be anything.

    Raises:
        OSError: It cannot be looked at (a link in its place, no free descriptor): that tells
            nothing about whether there is one.
    """
    path = os.path.join(directory, name)
    try:
        record = json.loads(privatefile.read_file(path, max_bytes=MAX_RECORD_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def list_parts(directory: str) -> list[_Part]:
    """List the parts in the order of their offsets."""
    try:
        handle = privatefile.open_directory(directory)
    except FileNotFoundError:
        return []
    try:
        names = os.listdir(handle)
    finally:
        os.close(handle)
    parts = []
    for name in names:
        stem, _, suffix = name.rpartition(".")
        if suffix != "idx" or not stem.startswith(recorder.HEAD):
            continue
        start = stem[len(recorder.HEAD) + 1 :] or "0"
        if start.isdigit():
            path = os.path.join(directory, stem)
            parts.append(_Part(int(start), f"{path}.log", f"{path}.idx"))
    return sorted(parts)


def _end(part: _Part) -> int:
    """Find the end by the last whole line of its index."""
    try:
        with os.fdopen(_open(part.index_path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            tail = os.pread(file.fileno(), 2 * _LINE_BYTES, max(0, size - 2 * _LINE_BYTES))
    except FileNotFoundError:
        return part.start
    lines = tail.rpartition(b"\n")[0].split(b"\n")
    try:
        return max(part.start, int(lines[-1].split()[-1])) if lines[-1] else part.start
    except ValueError:
        return part.start  # damaged


DAMAGED = b"\n[fallbackd: the recording is damaged from here on]\n"


def _gap(size: int) -> bytes:
    return f"\n[fallbackd: {size} bytes of output were dropped before they were read]\n".encode()


async def patiently(look: Callable[[], T]) -> T:
    """Look into a recording; while this machine runs short, as soon as there is room."""
    while True:
        try:
            return look()
        except OSError as error:
            if not is_shortage(error):
                raise
        await anyio.sleep(0.2)
