"""
A real daemon for a test: its own process, home, runtime directory and socket.

    async with running(tmp_path, config='…') as daemon:
        answer = await daemon.client.call("delegate", {"prompt": "hello"})

Everything lies below `tmp_path`, and only processes that were started here are ended here.
`in_process` runs the same objects inside the test, for windows shorter than a file may ask for.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from fallbackd.core.policy import Policy
from fallbackd.engine.api import Engine
from fallbackd.ports.transport import Clock
from fallbackd_client.aio import AsyncClient

HANG_S = 60.0
"""Only a hang takes this long."""
UNDECLARED = "rpc.undeclared_error"
ROOT = Path(__file__).resolve().parents[2]


class DaemonDied(AssertionError):
    """It ended before it was ready. The message holds its log."""


class Daemon:
    """One daemon of one test; the same places serve every start of it."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        config: str,
        env: Mapping[str, str],
        arguments: tuple[str, ...],
        wrapper: tuple[str, ...],
    ) -> None:
        self.home = tmp_path / "home"
        self.bin_dir = tmp_path / "bin"
        self.config_path = self.home / ".config" / "fallbackd" / "config.toml"
        self.state_dir = self.home / ".local" / "state" / "fallbackd"
        self.log_path = tmp_path / "daemon.log"
        self.work_dir = tmp_path / "work"
        # Not below `tmp_path`: a socket path holds at most 107 bytes.
        self.runtime_dir = Path(tempfile.mkdtemp(prefix="fbd-"))
        self.socket = str(self.runtime_dir / "fallbackd" / "control.sock")
        for directory in (self.config_path.parent, self.bin_dir, self.work_dir):
            directory.mkdir(parents=True, exist_ok=True)
        if config:
            self.config_path.write_text(config)
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{self.bin_dir}:/usr/local/bin:/usr/bin:/bin",
            "XDG_RUNTIME_DIR": str(self.runtime_dir),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONPATH": f"{ROOT / 'daemon'}:{ROOT / 'client'}",
            **env,
        }
        self.socket = self.env.get("FALLBACKD_SOCKET", self.socket)
        self.arguments = arguments
        self.wrapper = wrapper
        self.program: tuple[str, ...] = ("-m", "fallbackd")
        """What the interpreter is told to run."""
        self.process: subprocess.Popen[bytes] | None = None
        self._client: AsyncClient | None = None

    @property
    def client(self) -> AsyncClient:
        assert self._client is not None, "only inside `running`"
        return self._client

    @property
    def pid(self) -> int:
        assert self.process is not None, "not running"
        return self.process.pid

    def log(self) -> str:
        """Everything that it has written to stderr, over all starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    async def start(self) -> None:
        """Start it and wait for its READY=1."""
        assert self.process is None, "runs already"
        notify = self.runtime_dir / "notify"
        notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.bind(str(notify))
            ear.setblocking(False)
            with self.log_path.open("ab") as log:
                self.process = subprocess.Popen(
                    [*self.wrapper, sys.executable, *self.program, *self.arguments],
                    env={**self.env, "NOTIFY_SOCKET": str(notify)},
                    cwd=self.home,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            with anyio.fail_after(HANG_S):
                while not await self._is_ready(ear):
                    pass

    async def _is_ready(self, ear: socket.socket) -> bool:
        assert self.process is not None
        with anyio.move_on_after(0.2):
            await anyio.wait_readable(ear)
        try:
            if b"READY=1" in ear.recv(4096):
                return True
        except BlockingIOError:
            pass
        if self.process.poll() is not None:
            status, self.process = self.process.returncode, None
            raise DaemonDied(f"exit status {status}\n{self.log()}")
        return False

    async def stop(self) -> int:
        """SIGTERM, and wait. Returns the exit status."""
        self.send(signal.SIGTERM)
        return await self.wait()

    async def kill(self) -> None:
        """SIGKILL: nothing is tidied up."""
        self.send(signal.SIGKILL)
        await self.wait()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None, "not running"
        self.process.send_signal(number)

    async def wait(self) -> int:
        """Until the process has ended by itself."""
        process = self.process
        assert process is not None, "not running"
        with anyio.fail_after(HANG_S):
            status = await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        self.process = None
        return status

    def end(self) -> None:
        """Whatever state the test has left it in."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        shutil.rmtree(self.runtime_dir, ignore_errors=True)


