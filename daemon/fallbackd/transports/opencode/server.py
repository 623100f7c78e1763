"""
One helper server (`opencode serve`): its life, its calls, its events.

```
 starting --ready--> serving --idle, aclose, unproven stop--> stopping --> over
     |                  |                                                    ^
     +---- 20 s --------+-------- ends by itself, event stream lost ---------+
```

It runs under a runner, so it outlives the daemon. A later one takes it up again: the process by
the runner's record, the port from what it has printed, the password from its environment.

A request that reaches the server in the first moment of its socket is never answered, so nothing
is sent before its ready line or a look at its health with a short limit.
"""

import re
import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from fallbackd.core.protocol import CommandLine, Exit, NoAnswer, ProcessExit
from fallbackd.lib.processes import free_port
from fallbackd.ports.transport import Running, Transport
from fallbackd.transports.opencode.link import (
    CALL_LIMIT_S,
    HEALTH,
    CallFailed,
    OpencodeLink,
    ToldEvent,
)
from fallbackd.transports.opencode.record import (
    FoundServer,
    ServerRecord,
    noted_prompts,
    write_server,
)

# --- directories ---------------------------------------------------------------------------------
# Directories in which a helper server works for prompts of ours.
#
# opencode keeps an instance for each directory, with the MCP servers and language servers of that
# project, until it is asked to dispose of it. That ends what runs in the directory, so no prompt
# may enter it meanwhile.


class ServerPlaces:
    def __init__(self, dispose: Callable[[str], Awaitable[None]]) -> None:
        """
        Args:
            dispose: Ends the instance of a directory. Bounded, and raises nothing.
        """
        self._dispose = dispose
        self._prompts: Counter[str] = Counter()
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def enter_running(self, cwd: str) -> None:
        """A prompt of an earlier daemon is at work there."""
        self._prompts[cwd] += 1

    async def enter(self, cwd: str) -> None:
        """Waits for the end of an instance that is being disposed of."""
        self._prompts[cwd] += 1
        async with self._locks[cwd]:
            pass

    def leave(self, cwd: str) -> bool:
        """Leave the directory. Returns whether no prompt is there any more."""
        self._prompts[cwd] -= 1
        return self._prompts[cwd] == 0

    async def dispose(self, cwd: str) -> None:
        """Dispose of the instance, unless a prompt has entered again."""
        async with self._locks[cwd]:
            if self._prompts[cwd] == 0:
                del self._prompts[cwd]
                await self._dispose(cwd)
        if cwd not in self._prompts:
            self._locks.pop(cwd, None)


# --- prompts that listen -------------------------------------------------------------------------
# The prompts on a helper server, and which of them an event is for.


class Listener(Protocol):
    """A prompt that uses the server."""

    attempt: str

    def has_started(self, pid: int) -> bool:
        """Return whether this process is one of its tools."""
        ...

    def hear(self, event: ToldEvent) -> None: ...

    def joined(self) -> None:
        """Another prompt uses the server too from now on."""
        ...

    def reconnected(self) -> None:
        """The event stream had a gap."""
        ...

    def server_over(self) -> None: ...


class Listeners:
    def __init__(self) -> None:
        self._by_session: dict[str, Listener] = {}

    def add(self, session: str, listener: Listener) -> None:
        self._by_session[session] = listener

    def remove(self, listener: Listener) -> None:
        for session in [s for s, each in self._by_session.items() if each is listener]:
            del self._by_session[session]

    def all(self) -> set[Listener]:
        return set(self._by_session.values())

    def attempts_of(self, pid: int) -> tuple[str, ...]:
        """All of them, first the one whose tool a process is, where that can be determined."""
        listeners = list(self.all())
        if len(listeners) > 1:
            listeners.sort(key=lambda each: not each.has_started(pid))
        return tuple(each.attempt for each in listeners)

    def dispatch(self, event: ToldEvent) -> None:
        properties = event["properties"]
        info = properties.get("info")
        if event.get("type") == "session.created" and isinstance(info, dict):
            # A subagent's session belongs to the prompt of its parent.
            parent = self._by_session.get(str(info.get("parentID")))
            if parent is not None:
                self.add(str(info.get("id")), parent)
        listener = self._by_session.get(str(properties.get("sessionID")))
        if listener is not None:
            listener.hear(event)


