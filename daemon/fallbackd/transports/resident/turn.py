"""
One turn of a resident, which is one attempt. See `ports.transport.Running`.

    open, no resident     the program is started to stay; ready, then the prompt
    open, one rests       it is asked whether it can be used; then the prompt
    no room               the program runs for this prompt alone, as it does without residents
    stop                  interrupt; where that is not clean in time, the resident is ended
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from msgspec import structs

from fallbackd.core.protocol import Chunk, Exit, NotStarted, ProcessExit
from fallbackd.lib.failpoints import hit
from fallbackd.ports.transport import Running
from fallbackd.transports.output_log import OutputLog
from fallbackd.transports.process.recording import read_chunks, repair
from fallbackd.transports.resident.record import TurnRecord, write_turn
from fallbackd.transports.resident.resident import Item, Resident, TurnOver

MIN_INTERRUPT_S = 2.0
"""What an interrupt gets even where `stop` grants less."""

_HELD_BYTES = 256 * 1024
"""Of what a program says before it has its prompt."""

T = TypeVar("T")


class ResidentTurn:
    def __init__(self, *, attempt: str, directory: str, now: Callable[[], float]) -> None:
        self.attempt = attempt
        self._directory = directory
        self._now = now
        self._log = OutputLog(directory, size_bytes=repair(directory))
        self._record = TurnRecord(phase="opened")
        self._resident: Resident | None = None
        self._heard: MemoryObjectReceiveStream[Item] | None = None
        self._alone: Running | None = None
        """The program without a resident, where there is none for it."""
        self._exit: Exit | None = None
        self._stop_grace_s: float | None = None
        self._scope: anyio.CancelScope | None = None
        self._is_sure = False
        """The attempt is on the program, whatever that says first."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.attempt!r})"

    @property
    def pid(self) -> int | None:
        """None: the process of a resident is not this attempt's to end."""
        return None if self._alone is None else self._alone.pid

    @property
    def exit(self) -> Exit:
        if self._alone is not None:
            return self._alone.exit
        if self._exit is None:
            raise RuntimeError(f"{self!r} has not ended: exhaust its chunks first")
        return self._exit

    @property
    def log_bytes(self) -> int:
        return self._log.size_bytes if self._alone is None else self._alone.log_bytes

    @property
    def recorded_bytes(self) -> int:
        return 0 if self._alone is None else self._alone.recorded_bytes

    def _is_stopped(self) -> bool:
        return self._stop_grace_s is not None

    def note(self, **changes: object) -> None:
        """Raises `OSError`: what was there before is there still."""
        self._record = structs.replace(self._record, **changes)
        write_turn(self._directory, self._record)

    def stop(self, *, grace_s: float) -> None:
        if self._stop_grace_s is None:
            self._stop_grace_s = grace_s
        if self._alone is not None:
            self._alone.stop(grace_s=grace_s)
        if self._scope is not None:
            self._scope.cancel()

    async def chunks(self) -> AsyncIterator[Chunk]:
        """A reader that leaves early does not stop the turn."""
        try:
            async for chunk in self._course():
                yield chunk
        finally:
            self._log.close()
            if self._heard is not None:
                self._heard.close()

    def _course(self) -> AsyncIterator[Chunk]:
        raise NotImplementedError

    async def _follow(
        self, resident: Resident, heard: MemoryObjectReceiveStream[Item], *, skipped: int = 0
    ) -> AsyncIterator[Chunk]:
        """Hand on what comes until it is over; sets the exit."""
        exit_code: int | None = None
        gives_up_at: float | None = None
        held: list[Chunk] = []
        while exit_code is None:
            item = await self._next(heard, gives_up_at)
            if isinstance(item, TurnOver):
                exit_code = item.exit_code
            elif isinstance(item, Chunk):
                over = min(skipped, len(item.data))
                skipped -= over
                held.append(Chunk(item.stream, item.data[over:], item.at))
                # A program that refuses the way in has not begun the attempt.
                if (
                    resident.is_prompted
                    or self._is_sure
                    or sum(len(one.data) for one in held) > _HELD_BYTES
                ):
                    for one in held:
                        yield self._chunk(one)
                    held.clear()
            elif item is None and gives_up_at is None and resident.is_prompted:
                grace_s = max(MIN_INTERRUPT_S, self._stop_grace_s or 0.0)
                gives_up_at = anyio.current_time() + grace_s
                with anyio.move_on_after(grace_s):
                    await resident.interrupt()
            else:
                break
        if not self._says_nothing(resident):
            for one in held:
                yield self._chunk(one)
        with anyio.CancelScope(shield=True):  # bounded by the limits of a stop
            await self._finish(resident, exit_code)

    async def _next(
        self, heard: MemoryObjectReceiveStream[Item], gives_up_at: float | None
    ) -> Item | EOFError | None:
        """Return what comes next. None: the turn was stopped, or takes too long for that."""
        deadline = float("inf") if gives_up_at is None else gives_up_at
        with anyio.CancelScope(deadline=deadline) as self._scope:
            if self._is_stopped() and gives_up_at is None:
                self._scope.cancel()
            try:
                return await heard.receive()
            except anyio.EndOfStream:
                return EOFError()
        return None

    async def _finish(self, resident: Resident, exit_code: int | None) -> None:
        if exit_code is not None and await resident.is_clean():
            ended: Exit = ProcessExit(
                gone=True, code=exit_code, at=self._now(), stopped=self._is_stopped()
            )
        else:
            await resident.end()
            ended = self._without(resident, exit_code)
        self._end(ended)
        if not resident.is_over:
            await resident.rest()

    def _without(self, resident: Resident, exit_code: int | None) -> Exit:
        """Return how the turn ended, where its resident has ended with it."""
        found = resident.exit
        if exit_code is not None:
            is_gone = found is not None and found.gone
            return ProcessExit(
                code=exit_code, gone=is_gone, at=self._now(), stopped=self._is_stopped()
            )
        if isinstance(found, ProcessExit):
            return structs.replace(found, stopped=found.stopped and self._is_stopped())
        if found is not None:
            return found
        return ProcessExit(gone=False, at=self._now(), note="its resident was lost")

    def _end(self, exit: Exit) -> None:
        self._exit = exit
        # A disk that takes no more: a later daemon finds the turn as it was.
        with suppress(OSError):
            self.note(phase="ended", exit=exit)

    async def _unless_stopped(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """
        Return what `step` returns, or None when a stop came first. No scope outlives a `yield`.
        """
        with anyio.CancelScope() as self._scope:
            if self._is_stopped():
                self._scope.cancel()
            return await step()
        return None

    def _says_nothing(self, resident: Resident) -> bool:
        """Test whether its output before the prompt belongs to no attempt."""
        return resident.was_refused and not self._is_sure

    def _chunk(self, chunk: Chunk) -> Chunk:
        """Recorded, then handed on."""
        self._log.write(chunk)
        return chunk


class NewTurn(ResidentTurn):
    def __init__(
        self,
        prompt: bytes,
        *,
        attempt: str,
        directory: str,
        now: Callable[[], float],
        resting: Callable[[], Awaitable[Resident | None]],
        started: Callable[[], Awaitable[Resident | NotStarted | None]],
        listening: Callable[[Resident, Callable[[], None]], MemoryObjectReceiveStream[Item]],
        alone: Callable[[], Awaitable[Running]],
        runs_alone: bool,
        has_own_program: bool,
    ) -> None:
        """
        Args:
            runs_alone: See `core.protocol.Residency`.
            has_own_program: A process that stays is started in another way than one for this
                prompt, which may do where that one does not.
            resting: A resident that can take the prompt now, and is this turn's; None: there is
                none.
            started: A process that was started to stay; None: there is no room for it.
            listening: Sends it the prompt once it is ready, after what it is given was called.
            alone: Starts the program for this prompt only.
        """
        super().__init__(attempt=attempt, directory=directory, now=now)
        self._prompt = prompt
        self._find_resting = resting
        self._start = started
        self._listen = listening
        self._run_alone = alone
        self._has_own_program = has_own_program
        self._is_sure = not runs_alone
        self._may_be_sent = False

    async def _course(self) -> AsyncIterator[Chunk]:
        resident = await self._unless_stopped(self._find_resting)
        if resident is not None:
            self._resident = resident
            if (heard := await self._sent(resident)) is not None:
                head = resident.head().encode()
                yield self._chunk(Chunk("stdout", head, self._now()))
                async for chunk in self._follow(resident, heard):
                    yield chunk
                return
        if self._is_stopped():
            self._end(self._never_begun())
            return
        with anyio.CancelScope(shield=True):  # half a start would leave an unrecorded process
            new = await self._start()
        if isinstance(new, NotStarted):
            self._end(new)
            return
        if new is not None:
            self._resident = new
            heard = self._heard = self._listen(new, lambda: self._sending(new))
            async for chunk in self._follow(new, heard):
                yield chunk
            if not self._may_run_alone(new):
                return
        with anyio.CancelScope(shield=True):
            self._exit = None
            self.note(phase="opened", exit=None)
            alone = self._alone = await self._run_alone()
            if self._is_stopped():
                alone.stop(grace_s=self._stop_grace_s or 0.0)
        async for chunk in alone.chunks():
            yield chunk

    async def _sent(self, resident: Resident) -> MemoryObjectReceiveStream[Item] | None:
        """The prompt was sent to one that rested. None: it was not; start another one."""
        try:
            heard = self._heard = resident.begin()
            self._sending(resident)
        except OSError:
            await resident.end()
            return None
        await resident.ask(self._prompt)
        hit("resident.sent")
        return heard

    def _sending(self, resident: Resident) -> None:
        self._may_be_sent = True
        self.note(phase="sending", resident=resident.name)
        hit("resident.sending")

    def _may_run_alone(self, refusing: Resident) -> bool:
        is_gone = self._exit is not None and self._exit.gone
        return self._says_nothing(refusing) and is_gone and not self._is_stopped()

    def _says_nothing(self, resident: Resident) -> bool:
        is_unfit = resident.was_refused or (self._has_own_program and not self._may_be_sent)
        return is_unfit and not self._is_sure

    def _never_begun(self) -> Exit:
        return ProcessExit(
            gone=True, at=self._now(), stopped=True, note="stopped before it was sent"
        )


class TakenUpTurn(ResidentTurn):
    """A turn that an earlier daemon has begun."""

    def __init__(
        self,
        record: TurnRecord,
        resident: Resident | None,
        heard: MemoryObjectReceiveStream[Item] | None,
        *,
        head: str,
        attempt: str,
        directory: str,
        now: Callable[[], float],
    ) -> None:
        """
        Args:
            resident: The one of the record, with the turn on it; None: the turn has ended.
        """
        super().__init__(attempt=attempt, directory=directory, now=now)
        self._record = record
        self._resident = resident
        self._heard = heard
        self._head = head
        self._recorded_bytes = self._log.size_bytes
        self._read_bytes = 0

    @property
    def recorded_bytes(self) -> int:
        return self._recorded_bytes

    @property
    def log_bytes(self) -> int:
        return max(self._read_bytes, 0 if self._is_behind else self._log.size_bytes)

    @property
    def _is_behind(self) -> bool:
        return self._read_bytes < self._recorded_bytes

    async def _course(self) -> AsyncIterator[Chunk]:
        for chunk in read_chunks(self._directory):
            self._read_bytes += len(chunk.data)
            yield chunk
            await anyio.lowlevel.checkpoint()
        if self._record.exit is not None:
            self._exit = self._record.exit
            return
        if self._resident is None or self._heard is None:
            note = "its resident was lost; how it ended is unknown"
            self._end(ProcessExit(gone=False, at=self._now(), note=note))
            return
        head = self._head.encode()
        if self._recorded_bytes < len(head):
            yield self._chunk(Chunk("stdout", head[self._recorded_bytes :], self._now()))
        skipped = max(0, self._recorded_bytes - len(head))
        self._resident.is_retired = True
        async for chunk in self._follow(self._resident, self._heard, skipped=skipped):
            yield chunk
