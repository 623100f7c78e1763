"""
One connection: lines in, answers out, and other connections undisturbed.

The reader answers what can be answered at once by writing straight to the socket; what the socket
does not take goes to the outbox, which one writer empties under a deadline. While the outbox is
long, nothing more is read: a peer that only sends is slowed down, not stored.
"""

import re
import select
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import structlog
from anyio.abc import SocketAttribute
from msgspec import Struct, UnsetType

from fallbackd.api.host import Host
from fallbackd.core.authority import PERSON, Authority
from fallbackd.fronts.rpc.dispatch import Dispatcher, Garbage, Later, refusal
from fallbackd.fronts.rpc.subscriptions import Subscriptions
from fallbackd.lib.failpoints import hit
from fallbackd_client.wire import codes
from fallbackd_client.wire.envelope import Id, encode_notification
from fallbackd_client.wire.framing import MAX_LINE_BYTES, LineSplitter, LineTooLong

# --- bytes ---------------------------------------------------------------------------------------
# Bytes from and to a socket that does not block.
#
# Not by the streams of anyio: where one of those is cancelled amid a wait, in the very moment in
# which the socket becomes ready or is shut down, asyncio logs a traceback of `InvalidStateError`.


async def receive(peer: socket.socket, max_bytes: int) -> bytes:
    """
    Receive what has come, at least one byte.

    Raises:
        anyio.EndOfStream: The peer sends no more.
        OSError: The connection is broken.
    """
    await anyio.lowlevel.checkpoint()
    while True:
        try:
            data = peer.recv(max_bytes)
        except BlockingIOError:
            await anyio.wait_readable(peer)
            continue
        if not data:
            raise anyio.EndOfStream
        return data


async def send(peer: socket.socket, data: bytes) -> None:
    """
    Returns when the socket has taken all of it.

    Raises:
        OSError: The connection is broken.
    """
    await anyio.lowlevel.checkpoint()
    left = memoryview(data)
    while left:
        try:
            left = left[peer.send(left) :]
        except BlockingIOError:
            await anyio.wait_writable(peer)


# --- what all connections hold together ----------------------------------------------------------
# What all connections together may hold, and who has to go when it is too much.
#
# One connection has limits of its own. A thousand of them, each just below, would still be too
# much: so the bytes of unfinished lines, the unread bytes and the waiting requests are counted for
# all. The connection that holds most is closed first; one that asks and reads is never closed.


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    max_connections: int = 1024
    silent_s: float = 1.0
    """Silence after which a connection without any request may be closed, if all are taken."""
    idle_s: float = 60.0
    """Limit for one that has asked before, and for which nothing is done or waited for."""
    max_line_bytes: int = MAX_LINE_BYTES
    line_s: float = 60.0
    """Limit from the first byte of a line to its end."""
    max_lines_bytes: int = 64 * 1024 * 1024
    """Unfinished lines of all connections."""
    max_in_flight: int = 1000
    """Requests of one connection that wait for their answer."""
    max_in_flight_of_all: int = 20_000
    fair_in_flight: int = 16
    """Number that is taken of each connection whatever others do."""
    max_outbox_bytes: int = 1024 * 1024
    """Unsent bytes above which nothing more is read."""
    max_unsent_bytes: int = 64 * 1024 * 1024
    """Unsent bytes above which the peer counts as gone, where they are more than one answer."""
    max_unsent_bytes_of_all: int = 128 * 1024 * 1024
    send_s: float = 30.0
    """A peer that takes nothing for this long is gone."""
    turn_s: float = 0.002
    """Time after which the other connections have their turn."""


class Shares:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.line_bytes = 0
        self.unsent_bytes = 0
        self.in_flight = 0
        self._holders: set[Connection] = set()

    def join(self, holder: "Connection") -> None:
        self._holders.add(holder)

    def leave(self, holder: "Connection") -> None:
        """Free what it held; it must not count anything more."""
        if holder in self._holders:
            self._holders.remove(holder)
            self.line_bytes -= holder.line_bytes
            self.unsent_bytes -= holder.backlog_bytes

    def make_place(self) -> "Connection | None":
        """Close the connection that can be missed most, and say which. None: each is in use."""
        now = monotonic()
        limits = self.limits
        spare = [
            one
            for one in self._holders
            if one.is_idle
            and now - one.active_at >= (limits.idle_s if one.has_asked else limits.silent_s)
        ]
        if not spare:
            return None
        chosen = min(spare, key=lambda one: (one.has_asked, one.active_at))
        chosen.drop("its place is needed")
        return chosen

    def count_line(self, by_bytes: int) -> None:
        """An unfinished line has grown, or has come to its end."""
        self.line_bytes += by_bytes
        while self.line_bytes > self.limits.max_lines_bytes:
            # The share of each: who has less is not in the way.
            fair = self.limits.max_lines_bytes // max(1, self.limits.max_connections)
            large = [one for one in self._holders if one.line_bytes > fair]
            if not large:
                return
            min(large, key=lambda one: one.line_began_at).drop("too many long lines come slowly")

    def count_unsent(self, by_bytes: int) -> None:
        self.unsent_bytes += by_bytes
        while self.unsent_bytes > self.limits.max_unsent_bytes_of_all:
            worst = max(self._holders, key=lambda one: one.backlog_bytes)
            worst.drop("it does not read, and much is unsent to all")

    def may_wait(self, in_flight: int) -> bool:
        """Return whether a connection with so many waiting requests may have one more."""
        if in_flight >= self.limits.max_in_flight:
            return False
        is_much = self.in_flight >= self.limits.max_in_flight_of_all
        return not is_much or in_flight < self.limits.fair_in_flight


