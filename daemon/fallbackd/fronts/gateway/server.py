"""
HTTP/1.1 towards callers, on loopback and on a Unix socket.

One task for each connection, which answers its requests in turn. See `line` for what arrives.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from fallbackd.fronts.gateway.answers import Aborted
from fallbackd.fronts.gateway.incoming import HeadIn
from fallbackd.fronts.gateway.line import CallerLine, RequestLine
from fallbackd.lib.descriptors import is_scarce

log = structlog.get_logger("gateway")

HEAD_LIMIT_S = 10.0
"""For a head from its first byte on, and for the first byte on a connection."""
IDLE_S = 75.0
"""For the first byte of the next request on a connection that is kept."""
NO_DESCRIPTOR_PAUSE_S = 0.1
MAX_CONNECTIONS = 256

AnswerWith = Callable[[HeadIn, RequestLine], Awaitable[None]]
"""Answers one request: `begin`, then `send`. May raise `Aborted` in the middle."""


class GatewayServer:
    def __init__(self, handle: AnswerWith, *, allows: Callable[[socket.socket], bool]) -> None:
        """
        Args:
            allows: Whether the peer of a Unix connection may ask.
        """
        self._handle = handle
        self._allows = allows
        self._open = 0
        self._idle: dict[CallerLine, socket.socket] = {}
        """Without a request so far, or since their last answer; the longest idle first."""

    async def serve(self, listener: socket.socket) -> None:
        """Until cancelled. The listener is closed then."""
        listener.setblocking(False)
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    if self._open and is_scarce():
                        await anyio.wait_readable(listener)
                        if is_scarce():
                            self._made_room()
                            await anyio.sleep(NO_DESCRIPTOR_PAUSE_S)
                            continue
                    try:
                        accepted, _ = listener.accept()
                    except BlockingIOError:
                        await anyio.wait_readable(listener)
                        continue
                    except OSError as error:
                        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                            await anyio.sleep(NO_DESCRIPTOR_PAUSE_S)
                        continue
                    self._take(accepted, tasks)
                    await anyio.lowlevel.checkpoint()  # those that were closed for it go first
        finally:
            listener.close()

    def _take(self, accepted: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        is_unix = accepted.family == socket.AF_UNIX
        is_stranger = is_unix and not self._allows(accepted)
        if is_stranger or (self._open >= MAX_CONNECTIONS and not self._made_room()):
            accepted.close()
            return
        port = None if is_unix else int(accepted.getsockname()[1])
        accepted.setblocking(False)
        line = CallerLine(port)
        self._open += 1
        self._idle[line] = accepted
        tasks.start_soon(self._serve_one, line, accepted)

    def _made_room(self) -> bool:
        """Close the connection that has been idle longest. False: all are in use."""
        found = self._idle.items()
        line = next((one for one, on in found if one.is_idle and not _has_unread(on)), None)
        if line is None:
            return False
        del self._idle[line]
        line.close()
        return True

    async def _serve_one(self, line: CallerLine, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: line, accepted)
            idle_s = HEAD_LIMIT_S
            while await self._answer_next(line, idle_s=idle_s):
                idle_s = IDLE_S
                self._idle[line] = accepted
        except OSError:
            pass  # the caller has gone
        except Exception:
            log.exception("gateway.connection_broke")
        finally:
            self._open -= 1
            self._idle.pop(line, None)
            line.close()

    async def _answer_next(self, line: CallerLine, *, idle_s: float) -> bool:
        """False: the connection is over."""
        request = await line.request(idle_s=idle_s, head_s=HEAD_LIMIT_S)
        self._idle.pop(line, None)
        if request is None:
            return False
        is_aborted = False
        with line.while_there():
            try:
                await self._handle(request, line)
            except (Aborted, anyio.EndOfStream):
                is_aborted = True
        return await line.end_answer(is_aborted=is_aborted)


def _has_unread(connection: socket.socket) -> bool:
    """Whether bytes have come that the event loop has not read yet."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:  # none so far, or it is closed
        return False
