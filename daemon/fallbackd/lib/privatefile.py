"""
Reads files of private directories in which an agent of the same user may have put anything.

A link, a FIFO, a device, or a file without end must cost no more than an error: everything is
opened relative to its directory, without following links, without waiting, regular files only, and
read up to a bound. A directory is reached without following a link in its last two names.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

NAMES = 2
"""`runs/DELEGATION/ATTEMPT`: what lies above belongs to the user's own set-up and may be a link."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_directory(path: str | os.PathLike[str], *, names: int = NAMES) -> int:
    """
    Raises:
        OSError: It is not there, or no directory, or a link is.
    """
    parts = os.path.abspath(path).split("/")
    base, below = "/".join(parts[:-names]) or "/", parts[-names:]
    handle = os.open(base, _DIRECTORY)
    for name in below:
        if not name:
            continue  # fewer names than that
        try:
            inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
        finally:
            os.close(handle)
        handle = inner
    return handle


def open_file(name: str, *, directory: int, writes: bool = False) -> int:
    """
    Open a regular file that exists, for reading or for both.

    Raises:
        OSError: It is not there, or something else (EINVAL, ELOOP, ENXIO) is.
    """
    return _regular(name, os.O_RDWR if writes else os.O_RDONLY, directory)


def open_to_append(name: str, *, directory: int) -> int:
    """
    Open a regular file to write at its end; made, for its user alone, where there is none.

    Raises:
        OSError: As `open_file`.
    """
    return _regular(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, directory)


def append_line(name: str, line: bytes, *, directory: int) -> None:
    """
    Write a line at the end of a file, whole or not at all: half a line, of a full disk or of a
    process that was killed, would make the next one unreadable too.

    Raises:
        OSError: As `open_file`, or the disk does not take the line.
    """
    handle = _regular(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, directory)
    try:
        size = os.fstat(handle).st_size
        is_cut = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        left = memoryview((b"\n" if is_cut else b"") + line + b"\n")
        try:
            while left:
                left = left[os.write(handle, left) :]
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def _regular(name: str, flags: int, directory: int) -> int:
    handle = os.open(name, _FILE | flags, 0o600, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return handle


def regular(path: str, flags: int) -> int:
    """
    The `opener` of a file outside of these directories that another program keeps: its user may
    have put a link there, but nothing waits for a pipe in its place.

    Raises:
        OSError: It is not there, or something else than a file is (EINVAL, ENXIO).
    """
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return handle


def read_file(path: str | os.PathLike[str], *, max_bytes: int, names: int = NAMES) -> bytes:
    """
    The whole content of a file.

    Args:
        names: How many names of its directory are not followed.

    Raises:
        OSError: It cannot be read, or it is longer than `max_bytes` (EFBIG).
    """
    data, is_whole = read_start(path, max_bytes=max_bytes, names=names)
    if not is_whole:
        raise OSError(errno.EFBIG, f"longer than {max_bytes} bytes", str(path))
    return data


def read_start(
    path: str | os.PathLike[str], *, max_bytes: int, names: int = NAMES
) -> tuple[bytes, bool]:
    """
    The first `max_bytes` of a file, and whether that is all of it.

    Raises:
        OSError: It cannot be read.
    """
    where, name = os.path.split(os.path.abspath(path))
    directory = open_directory(where, names=names)
    try:
        handle = open_file(name, directory=directory)
    finally:
        os.close(directory)
    with os.fdopen(handle, "rb") as file:
        data = file.read(max_bytes + 1)
    return data[:max_bytes], len(data) <= max_bytes


def exists(path: str | os.PathLike[str], *, names: int = NAMES) -> bool:
    """
    Check whether anything has this name, whatever it is.

    Raises:
        OSError: Its directory cannot be looked into.
    """
    where, name = os.path.split(os.path.abspath(path))
    try:
        directory = open_directory(where, names=names)
    except FileNotFoundError:
        return False
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    finally:
        os.close(directory)
    return True


MAX_ROTATED_BYTES = 5 * 1024 * 1024
KEEP = 3


class RotatingFile:
    """
    Args:
        path: Absolute. Its directory is made where it is missing, for its owner only.
        on_trouble: Called once with why nothing can be written, until something can be again.
    """

    def __init__(
        self,
        path: str,
        *,
        on_trouble: Callable[[str], None] = lambda _: None,
        max_bytes: int = MAX_ROTATED_BYTES,
        keep: int = KEEP,
    ) -> None:
        self.path = path
        self._on_trouble = on_trouble
        self._max_bytes = max_bytes
        self._keep = keep
        self._is_in_trouble = False

    def add(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            self._write(data)
        except OSError as error:
            if not self._is_in_trouble:
                self._is_in_trouble = True
                self._on_trouble(f"{self.path}: {error.strerror or error}")
        else:
            self._is_in_trouble = False

    def _write(self, data: bytes) -> None:
        with self._directory() as directory:
            handle = self._open(directory)
            try:
                if os.fstat(handle).st_size + len(data) > self._max_bytes:
                    os.close(handle)
                    self._rotate(directory)
                    handle = self._open(directory)
                os.write(handle, data)
            finally:
                os.close(handle)

    @contextmanager
    def _directory(self) -> Iterator[int]:
        """Opened without following a link in its place: a program may have put one there."""
        path = os.path.dirname(self.path)
        try:
            handle = open_directory(path, names=1)
        except FileNotFoundError:
            os.makedirs(path, mode=0o700, exist_ok=True)
            handle = open_directory(path, names=1)
        try:
            yield handle
        finally:
            os.close(handle)

    def _open(self, directory: int) -> int:
        handle = open_to_append(os.path.basename(self.path), directory=directory)
        if os.fstat(handle).st_nlink > 1:
            os.close(handle)
            raise OSError(errno.EMLINK, "is another file by a second name", self.path)
        return handle

    def _rotate(self, directory: int) -> None:
        name = os.path.basename(self.path)
        names = [name, *(f"{name}.{number}" for number in range(1, self._keep + 1))]
        for newer, older in reversed(list(pairwise(names))):
            with suppress(FileNotFoundError):
                os.replace(newer, older, src_dir_fd=directory, dst_dir_fd=directory)
