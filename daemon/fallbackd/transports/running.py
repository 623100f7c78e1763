"""One program under way: what its runner says and records, as chunks and one exit."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from msgspec import Struct

from fallbackd.core.exchange import Chunk, Exit, NotStarted, ProcessExit
from fallbackd.lib.failpoints import hit
from fallbackd.transports.orphans import Family, end_family
from fallbackd.transports.recording import (
    Follower,
    exit_of,
    read_exit,
    read_record,
    recorded_bytes,
)
from fallbackd.transports.runner import frames
from fallbackd.transports.runner.attempt import ATTEMPT_FILE

_RECEIVE_BYTES = 65_536
_MEETING_S = 2.0
"""For the greeting of a runner that has taken the line."""


class RunnerLimits(Struct, frozen=True, kw_only=True):
    max_log_bytes: int = 64 * 1024 * 1024
    """On disk, per attempt, index included."""
    stop_grace_s: float = 5.0
    """For a runner that is stopped by a signal, with no word about the time."""
    kill_bound_s: float = 10.0
    """How long KILL may take before the family counts as not gone."""
    core_bytes: int | None = None
    """Soft limit of core files, -1: none. None: that of the daemon."""


class RunningProcess:
    """One program under way, as the daemon sees it."""

    def __init__(
        self,
        line: socket.socket | None,
        directory: str,
        token: str,
        limits: RunnerLimits,
        now: Callable[[], float],
    ) -> None:
        self._line = line
        self._directory = directory
        self._token = token
        self._limits = limits
        self._now = now
        self._frames = frames.Frames()
        self._follower = Follower(directory)
        self._runner = -1
        """A pidfd."""
        self._pid: int | None = None
        self._start = 0
        self._seen = -1
        self._direct: list[Chunk] = []
        self._log_bytes = 0
        self._exit: Exit | None = None
        self._line_ended = False
        self._was_stopped = False
        self._is_ordered = False
        self._is_followed = False
        """Somebody else waits for the line."""
        self._recorded_bytes = 0
        self._find_end: Callable[[], Awaitable[Exit | None]] | None = None

    @classmethod
    def left(
        cls,
        directory: str,
        find_end: Callable[[], Awaitable[Exit | None]],
        limits: RunnerLimits,
        now: Callable[[], float],
    ) -> "RunningProcess":
        """What was started by an earlier daemon and has no runner any more that can be met."""
        running = cls(None, directory, "", limits, now)
        running._find_end = find_end
        running._recorded_bytes = recorded_bytes(directory)
        record = read_record(directory, ATTEMPT_FILE) or {}
        running._pid = record.get("pid")
        return running

    async def meet(self) -> bool:
        """Take up the line to a runner that an earlier daemon has left. False: it is gone."""
        self._is_ordered = True
        self._is_followed = True
        self._recorded_bytes = recorded_bytes(self._directory)
        try:
            with anyio.move_on_after(_MEETING_S):
                while not self._is_answered() and not self._line_ended:
                    if not self._receive() and not self._line_ended:
                        assert self._line is not None
                        await anyio.wait_readable(self._line)
        finally:
            self._is_followed = False
        return self._is_answered()

    @classmethod
    def refused(
        cls, exit: NotStarted, limits: RunnerLimits, now: Callable[[], float]
    ) -> "RunningProcess":
        running = cls(None, "", "", limits, now)
        running._exit = exit
        return running

    @property
    def pid(self) -> int | None:
        """The program's own; None when it was not started."""
        return self._pid

    @property
    def exit(self) -> Exit:
        if self._exit is None:
            raise RuntimeError("the program has not ended yet")
        return self._exit

    @property
    def log_bytes(self) -> int:
        return self._log_bytes

    @property
    def recorded_bytes(self) -> int:
        return self._recorded_bytes

    @property
    def is_over(self) -> bool:
        """Its output is read to the end, and its runner has written the record and left."""
        is_read = self._line is None and self._exit is not None
        return is_read and (self._runner < 0 or _has_ended(self._runner))

    async def begin(self, order: bytes) -> bool:
        """Send the order. False: nobody took it, and nothing was started."""
        assert self._line is not None
        self._is_followed = True
        try:
            view = memoryview(order)
            while view:
                try:
                    view = view[self._line.send(view) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._line)
                except OSError:
                    break  # what it said before it left is still to be read
            self._is_ordered = not view
            hit("order.sent")
            return await self._answer()
        finally:
            self._is_followed = False

    async def _answer(self) -> bool:
        assert self._line is not None
        while not self._is_answered():
            if self._line_ended:
                if self._runner < 0 and not self._was_stopped:
                    return False
                await self._conclude()  # it left between its first word and the start
            elif not self._receive() and not self._line_ended:
                await anyio.wait_readable(self._line)
        return True

    def _is_answered(self) -> bool:
        return self._pid is not None or self._exit is not None

    async def chunks(self) -> AsyncIterator[Chunk]:
        self._is_followed = True
        try:
            if self._find_end is not None:
                await self._conclude()
            while self._line is not None or self._find_end is not None:
                if self._line is not None:
                    self._receive()
                is_last = self._exit is not None or self._line_ended
                while batch := self._follower.read():
                    self._tell_seen()
                    left = sum(len(chunk.data) for chunk in batch)
                    for chunk in batch:
                        left -= len(chunk.data)
                        self._log_bytes = self._follower.offset - left
                        yield chunk
                    await anyio.lowlevel.checkpoint()
                self._tell_seen()
                direct, self._direct = self._direct, []
                for chunk in direct:
                    self._log_bytes += len(chunk.data)
                    yield chunk
                if is_last:
                    break
                if not direct:
                    assert self._line is not None
                    await anyio.wait_readable(self._line)
            await self._conclude()
        finally:
            self._is_followed = False
            if self._exit is not None:
                self._close_line()

    def stop(self, *, grace_s: float) -> None:
        self._was_stopped = True
        if self._line is None or self._exit is not None:
            return
        try:
            if not self._is_ordered:
                # Half an order: the runner must not take what follows for the rest of it.
                self._line.shutdown(socket.SHUT_WR)
            else:
                self._line.send(frames.pack_json(frames.STOP, {"grace_s": grace_s}))
        except OSError:
            self._signal_runner()

    async def wait_gone(self) -> None:
        """Wait for the runner's own end; whatever it left behind is ended here."""
        limit_s = self._limits.stop_grace_s + self._limits.kill_bound_s + 5
        with anyio.move_on_after(limit_s):
            if not self._is_followed:
                while self._line is not None and not self._line_ended:
                    if not self._receive() and not self._line_ended:
                        await anyio.wait_readable(self._line)
            if self._runner >= 0:
                await anyio.wait_readable(self._runner)
        if (self._line or self._find_end) and not self._is_followed:
            await self._conclude()

    def release(self) -> None:
        self._follower.close()
        if self._line is not None and self._is_followed:
            anyio.notify_closing(self._line)
        self._close_line()
        if self._runner >= 0:
            os.close(self._runner)
            self._runner = -1

    def _close_line(self) -> None:
        self._follower.close()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _signal_runner(self) -> None:
        if self._runner >= 0:
            try:
                signal.pidfd_send_signal(self._runner, signal.SIGTERM)
            except OSError:
                pass

    def _receive(self) -> bool:
        """Take what the runner says. False when there is nothing now."""
        assert self._line is not None
        handles: list[int] = []
        try:
            if self._runner < 0:
                data, handles, _, _ = socket.recv_fds(
                    self._line, _RECEIVE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
            else:
                data = self._line.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if handles:
            self._runner = handles[0]
        if not data:
            self._line_ended = True
            return False
        for kind, payload in self._frames.feed(data):
            self._take(kind, payload)
        return True

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == frames.STARTED:
            started = frames.read_json(payload)
            self._pid, self._start = started["pid"], started["start"]
        elif kind == frames.REFUSED:
            record = frames.read_json(payload)
            self._exit = exit_of({"refused": record | {"at": record["at"] or self._now()}})
        elif kind == frames.CHUNK:
            letter, at, data = frames.unpack_chunk(payload)
            self._direct.append(Chunk("stderr" if letter == "e" else "stdout", data, at))
        elif kind == frames.EXIT:
            self._exit = exit_of(frames.read_json(payload))

    def _tell_seen(self) -> None:
        start = self._follower.part_start
        if start > self._seen and self._line is not None:
            self._seen = start
            try:
                self._line.send(frames.pack_json(frames.SEEN, {"offset": start}))
            except OSError:
                pass  # it has left, or has enough to read

    async def _conclude(self) -> None:
        """Where the runner left no word: end its family, and say that nobody knows the rest."""
        if self._exit is not None:
            return
        if (known := read_exit(self._directory)) is not None:
            self._exit = known
            return
        if self._find_end is not None:
            with anyio.CancelScope(shield=True):  # bounded by both limits
                found = await self._find_end()
            note = "nobody recorded how it ended"
            self._exit = ProcessExit(at=self._now(), note=note) if found is None else found
            return
        record = read_record(self._directory, ATTEMPT_FILE) or {}
        family = Family(
            token=self._token,
            pid=self._pid or record.get("pid", 0),
            start=self._start or record.get("start", 0),
        )
        with anyio.CancelScope(shield=True):  # bounded by both limits
            left = await end_family(
                family,
                grace_s=min(1.0, self._limits.stop_grace_s),
                bound_s=self._limits.kill_bound_s,
            )
        note = "its runner was killed; how it ended is unknown"
        if left:
            note += f"; not killed: {', '.join(map(str, left))}"
        self._exit = ProcessExit(
            gone=not left, at=self._now(), stopped=self._was_stopped, note=note
        )


def _has_ended(handle: int) -> bool:
    try:
        signal.pidfd_send_signal(handle, 0)
    except OSError:
        return True
    return False
