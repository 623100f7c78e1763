"""A file that lines are added to, that stays private and small, and never stops who writes."""

import os
from collections.abc import Callable

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
        handle = self._open()
        try:
            if os.fstat(handle).st_size + len(data) > self._max_bytes:
                os.close(handle)
                self._rotate()
                handle = self._open()
            os.write(handle, data)
        finally:
            os.close(handle)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            return os.open(self.path, flags, 0o600)

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            older, newer = f"{self.path}.{number + 1}", f"{self.path}.{number}"
            if os.path.lexists(newer):
                os.replace(newer, older)
        os.replace(self.path, f"{self.path}.1")
