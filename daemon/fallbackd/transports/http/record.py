"""
What an HTTP attempt leaves behind for a daemon that comes after: nothing else outlives its own.

    http.json     made before the request may leave: this attempt lives in the daemon alone
    output.log    the body as it came
    exit.json     there before the end is handed on: how it ended

An attempt with an exit record is judged by it. One without was lost with the daemon, so what the
provider did with it is unknown.
"""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from msgspec import Struct

from fallbackd.core.protocol import (
    DAEMON_LOST,
    Chunk,
    Exit,
    HttpResponse,
    NoAnswer,
    NotStarted,
)
from fallbackd.lib import privatefile
from fallbackd.transports.process.recording import read_chunks

BEGIN_FILE = "http.json"
EXIT_FILE = "exit.json"
MAX_RECORD_BYTES = 16 * 1024 * 1024
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Begin(Struct, frozen=True, kw_only=True):
    attempt: str
    method: str
    url: str
    """Without its query."""
    at: float


class ExitRecord(Struct, frozen=True, kw_only=True):
    exit: HttpResponse | NoAnswer | NotStarted
    log_bytes: int
    is_whole: bool = True
    """False: the disk did not take all of the body."""


def write_begin(directory: str, begin: Begin) -> None:
    """
    Raises:
        OSError: It cannot be written, so the request must not leave.
    """
    _write(f"{directory}/{BEGIN_FILE}", msgspec.json.encode(begin))


def write_exit(directory: str, record: ExitRecord) -> None:
    """
    A disk that takes no more makes the attempt lost, as half a record does.

    It outlives the daemon, as the log does with which it counts, and not the machine.
    """
    try:
        _write(f"{directory}/{EXIT_FILE}", msgspec.json.encode(record))
    except OSError:
        pass


def _write(path: str, data: bytes) -> None:
    handle = os.open(path, _CREATE, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    finally:
        os.close(handle)


def lost(*, at: float) -> NoAnswer:
    return NoAnswer(
        exception=DAEMON_LOST,
        text="the daemon ended while the answer was on its way",
        at=at,
    )


class RecordedRunning:
    """An attempt of an earlier daemon, which is over. See `ports.transport.Running`."""

    def __init__(self, directory: str, *, now: float) -> None:
        self._chunks = list(read_chunks(directory))
        self.recorded_bytes = sum(len(one.data) for one in self._chunks)
        self.log_bytes = 0
        self.exit: Exit = _exit_of(directory, self.recorded_bytes) or lost(at=now)

    @property
    def pid(self) -> int | None:
        return None

    def stop(self, *, grace_s: float) -> None:
        """It is over."""

    async def chunks(self) -> AsyncIterator[Chunk]:
        for chunk in self._chunks:
            self.log_bytes += len(chunk.data)
            yield chunk


def _exit_of(directory: str, log_bytes: int) -> Exit | None:
    try:
        path = Path(directory) / EXIT_FILE
        data = privatefile.read_file(path, max_bytes=MAX_RECORD_BYTES)
        record = msgspec.json.decode(data, type=ExitRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return record.exit if record.is_whole and record.log_bytes == log_bytes else None


def name_of(error: OSError) -> str:
    """Its symbolic name: ENOSPC, EROFS, …"""
    return errno.errorcode.get(error.errno or 0, "EIO")


def was_begun(directory: str) -> bool:
    return privatefile.exists(Path(directory) / BEGIN_FILE)