@asynccontextmanager
async def running(
    tmp_path: Path,
    config: str = "",
    *,
    env: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    wrapper: tuple[str, ...] = (),
) -> AsyncIterator[Daemon]:
    """
    A daemon in a process of its own.

    Args:
        config: Text of its configuration file; empty: no file.
        env: On top of a bare environment. `PATH` begins with `daemon.bin_dir` unless set here.
        wrapper: A command that executes the daemon, which follows it.
    """
    daemon = Daemon(tmp_path, config=config, env=env or {}, arguments=arguments, wrapper=wrapper)
    try:
        await daemon.start()
        async with AsyncClient(daemon.socket, timeout_s=HANG_S, reconnect_s=HANG_S) as client:
            daemon._client = client
            yield daemon
        if daemon.process is not None:
            await daemon.stop()
        undeclared = [line for line in daemon.log().splitlines() if UNDECLARED in line]
        assert not undeclared, "a method answers with an error that `rpc.discover` does not name"
    finally:
        daemon.end()


class InProcess:
    """A daemon inside the test. Its engine may be looked at."""

    def __init__(self, client: AsyncClient, engine: Engine, socket: str, state_dir: Path) -> None:
        self.client = client
        self.engine = engine
        self.socket = socket
        self.state_dir = state_dir


@asynccontextmanager
async def in_process(
    tmp_path: Path,
    config: str = "",
    *,
    policy: Policy | None = None,
    env: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    tick_s: float | None = None,
) -> AsyncIterator[InProcess]:
    """
    The same objects inside the test, on a real socket, with real programs as backends.

    Args:
        policy: Instead of the one that `config` gives; its windows may be as short as a test
            wants. The options of backends (`command`, …) are always those of `config`.
        clock: Instead of the machine's.
        tick_s: Seconds between ticks; None: no tick comes by itself.
    """
    from tests.support.engine import FakeHost

    from fallbackd.app.configuration import settings_of
    from fallbackd.app.places import find_places
    from fallbackd.app.wiring import build, open_records
    from fallbackd.config.load import load
    from fallbackd.engine.ticker import run_ticker
    from fallbackd.fronts.rpc.discover import HANDLERS
    from fallbackd.fronts.rpc.endpoint import SocketEndpoint
    from fallbackd.fronts.rpc.server import RpcServer

    home = tmp_path / "home"
    home.mkdir(parents=True, exist_ok=True)
    (tmp_path / "bin").mkdir(exist_ok=True)
    runtime_dir = Path(tempfile.mkdtemp(prefix="fbd-"))
    environ = {
        "HOME": str(home),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(runtime_dir),
        **(env or {}),
    }
    places = find_places(environ)
    Path(places.state_dir).mkdir(parents=True, mode=0o700)
    # As on a kernel without Landlock: these programs leave word of what they see anywhere.
    settings = settings_of(load(config, path=places.config), abi=0)
    if policy is not None:
        settings = type(settings)(
            policy=policy, options=settings.options, rules_for=settings.rules_for
        )
    store, system_clock = await open_records(places)
    clock = clock or system_clock
    endpoint = SocketEndpoint.open(places.socket)
    try:
        async with anyio.create_task_group() as edges:
            built = build(places, settings, store, clock, environ=environ, tasks=edges, umask=0o022)
            try:
                ready = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: built.engine.run(ready=ready.set))
                    with anyio.fail_after(HANG_S):
                        await ready.wait()
                    if tick_s is not None:
                        tasks.start_soon(lambda: run_ticker(built.engine, every_s=tick_s))
                    server = RpcServer(built.engine, FakeHost(), HANDLERS)
                    tasks.start_soon(server.serve, endpoint.listener)
                    async with AsyncClient(places.socket, timeout_s=HANG_S) as client:
                        yield InProcess(client, built.engine, places.socket, Path(places.state_dir))
                    with anyio.fail_after(HANG_S):
                        await built.engine.finish_work(limit_s=0)
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    for transport in built.transports:
                        await transport.aclose()
            edges.cancel_scope.cancel()
    finally:
        endpoint.close()
        with anyio.CancelScope(shield=True):
            await store.aclose()
        shutil.rmtree(runtime_dir, ignore_errors=True)
