"""
HTTP/1.1 towards callers, on loopback and on a Unix socket.

One task for each connection, which answers its requests in turn. See `line` for what arrives.
"""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc
import anyio.lowlevel
import structlog
from msgspec import structs

from fallbackd.core.authority import Authority
from fallbackd.fronts.gateway.answers import Aborted
from fallbackd.fronts.gateway.incoming import HeadIn
from fallbackd.fronts.gateway.line import CallerLine, RequestLine
from fallbackd.fronts.gateway.room import Room
from fallbackd.fronts.gateway.settings import Bounds
from fallbackd.lib.descriptors import is_scarce, is_shortage

log = structlog.get_logger("gateway")

HEAD_LIMIT_S = 10.0
"""For a head from its first byte on, and for the first byte on a connection."""
IDLE_S = 75.0
"""For the first byte of the next request on a connection that is kept."""
NO_DESCRIPTOR_PAUSE_S = 0.1
MAX_CONNECTIONS = 256
"""Whose callers have shown that they may ask."""
MAX_STRANGERS = 512
"""Further ones, whose first request has not come, or was denied."""
ANY_STRANGERS = 32
"""Of them where there are few descriptors, which those that are answered need."""

AnswerWith = Callable[[HeadIn, RequestLine], Awaitable[None]]
"""Answers one request: `begin`, then `send`. May raise `Aborted` in the middle."""


class _Strangers:
    """
    Connections of callers that are not known yet, the oldest first; of one listener, so that those
    of a port, which every user of the machine can reach, take no place at the Unix socket.
    """

    def __init__(self) -> None:
        self._lines: dict[CallerLine, socket.socket] = {}
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MAX_STRANGERS
        if limit != resource.RLIM_INFINITY:
            self._most = min(MAX_STRANGERS, max(ANY_STRANGERS, limit // 4))

    def add(self, line: CallerLine, accepted: socket.socket) -> None:
        """Another one gives way where there are too many."""
        self._lines[line] = accepted
        if len(self._lines) > self._most and not self.turned_away():
            self.drop(line)
            line.turn_away()

    def turned_away(self) -> bool:
        """Close the oldest whose bytes have been read. False: there is none."""
        found = self._lines.items()
        oldest = next((one for one, on in found if not _has_unread(on)), None)
        if oldest is None:
            return False
        self.drop(oldest)
        oldest.turn_away()
        return True

    def drop(self, line: CallerLine) -> None:
        self._lines.pop(line, None)


class GatewayServer:
    def __init__(
        self,
        handle: AnswerWith,
        *,
        allows: Callable[[socket.socket], Authority | None],
        knows: Callable[[HeadIn], bool] = lambda _: True,
        looks: Callable[[socket.socket, HeadIn], Awaitable[Authority | None]] | None = None,
    ) -> None:
        """
        Args:
            looks: What the peer of a TCP connection may ask, where it is a process of an attempt.
                Called before its first request, and until one shows that its caller may ask.
            allows: What the peer of a Unix connection may ask; None: nothing.
            knows: Whether a request shows that its caller may ask.
        """
        self._handle = handle
        self._allows = allows
        self._knows = knows
        self._looks = looks
        self._open = 0
        self._known: set[CallerLine] = set()
        self._idle: dict[CallerLine, socket.socket] = {}
        """Those of them without a request since their last answer; the longest idle first."""
        self.room = Room(Bounds().max_memory_bytes)

    async def serve(self, listener: socket.socket) -> None:
        """Until cancelled. The listener is closed then."""
        listener.setblocking(False)
        strangers = _Strangers()
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    if self._open and is_scarce():
                        await anyio.wait_readable(listener)
                        if is_scarce():
                            if not strangers.turned_away():
                                self._closed_idle()
                            await anyio.sleep(NO_DESCRIPTOR_PAUSE_S)
                            continue
                    try:
                        accepted, _ = listener.accept()
                    except BlockingIOError:
                        await anyio.wait_readable(listener)
                        continue
                    except OSError as error:
                        if is_shortage(error):
                            await anyio.sleep(NO_DESCRIPTOR_PAUSE_S)
                        continue
                    self._take(accepted, strangers, tasks)
                    await anyio.lowlevel.checkpoint()  # those that were closed for it go first
        finally:
            listener.close()

    def _take(
        self, accepted: socket.socket, strangers: _Strangers, tasks: anyio.abc.TaskGroup
    ) -> None:
        is_unix = accepted.family == socket.AF_UNIX
        # Now, not with a request: the process that connected can be looked at while it is there.
        asker = self._allows(accepted) if is_unix else None
        if is_unix and asker is None:
            accepted.close()
            return
        port = None if is_unix else int(accepted.getsockname()[1])
        accepted.setblocking(False)
        line = CallerLine(port, self.room, asker=asker)
        tasks.start_soon(self._serve_one, line, accepted, strangers)

    def _has_place(self, line: CallerLine) -> bool:
        """Whether one that is known now may ask: the one that has been idle longest makes room."""
        is_full = line not in self._known and len(self._known) >= MAX_CONNECTIONS
        if is_full and not self._closed_idle():
            return False
        self._known.add(line)
        return True

    def _closed_idle(self) -> bool:
        """Close the connection that has been idle longest. False: all are in use."""
        found = self._idle.items()
        idle = next((one for one, on in found if one.is_idle and not _has_unread(on)), None)
        if idle is None:
            return False
        self._left(idle)
        idle.close()
        return True

    def _left(self, line: CallerLine) -> None:
        self._idle.pop(line, None)
        self._known.discard(line)

    async def _serve_one(
        self, line: CallerLine, accepted: socket.socket, strangers: _Strangers
    ) -> None:
        try:
            self._open += 1
            await asyncio.get_running_loop().connect_accepted_socket(lambda: line, accepted)
            is_kept = True
            while is_kept:
                is_known = line in self._known
                if is_known:
                    self._idle[line] = accepted
                else:
                    strangers.add(line, accepted)
                idle_s = IDLE_S if is_known else HEAD_LIMIT_S
                request = await line.request(idle_s=idle_s, head_s=HEAD_LIMIT_S)
                self._idle.pop(line, None)
                strangers.drop(line)
                if request is None:
                    break
                is_aborted = await self._answered(request, line, accepted)
                if line not in self._known:
                    strangers.add(line, accepted)  # the end takes as long as its caller wants
                is_kept = await line.end_answer(is_aborted=is_aborted)
        except OSError:
            pass  # the caller has gone
        except Exception:
            log.exception("gateway.connection_broke")
        finally:
            self._open -= 1
            strangers.drop(line)
            self._left(line)
            line.close()

    async def _answered(self, request: HeadIn, line: CallerLine, accepted: socket.socket) -> bool:
        """Whether its answer broke off."""
        is_known = line in self._known
        if not is_known and line.asker is None and self._looks is not None:
            line.asker = await self._looks(accepted, request)
            request = structs.replace(request, asker=line.asker)
        is_known = is_known or self._knows(request)
        if line.asker is not None and not line.asker.is_person:
            line.keep_no_longer()  # a helper server works for other attempts by its next request
        if is_known and not self._has_place(line):
            request = structs.replace(request, is_one_too_many=True)
            line.keep_no_longer()
        with line.while_there():
            try:
                await self._handle(request, line)
            except (Aborted, anyio.EndOfStream):
                return True
            finally:
                line.give_back()
        return False


def _has_unread(connection: socket.socket) -> bool:
    """Whether bytes have come that the event loop has not read yet."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:  # none so far, or it is closed
        return False
