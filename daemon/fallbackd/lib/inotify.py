"""
Hears from the kernel what has changed in directories, without a thread and without looking.

Source: inotify(7). Reading a file is no change of it.
"""

import ctypes
import os
from collections.abc import Iterable
from types import TracebackType

import anyio

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO = 0x2, 0x4, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_CHANGES = (
    _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
)
_ONLYDIR = 0x01000000
_BUFFER_BYTES = 16_384

_c = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """
    To be left as a context, which closes it.

    Raises:
        OSError: One of the directories is not there, or the user has no watches left.
    """

    def __init__(self, directories: Iterable[str]) -> None:
        self._handle = _checked(_c.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            for one in directories:
                _checked(_c.inotify_add_watch(self._handle, os.fsencode(one), _CHANGES | _ONLYDIR))
        except OSError:
            os.close(self._handle)
            raise

    def __enter__(self) -> "Inotify":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)

    def fileno(self) -> int:
        return self._handle

    async def changed(self, *, settle_s: float, limit_s: float) -> None:
        """
        Returns some time after a change, when what belongs to it has changed too; or at the limit.
        """
        with anyio.move_on_after(limit_s):
            await anyio.wait_readable(self)
            await anyio.sleep(settle_s)
        self._forget()

    def _forget(self) -> None:
        """What comes from now on is news."""
        try:
            while os.read(self._handle, _BUFFER_BYTES):
                pass
        except BlockingIOError:
            pass


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
