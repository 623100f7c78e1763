"""
One resident: a program under a runner of its own that takes prompts one after another.

```
 started for a prompt --+                       +-- rests --- mark answered --> the next turn
                        +--> turn --- clean ----+
 prepared --- ready ----+      |                +-- idle, changed, no room --> ended
                               +-- any doubt --------------------------------> ended
```

Its output is read all the time. What comes between the beginning and the end of a turn is the
turn's; everything else belongs to no attempt, and is dropped. A turn is clean when its program has
said that it is over, and nothing runs below its runner that did not run when the turn began: what
does is ended, and looked for again.
"""

import math
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Struct

from fallbackd.backends.residents import MAX_LINE_BYTES, WAYS, Heard, first_line
from fallbackd.core.protocol import Chunk, Exit
from fallbackd.transports.process.runner import tree
from fallbackd.transports.process.running import RunningProcess
from fallbackd.transports.resident.record import ResidentRecord, write_resident

ANSWER_S = 5.0
"""For a resident that rests to say that it can be used."""
START_S = 120.0
"""For one that is started before its prompt is known."""
END_GRACE_S = 1.0
LEAVE_S = 0.15
"""For what a turn has started to end by itself."""
TERM_S = 1.0
KILL_S = 5.0
_LOOK_S = 0.02
_CLEAN_AGAIN_S = 0.05
_REMOVE_S = 5.0
_BUFFERED = 32
"""Chunks between the program and the reader of its turn; the rest waits on disk."""


class TurnOver(Struct, frozen=True):
    """The mark behind the last chunk of a turn."""

    exit_code: int


Item = Chunk | TurnOver


