"""
Prompts to helper servers that are kept alive between them (`opencode serve`).

One prompt is: a session in its directory, the prompt posted there, its events handed on until
the session is idle, its last message fetched, its tools proven gone. Stopping it aborts the
session; where that does not prove it still, the whole server is ended, whose exit is the
kernel's own proof, and the other prompts on it end without an answer.

Servers are shared by `ServedPrompt.key`, started with the first prompt, ended when they were not
used for `idle_s`. They outlive attempts, so their tools carry no marks of one:
`attempts_above` tells whose tool a process is. (A plugin of ours could set the marks, but a server
with a plugin waits for a package registry before its first session: more than 45 s, measured,
where there is none.)

They outlive the daemon too. `take_up` finds those of an earlier one, with or without prompts on
them; `attach` re-attaches a prompt. New prompts use such a server where it would be started with
the same environment today.

opencode runs through a private `opencode serve` that the daemon keeps (its command line is silent
for a minute while it retries); its tools are proven gone through the server's process tree.
"""

import secrets
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from fallbackd.core.protocol import Call, CommandLine, ServedPrompt
from fallbackd.lib.failpoints import hit
from fallbackd.ports.transport import Clock, Running, Unsent
from fallbackd.transports.opencode.new import NewPrompt, TakenUpPrompt, session_of, was_posted
from fallbackd.transports.opencode.record import (
    FoundServer,
    find_server,
    forget_prompt,
    read_prompt,
)
from fallbackd.transports.opencode.server import OpencodeServer, ServerLimits
from fallbackd.transports.process.environment import child_environment, inheritable
from fallbackd.transports.process.leftovers import fence
from fallbackd.transports.process.transport import ProcessTransport


