"""A file that lines are added to, that stays private and small, and never stops who writes."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

from fallbackd.lib import privatefile

MAX_BYTES = 5 * 1024 * 1024
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
        max_bytes: int = MAX_BYTES,
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
            handle = privatefile.open_directory(path, names=1)
        except FileNotFoundError:
            os.makedirs(path, mode=0o700, exist_ok=True)
            handle = privatefile.open_directory(path, names=1)
        try:
            yield handle
        finally:
            os.close(handle)

    def _open(self, directory: int) -> int:
        handle = privatefile.open_to_append(os.path.basename(self.path), directory=directory)
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
