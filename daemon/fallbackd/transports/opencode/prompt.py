"""
The course of one prompt on a helper server, from the moment at which it has a session.

```
 events ... idle -> last message -> tools gone -> ProcessExit 0 | 1
    |
    +-- stop: abort, idle, tools gone ----------> NoAnswer, stopped
              | not proven
              +-- end the server, whose exit proves it
```

How it gets there: `served_new` begins one, `served_taken_up` finds one of an earlier daemon.
Where events were missed, the server's state is asked for, and what is new in it is handed on.
"""

import collections
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
import msgspec

from fallbackd.core.protocol import Chunk, Exit, NoAnswer, Permissions, ProcessExit
from fallbackd.ports.transport import Clock
from fallbackd.transports.opencode.link import CallFailed, Told, ToldEvent, ToldSnapshot
from fallbackd.transports.opencode.record import PromptRecord, forget_prompt, write_prompt
from fallbackd.transports.opencode.server import OpencodeServer
from fallbackd.transports.opencode.session import (
    LOOK_S,
    ServedSession,
    ToolWatch,
    end_tools,
    find_tools,
    without_server,
)
from fallbackd.transports.output_log import OutputLog
from fallbackd.transports.process.recording import repair

T = TypeVar("T")

MIN_ABORT_S = 2.0
"""Time that an abort gets even where `stop` grants less: it takes 0.05 s (measured)."""

HANDED_ON = frozenset(
    {
        "session.status",
        "session.error",
        "session.idle",
        "session.created",
        "session.compacted",
        "message.updated",
        "message.removed",
        "message.part.updated",
        "message.part.delta",
        "permission.asked",
        "permission.replied",
        "question.asked",
    }
)
_FINAL_PARTS = frozenset({"text", "step-start", "step-finish"})


