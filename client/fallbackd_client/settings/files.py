"""Text files that other programs and people write: opened without waiting, kept in their form."""

from __future__ import annotations

import errno
import os
import stat

BYTE_ORDER_MARK = "\ufeff"
"""Some editors begin a file with it."""
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def regular(path: str, flags: int) -> int:
    """
    The `opener` of files that we did not make: nothing waits for a pipe in their place.

    Raises:
        OSError: It is not there, not permitted, or something else than a file (EINVAL).
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", path)
    return os.open(path, flags | os.O_NONBLOCK)


class Form:
    """
    The form of a file beside its text: a mark at its beginning, and how its lines end.

    Attributes:
        text: Without the mark; lines end as on this system, unless the file mixes both ways.
    """

    def __init__(self, whole: str) -> None:
        self._mark = BYTE_ORDER_MARK if whole.startswith(BYTE_ORDER_MARK) else ""
        self._end = "\r\n" if 0 < whole.count("\n") == whole.count("\r\n") else "\n"
        self.text = whole.removeprefix(self._mark).replace(self._end, "\n")

    def whole(self, text: str) -> str:
        """Return the bytes to write, so that the file has such a text in its own form."""
        return self._mark + text.replace("\n", self._end)
