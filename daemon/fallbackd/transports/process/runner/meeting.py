"""
Meeting of a runner and daemons that do not know each other: files in the attempt's directory.

| file | holds |
| --- | --- |
| `claim` | who was first, made once: a runner before it starts the program, or a later daemon |
|         | that wants nothing to start there any more |
| `line` | a socket at which a runner that has lost its daemon waits for the next one |
"""

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from fallbackd.lib.failpoints import hit
from fallbackd.transports.process.runner import frames, tree

# --- the line ------------------------------------------------------------------------------------
# The runner's end of the line to the daemon. It continues where the daemon has exited.

_SEND_S = 2.0
"""Time that a daemon that does not read may hold us up with what only the line can carry."""


class Gone(Exception):
    """The daemon left before it had said what to do."""


class Peer:
    def __init__(self, line: socket.socket) -> None:
        self._line: socket.socket | None = line
        self._frames = frames.Frames()
        self.on_close: Callable[[int], None] = lambda _: None
        """Called with the handle just before it is closed and its number is free again."""

    def greet(self) -> None:
        """Say who we are, with a handle that stays ours when the pid is given away."""
        assert self._line is not None
        handle = os.pidfd_open(os.getpid())
        hello = frames.pack_json(frames.HELLO, {"pid": os.getpid(), "version": frames.VERSION})
        try:
            socket.send_fds(self._line, [hello], [handle])
        except OSError as error:
            raise Gone from error
        finally:
            os.close(handle)

    def receive_spec(self) -> tuple[dict[str, Any], bytes]:
        """Blocks. The one exchange in which the daemon is waiting for us."""
        kind, size = frames.Frames.header(self._exactly(frames.HEADER_BYTES))
        if kind != frames.SPEC:
            raise Gone
        spec = frames.read_json(self._exactly(size))
        stdin = self._exactly(spec["stdin_bytes"]) if spec["stdin_bytes"] else b""
        assert self._line is not None
        self._line.setblocking(False)
        return spec, stdin

    def _exactly(self, size: int) -> bytes:
        assert self._line is not None
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._line.recv_into(view)
            except OSError as error:
                raise Gone from error
            if not count:
                raise Gone
            view = view[count:]
        return bytes(data)

    def fileno(self) -> int:
        """-1 when the daemon is gone."""
        return -1 if self._line is None else self._line.fileno()

    def receive(self) -> list[tuple[bytes, bytes]]:
        if self._line is None:
            return []
        try:
            data = self._line.recv(65_536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
        return self._frames.feed(data)

    def ring(self) -> None:
        """A full line is as good as a ring: the daemon has rings to read."""
        if self._line is not None:
            try:
                self._line.send(frames.pack(frames.RING), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                pass
            except OSError:
                pass  # the end of the line is noticed in `receive`

    def send(self, frame: bytes) -> bool:
        """Send all of it, or give the line up: half a frame would garble the rest."""
        until = time.monotonic() + _SEND_S
        view = memoryview(frame)
        while view:
            if self._line is None:
                return False
            try:
                view = view[self._line.send(view, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0 or not select.select([], [self._line], [], left)[1]:
                    self.close()
            except InterruptedError:
                continue
            except OSError:
                self.close()
        return True

    def close(self) -> None:
        if self._line is not None:
            self.on_close(self._line.fileno())
            self._line.close()
            self._line = None


# --- the meeting ---------------------------------------------------------------------------------

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
    """Return a short path in an open directory: a socket's path has 107 bytes at most."""
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
