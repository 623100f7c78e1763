"""
A prompt that begins.

```
 record -> (lease) -> session -> record -> post -> (see `prompt`)
    |
    +-- no server comes up: what does the same without one
```
"""

import errno
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import msgspec

from fallbackd.core.protocol import Chunk, Exit, NoAnswer, NotStarted, ProcessExit, ServedPrompt
from fallbackd.lib import foreign_json
from fallbackd.lib.failpoints import hit
from fallbackd.ports.transport import Clock, Running
from fallbackd.transports.opencode.link import CallFailed
from fallbackd.transports.opencode.prompt import RunningPrompt
from fallbackd.transports.opencode.record import PromptRecord, identify, note_prompt, write_prompt
from fallbackd.transports.opencode.server import OpencodeServer
from fallbackd.transports.opencode.session import (
    ServedSession,
    ToolWatch,
    continue_session,
    create_session,
    error_of,
    watch_tools,
    without_server,
)
from fallbackd.transports.process.orphans import Family, end_family, end_group
from fallbackd.transports.process.recording import read_chunks
from fallbackd.transports.process.runner import tree


class NewPrompt(RunningPrompt):
    def __init__(
        self,
        call: ServedPrompt,
        *,
        lease: Callable[[], OpencodeServer | None],
        otherwise: Callable[[], Awaitable[Running | None]],
        attempt: str,
        directory: str,
        clock: Clock,
    ) -> None:
        """
        Args:
            lease: Gives the server, with a lease on it; None when no more prompts are taken.
            otherwise: Starts what does the same without a server; None where nothing does.
        """
        super().__init__(
            attempt=attempt,
            directory=directory,
            cwd=call.cwd,
            permissions=call.permissions,
            clock=clock,
        )
        self._call = call
        self._lease = lease
        self._otherwise = otherwise
        self._instead: Running | None = None

    def __repr__(self) -> str:
        return f"NewPrompt({self._call!r})"

    @property
    def pid(self) -> int | None:
        return None if self._instead is None else self._instead.pid

    @property
    def log_bytes(self) -> int:
        return self._log.size_bytes if self._instead is None else self._instead.log_bytes

    def stop(self, *, grace_s: float) -> None:
        super().stop(grace_s=grace_s)
        if self._instead is not None:
            self._instead.stop(grace_s=grace_s)

    async def _course(self) -> AsyncIterator[Chunk]:
        if self._server is not None:  # left before its end: never posted twice
            async for chunk in self._rest():
                yield chunk
            return
        server = self._lease()
        if server is None:
            self._exit = NoAnswer(
                exception="Cancelled",
                text="the daemon is stopping",
                at=self._clock.now(),
                gone=True,
            )
            return
        self._server = server
        hit("served.leased")
        if not await self._unless_stopped(server.settled):
            if self._stop_grace_s is not None:
                self._exit = await self._stopped()
                return
            async for chunk in self._without(server):
                yield chunk
            return
        session: ServedSession | None = None
        try:
            # A session that is made for a prompt that was stopped meanwhile stays empty.
            hit("served.settled")
            self._is_placed = True
            await server.places.enter(self.cwd)
            session = await self._unless_stopped(lambda: self._begin(server))
            hit("served.session")
            if session is not None:
                if (refused := self._write_down(server, session)) is not None:
                    self._exit = refused
                    return
                hit("served.written")
                yield self._line("fallbackd.session")
                if self._stop_grace_s is None:
                    self._was_posted = True
                    # Not given up when stopped: one that arrives after its abort would run.
                    call = self._call
                    hit("served.posting")
                    await session.post(call.prompt, model=call.model, agent=call.agent)
                    hit("served.posted")
                    self._note(phase="posted")
        except CallFailed as error:
            self._failed = self._is_idle = True
            if error.status:
                yield self._line("session.error", error=error_of(error))
            elif not server.is_over:
                # Whether it has accepted the prompt is unknown.
                gone = (await self._stopped()).gone
                at = self._clock.now()
                self._end(NoAnswer(exception="ReadTimeout", text=str(error), at=at, gone=gone))
                return
        session = session or ServedSession(server, "", cwd=self.cwd)
        async for chunk in self._follow(server, session):
            yield chunk

    async def _without(self, server: OpencodeServer) -> AsyncIterator[Chunk]:
        """No server came up."""
        if not (server.unsupported or isinstance(server.exit, NotStarted)):
            self._instead = await self._otherwise()
        if self._instead is not None:
            async for chunk in self._rest():
                yield chunk
            return
        if server.tail:
            chunk = Chunk("stderr", server.tail, self._clock.now())
            self._log.write(chunk)
            yield chunk
        self._exit = without_server(server, was_posted=False, at=self._clock.now())

    async def _rest(self) -> AsyncIterator[Chunk]:
        """Yield the rest of what runs without a server; what runs on one is stopped."""
        if self._instead is None:
            self._end(await self._stopped())
            return
        async for chunk in self._instead.chunks():  # recorded by its runner
            yield chunk
        self._exit = self._instead.exit

    async def _begin(self, server: OpencodeServer) -> ServedSession:
        """The session. No tool of the prompt can run before this: what runs now is not ours."""
        assert server.pid is not None
        self._tools = watch_tools(server.pid, self.cwd)
        call = self._call
        if call.session is None:
            session = await create_session(server, title=call.title, cwd=self.cwd)
        else:
            session = await continue_session(server, call.session, cwd=self.cwd)
        self._session = session
        self._is_alone = server.join(self)
        server.listeners.add(session.name, self)
        return session

    def note_opened(self) -> None:
        """Leave a record that proves, until another one replaces it, that no server has it."""
        record = PromptRecord(cwd=self.cwd, permissions=self._permissions, phase="opened")
        try:
            write_prompt(self._directory, record)
        except OSError:
            pass  # nothing is posted without the record that follows

    def _write_down(self, server: OpencodeServer, session: ServedSession) -> Exit | None:
        """Write the record before the prompt is posted. Not None: it cannot be written."""
        assert self._tools is not None
        record = PromptRecord(
            server=server.directory.name,
            identity=identify(server.directory),
            session=session.name,
            earlier=session.earlier,
            cwd=self.cwd,
            permissions=self._permissions,
            phase="posting",
            is_alone=self._is_alone,
            before=tuple(sorted(self._tools.before)),
        )
        try:
            note_prompt(server.directory, self.attempt)
            write_prompt(self._directory, record)
        except OSError as error:
            text = f"it takes no record of the prompt: {error.strerror}"
            name = errno.errorcode.get(error.errno or 0, "EIO")
            return NotStarted(
                error=name, text=text, path=self._directory, at=self._clock.now(), gone=True
            )
        self._record = record
        return None


