"""
The listener: who may connect, how many, and where.

A peer has to be the daemon's own user or root. A connection too many gets an error and is closed;
one that comes while the process has no file descriptor left waits in the backlog of the socket.
"""

import errno
import itertools
import os
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from fallbackd.api.handler import Handler
from fallbackd.api.host import Host
from fallbackd.core.authority import Authority
from fallbackd.fronts.rpc.connection import Connection, ConnectionLimits, Shares
from fallbackd.fronts.rpc.dispatch import Dispatcher, refusal
from fallbackd.fronts.rpc.subscriptions import Subscriptions
from fallbackd.lib import processes
from fallbackd.lib.descriptors import is_scarce, is_shortage
from fallbackd_client.wire import codes

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

NO_DESCRIPTOR_PAUSE_S = 0.2
SAY_EVERY_S = 60.0
TURN = 16
SETTLE_LOOK_S = 0.01

_log = structlog.get_logger()


class RpcServer:
    """Serves any number of listening sockets, until it is cancelled."""

    def __init__(
        self,
        engine: "Engine",
        host: Host,
        handlers: Iterable[Handler[Any, Any]],
        *,
        limits: ConnectionLimits | None = None,
        allowed_uids: frozenset[int] | None = None,
    ) -> None:
        self._dispatcher = Dispatcher(engine, handlers)
        self._host = host
        self._subscriptions = Subscriptions(engine)
        self._limits = limits or ConnectionLimits()
        self._shares = Shares(self._limits)
        self._postponed: str | None = None
        self._say_at = 0.0
        self._allowed_uids = allowed_uids or frozenset({os.geteuid(), 0})
        self._numbers: set[int] = set()
        """Numbers of connections that hold a place."""
        self._open: set[Connection] = set()
        self._next_number = 1
        self._listener: socket.socket | None = None
        self._accepting = anyio.CancelScope()

    @property
    def connections(self) -> int:
        return len(self._numbers)

    @property
    def held_bytes(self) -> int:
        """Unfinished lines and unsent answers of all connections."""
        return self._shares.line_bytes + self._shares.unsent_bytes

    @property
    def postponed(self) -> str | None:
        """Say why no new connection is accepted now; None: connections are accepted."""
        return self._postponed

    async def serve(self, listener: socket.socket) -> None:
        """Accept on `listener`, or on what has replaced it, until cancelled."""
        self._listener = listener
        async with anyio.create_task_group() as tasks:
            try:
                while True:
                    current = self._listener
                    assert current is not None
                    current.setblocking(False)
                    with anyio.CancelScope() as self._accepting:
                        await self._accept_all(current, tasks)
                    if self._listener is current:
                        return
            finally:
                tasks.cancel_scope.cancel()

    async def settle(self, *, limit_s: float) -> None:
        """Let answers that are due reach their callers before everything is closed."""
        with anyio.move_on_after(limit_s):
            while any(one.is_busy for one in self._open):  # noqa: ASYNC110 - once, at the end
                await anyio.sleep(SETTLE_LOOK_S)

    def replace(self, listener: socket.socket) -> None:
        """Accept on another socket from now on. Connections stay."""
        self._listener = listener
        self._accepting.cancel()

    async def _accept_all(self, listener: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        for taken in itertools.count(1):
            if taken % TURN == 0:  # many callers at once must not keep those waiting who are in
                await anyio.lowlevel.checkpoint()
            if self._numbers and is_scarce():
                if not await _is_asked(listener):
                    return
                if is_scarce():
                    await self._rest("the last file descriptors are kept for running work")
                    continue
            try:
                peer, _ = listener.accept()
            except BlockingIOError:
                self._postpone(None)
                if not await _is_asked(listener):
                    return
                continue
            except OSError as error:
                if is_shortage(error):
                    await self._rest(error.strerror or str(error))
                    continue
                if error.errno in (errno.EBADF, errno.EINVAL):
                    return
                continue  # the peer was gone before it was accepted
            self._postpone(None)
            await self._admit(peer, tasks)

    async def _rest(self, why: str) -> None:
        """Let callers wait in the backlog, and give up a connection that is idle."""
        self._postpone(why)
        self._make_place()
        await anyio.sleep(NO_DESCRIPTOR_PAUSE_S)

    def _make_place(self) -> bool:
        closed = self._shares.make_place()
        if closed is None:
            return False
        self._numbers.discard(closed.number)
        return True

    def _postpone(self, why: str | None) -> None:
        """New callers wait in the backlog of the socket. Said now and then."""
        now = anyio.current_time()
        if why is not None and self._postponed is None and now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            _log.error("connection.postponed", error=why, connections=self.connections)
        self._postponed = why

    async def _admit(self, peer: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        peer.setblocking(False)
        peer.set_inheritable(False)
        try:
            seen = processes.peer(peer)
        except OSError:
            peer.close()
            return
        if seen.uid not in self._allowed_uids:
            _log.warning("connection.refused", uid=seen.uid)
            peer.close()
            return
        if self.connections >= self._limits.max_connections and not self._make_place():
            _log.warning("connection.refused", connections=self.connections)
            line = refusal(
                codes.TOO_MANY,
                f"{self.connections} connections are open, at most"
                f" {self._limits.max_connections} may be. Close some, or keep one open and send"
                " several requests over it.",
            )
            try:
                peer.send(line)
            except OSError:
                pass
            peer.close()
            return
        number = self._next_number
        self._next_number += 1
        self._numbers.add(number)
        # Now, not when it asks: the process that connected may have exited by then.
        authority = self._host.authority_of(peer)
        tasks.start_soon(self._serve_one, peer, number, seen, authority, tasks)

    async def _serve_one(
        self,
        peer: socket.socket,
        number: int,
        seen: processes.PeerCredentials,
        authority: Authority,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        connection: Connection | None = None
        try:
            stream = await anyio.abc.UNIXSocketStream.from_socket(peer)
            connection = Connection(
                stream,
                self._dispatcher,
                self._host,
                self._subscriptions,
                number=number,
                peer_pid=seen.pid or None,
                client=processes.client_of(seen) or f"{seen.uid}:connection-{number}",
                shares=self._shares,
                peer_uid=seen.uid,
                authority=authority,
                beyond=tasks,
            )
            self._open.add(connection)
            await connection.serve()
        except Exception as error:
            _log.error("connection.failed", connection=number, exc_info=error)
        finally:
            if connection is not None:
                self._open.discard(connection)
            self._numbers.discard(number)


async def _is_asked(listener: socket.socket) -> bool:
    """Wait for the next caller. False: the listener was closed."""
    try:
        await anyio.wait_readable(listener)
    except (anyio.ClosedResourceError, ValueError, OSError):
        return False
    return True
