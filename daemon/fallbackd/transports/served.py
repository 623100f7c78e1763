"""
Prompts to helper servers that are kept alive between them (`opencode serve`).

One prompt is: a session in its directory, the prompt posted there, its events handed on until
the session is idle, its last message fetched, its tools proven gone. Stopping it aborts the
session; where that does not prove it still, the whole server is ended, whose exit is the
kernel's own proof, and the other prompts on it end without an answer.

Servers are shared by `ServedPrompt.key`, started with the first prompt, ended when nobody has
used them for `idle_s`. They outlive attempts, so their tools carry no marks of one:
`attempt_of` tells whose tool a process is. (A plugin of ours could set the marks, but a server
with a plugin waits for a package registry before its first session: more than 45 s, measured,
where there is none.)
"""

import secrets
import shutil
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from fallbackd.core.exchange import Call, ServedPrompt
from fallbackd.ports.clock import Clock
from fallbackd.ports.transport import Running, Transport
from fallbackd.transports.leftovers import end_leftover
from fallbackd.transports.served_prompt import RunningPrompt
from fallbackd.transports.served_server import Limits, Server

LEFTOVER_GRACE_S = 2.0
LEFTOVER_BOUND_S = 8.0


class ServedTransport:
    """
    Args:
        processes: Starts the servers.
        tasks: Where the servers live. It must outlive the transport; cancelling it ends them.
        directory: Private directory for what the servers leave behind; made where it is missing.
        limits: How long a server may take to listen, and how long it is kept unused.
    """

    def __init__(
        self,
        processes: Transport,
        *,
        tasks: TaskGroup,
        directory: str,
        clock: Clock,
        limits: Limits | None = None,
    ) -> None:
        self._processes = processes
        self._tasks = tasks
        self._directory = Path(directory)
        self._clock = clock
        self._limits = Limits() if limits is None else limits
        self._servers: dict[str, Server] = {}
        self._all: set[Server] = set()
        self._is_closed = False

    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> RunningPrompt:
        """
        Prepare the prompt. It is posted with the first step of `chunks`.

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

        return RunningPrompt(
            call,
            otherwise=otherwise,
            lease=lambda: self._server_for(call),
            attempt=attempt,
            directory=directory,
            clock=self._clock,
        )

    def attempt_of(self, pid: int) -> str | None:
        """The attempt one of whose tools this process is, or is started by; None: of nobody."""
        return next(filter(None, (server.attempt_of(pid) for server in self._all)), None)

    def _server_for(self, call: ServedPrompt) -> Server | None:
        """The server of this key with a lease on it, started where none runs; None: closed."""
        if self._is_closed:
            return None
        server = self._servers.get(call.key)
        if server is None or server.is_retired or server.is_over:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            server = Server(
                call.key,
                call.server,
                processes=self._processes,
                directory=self._directory / secrets.token_hex(8),
                limits=self._limits,
                on_over=self._forget,
            )
            self._servers[call.key] = server
            self._all.add(server)
            self._tasks.start_soon(server.run)
        server.lease()
        return server

    def _forget(self, server: Server) -> None:
        self._all.discard(server)
        if self._servers.get(server.key) is server:
            del self._servers[server.key]

    async def end_leftovers(self) -> None:
        """
        End servers that a daemon before this one left running. Call it before any prompt.

        A directory whose server could not be ended is kept, to be tried again.
        """
        for directory in sorted(self._directory.glob("*")):
            all_gone = True
            for record in directory.glob("*/attempt.json"):
                exit = await end_leftover(
                    str(record.parent), grace_s=LEFTOVER_GRACE_S, bound_s=LEFTOVER_BOUND_S
                )
                all_gone = all_gone and (exit is None or exit.gone)
            if all_gone:
                await anyio.to_thread.run_sync(partial(shutil.rmtree, directory, True))

    async def attach(self, *, attempt: str, directory: str) -> Running | None:
        return await self._processes.attach(attempt=attempt, directory=directory)

    async def detach(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._is_closed = True
        servers = list(self._all)
        for server in servers:
            server.stop("the daemon is stopping")
        for server in servers:
            await server.ended()
