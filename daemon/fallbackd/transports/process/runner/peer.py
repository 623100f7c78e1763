"""The runner's end of the line to the daemon. A daemon that is gone is no reason to stop."""

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from fallbackd.transports.process.runner import frames

_SEND_S = 2.0
"""How long a daemon that does not read may hold us up with what only the line can carry."""


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
