"""The line to the runner of one program, and the runner at its other end."""

import os
import signal
import socket
from collections.abc import Sequence

import anyio

from fallbackd.transports.process.runner import frames, tree

_RECEIVE_BYTES = 65_536


class RunnerLine:
    """
    Args:
        line: None: there is no runner; then nothing is received and nothing can be sent.
    """

    def __init__(self, line: socket.socket | None) -> None:
        self._socket = line
        self._frames = frames.Frames()
        self._handle = -1
        """A pidfd of the runner."""
        self.runner: tree.Process | None = None
        """None before its first word."""
        self.is_ended = False
        """Nothing more will be said."""

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def has_left(self) -> bool:
        """The runner has ended, or was never met."""
        return self._handle < 0 or _has_ended(self._handle)

    async def wait(self) -> None:
        """Until there is something to receive."""
        assert self._socket is not None
        await anyio.wait_readable(self._socket)

    async def wait_left(self) -> None:
        """Until the runner has ended."""
        if self._handle >= 0:
            await anyio.wait_readable(self._handle)

    def receive(self) -> Sequence[tuple[bytes, bytes]] | None:
        """Frames that have come; None: there is nothing now, or never again (`is_ended`)."""
        assert self._socket is not None
        handles: list[int] = []
        try:
            if self._handle < 0:
                data, handles, _, _ = socket.recv_fds(
                    self._socket, _RECEIVE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
            else:
                data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if handles:
            self._handle = handles[0]
        if not data:
            self.is_ended = True
            return None
        found = list(self._frames.feed(data))
        for kind, payload in found:
            if kind == frames.HELLO:
                self.runner = tree.process(frames.read_json(payload)["pid"])
        return found

    async def send_all(self, data: bytes, *, limit_s: float) -> bool:
        """False: the runner did not take it all. What it said before it left is still there."""
        assert self._socket is not None
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                with anyio.move_on_after(limit_s) as patience:
                    await anyio.wait_writable(self._socket)
                if patience.cancelled_caught:
                    break
            except OSError:
                break
        return not view

    def send(self, frame: bytes) -> bool:
        """False: it has left, or has enough to read."""
        if self._socket is None:
            return False
        try:
            self._socket.send(frame)
        except OSError:
            return False
        return True

    def hang_up(self) -> bool:
        """Say nothing more. What the runner says is still heard. False: it has left."""
        if self._socket is None:
            return False
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        if self._handle >= 0:
            try:
                signal.pidfd_send_signal(self._handle, number)
            except OSError:
                pass

    def wake(self) -> None:
        """Wake tasks that wait for the line: it is closed."""
        if self._socket is not None:
            anyio.notify_closing(self._socket)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def let_go(self) -> None:
        """Of the runner itself, after `close`."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _has_ended(handle: int) -> bool:
    try:
        signal.pidfd_send_signal(handle, 0)
    except OSError:
        return True
    return False
