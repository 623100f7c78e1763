"""
One helper server (`opencode serve`): its life, its calls, its events.

```
 starting --ready--> serving --idle, aclose, unproven stop--> stopping --> over
     |                  |                                                    ^
     +---- 20 s --------+-------- ends by itself, event stream lost ---------+
```

A request that reaches the server in the first moment of its socket is never answered, so nothing
is sent before its ready line or a look at its health with a short limit.
"""

import secrets
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from fallbackd.core.exchange import CommandLine, Exit, NoAnswer, ProcessExit
from fallbackd.ports.transport import Running, Transport
from fallbackd.transports.served_client import CALL_LIMIT_S, CallFailed, ServerClient

PASSWORD_VARIABLE = "OPENCODE_SERVER_PASSWORD"
READY_LINE = b"opencode server listening on"
PORT_TAKEN_WORDS = (b"ServeError", b"EADDRINUSE", b"in use")

HEALTH_LIMIT_S = 1.0
HEALTH_EVERY_S = 0.25
EVENT_TRIES = 5
EVENT_AGAIN_S = 0.2
STOP_GRACE_S = 3.0
CLEAN_AGAIN_S = 0.05
STARTS = 3
TAIL_BYTES = 8192


class Limits(Struct, frozen=True, kw_only=True):
    start_s: float = 20.0
    idle_s: float = 300.0


class Listener(Protocol):
    """A prompt that uses the server."""

    cwd: str
    attempt: str

    def has_started(self, pid: int) -> bool:
        """Whether this process is one of its tools."""
        ...

    def hear(self, event: dict[str, Any]) -> None: ...

    def reconnected(self) -> None:
        """The event stream had a gap."""
        ...

    def server_over(self) -> None: ...