# --- the server ----------------------------------------------------------------------------------

PASSWORD_VARIABLE = "OPENCODE_SERVER_PASSWORD"
PASSWORD_VARIABLES = (PASSWORD_VARIABLE, "OPENCODE_PASSWORD")
"""The second one is read first by version 2."""
READY_LINE = re.compile(rb"(?:^|\s)server listening on http://[\w.\[\]:]+:(\d+)\s")
PORT_TAKEN_WORDS = (b"ServeError", b"EADDRINUSE", b"in use")

HEALTH_LIMIT_S = 1.0
HEALTH_EVERY_S = 0.25
EVENT_TRIES = 5
EVENT_AGAIN_S = 0.2
STOP_GRACE_S = 3.0
CLEAN_AGAIN_S = 0.05
STARTS = 3
TAIL_BYTES = 8192


class ServerLimits(Struct, frozen=True, kw_only=True):
    start_s: float = 20.0
    idle_s: float = 300.0
    stray_s: float = 60.0
    """Time that a re-attached server waits for the prompts on it to be re-attached."""
    settle_s: float = 5.0
    """
    Time for it to begin what it has accepted, or to write down the end of what it has done; the
    latter lasts up to 30 ms (measured).
    """


class OpencodeServer:
    """One process. `run` is its life; everything else may be called while that runs."""

    def __init__(
        self,
        key: str,
        source: CommandLine | FoundServer,
        *,
        processes: Transport,
        directory: Path,
        limits: ServerLimits,
        on_over: Callable[["OpencodeServer"], None],
    ) -> None:
        """
        Args:
            source: How it is started, or what an earlier daemon has left of it.
        """
        self.key = key
        self._source = source
        self._processes = processes
        self.directory = directory
        self.limits = limits
        self._on_over = on_over
        if isinstance(source, FoundServer):
            self._password = source.environment.get(PASSWORD_VARIABLE, "")
            self._running: Running | None = source.running
            self.unclaimed = noted_prompts(directory)
        else:
            self._password = secrets.token_urlsafe(24)
            self._running = None
            self.unclaimed = set()
        """Attempts of an earlier daemon on it that are not re-attached yet."""
        self._link: OpencodeLink | None = None
        self._port: int | None = None
        self._reading = anyio.CancelScope(shield=True)
        self._over = anyio.Event()
        self._is_left = False
        self.tail = b""
        self._saw_ready_line = anyio.Event()
        self._settled = anyio.Event()
        self._must_stop = anyio.Event()
        self._ended = anyio.Event()
        self.listeners = Listeners()
        self.places = ServerPlaces(self._dispose)
        self._tasks: TaskGroup | None = None
        self._leases = 0
        self._uses = 0
        self._start_scope = anyio.CancelScope()
        self.is_ready = False
        self.is_retired = False
        """Takes no new prompts; ends when the last one has left."""
        self.stop_reason = ""
        """The reason why we ended it; empty: it ended by itself."""
        self.unsupported = ""
        """The reason why prompts cannot be sent to it, or to another one of its program."""
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
    def is_gone(self) -> bool:
        """There is proof that nothing of it runs."""
        return self.exit is not None and self.exit.gone

    @property
    def is_unused(self) -> bool:
        return self._leases == 0 and not self.unclaimed

    # --- its life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run from start to proven end. Cancelling it stops the process and waits for its end."""
        try:
            if isinstance(self._source, FoundServer):
                await self._live(self._source.running)
            else:
                for number in range(STARTS):
                    await self._live(await self._start(self._source, number))
                    if self.is_ready or self._is_left or not self._may_start_again():
                        break
        finally:
            self.is_ready = False
            self._ended.set()
            self._settled.set()
            self._on_over(self)
            if not self._is_left:
                if self.exit is None:
                    self.exit = NoAnswer(
                        exception="Cancelled",
                        text="the daemon is stopping",
                        gone=self._running is None,
                    )
                for listener in self.listeners.all():
                    listener.server_over()
            with anyio.move_on_after(CALL_LIMIT_S, shield=True):
                if self._link is not None:
                    await self._link.aclose()
                # Its runner may still be writing down how it ended.
                while not self._is_left and self.directory.exists():
                    await anyio.to_thread.run_sync(
                        lambda: shutil.rmtree(self.directory, ignore_errors=True)
                    )
                    await anyio.sleep(CLEAN_AGAIN_S)

    async def _start(self, command: CommandLine, number: int) -> Running:
        directory = self.directory / str(number)
        scratch = directory / "tmp"
        for each in (self.directory, directory, scratch):
            each.mkdir(mode=0o700, exist_ok=True)
        write_server(self.directory, ServerRecord(key=self.key))
        port = free_port()
        command = msgspec.structs.replace(
            command,
            argv=(*command.argv, "--hostname", "127.0.0.1", "--port", str(port)),
            # It leaves a library of 5.6 MB behind in there with each start.
            env={
                **command.env,
                **dict.fromkeys(PASSWORD_VARIABLES, self._password),
                "TMPDIR": str(scratch),
            },
        )
        if self._link is not None:
            await self._link.aclose()
        self._link = self._linked(port)
        self.tail = b""
        with anyio.CancelScope(shield=True):
            # Half a start would leave an unrecorded process; a whole one takes milliseconds.
            running = self._running = await self._processes.open(
                command, attempt=f"server:{self.key}", directory=str(directory), env={}
            )
        return running

    async def _live(self, running: Running) -> None:
        self._over = over = anyio.Event()
        if self._is_left:
            return
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._read_output, running, over)
            tasks.start_soon(self._serve, over)
            try:
                await over.wait()
            finally:
                self._tasks = None
                if not self._is_left:
                    running.stop(grace_s=STOP_GRACE_S)
                tasks.cancel_scope.cancel()

    async def _read_output(self, running: Running, over: anyio.Event) -> None:
        # Ends with the process, never before: its exit is the proof that it is gone.
        with self._reading:
            async for chunk in running.chunks():
                tail = self.tail + chunk.data
                if self._port is None and (ready := READY_LINE.search(tail)) is not None:
                    self._port = int(ready[1])
                    self._saw_ready_line.set()
                self.tail = tail[-TAIL_BYTES:]
            self.exit = running.exit
        over.set()

    async def _serve(self, over: anyio.Event) -> None:
        with self._start_scope:
            self._start_scope.deadline = anyio.current_time() + self.limits.start_s
            await self._become_ready()
        if not self.is_ready:
            self.stop(f"did not listen within {self.limits.start_s:g} s")
        self._expire_if_unused()
        if self.unclaimed and self._tasks is not None:
            self._tasks.start_soon(self._end_strays)
        await self._must_stop.wait()
        over.set()

    def _linked(self, port: int) -> OpencodeLink:
        return OpencodeLink(f"http://127.0.0.1:{port}", password=self._password)

    async def _become_ready(self) -> None:
        """Wait until the health answers with our password: the port is ours."""
        if self._link is None:
            await self._saw_ready_line.wait()
            assert self._port is not None
            self._link = self._linked(self._port)
        while True:
            with anyio.move_on_after(HEALTH_EVERY_S):
                await self._saw_ready_line.wait()
            called = await self._link.call("GET", HEALTH, limit_s=HEALTH_LIMIT_S)
            if called.is_unsupported:
                self.unsupported = called.problem
                self.stop(called.problem)
                return
            if called.is_good:
                break
            await anyio.sleep(HEALTH_EVERY_S / 5)
        connected = anyio.Event()
        assert self._tasks is not None
        self._tasks.start_soon(self._follow_events, self._link, connected)
        await connected.wait()
        self.is_ready = True
        self._settled.set()

    def _may_start_again(self) -> bool:
        """Return whether it only lost the race for its port."""
        return (
            not self.stop_reason
            and isinstance(self.exit, ProcessExit)
            and any(word in self.tail for word in PORT_TAKEN_WORDS)
        )

    async def settled(self) -> bool:
        """Wait until it serves or is over. Returns whether it serves."""
        await self._settled.wait()
        return self.is_ready

    def runs_with(self, environment: Mapping[str, str]) -> bool:
        """Return whether a server that was started now would have the same environment."""
        source = self._source
        return not isinstance(source, FoundServer) or source.runs_with(environment)

    def retire(self) -> None:
        """Take no new prompts; end when the last one has left."""
        self.is_retired = True
        self._expire_if_unused()

    async def ended(self) -> None:
        await self._ended.wait()

    def stop(self, reason: str) -> None:
        """End the process. Returns at once; `ended` waits for the proof in `exit`."""
        self.is_retired = True
        if not self.is_over:
            self.stop_reason = self.stop_reason or reason
        self._must_stop.set()
        self._start_scope.cancel()

    async def leave(self) -> None:
        """Let go of it, for a later daemon to take it up."""
        self._is_left = self.is_retired = True
        self._reading.cancel()
        self._over.set()
        self._start_scope.cancel()
        await self._ended.wait()

    # --- who uses it ----------------------------------------------------------------------------

    def lease(self) -> None:
        self._leases += 1
        self._uses += 1

    def release(self) -> None:
        self._leases -= 1
        self._expire_if_unused()

    def leave_place(self, cwd: str) -> None:
        """A prompt has ended; with the last one of a directory the instance there ends."""
        is_last = self.places.leave(cwd)
        is_kept = self.is_over or self.is_retired or self.unclaimed  # it ends soon, or may be used
        if is_last and not is_kept and self._tasks is not None:
            self._tasks.start_soon(self.places.dispose, cwd)

    async def _dispose(self, cwd: str) -> None:
        try:
            await self.call("POST", "/instance/dispose", cwd=cwd)
        except CallFailed:
            pass  # it lives until the server ends, as it did before

    def join(self, listener: Listener) -> bool:
        """
        Say to all other prompts that this one is there too.

        Returns:
            Whether it is the only one.
        """
        others = self.listeners.all() - {listener}
        for each in others:
            each.joined()
        return not others and not self.unclaimed

    def _expire_if_unused(self) -> None:
        if self._leases == 0 and self._tasks is not None:
            self._tasks.start_soon(self._expire, self._uses)

    async def _expire(self, uses: int) -> None:
        if not self.is_retired or self.unclaimed:
            await anyio.sleep(self.limits.idle_s)
        if self._uses == uses:
            self.stop("it was idle")

    async def _end_strays(self) -> None:
        """Prompts that are never re-attached end with the server, as soon as others allow."""
        await anyio.sleep(self.limits.stray_s)
        if self.unclaimed:
            self.unclaimed.clear()
            self.retire()

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
        """
        One call. The answer is its JSON (of any shape), None where it has none.

        Raises:
            CallFailed: A status that is no success, no answer within `limit_s`, no connection.
        """
        if self._link is None:
            raise CallFailed(0, None, f"{method} {path}: the server does not listen yet")
        called = await self._link.call(
            method, path, body=body, directory=cwd or "", limit_s=limit_s
        )
        if not called.is_good:
            raise CallFailed(called.status, called.body, f"{method} {path}: {called.problem}")
        return called.body

    async def _follow_events(self, link: OpencodeLink, connected: anyio.Event) -> None:
        """
        Follow its events until the server ends. It is stopped if its events fail: they show when
        prompts end.
        """
        tries = 0
        while tries < EVENT_TRIES:
            tries += 1
            async with aclosing(link.events()) as events:
                async for heard in events:
                    tries = 0
                    if heard.event.get("type") == "server.connected" and connected.is_set():
                        for each in self.listeners.all():
                            each.reconnected()
                    connected.set()
                    self.listeners.dispatch(dict(heard.event))
            await anyio.sleep(EVENT_AGAIN_S)
        self.stop("its event stream was lost")
