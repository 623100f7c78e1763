"""Files of other programs: read although they may be damaged, made only as new ones."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

HEAD_BYTES = 256 * 1024
"""The first line of a file of codex alone has twenty kilobytes."""
TAIL_BYTES = 8 * 1024 * 1024
"""What is said further back does not fit any context."""
MAX_LINE_BYTES = TAIL_BYTES
"""Pictures, mostly."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_ends(path: Path, *, tail_bytes: int = TAIL_BYTES) -> bytes:
    """
    The whole of a short file, the beginning and the end of a long one; empty: it cannot be read.

    What is cut off leaves half a line on both sides of the cut.
    """
    try:
        handle = os.open(path, _READ)
    except (OSError, ValueError):
        return b""
    try:
        with os.fdopen(handle, "rb") as file:
            seen = os.fstat(handle)
            if not stat.S_ISREG(seen.st_mode):
                return b""
            if seen.st_size <= HEAD_BYTES + tail_bytes:
                return file.read(HEAD_BYTES + tail_bytes)
            head = file.read(HEAD_BYTES)
            file.seek(-tail_bytes, os.SEEK_END)
            return head + b"\n" + file.read(tail_bytes)
    except OSError:
        return b""


def objects(data: bytes) -> Iterator[dict[str, Any]]:
    """Each line that is an object of JSON."""
    for line in data.split(b"\n"):
        if 2 <= len(line) <= MAX_LINE_BYTES and isinstance(found := decoded(line), dict):
            yield found


def decoded(data: bytes) -> Any:
    """Any JSON; None: it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return json.loads(data)  # it takes half a surrogate pair, as programs in JavaScript write
    except (ValueError, RecursionError):
        return None


def encoded(value: object) -> bytes:
    return msgspec.json.encode(value)


def lines_of(values: list[dict[str, Any]]) -> bytes:
    return b"".join(encoded(value) + b"\n" for value in values)


def fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def words(value: Any) -> str:
    return value if isinstance(value, str) else ""


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def as_json(value: Any) -> str:
    try:
        return encoded(value).decode()
    except (TypeError, ValueError, RecursionError):
        return ""


def changed_at(path: Path) -> float:
    """0 where it cannot be seen."""
    try:
        return path.stat(follow_symlinks=False).st_mtime
    except (OSError, ValueError):
        return 0.0


def newest_of(paths: Iterator[Path], *, limit: int) -> list[tuple[float, Path]]:
    try:
        found = [(changed_at(path), path) for path in paths]
    except OSError:
        return []
    return sorted(found, reverse=True)[:limit]


def make(path: Path, data: bytes) -> None:
    """
    A new file that only its user may read; directories on the way too.

    Raises:
        OSError: Also where anything has this name.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, _MAKE, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise
