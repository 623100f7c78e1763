"""
A peer that hangs up while nothing is read from it.

An event loop meets the end of what a peer sends where it reads it. Where reading is paused, the
kernel still says that the end has come, also behind bytes that are unread. Over TCP it has come
only when all that was sent before it has a place in the kernel's buffer.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Protocol


class _Open(Protocol):
    def fileno(self) -> int: ...


class HangUpWatch:
    """
    Tells once, from the running event loop, that a peer has closed its connection, or its side.

    Args:
        connection: A stream, over TCP or Unix.
        tell: Called once at most, and not behind `close`.
    """

    def __init__(self, connection: socket.socket | _Open, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._found = select.epoll()
        # The loop asks for bytes alone; a set of epoll is readable when one of its events has come.
        self._found.register(connection.fileno(), select.EPOLLRDHUP)
        self._loop.add_reader(self._found.fileno(), self._hung_up)

    def _hung_up(self) -> None:
        self.close()
        self._tell()

    def close(self) -> None:
        """Idempotent."""
        if not self._found.closed:
            self._loop.remove_reader(self._found.fileno())
            self._found.close()