class ServedTransport:
    """
    Args:
        processes: Starts the servers.
        tasks: Where the servers live. It must outlive the transport; cancelling it ends them.
        directory: Private directory for what the servers leave behind; made where it is missing.
        environ: What `processes` lets the servers inherit.
        limits: How long a server may take to listen, and how long it is kept unused.
    """

    def __init__(
        self,
        processes: ProcessTransport,
        *,
        tasks: TaskGroup,
        directory: str,
        clock: Clock,
        environ: Mapping[str, str] | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self._processes = processes
        self._tasks = tasks
        self._directory = Path(directory)
        self._clock = clock
        self._environ = inheritable(environ)
        self._limits = ServerLimits() if limits is None else limits
        self._servers: dict[str, OpencodeServer] = {}
        self._all: set[OpencodeServer] = set()
        self._is_closed = False

    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> NewPrompt:
        """
        Prepare the prompt. It is posted with the first steps of `chunks`.

        Raises:
            TypeError: `call` is no `ServedPrompt`: the caller wired kinds and transports wrongly.
        """
        if not isinstance(call, ServedPrompt):
            raise TypeError(f"attempt {attempt}: {type(call).__name__} is not a served prompt")
        run = call.otherwise

        async def otherwise() -> Running | None:
            if run is None or self._is_closed:
                return None
            return await self._processes.open(run, attempt=attempt, directory=directory, env=env)

        prompt = NewPrompt(
            call,
            otherwise=otherwise,
            lease=lambda: self._server_for(call),
            attempt=attempt,
            directory=directory,
            clock=self._clock,
        )
        prompt.note_opened()
        hit("served.opened")
        return prompt

    async def attach(self, *, attempt: str, directory: str) -> Running | Unsent | None:
        """See `ports.transport.Transport`. Servers are re-attached before."""
        record = read_prompt(directory)
        if record is None or record.phase == "opened":  # it ran without a server, or not at all
            found = await self._processes.attach(attempt=attempt, directory=directory)
            return Unsent() if found is None and record is not None else found
        server = None
        if record.exit is None:
            server = next((s for s in self._all if s.directory.name == record.server), None)
        if server is not None:
            server.lease()
            if (
                record.phase == "posting"
                and await server.settled()
                and await was_posted(session_of(server, record)) is False
            ):
                await anyio.to_thread.run_sync(fence, directory)
                forget_prompt(server.directory, attempt)
                server.unclaimed.discard(attempt)
                server.release()
                return Unsent()
        running = TakenUpPrompt(
            record, server, attempt=attempt, directory=directory, clock=self._clock
        )
        if server is not None:
            server.unclaimed.discard(attempt)
        return running

    async def end_leftover(self, attempt: str, directory: str) -> bool | None:
        """
        End the servers that have a prompt of an earlier daemon, with all that runs on them.

        Returns:
            Whether its tools are proven to have exited; None: it was never on a server.
        """
        servers = [one for one in self._all if attempt in one.unclaimed]
        for server in servers:
            server.stop(f"the prompt of {attempt} could not be resumed")
        for server in servers:
            await server.ended()
        if servers:
            return all(one.exit is not None and one.exit.gone for one in servers)
        try:
            record = read_prompt(directory)
        except OSError:
            return None
        if record is None or record.phase == "opened":
            return None
        return record.exit is not None and record.exit.gone

    def attempts_above(self, pid: int) -> tuple[str, ...] | None:
        """
        The attempts that a process works for, by the processes above it. On a server these are all
        that run there, first the one whose tool it is, where that is known. None: it was not
        started here.

        Raises:
            OSError: It cannot be determined.
        """
        started = self._processes.above(pid)
        if started is None:
            return None
        place = Path(started.directory).parent
        if place.parent != self._directory:
            return (started.attempt,)
        there = [server for server in self._all if server.directory == place]
        return tuple(
            attempt
            for server in there
            for attempt in (*server.listeners.attempts_of(pid), *sorted(server.unclaimed))
        )

    def _server_for(self, call: ServedPrompt) -> OpencodeServer | None:
        """The server of this key with a lease on it, started where none runs; None: closed."""
        if self._is_closed:
            return None
        server = self._servers.get(call.key)
        if (
            server is None
            or server.is_retired
            or server.is_over
            or not server.runs_with(self._environment_of(call.server))
        ):
            if server is not None:
                server.retire()
            if call.family:
                for other in self._all:
                    if other.key.startswith(call.family) and other.is_unused:
                        other.retire()
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            server = self._servers[call.key] = self._keep(
                call.key, call.server, self._directory / secrets.token_hex(8)
            )
        server.lease()
        return server

    def _keep(self, key: str, source: CommandLine | FoundServer, directory: Path) -> OpencodeServer:
        server = OpencodeServer(
            key,
            source,
            processes=self._processes,
            directory=directory,
            limits=self._limits,
            on_over=self._forget,
        )
        self._all.add(server)
        self._tasks.start_soon(server.run)
        return server

    def _environment_of(self, command: CommandLine) -> dict[str, str]:
        inherited = self._environ.with_kept(command.keeps)
        return child_environment(inherited, added=command.env, unset=command.unset, marks={})

    def _forget(self, server: OpencodeServer) -> None:
        self._all.discard(server)
        if self._servers.get(server.key) is server:
            del self._servers[server.key]

    async def take_up(self) -> None:
        """Find the servers that an earlier daemon left. Call it before any prompt."""
        for directory in sorted(self._directory.glob("*")):
            try:
                found = await find_server(directory, self._processes)
            except OSError:
                continue  # what ran there is unknown: its prompts are reported as unstopped
            if found is None:
                await anyio.to_thread.run_sync(partial(shutil.rmtree, directory, True))
                continue
            server = self._keep(found.key, found, directory)
            if found.has_ended:
                server.retire()
            elif not found.key or not found.environment:
                server.stop("it could not be resumed")
            elif found.key in self._servers:
                server.retire()
            else:
                self._servers[found.key] = server

    async def detach(self) -> None:
        """Leave servers and prompts to a later daemon."""
        self._is_closed = True
        for server in list(self._all):
            await server.leave()

    async def aclose(self) -> None:
        self._is_closed = True
        servers = list(self._all)
        for server in servers:
            server.stop("the daemon is stopping")
        for server in servers:
            await server.ended()