class Resident:
    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        way: str,
        key: str,
        label: tuple[str, str],
        session: Mapping[str, Any] | None = None,
        conversation: str | None = None,
        watches: bool = False,
        may_stay: bool = True,
        on_over: Callable[["Resident"], None],
        on_rest: Callable[["Resident"], None],
        now: Callable[[], float],
    ) -> None:
        """
        Args:
            key: What a prompt has to be equal in to be sent to it.
            label: Its program and its directory, for people.
            session, watches: See `Residency`.
            conversation: The one that it was started with.
            may_stay: It may rest after its turn.
        """
        self.name = name
        self.directory = directory
        self.key = key
        self.label = label
        self.watches = watches
        self.conversation = conversation or ""
        self.may_stay = may_stay
        self.seen: object = None
        """The files that it obeys, as they were when it was started."""
        self.is_ready = False
        """It has said so."""
        self.attempt = ""
        """Whose turn it is; empty: it rests."""
        self.was_refused = False
        """The program does not know the way in."""
        self.is_prompted = False
        """Its prompt may have been sent to it."""
        self.rests_since = now()
        self.written_until = 0.0
        """When the last turn ended, on the clock of files."""
        self.executable: object = None
        self.has_begun = anyio.Event()
        """Something of the turn has come."""
        self.came_up = anyio.Event()
        """It does not start any more: it is ready, or is none."""
        self._way = WAYS[way](session or {}, conversation)
        self._record = ResidentRecord(way=way, session=session or {})
        self._on_over = on_over
        self._on_rest = on_rest
        self._now = now
        self._running: RunningProcess | None = None
        self._send: MemoryObjectSendStream[Item] | None = None
        self._awaits_begin = False
        self._marks: dict[str, anyio.Event] = {}
        self._refused: set[str] = set()
        self._rest = bytearray()
        self._is_too_long = False
        self._position = 0
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._is_left = False
        self.is_retired = False

    def __repr__(self) -> str:
        return f"Resident({self.name!r}, pid={self.pid})"

    # --- its life -------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        return None if self._running is None else self._running.pid

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    @property
    def is_resting(self) -> bool:
        return not self.attempt and not self.is_retired and not self.is_over

    @property
    def exit(self) -> Exit | None:
        """None: it has not ended, or was left to a later daemon."""
        return self._running.exit if self._running is not None and self.is_over else None

    def note(self, **changes: object) -> None:
        """Raises `OSError`: it is not on record."""
        fields = {name: getattr(self._record, name) for name in self._record.__struct_fields__}
        self._record = ResidentRecord(**{**fields, **changes})
        write_resident(self.directory, self._record)

    def recall(self, record: ResidentRecord) -> None:
        """Go on with the turn that an earlier daemon had begun."""
        self._record = record
        self.attempt, self.is_prompted = record.attempt, True

    def may_take(self, conversation: str) -> bool:
        """Test whether it is at that conversation, or can go to it."""
        if self.conversation == conversation:
            return True
        return not self.conversation and self._way.takes_up

    @property
    def knows_way(self) -> bool:
        return self._way.is_known

    def expect(self, running: RunningProcess) -> None:
        """Take in a process that was started, or found."""
        self._running = running
        if self.is_retired and not self._is_left:
            running.stop(grace_s=END_GRACE_S)  # it was ended while it started

    def give_up(self) -> None:
        """There is no process: nothing waits for one any more."""
        self.is_retired = True
        self.came_up.set()
        self._ended.set()
        self._on_over(self)

    async def run(self) -> None:
        """Read it to its proven end. Cancelling it leaves the process alone."""
        running = self._running
        assert running is not None
        try:
            with self._scope:
                async for chunk in running.chunks():
                    await self._take(chunk)
        finally:
            if self._is_left or self._scope.cancelled_caught:
                self._is_left = True
            self.is_retired = True
            self.came_up.set()
            self._close_turn()
            for mark in self._marks.values():
                mark.set()
            self._on_over(self)
            if not self._is_left and _is_over(running):
                self._ended.set()
                with anyio.CancelScope(shield=True):
                    await _remove(self.directory)

    def leave(self) -> None:
        """Let go of it, for a later daemon to find."""
        self._is_left = self.is_retired = True
        self._scope.cancel()

    def stop(self, *, grace_s: float = END_GRACE_S) -> None:
        """End the process. Returns at once."""
        self.is_retired = True
        if self._running is not None:
            self._running.stop(grace_s=grace_s)

    async def end(self) -> bool:
        """End the process and wait. Returns whether all of it is proven to have exited."""
        self.stop()
        await self._ended.wait()
        return self._running is None or (self.exit is not None and self.exit.gone)

    async def ended(self) -> None:
        await self._ended.wait()

    # --- what it prints -------------------------------------------------------------------------

    async def _take(self, chunk: Chunk) -> None:
        start, self._position = self._position, self._position + len(chunk.data)
        if self._running is not None:
            # What the recording has dropped counts too.
            self._position = max(self._position, self._running.log_bytes)
            start = self._position - len(chunk.data)
        if self._is_recalled_before(start, chunk):
            return
        if chunk.stream != "stdout":
            if self._send is not None and not self._awaits_begin:
                await self._hand_on(chunk)
            return
        from_ = 0
        for line, end in self._lines(chunk.data):
            heard = self._way.read(line)
            if self._send is not None and self._awaits_begin and heard.began:
                self._awaits_begin = False
                earlier = line[: max(0, len(line) - (end - from_))]
                from_ = end - (len(line) - len(earlier))
                if earlier:
                    await self._hand_on(Chunk(chunk.stream, bytes(earlier), chunk.at))
            await self._mind(heard)
            if heard.exit_code is not None and self._send is not None and not self._awaits_begin:
                await self._hand_on(Chunk(chunk.stream, chunk.data[from_:end], chunk.at))
                await self._hand_on(TurnOver(heard.exit_code))
                self._close_turn()
            if self._awaits_begin or self._send is None:
                from_ = end
        if self._send is not None and not self._awaits_begin and from_ < len(chunk.data):
            await self._hand_on(Chunk(chunk.stream, chunk.data[from_:], chunk.at))

    def _is_recalled_before(self, start: int, chunk: Chunk) -> bool:
        """Return whether a chunk was printed before the turn that an earlier daemon has begun."""
        return start + len(chunk.data) <= self._record.offset and not self._record.is_first

    async def _mind(self, heard: Heard) -> None:
        if heard.conversation:
            self.conversation = heard.conversation
        if heard.answer and self._running is not None:
            await self._running.say(heard.answer)
        if (mark := self._marks.pop(heard.mark, None)) is not None:
            if heard.refused:
                self._refused.add(heard.mark)
            mark.set()

    async def _hand_on(self, item: Item) -> None:
        self.has_begun.set()
        if self._send is None:
            return
        try:
            await self._send.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._close_turn()  # its reader has left

    def _close_turn(self) -> None:
        if self._send is not None:
            self._send.close()
            self._send = None
        self._awaits_begin = False

    def _lines(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Whole lines, each with its end in `data`."""
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            if self._is_too_long:
                line = b""
            else:
                line = bytes(self._rest) + data[at : end + 1]
            self._rest.clear()
            self._is_too_long = False
            at = end + 1
            yield line, at
        if len(self._rest) + len(data) - at > MAX_LINE_BYTES:
            self._is_too_long = True
            self._rest.clear()
        if not self._is_too_long:
            self._rest += data[at:]

    # --- its turns ------------------------------------------------------------------------------

    async def is_usable(
        self, *, is_new: bool = False, conversation: str = "", limit_s: float | None = None
    ) -> bool:
        """
        Ask whether it can take a prompt now.

        Args:
            is_new: It was just started.
            conversation: The one that the prompt continues.
        """
        running, mark = self._running, secrets.token_hex(8)
        if running is None or self.is_retired:
            return False
        asked = self._way.ready(mark) if is_new else self._way.before(mark, conversation)
        answered = self._marks[mark] = anyio.Event()
        try:
            with anyio.move_on_after(ANSWER_S if limit_s is None else limit_s):
                if await running.say(asked):
                    await answered.wait()
        finally:
            is_asked = self._marks.pop(mark, None) is not None  # it has not answered
        self.conversation = self.conversation or conversation
        self.was_refused = mark in self._refused
        self.is_ready = not is_asked and mark not in self._refused and not self.is_retired
        return self.is_ready

    async def begin_first(self, prompt: bytes, on_ready: Callable[[], None]) -> None:
        """
        Send the prompt that it was started for, once it is ready. Where that fails, it is ended.

        Args:
            on_ready: Called just before. Raises `OSError`: it must not be sent.
        """
        try:
            if await self.is_usable(is_new=True, limit_s=math.inf):
                self._note_turn(is_first=True)
                on_ready()
                self.is_prompted = True
                if await self.ask(prompt):
                    return
        except OSError:
            pass
        self.stop()

    async def come_up(self) -> None:
        """Get ready for a prompt that is not known yet; what does not is ended."""
        is_up = await self.is_usable(is_new=True, limit_s=START_S)
        if not is_up or self._running is None or not await self._running.tell_turn(None):
            self.stop()
        self.rests_since = self._now()
        self.came_up.set()

    def begin(self) -> MemoryObjectReceiveStream[Item]:
        """
        Begin a later turn: what it prints from now on is the turn's.

        Raises:
            OSError: It is not on record, and must not be sent.
        """
        self._note_turn(is_first=False)
        self._rest.clear()
        self.is_prompted = True
        return self.listen(awaits_begin=True)

    def _note_turn(self, *, is_first: bool) -> None:
        self.note(
            attempt=self.attempt,
            is_first=is_first,
            offset=0 if is_first else self._position,
            head="" if is_first else self.head(),
            before=tuple(sorted((one.pid, one.start) for one in self._below())),
        )

    def listen(self, *, awaits_begin: bool) -> MemoryObjectReceiveStream[Item]:
        send, receive = anyio.create_memory_object_stream[Item](_BUFFERED)
        self._send, self._awaits_begin = send, awaits_begin
        self.has_begun = anyio.Event()
        return receive

    def head(self) -> str:
        """The line of our own that begins the output of the turn."""
        return first_line(self._way.counted()).decode()

    async def say(self, data: bytes) -> bool:
        return self._running is not None and await self._running.say(data)

    async def ask(self, prompt: bytes) -> bool:
        """Send it the prompt of its turn."""
        running = self._running
        is_told = running is not None and await running.tell_turn(self._way.ends())
        return is_told and await self.say(self._way.prompt(prompt))

    async def interrupt(self) -> bool:
        return await self.say(self._way.interrupt(secrets.token_hex(8)))

    async def rest(self) -> None:
        """Its turn has ended, and is clean."""
        self._close_turn()
        if self._running is not None and not await self._running.tell_turn(None):
            self.stop()
        self.attempt, self.is_ready, self.is_prompted = "", True, False
        self.rests_since, self.written_until = self._now(), time.time()
        with suppress(OSError):
            self.note(attempt="", is_first=False, before=())
        self._on_rest(self)

    def _below(self) -> list[tree.Process]:
        runner = None if self._running is None else self._running.runner
        if runner is None:
            return []
        below = tree.descendants([runner.pid], tree.processes())
        return [one for one in below if not one.is_dead]

    async def is_clean(self) -> bool:
        """
        End what the turn has left running. False: something of it runs on, or may be a helper of
        the program that came late, without which it is not what it was.
        """
        runner = None if self._running is None else self._running.runner
        before = set(self._record.before)
        if runner is None or not tree.is_same(runner) or self.is_over:
            return False
        began_at, clean_looks = anyio.current_time(), 0
        asked: set[tuple[int, int]] = set()
        while True:
            elapsed_s = anyio.current_time() - began_at
            left = [one for one in self._below() if (one.pid, one.start) not in before]
            if any(one.session == self.pid for one in left) and elapsed_s > LEAVE_S:
                return False
            clean_looks = 0 if left else clean_looks + 1
            if clean_looks == 2:
                return tree.is_same(runner)
            if elapsed_s > LEAVE_S + TERM_S + KILL_S:
                return False
            for one in left:
                if elapsed_s > LEAVE_S + TERM_S:
                    tree.send_signal(one, signal.SIGKILL)
                elif elapsed_s > LEAVE_S and (one.pid, one.start) not in asked:
                    asked.add((one.pid, one.start))
                    tree.send_signal(one, signal.SIGTERM)
                    tree.send_signal(one, signal.SIGCONT)
            await anyio.sleep(_LOOK_S)


def _is_over(running: RunningProcess) -> bool:
    return running.is_gone is not None


async def _remove(directory: Path) -> None:
    """Its runner may still be writing down how it ended."""
    with anyio.move_on_after(_REMOVE_S):
        while os.path.exists(directory):  # noqa: ASYNC240
            await anyio.to_thread.run_sync(partial(shutil.rmtree, directory, ignore_errors=True))
            await anyio.sleep(_CLEAN_AGAIN_S)
