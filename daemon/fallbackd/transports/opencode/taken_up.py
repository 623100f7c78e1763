"""
A prompt that an earlier daemon has posted: what it recorded, what was missed, then what comes.

    exit on record    the same chunks, the same exit, without any server
    server runs       recorded chunks, its state as far as that is news, then live
    server is gone    recorded chunks; how it ended is unknown, its tools are proven gone
"""

from collections.abc import AsyncIterator

import anyio
import msgspec

from fallbackd.core.protocol import Chunk, Exit, ProcessExit
from fallbackd.lib import foreign_json
from fallbackd.ports.clock import Clock
from fallbackd.transports.opencode.endings import without_server
from fallbackd.transports.opencode.link import CallFailed
from fallbackd.transports.opencode.prompt import RunningPrompt
from fallbackd.transports.opencode.record import PromptRecord
from fallbackd.transports.opencode.server import OpencodeServer
from fallbackd.transports.opencode.session import ServedSession
from fallbackd.transports.opencode.tools import ToolWatch
from fallbackd.transports.process.orphans import Family, end_family, end_group
from fallbackd.transports.process.recording import read_chunks
from fallbackd.transports.process.runner import tree

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
        if of is not None and of.boot_id != tree.boot_id():
            note = "the machine was started anew; how it ended is unknown"
            return ProcessExit(at=at, note=note, rebooted=True)
        is_proven = False
        if of is not None:
            await end_family(
                Family(token=of.token, pid=of.pid, start=of.start),
                grace_s=ORPHAN_GRACE_S,
                bound_s=ORPHAN_BOUND_S,
            )
            is_proven = await end_group(of.cgroup, of.token, bound_s=ORPHAN_BOUND_S)
        note = "its helper server is gone; how it ended is unknown"
        return ProcessExit(at=at, gone=is_proven, note=note)


def session_of(server: OpencodeServer, record: PromptRecord) -> ServedSession:
    return ServedSession(server, record.session, cwd=record.cwd, earlier=record.earlier)


async def was_posted(session: ServedSession) -> bool | None:
    """
    Whether the server has the prompt of a daemon that died while it posted it.

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