# --- a prompt of an earlier daemon ----------------------------------------------------------------
# A prompt that an earlier daemon has posted: what it recorded, what was missed, then what comes.
#
#     exit on record    the same chunks, the same exit, without any server
#     server runs       recorded chunks, its state as far as that is news, then live
#     server is gone    recorded chunks; how it ended is unknown, its tools are proven gone

ORPHAN_GRACE_S = 2.0
ORPHAN_BOUND_S = 8.0


class TakenUpPrompt(RunningPrompt):
    def __init__(
        self,
        record: PromptRecord,
        server: OpencodeServer | None,
        *,
        attempt: str,
        directory: str,
        clock: Clock,
    ) -> None:
        """
        Args:
            server: The one of the record, with a lease on it; None: it is gone, or not needed.
        """
        super().__init__(
            attempt=attempt,
            directory=directory,
            cwd=record.cwd,
            permissions=record.permissions,
            clock=clock,
        )
        self._record = record
        self._server = server
        if server is not None:
            self._is_placed = True
            server.places.enter_running(self.cwd)
        self._is_alone = record.is_alone
        self._was_posted = True
        self._recorded_bytes = self._log.size_bytes
        self._read_bytes = 0
        self._is_behind = True
        if server is not None:
            session = self._session = session_of(server, record)
            self._is_alone = server.join(self) and record.is_alone
            server.listeners.add(session.name, self)
        if record.identity is not None:
            self._tools = ToolWatch(
                server_pid=record.identity.pid, cwd=record.cwd, before=frozenset(record.before)
            )

    def __repr__(self) -> str:
        return f"TakenUpPrompt({self.attempt!r})"

    @property
    def recorded_bytes(self) -> int:
        return self._recorded_bytes

    @property
    def log_bytes(self) -> int:
        return self._read_bytes if self._is_behind else self._log.size_bytes

    async def _course(self) -> AsyncIterator[Chunk]:
        record, server, session = self._record, self._server, self._session
        assert record is not None
        for chunk in read_chunks(self._directory):
            self._recall(chunk)
            self._read_bytes += len(chunk.data)
            yield chunk
            await anyio.lowlevel.checkpoint()
        self._is_behind = False
        if record.exit is not None:
            self._exit = record.exit
            return
        if server is None or session is None:
            self._end(await self._without_server(record))
            return
        if not await self._unless_stopped(server.settled):
            if server.is_over:
                at = self._clock.now()
                self._end(without_server(server, was_posted=True, at=at))
            else:
                self._end(await self._stopped())
            return
        if not self._told.has_session:
            yield self._line("fallbackd.session")
        for child in self._told.children:
            server.listeners.add(child, self)
        self._had_gap = True  # from the death of the earlier daemon until now
        async for chunk in self._follow(server, session):
            yield chunk

    def _recall(self, chunk: Chunk) -> None:
        try:
            event = foreign_json.decode(chunk.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # cut off where the log was full
        if isinstance(event, dict) and isinstance(event.get("properties"), dict):
            self._told.take(event)
            self._mind(event)

    async def _without_server(self, record: PromptRecord) -> Exit:
        of, at = record.identity, self._clock.now()
        if of is not None and tree.is_other_boot(of.boot_id):
            note = "the machine was restarted; how it ended is unknown"
            return ProcessExit(gone=True, at=at, note=note, rebooted=True)
        is_proven = False
        if of is not None:
            await end_family(
                Family(token=of.token, pid=of.pid, start=of.start),
                grace_s=ORPHAN_GRACE_S,
                bound_s=ORPHAN_BOUND_S,
            )
            is_proven = await end_group(of.cgroup, of.token, bound_s=ORPHAN_BOUND_S)
        note = "its helper server has exited; how it ended is unknown"
        return ProcessExit(at=at, gone=is_proven, note=note)


def session_of(server: OpencodeServer, record: PromptRecord) -> ServedSession:
    return ServedSession(server, record.session, cwd=record.cwd, earlier=record.earlier)


async def was_posted(session: ServedSession) -> bool | None:
    """
    Return whether the server has the prompt of a daemon that died while it posted it.

    False: it has not, and cannot get it any more. None: it does not say, and is ended.
    """
    try:
        if await session.messages() or await session.is_busy():
            return True
        if not session.earlier:  # else it holds more than this prompt
            await session.delete()
            if not await session.is_busy():
                return False
    except CallFailed:
        pass
    session.server.stop("it is unknown whether it has a prompt")
    await session.server.ended()
    return None