class Server:
    """One process. `run` is its life; everything else may be called while that goes on."""

    def __init__(
        self,
        key: str,
        command: CommandLine,
        *,
        processes: Transport,
        directory: Path,
        limits: Limits,
        on_over: Callable[["Server"], None],
    ) -> None:
        self.key = key
        self._command = command
        self._processes = processes
        self._directory = directory
        self._limits = limits
        self._on_over = on_over
        self._password = secrets.token_urlsafe(24)
        self._client: ServerClient | None = None
        self._running: Running | None = None
        self._tail = b""
        self._saw_ready_line = anyio.Event()
        self._settled = anyio.Event()
        self._must_stop = anyio.Event()
        self._ended = anyio.Event()
        self._listeners: dict[str, Listener] = {}
        self._tasks: TaskGroup | None = None
        self._leases = 0
        self._uses = 0
        self._start_scope = anyio.CancelScope()
        self.is_ready = False
        self.is_retired = False
        """Takes no new prompts; ends when the last one has left."""
        self.stop_reason = ""
        """Why we ended it; empty: it ended by itself."""
        self.exit: Exit | None = None

    def __repr__(self) -> str:
        return f"Server({self.key!r}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        return None if self._running is None else self._running.pid

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    @property
    def tail(self) -> bytes:
        """The last that it printed, both streams."""
        return self._tail

    # --- its life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """From start to proven end. Cancelling it stops the process and waits for its end."""
        try:
            for number in range(STARTS):
                await self._run_once(number)
                if self.is_ready or self.stop_reason or not self._lost_its_port():
                    break
        finally:
            self.is_ready = False
            if self.exit is None:
                self.exit = NoAnswer(exception="Cancelled", text="the daemon is stopping")
            self._ended.set()
            self._settled.set()
            self._on_over(self)
            for listener in list(self._listeners.values()):
                listener.server_over()
            with anyio.move_on_after(CALL_LIMIT_S, shield=True):
                if self._client is not None:
                    await self._client.aclose()
                # Whoever watched the process may still be writing down how it ended.
                while self._directory.exists():
                    await anyio.to_thread.run_sync(
                        lambda: shutil.rmtree(self._directory, ignore_errors=True)
                    )
                    await anyio.sleep(CLEAN_AGAIN_S)

    async def _run_once(self, number: int) -> None:
        directory = self._directory / str(number)
        scratch = directory / "tmp"
        for each in (self._directory, directory, scratch):
            each.mkdir(mode=0o700, exist_ok=True)
        port = _free_port()
        command = msgspec.structs.replace(
            self._command,
            argv=(*self._command.argv, "--hostname", "127.0.0.1", "--port", str(port)),
            # It leaves a library of 5.6 MB behind in there with each start.
            env={**self._command.env, PASSWORD_VARIABLE: self._password, "TMPDIR": str(scratch)},
        )
        if self._client is not None:
            await self._client.aclose()
        self._client = ServerClient(port, self._password)
        self._tail = b""
        with anyio.CancelScope(shield=True):
            # Half a start would leave a process that nobody knows; it is a matter of milliseconds.
            running = await self._processes.open(
                command, attempt=f"server:{self.key}", directory=str(directory), env={}
            )
        self._running = running
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._read_output, running, over)
            tasks.start_soon(self._serve, over)
            try:
                await over.wait()
            finally:
                self._tasks = None
                running.stop(grace_s=STOP_GRACE_S)
                tasks.cancel_scope.cancel()

    async def _read_output(self, running: Running, over: anyio.Event) -> None:
        # Ends with the process, never before: its exit is the proof that it is gone.
        with anyio.CancelScope(shield=True):
            async for chunk in running.chunks():
                self._tail = (self._tail + chunk.data)[-TAIL_BYTES:]
                if READY_LINE in self._tail:
                    self._saw_ready_line.set()
            self.exit = running.exit
            over.set()

    async def _serve(self, over: anyio.Event) -> None:
        with self._start_scope:
            self._start_scope.deadline = anyio.current_time() + self._limits.start_s
            await self._become_ready()
        if not self.is_ready:
            self.stop(f"did not listen within {self._limits.start_s:g} s")
        self._expire_if_unused()
        await self._must_stop.wait()
        over.set()

    async def _become_ready(self) -> None:
        """After this, the health answers with our password: the port is ours."""
        assert self._client is not None
        while True:
            with anyio.move_on_after(HEALTH_EVERY_S):
                await self._saw_ready_line.wait()
            try:
                await self._client.call("GET", "/global/health", limit_s=HEALTH_LIMIT_S)
            except CallFailed:
                await anyio.sleep(HEALTH_EVERY_S / 5)
                continue
            break
        connected = anyio.Event()
        assert self._tasks is not None
        self._tasks.start_soon(self._follow_events, self._client, connected)
        await connected.wait()
        self.is_ready = True
        self._settled.set()

    def _lost_its_port(self) -> bool:
        return isinstance(self.exit, ProcessExit) and any(
            word in self._tail for word in PORT_TAKEN_WORDS
        )

    async def settled(self) -> bool:
        """Wait until it serves or is over. Returns whether it serves."""
        await self._settled.wait()
        return self.is_ready

    async def ended(self) -> None:
        await self._ended.wait()

    def stop(self, reason: str) -> None:
        """End the process. Returns at once; `ended` waits for the proof in `exit`."""
        self.is_retired = True
        if not self.is_over:
            self.stop_reason = self.stop_reason or reason
        self._must_stop.set()
        self._start_scope.cancel()

    # --- who uses it ----------------------------------------------------------------------------

    def lease(self) -> None:
        self._leases += 1
        self._uses += 1

    def release(self) -> None:
        self._leases -= 1
        self._expire_if_unused()

    def listen(self, session: str, listener: Listener) -> None:
        self._listeners[session] = listener

    def leave(self, listener: Listener) -> None:
        for session in [s for s, each in self._listeners.items() if each is listener]:
            del self._listeners[session]

    def attempt_of(self, pid: int) -> str | None:
        return next(
            (each.attempt for each in set(self._listeners.values()) if each.has_started(pid)), None
        )

    def others_than(self, listener: Listener) -> list[Listener]:
        return [each for each in set(self._listeners.values()) if each is not listener]

    def _expire_if_unused(self) -> None:
        if self._leases == 0 and self._tasks is not None:
            self._tasks.start_soon(self._expire, self._uses)

    async def _expire(self, uses: int) -> None:
        if not self.is_retired:
            await anyio.sleep(self._limits.idle_s)
        if self._uses == uses:
            self.stop("nobody used it")

    # --- its calls and events -------------------------------------------------------------------

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        cwd: str | None = None,
        limit_s: float = CALL_LIMIT_S,
    ) -> Any:
        """See `ServerClient.call`. Only while it serves, or has served."""
        assert self._client is not None
        return await self._client.call(method, path, body=body, cwd=cwd, limit_s=limit_s)

    async def _follow_events(self, client: ServerClient, connected: anyio.Event) -> None:
        """Until the server ends. Without events nobody would see a prompt end, so it is stopped."""
        tries = 0
        while tries < EVENT_TRIES:
            tries += 1
            async with aclosing(client.events()) as events:
                async for event in events:
                    tries = 0
                    if event.get("type") == "server.connected" and connected.is_set():
                        for each in set(self._listeners.values()):
                            each.reconnected()
                    connected.set()
                    self._dispatch(event)
            await anyio.sleep(EVENT_AGAIN_S)
        self.stop("its event stream was lost")

    def _dispatch(self, event: dict[str, Any]) -> None:
        properties = event["properties"]
        info = properties.get("info")
        if event.get("type") == "session.created" and isinstance(info, dict):
            # A subagent's session belongs to the prompt of its parent.
            parent = self._listeners.get(str(info.get("parentID")))
            if parent is not None:
                self.listen(str(info.get("id")), parent)
        listener = self._listeners.get(str(properties.get("sessionID")))
        if listener is not None:
            listener.hear(event)


def _free_port() -> int:
    """Free a moment ago. Who loses the race for it starts again with another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
