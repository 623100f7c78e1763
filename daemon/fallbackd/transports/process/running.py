"""One program under way: what its runner says and records, as chunks and one exit."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import anyio
from msgspec import Struct
from msgspec.structs import replace

from fallbackd.core.protocol import Chunk, Exit, NotStarted, ProcessExit
from fallbackd.lib import privatefile
from fallbackd.lib.failpoints import hit
from fallbackd.transports.process.orphans import (
    Family,
    end_below,
    end_family,
    end_group,
    recorded_exit,
)
from fallbackd.transports.process.recording import (
    Follower,
    clear_drafts,
    exit_of,
    patiently,
    read_record,
    recorded_bytes,
)
from fallbackd.transports.process.runner import frames, tree
from fallbackd.transports.process.runner.meeting import ATTEMPT_FILE, CLAIM_FILE

# --- the line to a runner ------------------------------------------------------------------------
# The line to the runner of one program, and the runner at its other end.

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
        """The process of the runner; None before its first word."""
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
        """Wait until there is something to receive."""
        assert self._socket is not None
        await anyio.wait_readable(self._socket)

    async def wait_left(self) -> None:
        """Wait until the runner has ended."""
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

    async def has_room(self) -> bool:
        """Wait until something can be sent. False: it has left."""
        if self._socket is None or self.is_ended:
            return False
        await anyio.wait_writable(self._socket)
        return not self.has_left

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
        """Let go of the runner itself, after `close`."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _has_ended(handle: int) -> bool:
    try:
        signal.pidfd_send_signal(handle, 0)
    except OSError:
        return True
    return False


# --- one program ---------------------------------------------------------------------------------

_MEETING_S = 2.0
"""Limit of the greeting of a runner that has taken the line."""
_ENDING_S = 5.0
"""Time that a runner needs beside the limits of a stop, on a busy machine."""
_LAST_WORD_S = 2.0
"""Limit of the record of a runner below which nothing lives any more."""
_LAST_READ_BYTES = 1024 * 1024
"""Bytes of a stopped program that are read after its end. More would delay what waits."""

_INPUT_BYTES = 32 * 1024
"""Sent at once or not at all: what fits in one buffer of a socket."""