# --- one connection ------------------------------------------------------------------------------

RECEIVE_BYTES = 65_536
SLICE_BYTES = 65_536
"""The deadline of the writer is for each of these, so a slow peer of a long answer is no victim."""
HALF_CLOSED_POLL_S = 0.5
TURN_AWAY_S = 2.0
_NO_WEB_SERVER = "This is not a web server; send JSON-RPC 2.0, one message per line."
_HTTP = re.compile(rb"[A-Z]{3,10} \S{1,8000} HTTP/\d")

_log = structlog.get_logger()


class Connection:
    def __init__(
        self,
        stream: anyio.abc.UNIXSocketStream,
        dispatcher: Dispatcher,
        host: Host,
        subscriptions: Subscriptions,
        *,
        number: int,
        peer_pid: int | None = None,
        peer_uid: int | None = None,
        authority: Authority = PERSON,
        client: str | None = None,
        shares: Shares,
        beyond: anyio.abc.TaskGroup,
    ) -> None:
        """
        Args:
            peer_pid: Who connected; that process may be gone by now.
            authority: What it may ask.
            client: Whose work counts together, where work has to be shared out.
            shares: What all connections hold together.
            beyond: Where what outlives the connection is run.
        """
        self._stream = stream
        self._socket = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        self._dispatcher = dispatcher
        self.host = host
        self.subscriptions = subscriptions
        self.number = number
        self.peer_pid = peer_pid
        self.peer_uid = peer_uid
        self.authority = authority
        self.client = client
        self._shares = shares
        self._limits = shares.limits
        self._beyond = beyond
        self._tasks: anyio.abc.TaskGroup | None = None
        self._outbox: deque[bytes] = deque()
        self.backlog_bytes = 0
        self._has_mail = anyio.Event()
        self._has_room = anyio.Event()
        self._in_flight = 0
        self._all_answered = anyio.Event()
        self.is_open = True
        self._splitter = LineSplitter(self._limits.max_line_bytes)
        self.line_bytes = 0
        self.has_asked = False
        self.active_at = self.line_began_at = monotonic()
        self._on_close: list[Callable[[], None]] = []

    @property
    def is_idle(self) -> bool:
        return not (self.is_busy or self._on_close)

    @property
    def is_busy(self) -> bool:
        """The peer waits for an answer, or for the rest of one."""
        return bool(self._in_flight or self._outbox)

    @property
    def has_hung_up(self) -> bool:
        if not self.is_open:
            return True
        poll = select.poll()
        poll.register(self._socket, 0)
        return bool(poll.poll(0))  # POLLHUP or POLLERR: it has closed both directions

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.write(encode_notification(method, params))

    def on_close(self, work: Callable[[], None]) -> None:
        self._on_close.append(work)

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._tasks is not None and self.is_open:
            self._tasks.start_soon(work)

    async def serve(self) -> None:
        """Serve until the peer is gone or has broken a limit."""
        self._shares.join(self)
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._empty_outbox)
                try:
                    if await self._read():
                        await self._finish()
                    else:
                        await self._turn_away()
                finally:
                    self._close()
        finally:
            self._close()
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()

    def drop(self, why: str) -> None:
        _log.warning(
            "connection.dropped", connection=self.number, why=why, unsent=self.backlog_bytes
        )
        # The reader sees the end, and closes.
        self.is_open = False
        self._shares.leave(self)
        self._has_room.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _close(self) -> None:
        self.is_open = False
        self._shares.leave(self)
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        callbacks, self._on_close = self._on_close, []
        for work in callbacks:
            work()
        self._has_room.set()

    # --- in ------------------------------------------------------------------------------------

    async def _read(self) -> bool:
        """Returns: False when the peer broke the limit of a line."""
        served = 0
        while self.is_open:
            try:
                lines = await self._lines()
            except TimeoutError:
                self._turn_down(
                    f"The line did not end within {self._limits.line_s:g} s. Send a whole line at"
                    " once, ended by a line feed."
                )
                return False
            except (anyio.EndOfStream, OSError):
                return True
            except LineTooLong as error:
                self._turn_down(
                    f"The line is longer than {error.max_bytes} bytes. Put large input into a"
                    " file and name it in the prompt.",
                    max_bytes=error.max_bytes,
                )
                return False
            for line in lines:
                if served == 0 and _HTTP.match(line):
                    self._turn_down(_NO_WEB_SERVER)
                    return False
                answer = self._dispatcher.take(line, self)
                self.has_asked = self.has_asked or not isinstance(answer, Garbage)
                if isinstance(answer, Later):
                    await self._take_later(answer)
                elif answer is not None:
                    self.write(answer)
                served += 1
                if self.backlog_bytes > self._limits.max_outbox_bytes:
                    await self.until_drained()
                if monotonic() - self.active_at >= self._limits.turn_s:
                    await anyio.lowlevel.checkpoint()
                    self.active_at = monotonic()
        return True

    async def _lines(self) -> list[bytes]:
        """
        Read what has come, cut into lines.

        Raises:
            TimeoutError: The line has taken too long.
        """
        if self.line_bytes == 0:
            data = await receive(self._socket, RECEIVE_BYTES)
        else:
            left_s = self.line_began_at + self._limits.line_s - monotonic()
            with anyio.fail_after(max(0.0, left_s)):
                data = await receive(self._socket, RECEIVE_BYTES)
        self.active_at = monotonic()
        lines = self._splitter.feed(data)
        pending_bytes = self._splitter.pending_bytes
        if pending_bytes and (lines or not self.line_bytes):
            self.line_began_at = self.active_at
        if pending_bytes != self.line_bytes and self.is_open:
            grown_bytes, self.line_bytes = pending_bytes - self.line_bytes, pending_bytes
            self._shares.count_line(grown_bytes)
        return lines

    def _turn_down(self, message: str, **data: int) -> None:
        self.write(refusal(codes.INVALID_REQUEST, message, request_id=None, **data))

    async def _take_later(self, later: Later) -> None:
        if later.is_quick:
            if (answer := await later.run()) is not None:
                self.write(answer)
            return
        if not self._shares.may_wait(self._in_flight):
            if not isinstance(later.request_id, UnsetType):
                self._refuse(later.request_id)
            return
        self._in_flight += 1
        self._shares.in_flight += 1
        assert self._tasks is not None
        tasks = self._beyond if later.outlives else self._tasks
        tasks.start_soon(self._run, later)

    def _refuse(self, request_id: Id) -> None:
        self.write(
            refusal(
                codes.TOO_MANY,
                f"{self._in_flight} requests of this connection wait for their answers, and"
                f" {self._shares.in_flight} of all. Wait for some of them first.",
                request_id=request_id,
                max_in_flight=self._limits.max_in_flight,
            )
        )

    async def _run(self, later: Later) -> None:
        try:
            if (answer := await later.run()) is not None:
                self.write(answer)
        except Exception as error:
            _log.error("connection.failed", connection=self.number, exc_info=error)
        finally:
            self._in_flight -= 1
            self._shares.in_flight -= 1
            if self._in_flight == 0:
                self._all_answered.set()

    async def _finish(self) -> None:
        """The peer sends no more. It may still read: a pipe like `echo … | socat` does."""
        while self._in_flight or self._outbox:
            if self.has_hung_up:
                return
            self._all_answered = anyio.Event()
            self._has_room = anyio.Event()
            with anyio.move_on_after(HALF_CLOSED_POLL_S):
                await (self._all_answered if self._in_flight else self._has_room).wait()

    async def _turn_away(self) -> None:
        """
        Let the peer read why. It may still be sending: a socket that is closed with unread input
        fails its next write, and a simple client would never come to read the reason.
        """
        with anyio.move_on_after(TURN_AWAY_S):
            while self._outbox:
                self._has_room = anyio.Event()
                await self._has_room.wait()
            try:
                await self._stream.send_eof()
                while True:
                    await receive(self._socket, RECEIVE_BYTES)
            except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                pass

    # --- out -----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.is_open:
            return
        hit("reply.before")
        if not self._outbox:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the reader sees the same and ends the connection
            if sent == len(data):
                hit("reply.after")
                return
            data = data[sent:]
        self._outbox.append(data)
        self.backlog_bytes += len(data)
        self._has_mail.set()
        self._shares.count_unsent(len(data))
        if len(self._outbox) > 1 and self.backlog_bytes > self._limits.max_unsent_bytes:
            self.drop("it does not read")

    async def until_drained(self) -> None:
        while self.is_open and self.backlog_bytes > self._limits.max_outbox_bytes // 2:
            self._has_room = anyio.Event()
            await self._has_room.wait()

    async def _empty_outbox(self) -> None:
        while self.is_open:
            if not self._outbox:
                self._has_mail = anyio.Event()
                self._has_room.set()
                await self._has_mail.wait()
            data = self._outbox[0]
            try:
                for at in range(0, len(data), SLICE_BYTES):
                    with anyio.fail_after(self._limits.send_s):
                        await send(self._socket, data[at : at + SLICE_BYTES])
            except TimeoutError:
                self.drop("it takes nothing")
                return
            except OSError:
                self._close()
                return
            self._outbox.popleft()
            self.backlog_bytes -= len(data)
            if self.is_open:
                self._shares.count_unsent(-len(data))
            if not self._outbox or self.backlog_bytes <= self._limits.max_outbox_bytes // 2:
                self._has_room.set()
