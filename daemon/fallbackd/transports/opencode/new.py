"""
A prompt that begins.

```
 record -> (lease) -> session -> record -> post -> (see `served_prompt`)
    |
    +-- no server comes up: what does the same without one
```
"""

import errno
from collections.abc import AsyncIterator, Awaitable, Callable

from fallbackd.core.protocol import Chunk, Exit, NoAnswer, NotStarted, ServedPrompt
from fallbackd.lib.failpoints import hit
from fallbackd.ports.clock import Clock
from fallbackd.ports.transport import Running
from fallbackd.transports.opencode.endings import error_of, without_server
from fallbackd.transports.opencode.found import identify
from fallbackd.transports.opencode.link import CallFailed
from fallbackd.transports.opencode.prompt import RunningPrompt
from fallbackd.transports.opencode.record import PromptRecord, note_prompt, write_prompt
from fallbackd.transports.opencode.server import OpencodeServer
from fallbackd.transports.opencode.session import ServedSession, continue_session, create_session
from fallbackd.transports.opencode.tools import watch_tools


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
                exception="Cancelled", text="the daemon is stopping", at=self._clock.now()
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
        """Of what runs without a server; what runs on one is stopped."""
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
        """Before the prompt is posted: who finds no record posts it again. Not None: it cannot."""
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
            return NotStarted(error=name, text=text, path=self._directory, at=self._clock.now())
        self._record = record
        return None