class RunningPrompt:
    """One prompt under way. See `ports.transport.Running`."""

    def __init__(
        self, *, attempt: str, directory: str, cwd: str, permissions: Permissions, clock: Clock
    ) -> None:
        self.attempt = attempt
        self.cwd = cwd
        self._permissions = permissions
        self._directory = directory
        self._clock = clock
        self._log = OutputLog(directory, size_bytes=repair(directory))
        self._record: PromptRecord | None = None
        self._server: OpencodeServer | None = None
        self._session: ServedSession | None = None
        self._was_posted = False
        self._is_placed = False
        """True while it counts among those that work in its directory."""
        self._tools: ToolWatch | None = None
        self._told = Told()
        self._heard: collections.deque[ToldEvent] = collections.deque()
        self._news = anyio.Event()
        self._had_gap = False
        self._has_caught_up = False
        self._is_idle = False
        self._failed = False
        self._is_alone = True
        self._scope: anyio.CancelScope | None = None
        self._stop_grace_s: float | None = None
        self._exit: Exit | None = None

    @property
    def pid(self) -> int | None:
        """Return None: the server's process is not this attempt's to end."""
        return None

    @property
    def exit(self) -> Exit:
        if self._exit is None:
            raise RuntimeError(f"{self!r} has not ended: exhaust its chunks first")
        return self._exit

    @property
    def log_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def recorded_bytes(self) -> int:
        return 0

    def stop(self, *, grace_s: float) -> None:
        if self._stop_grace_s is None:
            self._stop_grace_s = grace_s
        if self._scope is not None:
            self._scope.cancel()

    # --- what the server tells ------------------------------------------------------------------

    def hear(self, event: ToldEvent) -> None:
        if self._session is not None and self._session.is_earlier(event):
            return
        self._mind(event)
        if str(event.get("type")) in HANDED_ON:
            self._heard.append(event)
        self._news.set()

    def _mind(self, event: ToldEvent) -> None:
        """Note what it says about the turn as a whole."""
        kind, properties = event.get("type"), event["properties"]
        if self._session is None or properties.get("sessionID") != self._session.name:
            return
        status = properties.get("status")
        if kind == "session.idle" or (
            kind == "session.status" and isinstance(status, dict) and status.get("type") == "idle"
        ):
            self._is_idle = True
        elif kind == "session.status":
            self._is_idle = False
        elif kind == "session.error":
            self._failed = True
        elif kind == "session.compacted":
            self._failed = False

    def reconnected(self) -> None:
        self._had_gap = True
        self._news.set()

    def server_over(self) -> None:
        self._news.set()

    def has_started(self, pid: int) -> bool:
        if self._tools is None:
            return False
        return any(each.pid == pid for each in find_tools(self._tools, is_alone=self._is_alone))

    def joined(self) -> None:
        if self._is_alone:
            self._is_alone = False
            self._note(is_alone=False)

    # --- its course -----------------------------------------------------------------------------

    async def chunks(self) -> AsyncIterator[Chunk]:
        """See `ports.transport.Running`. A reader that leaves early does not stop the prompt."""
        try:
            async for chunk in self._course():
                yield chunk
        finally:
            self._log.close()
            if self._server is not None:
                self._server.listeners.remove(self)
                if self._exit is not None:
                    forget_prompt(self._server.directory, self.attempt)
                    if self._is_placed:
                        self._server.leave_place(self.cwd)
                    self._server.release()

    def _course(self) -> AsyncIterator[Chunk]:
        raise NotImplementedError

    async def _follow(self, server: OpencodeServer, session: ServedSession) -> AsyncIterator[Chunk]:
        """Hand on what happens until it is over; sets the exit."""
        while self._stop_grace_s is None and not server.is_over:
            if self._had_gap:
                self._had_gap = False
                async for chunk in self._catch_up(session):
                    yield chunk
            while self._heard:
                if self._is_stale(event := self._heard.popleft()):
                    continue
                async for chunk in self._hand_on(session, event):
                    yield chunk
            if self._exit is not None:
                return
            if self._is_idle and not self._had_gap:
                break
            await self._unless_stopped(self._more)
        async for chunk in self._finish(server, session):
            yield chunk

    async def _finish(self, server: OpencodeServer, session: ServedSession) -> AsyncIterator[Chunk]:
        if server.is_over:
            self._end(without_server(server, was_posted=self._was_posted, at=self._clock.now()))
        elif self._stop_grace_s is not None:
            self._end(await self._stopped())
        else:
            if (final := await self._final(session)) is not None and not self._told.has(final):
                yield self._chunk(final)
            gone = await self._end_tools(server)
            self._end(
                ProcessExit(
                    code=1 if self._failed else 0,
                    at=self._clock.now(),
                    gone=gone,
                    stopped=self._stop_grace_s is not None,
                )
            )

    def _is_stale(self, event: ToldEvent) -> bool:
        """Return whether it had happened before the state of the server was looked at."""
        return (
            self._has_caught_up and event.get("type") != "session.status" and self._told.has(event)
        )

    async def _more(self) -> None:
        await self._news.wait()
        self._news = anyio.Event()

    async def _hand_on(self, session: ServedSession, event: ToldEvent) -> AsyncIterator[Chunk]:
        yield self._chunk(event)
        async for chunk in self._answer(session, event):
            yield chunk

    async def _answer(self, session: ServedSession, event: ToldEvent) -> AsyncIterator[Chunk]:
        """Answer questions of the server at once: no person is there, and it would wait."""
        kind = event.get("type")
        if kind not in ("permission.asked", "question.asked"):
            return
        if await session.answer(event, allow=self._permissions == "full"):
            asked = event["properties"].get("permission") if kind[0] == "p" else "question"
            yield self._line("fallbackd.permission", permission=asked)

    async def _catch_up(self, session: ServedSession) -> AsyncIterator[Chunk]:
        """Yield what happened while no daemon listened, by the state of the server."""
        was_idle, self._is_idle = self._is_idle, False  # what is heard from now on counts
        snapshot = await self._unless_stopped(lambda: self._look(session))
        if snapshot is None:
            self._is_idle = self._is_idle or was_idle
            self._had_gap = not self._is_idle  # to be looked at again, after what was heard
            self._news.set()
            return
        self._has_caught_up = True
        for child in snapshot.children:
            session.server.listeners.add(str(child["id"]), self)
        asked_before = [each for each in snapshot.asked if self._told.has(each)]
        for event in self._told.missed(snapshot):
            self._mind(event)
            async for chunk in self._hand_on(session, event):
                yield chunk
        for event in asked_before:  # seen, but perhaps not answered
            async for chunk in self._answer(session, event):
                yield chunk
        if not snapshot.is_busy and not self._is_idle:
            for chunk in await self._settled(snapshot, was_idle=was_idle):
                yield chunk

    async def _settled(self, snapshot: ToldSnapshot, *, was_idle: bool) -> Sequence[Chunk]:
        """The server works on it no more, and its end was not heard."""
        if snapshot.is_settled:
            error = (snapshot.last_answer or {}).get("error")
            if isinstance(error, dict) and error.get("name") != "MessageAbortedError":
                self._failed = True
            self._is_idle = True
            return () if was_idle else (self._line("session.idle"),)
        if was_idle:
            self._is_idle = True
        else:
            note = "it ended while the daemon was away, and its server does not know how"
            gone = (await self._stopped()).gone
            self._end(ProcessExit(at=self._clock.now(), gone=gone, note=note))
        return ()

    async def _look(self, session: ServedSession) -> ToldSnapshot | None:
        """Look at a turn that still runs, or whose end is written down; None: no answer for now."""
        until = anyio.current_time() + session.server.limits.settle_s
        while not session.server.is_over:
            is_late = anyio.current_time() > until
            try:
                snapshot = await session.look()
            except CallFailed:
                if is_late:
                    return None
            else:
                if snapshot.is_busy or snapshot.is_settled or is_late:
                    return snapshot
            await anyio.sleep(LOOK_S)
        return None

    async def _final(self, session: ServedSession) -> ToldEvent | None:
        try:
            messages = await session.messages()
        except CallFailed:
            return None  # the events have the text too
        for message in reversed(messages):
            info = message.get("info", {})
            if info.get("role") == "assistant" and info.get("summary") is not True:
                parts = [p for p in message.get("parts", []) if str(p.get("type")) in _FINAL_PARTS]
                return self._own("fallbackd.final", message={"info": info, "parts": parts})
        return None

    # --- its end --------------------------------------------------------------------------------

    async def _stopped(self) -> Exit:
        """Abort what runs, and prove that it is gone. Every wait in here is bounded."""
        server, session = self._server, self._session
        gone = True
        if server is not None and session is not None and not server.is_over:
            grace_s = max(MIN_ABORT_S, self._stop_grace_s or 0.0)
            with anyio.move_on_after(grace_s):
                still = await session.abort()
                gone = still and await self._end_tools(server, all_sessions=True)
                # A turn that began behind the abort would show now.
                gone = gone and not await session.is_busy()
                grace_s = 0.0
            if grace_s or not gone:
                server.stop("a prompt on it could not be proven stopped")
                await server.ended()
        if server is not None and server.is_over:
            gone = server.is_gone
        return NoAnswer(
            exception="Cancelled", text="stopped", at=self._clock.now(), gone=gone, stopped=True
        )

    async def _end_tools(self, server: OpencodeServer, *, all_sessions: bool = False) -> bool:
        if server.is_over:
            return server.is_gone
        return self._tools is None or await end_tools(
            self._tools, is_alone=self._is_alone, all_sessions=all_sessions
        )

    def _end(self, exit: Exit) -> None:
        self._exit = exit
        self._note(phase="ended", exit=exit)

    # --- small parts ----------------------------------------------------------------------------

    def _note(self, **changes: Any) -> None:
        """Note in the record, as far as the disk takes it: what it says already stays true."""
        if self._record is None:
            return
        self._record = msgspec.structs.replace(self._record, **changes)
        try:
            write_prompt(self._directory, self._record)
        except OSError:
            pass

    async def _unless_stopped(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """Return what `step` returns, or None if a stop came first. No scope outlives a `yield`."""
        with anyio.CancelScope() as self._scope:
            if self._stop_grace_s is not None:
                self._scope.cancel()
            return await step()
        return None

    def _chunk(self, event: ToldEvent) -> Chunk:
        """Recorded, then handed on."""
        self._told.take(event)
        chunk = Chunk("event", msgspec.json.encode(event) + b"\n", self._clock.now())
        self._log.write(chunk)
        return chunk

    def _line(self, kind: str, **properties: Any) -> Chunk:
        return self._chunk(self._own(kind, **properties))

    def _own(self, kind: str, **properties: Any) -> ToldEvent:
        """A line of our own between those of the server."""
        name = "" if self._session is None else self._session.name
        return {"type": kind, "properties": {"sessionID": name, **properties}}