class RunnerLimits(Struct, frozen=True, kw_only=True):
    max_log_bytes: int = 64 * 1024 * 1024
    """Bytes on disk, per attempt, index included."""
    stop_grace_s: float = 5.0
    """Grace of a runner that is stopped by a signal, with no word about the time."""
    kill_bound_s: float = 10.0
    """Time that KILL may take before the family counts as not gone."""
    answer_s: float = 20.0
    """Time that a runner may take to say that it has started its program."""
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
        *,
        attempt: str = "",
    ) -> None:
        self.attempt = attempt
        self._line = RunnerLine(line)
        self.directory = directory
        self._token = token
        self._limits = limits
        self._now = now
        self._follower = Follower(directory)
        self._give_up_at = float("inf")
        """Instant on the loop's clock: until then the runner may take to end the program."""
        self._waiting: anyio.CancelScope | None = None
        self.was_unheard = False
        """No runner answered in time."""
        self.pid: int | None = None
        self._start = 0
        self._cgroup = ""
        self._seen = -1
        self._direct: list[Chunk] = []
        self.log_bytes = 0
        self._exit: Exit | None = None
        self._was_stopped = False
        self._is_ordered = False
        self._is_followed = False
        """Another task waits for the line."""
        self.recorded_bytes = 0
        self._unread_bytes = 0
        self._find_end: Callable[[], Awaitable[Exit | None]] | None = None

    @classmethod
    def left(
        cls,
        directory: str,
        find_end: Callable[[], Awaitable[Exit | None]],
        limits: RunnerLimits,
        now: Callable[[], float],
    ) -> "RunningProcess":
        """Re-attach to a program of an earlier daemon whose runner cannot be met any more."""
        running = cls(None, directory, "", limits, now)
        running._find_end = find_end
        running.recorded_bytes = recorded_bytes(directory)
        pid = (read_record(directory, ATTEMPT_FILE) or {}).get("pid")
        running.pid = pid if isinstance(pid, int) else None
        return running

    async def meet(self) -> bool:
        """Connect to a runner that an earlier daemon has left. False: it has exited."""
        self._is_ordered = True
        self._is_followed = True
        self.recorded_bytes = recorded_bytes(self.directory)
        self._follower.begin()
        try:
            with anyio.move_on_after(_MEETING_S):
                while not self._is_answered() and not self._line.is_ended:
                    if not self._receive() and not self._line.is_ended:
                        await self._line.wait()
            if not self._is_answered():
                self._line.signal(signal.SIGCONT)
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
    def exit(self) -> Exit:
        if self._exit is None:
            raise RuntimeError("the program has not ended yet")
        return self._exit

    @property
    def is_gone(self) -> bool | None:
        """Return whether all of it is proven to have exited; None: it has not ended yet."""
        return None if self._exit is None else self._exit.gone

    @property
    def is_over(self) -> bool:
        """Its output is read to the end, and its runner has written the record and left."""
        is_read = not self._line.is_open and self._exit is not None
        return is_read and self._line.has_left

    async def begin(self, order: bytes) -> bool:
        """Send the order. False: no runner took it, and nothing was started."""
        self._is_followed = True
        try:
            self._is_ordered = await self._line.send_all(order, limit_s=self._limits.answer_s)
            hit("order.sent")
            return await self._answer()
        finally:
            self._is_followed = False

    async def _answer(self) -> bool:
        while not self._is_answered():
            if self._line.is_ended:
                if self._line.runner is None and not self._was_stopped:
                    return False
                await self._conclude()  # it left between its first word and the start
            elif not self._receive() and not self._line.is_ended:
                with anyio.move_on_after(self._limits.answer_s) as patience:
                    await self._line.wait()
                if not patience.cancelled_caught or self._receive():
                    continue
                if self._line.runner is None:
                    self._line.is_ended = self.was_unheard = True
                else:
                    await self._conclude()
        return True

    def _is_answered(self) -> bool:
        return self.pid is not None or self._exit is not None

    async def chunks(self) -> AsyncIterator[Chunk]:
        self._is_followed = True
        try:
            if self._find_end is not None:
                await self._conclude()
            while self._line.is_open or self._find_end is not None:
                if self._line.is_open:
                    self._receive()
                is_last = self._exit is not None or self._line.is_ended
                if is_last and self._was_stopped and await self._has_much_left():
                    break
                if batch := await patiently(self._follower.read):
                    self._tell_seen()
                    left = sum(len(chunk.data) for chunk in batch)
                    for chunk in batch:
                        left -= len(chunk.data)
                        self.log_bytes = self._follower.offset - left
                        yield chunk
                    await anyio.lowlevel.checkpoint()
                    continue
                self._tell_seen()
                direct, self._direct = self._direct, []
                for chunk in direct:
                    self.log_bytes += len(chunk.data)
                    yield chunk
                if is_last:
                    break
                if not direct:
                    await self._wait_for_line()
            await self._conclude()
            if self._unread_bytes and isinstance(self._exit, ProcessExit):
                self._exit = replace(self._exit, unread_bytes=self._unread_bytes)
        finally:
            self._is_followed = False
            if self._exit is not None:
                self._close_line()

    async def _has_much_left(self) -> bool:
        """Note how much of the recording is left where it is too much to be read."""
        recorded = await patiently(lambda: recorded_bytes(self.directory))
        left_bytes = recorded - self._follower.offset
        if left_bytes > _LAST_READ_BYTES:
            self._unread_bytes = left_bytes
        return left_bytes > _LAST_READ_BYTES

    async def _wait_for_line(self) -> None:
        """Wait until the runner says something, or has been silent too long about a stop."""
        with anyio.CancelScope(deadline=self._give_up_at) as self._waiting:
            await self._line.wait()
        self._waiting = None
        if anyio.current_time() >= self._give_up_at and not self._receive():
            await self._conclude()

    def stop(self, *, grace_s: float) -> None:
        self._was_stopped = True
        if not self._line.is_open or self._exit is not None:
            return
        bound_s = max(0.0, grace_s) + self._limits.kill_bound_s + _ENDING_S
        self._give_up_at = min(self._give_up_at, anyio.current_time() + bound_s)
        if self._waiting is not None:
            self._waiting.deadline = self._give_up_at
        self._line.signal(signal.SIGCONT)
        if self._is_ordered:
            is_told = self._line.send(frames.pack_json(frames.STOP, {"grace_s": grace_s}))
        else:
            # Half an order: the runner must not take what follows for the rest of it.
            is_told = self._line.hang_up()
        if not is_told:
            self._line.signal(signal.SIGTERM)

    async def say(self, data: bytes) -> bool:
        """Give the program more input (`CommandLine.holds_input`). False: it does not take it."""
        pieces = range(0, len(data), _INPUT_BYTES)
        inputs = [frames.pack(frames.INPUT, data[at : at + _INPUT_BYTES]) for at in pieces]
        return all([await self._tell(frame) for frame in inputs])

    async def tell_turn(self, ends: str | None) -> bool:
        """
        Tell the runner of a program with `CommandLine.rest` what is under way.

        Args:
            ends: Beginning of the line that ends the turn which begins; None: it rests.
        """
        return await self._tell(frames.pack_json(frames.TURN, {"ends": ends}))

    async def _tell(self, frame: bytes) -> bool:
        with anyio.move_on_after(self._limits.answer_s):
            while self._line.is_open:
                if self._line.send(frame):
                    return True
                if not await self._line.has_room():
                    break
        return False

    async def wait_gone(self) -> None:
        """Wait for the runner's own end; whatever it left behind is ended here."""
        limit_s = self._limits.stop_grace_s + self._limits.kill_bound_s + 5
        with anyio.move_on_after(limit_s):
            if not self._is_followed:
                while self._line.is_open and not self._line.is_ended:
                    if not self._receive() and not self._line.is_ended:
                        await self._line.wait()
            await self._line.wait_left()
        if (self._line.is_open or self._find_end) and not self._is_followed:
            await self._conclude()

    @property
    def runner(self) -> tree.Process | None:
        """Above every process of the program; None: it has not been heard yet, or has exited."""
        return self._line.runner

    def release(self) -> None:
        self._follower.close()
        if self._is_followed:
            self._line.wake()
        self._close_line()
        if self._was_stopped:  # it may be held with nothing left to do but to leave
            self._line.signal(signal.SIGCONT)
        self._line.let_go()

    def _close_line(self) -> None:
        self._follower.close()
        self._line.close()

    def _receive(self) -> bool:
        """Take what the runner says. False when there is nothing now."""
        heard = self._line.receive()
        for kind, payload in heard or ():
            self._take(kind, payload)
        return heard is not None

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == frames.STARTED:
            started = frames.read_json(payload)
            self.pid, self._start = started["pid"], started["start"]
            self._cgroup = started.get("cgroup", "")  # an older runner has none
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
        if start > self._seen and self._line.is_open:
            self._seen = start
            self._line.send(frames.pack_json(frames.SEEN, {"offset": start}))

    async def _conclude(self) -> None:
        """End its family where the runner left no word, and say what is not known."""
        if self._exit is not None:
            return
        runner = self._line.runner
        if runner is not None and tree.is_same(runner):
            with anyio.CancelScope(shield=True):  # bounded by both limits
                self._exit = await self._end_below(runner)
            if self._exit is not None:
                clear_drafts(self.directory)  # it may have been killed while it wrote its last one
        self._exit = self._exit or self._recorded_exit()
        if self._exit is not None:
            return
        if self._find_end is not None:
            with anyio.CancelScope(shield=True):  # bounded by both limits
                found = await self._find_end()
            note = "its exit was not recorded"
            self._exit = (
                ProcessExit(gone=True, at=self._now(), note=note) if found is None else found
            )
            return
        if self.pid is None and self._is_unclaimed():
            note = "its runner ended before it started anything"
            self._exit = ProcessExit(
                gone=True, at=self._now(), stopped=self._was_stopped, note=note
            )
            return
        family = Family(
            token=self._token, directory=self.directory, pid=self.pid or 0, start=self._start
        )
        with anyio.CancelScope(shield=True):  # bounded by both limits
            left = await end_family(
                family,
                grace_s=min(1.0, self._limits.stop_grace_s),
                bound_s=self._limits.kill_bound_s,
            )
            is_proven = await end_group(self._cgroup, self._token, bound_s=_ENDING_S)
        clear_drafts(self.directory)
        note = "its runner was killed; how it ended is unknown"
        if left and not is_proven:
            note += f"; not killed: {', '.join(map(str, left))}"
        self._exit = ProcessExit(
            gone=is_proven, at=self._now(), stopped=self._was_stopped, note=note
        )

    async def _end_below(self, runner: tree.Process) -> Exit | None:
        """
        The runner lives and does not answer: end what is below it, then the runner itself.

        Returns:
            None: it has ended meanwhile, and nothing is proven.
        """
        is_proven = await end_below(
            runner,
            grace_s=min(1.0, self._limits.stop_grace_s),
            bound_s=self._limits.kill_bound_s,
        )
        with anyio.move_on_after(_LAST_WORD_S):
            while self._line.is_open and self._exit is None and not self._line.is_ended:
                if not self._receive() and not self._line.is_ended:
                    await self._line.wait()
        self._line.is_ended = True
        if self._is_answered() and self._exit is not None:
            return self._exit
        if not is_proven and not tree.is_same(runner):
            return None
        tree.send_signal(runner, signal.SIGKILL)
        note = "its runner did not answer; how it ended is unknown"
        return ProcessExit(gone=is_proven, at=self._now(), stopped=self._was_stopped, note=note)

    def _recorded_exit(self) -> Exit | None:
        family = Family(
            token=self._token, directory=self.directory, pid=self.pid or 0, start=self._start
        )
        try:
            return recorded_exit(family, None)
        except OSError:
            return None  # a link in its place is no record

    def _is_unclaimed(self) -> bool:
        """Return whether no runner has come so far as to start something."""
        try:
            return not privatefile.exists(os.path.join(self.directory, CLAIM_FILE))
        except OSError:
            return False
