"""
Where a runner and daemons meet that do not know each other: files in the attempt's directory.

| file | holds |
| --- | --- |
| `claim` | who was first, made once: a runner before it starts the program, or a later daemon |
|         | that wants nothing to start there any more |
| `line` | a socket at which a runner that has lost its daemon waits for the next one |
"""

import json
import os
import socket
import struct

from fallbackd.lib.failpoints import hit
from fallbackd.transports.process.runner import tree
from fallbackd.transports.process.runner.peer import Gone, Peer

CLAIM_FILE = "claim"
LINE_FILE = "line"
ATTEMPT_FILE = "attempt.json"
EXIT_FILE = "exit.json"
_CREDENTIALS = struct.Struct("3i")


def claim(directory: int, *, by: str = "runner") -> None:
    """
    Say in an open directory that what is started there is started by this process.

    Args:
        by: "daemon" claims it so that nothing is started.

    Raises:
        FileExistsError: Another process was first.
        OSError: The disk does not take it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(CLAIM_FILE, flags, 0o600, dir_fd=directory)
    try:
        hit("runner.claim.within")
        me = tree.process(os.getpid())
        start = 0 if me is None else me.start
        record = {"by": by, "runner": os.getpid(), "runner_start": start}
        os.write(handle, json.dumps(record | {"boot_id": tree.boot_id()}).encode())
    finally:
        os.close(handle)


def line_path(directory: int) -> str:
    """Of an open directory. Short, whatever its name: a socket's path has 107 bytes at most."""
    return f"/proc/self/fd/{directory}/{LINE_FILE}"


class Meeting:
    """The runner's side of `line`."""

    def __init__(self, directory: int, started: bytes) -> None:
        """`started` is the frame that a new daemon is sent after the greeting."""
        self._directory = directory
        self._started = started
        self._listener: socket.socket | None = None

    def fileno(self) -> int:
        return -1 if self._listener is None else self._listener.fileno()

    def open(self) -> int:
        """Begin to wait. -1: the disk does not take the socket, and no daemon will find us."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            try:
                os.unlink(LINE_FILE, dir_fd=self._directory)
            except FileNotFoundError:
                pass
            listener.bind(line_path(self._directory))
            listener.listen(4)
        except OSError:
            listener.close()
            return -1
        self._listener = listener
        return listener.fileno()

    def take(self) -> Peer | None:
        """The daemon that has come; None: it has left already, or is another user's."""
        assert self._listener is not None
        try:
            line, _ = self._listener.accept()
        except OSError:
            return None
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] not in (0, os.geteuid()):
            line.close()
            return None
        hit("runner.met")
        peer = Peer(line)
        try:
            peer.greet()
        except Gone:
            line.close()
            return None
        line.setblocking(False)
        return peer if peer.send(self._started) else None

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
