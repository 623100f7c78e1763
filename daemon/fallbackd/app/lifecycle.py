"""
The life of the process: locks, records, engine, socket, ready; then a drain, then the end.

    locks ─▶ records ─▶ engine ─▶ imports ─▶ socket accepts ─▶ READY=1
                                                                  │ SIGTERM, SIGINT, daemon.shutdown
    exit 0 ◀── everything closed ◀── work ended or stopped ◀── no new work
                                     (a second signal: stopped now)
"""

import os
import signal
import socket as sockets
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import anyio.to_thread
import structlog
from msgspec import structs

from fallbackd.api.health import usable_names
from fallbackd.api.host import Checked, ConfigState, ImportedText, OpencodeServers, Trouble
from fallbackd.app import private, wiring
from fallbackd.app.configuration import Configuration, import_text
from fallbackd.app.opencode_log import OpencodeLog
from fallbackd.app.places import Places
from fallbackd.app.private import Guard
from fallbackd.app.projects import watched_servers
from fallbackd.app.sharing import SharingService
from fallbackd.app.voice import VoiceExport, VoiceImport
from fallbackd.app.wiring import Built, build, clock_facts, open_records
from fallbackd.config.files import watch
from fallbackd.core.authority import Authority
from fallbackd.core.events import Ticked
from fallbackd.core.ids import DelegationId
from fallbackd.engine.api import Engine
from fallbackd.engine.environment import Settings
from fallbackd.engine.quota import PlanReads
from fallbackd.engine.ticker import TICK_S, run_ticker
from fallbackd.fronts.notify.front import NotifyFront
from fallbackd.fronts.opencode.front import OpencodeFront
from fallbackd.fronts.rpc.discover import HANDLERS
from fallbackd.fronts.rpc.endpoint import EndpointTaken, EndpointUnusable, SocketEndpoint
from fallbackd.fronts.rpc.server import RpcServer
from fallbackd.lib import heap
from fallbackd.lib.clock import SystemClock
from fallbackd.lib.descriptors import shortage
from fallbackd.lib.sdnotify import Notifier, watchdog_interval_s
from fallbackd.lib.secretvalues import SecretValues
from fallbackd.ports.store import Store
from fallbackd.transports.http.clients import Clients, socks_trouble
from fallbackd.transports.systemd_jobs import is_restart
from fallbackd_client import __version__

if TYPE_CHECKING:
    import httpx2

SOCKET_LOOK_S = 2.0
PLACES_LOOK_S = 2.0
MANY_CONNECTIONS = 50
"""When so many have gone, their memory is given back."""
ALIVE_EVERY_S = 600.0

log = structlog.get_logger("daemon")


async def say_alive(store: Store, clock: SystemClock) -> None:
    while True:
        await wiring.say_alive(store, clock)
        await anyio.sleep(ALIVE_EVERY_S)


async def keep_socket(endpoint: SocketEndpoint, server: RpcServer) -> None:
    """Cleaners of temporary directories delete sockets; new callers need one."""
    told = ""
    while True:
        await anyio.sleep(SOCKET_LOOK_S)
        if endpoint.is_in_place():
            continue
        try:
            endpoint.restore()
        except (EndpointTaken, EndpointUnusable) as error:
            if str(error) != told:
                told = str(error)
                log.error("socket.lost", socket=endpoint.path, error=told)
            continue
        told = ""
        server.replace(endpoint.listener)
        log.warning("socket.restored", socket=endpoint.path)


async def keep_private(guard: private.Guard, engine: Engine, server: RpcServer) -> None:
    crowd = heap.Crowd(MANY_CONNECTIONS)
    while True:
        engine.hold_work(private.EXPOSED, guard.look())
        await anyio.sleep(PLACES_LOOK_S)
        if crowd.has_left(server.connections):
            heap.trim()


LOOK_BELOW = 100
"""To count the descriptors of more connections takes longer than the rest of a `status`."""
NO_TMUX = Trouble(
    kind="tmux",
    message="tmux = true is configured, and tmux is not on the PATH of the daemon",
    fix="sudo apt-get install tmux",
)


DAMAGED_WEIGHTS = Trouble(
    kind="weights",
    message="the learned model is damaged, so that failures are classified by the rules alone",
    fix="pipx reinstall fallbackd",
)


def troubles(
    guard: Guard,
    server: RpcServer | None,
    engine: Engine | None,
    opencode: OpencodeServers | None = None,
) -> tuple[Trouble, ...]:
    found = list(guard.troubles)
    few = None if server is None else server.postponed
    if few is None and (server is None or server.connections < LOOK_BELOW):
        few = shortage()
    if few is not None:
        found.append(_short_of(few))
    wants_tmux = engine is not None and engine.settings.policy.defaults.tmux
    if wants_tmux and engine is not None and engine.world.find_program("tmux") is None:
        found.append(NO_TMUX)
    if engine is not None and engine.world.taught.is_damaged:
        found.append(DAMAGED_WEIGHTS)
    if (socks := socks_trouble()) is not None:
        found.append(Trouble(kind="proxy", message=socks))
    found += _of_sharing(engine)
    found += [] if engine is None else _of_versions(engine)
    found += [] if opencode is None else _of_servers(opencode)
    return tuple(found)


def _of_versions(engine: Engine) -> list[Trouble]:
    """Programs that were asked for their version, or whose package says it."""
    world, settings = engine.world, engine.settings
    found: dict[str, None] = {}
    for backend in settings.policy.backends.values():
        kind = world.kinds.get(backend.kind)
        options = settings.options_of(backend.id)
        program = None if kind is None else kind.program(options)
        path = None if program is None else world.find_program(program)
        version = None if path is None else world.probe.known_version(path)
        if kind is not None and version is not None and (why := kind.unsupported(version, options)):
            found[f"{why}; {path} gets no work, and its sessions are not protected"] = None
    return [Trouble(kind="version", message=one) for one in found]


def _of_servers(opencode: OpencodeServers) -> list[Trouble]:
    return [
        Trouble(
            kind="opencode",
            message=f"the opencode at {one.url} is not protected: {one.problem}",
        )
        for one in opencode.states()
        if one.is_refused
    ]


def _of_sharing(engine: Engine | None) -> list[Trouble]:
    """Work continues without the other machines, but the user should know."""
    if engine is None or engine.peers is None:
        return []
    shown = engine.peers.shown()
    words = []
    if shown.state not in ("connecting", "connected"):
        words.append(f"health is not shared with other machines ({shown.state}): {shown.problem}")
    if shown.warning is not None:
        words.append(shown.warning)
    words += [f"a shared record is ignored: {one}" for one in shown.ignored[:3]]
    found = [Trouble(kind="share", message=one, fix="fallbackd-client share test") for one in words]
    return found + [Trouble(kind="provider", message=one) for one in shown.advice]


def _short_of(few: str) -> Trouble:
    return Trouble(
        kind="shortage",
        message=f"{few}: new callers wait until they are accepted",
        fix="systemctl --user edit fallbackd.service  # [Service] LimitNOFILE=65536",
        stops_work=True,
    )


OVERDUE_TICKS = 2.5
"""One tick may be late, behind a slow disk or a machine under load; the second may not."""
NO_DELEGATION = DelegationId("-")
"""Matches no delegation: only the way to the disk and back is tested."""

watchdog_log = structlog.get_logger("watchdog")


class Watchdog:
    """
    Args:
        every_s: Between two pings; None: systemd does not watch this process.
        tick_s: How long a tick is expected to take to come again.
    """

    def __init__(
        self, notifier: Notifier, store: Store, *, every_s: float | None, tick_s: float = TICK_S
    ) -> None:
        self._notifier = notifier
        self._store = store
        self._every_s = every_s
        self._overdue_s = OVERDUE_TICKS * tick_s
        self._ticked_at = anyio.current_time()
        self._is_late = False

    def ticked(self) -> None:
        """A tick has been done."""
        self._ticked_at = anyio.current_time()

    async def run(self, *, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Ping until cancelled; return at once where systemd does not watch this process."""
        while self._every_s is not None:
            await self.look()
            await sleep(self._every_s)

    async def look(self) -> bool:
        """
        Ping if all is well. False where it was not.

        Waits for the writer as long as it takes: no answer from it, no ping.
        """
        try:
            # Through the lock and the thread that every commit goes through.
            await self._store.story(NO_DELEGATION)
        except (OSError, sqlite3.Error):
            pass  # A disk that fails is reported by the store. The writer has answered.
        overdue_s = anyio.current_time() - self._ticked_at
        is_late = overdue_s > self._overdue_s
        if is_late and not self._is_late:
            watchdog_log.error("watchdog.withheld", since_last_tick_s=round(overdue_s, 1))
        self._is_late = is_late
        if not is_late:
            self._notifier.watchdog()
        return not is_late


DRAIN_S = 60.0
"""How long running work may take to end by itself. What is left is stopped, which takes seconds."""
SETTLE_S = 2.0
"""How long callers get to take the answers of work that has just ended."""


class Daemon:
    """Holds what lives as long as the process. Is the `Host` of the socket front."""

    version = __version__

    def __init__(
        self,
        places: Places,
        environ: Mapping[str, str],
        endpoint: SocketEndpoint,
        *,
        umask: int,
        core_bytes: int,
    ) -> None:
        self._places = places
        self._environ = environ
        self._endpoint = endpoint
        self._umask = umask
        self.sessions_log = OpencodeLog()
        self.secret_values = SecretValues(environ)
        self._core_bytes = core_bytes
        self._guard = private.Guard(private.watched(places, socket=endpoint.path))
        self._notifier = Notifier(environ.get("NOTIFY_SOCKET"))
        self._stop = anyio.Event()
        self._stop_now = anyio.Event()
        self._is_restart = False
        self._leaves_work = False
        """Running work is left to the next daemon."""
        self._is_finished = False
        self._engine: Engine | None = None
        self._built: Built | None = None
        self._server: RpcServer | None = None
        self._configuration: Configuration | None = None
        self._export: VoiceExport | None = None
        self._imports: VoiceImport | None = None
        self._sharing: SharingService | None = None
        self._notify: NotifyFront | None = None
        self._clients = Clients()
        self.pid = os.getpid()

    # --- as the host of the front --------------------------------------------------------------

    @property
    def socket(self) -> str:
        return self._endpoint.path

    @property
    def state_dir(self) -> str:
        return self._places.state_dir

    @property
    def path(self) -> str | None:
        return self._environ.get("PATH")

    @property
    def connections(self) -> int:
        return 0 if self._server is None else self._server.connections

    @property
    def is_draining(self) -> bool:
        return self._engine is not None and self._engine.is_draining

    def config(self) -> ConfigState:
        if self._configuration is None:
            return ConfigState()
        state = self._configuration.state()
        if self._built is None:
            return state
        more = self._built.projects.warnings()
        return structs.replace(state, warnings=(*state.warnings, *more))

    def troubles(self) -> tuple[Trouble, ...]:
        of_gateway = () if self._built is None else self._built.gateway.troubles
        return troubles(self._guard, self._server, self._engine, self.opencode) + of_gateway

    async def check_config(
        self, *, path: str | None, text: str | None, directory: str | None = None
    ) -> Checked:
        assert self._configuration is not None
        found = await self._configuration.check(path=path, text=text)
        if self._built is None or path is not None or text is not None:
            return found
        projects = self._built.projects
        more = projects.warnings() if directory is None else await projects.check(directory)
        return structs.replace(found, warnings=(*found.warnings, *more))

    async def import_config(
        self, *, path: str | None, env: dict[str, str] | None, write: bool
    ) -> ImportedText:
        return await anyio.to_thread.run_sync(
            partial(import_text, self._places.config, path=path, env=env, write=write)
        )

    async def reload_config(self) -> bool:
        assert self._configuration is not None
        return await self._configuration.reload(self._take, self._tell)

    @property
    def opencode(self) -> OpencodeFront | None:
        return None if self._built is None else self._built.opencode

    def authority_of(self, connection: sockets.socket) -> Authority:
        assert self._built is not None
        return self._built.authority_of(connection)

    async def notify_test(self) -> dict[str, str | None]:
        return {} if self._notify is None else await self._notify.test()

    def _find_client(self, url: str) -> "httpx2.AsyncClient":
        return self._clients.find(url, None)

    async def drain(self) -> None:
        engine = self._engine
        if engine is not None and not engine.is_draining:
            engine.drain()
            await engine.note("daemon.draining", {})

    async def undrain(self) -> bool:
        if self._stop.is_set():
            return False
        if self._engine is not None and self._engine.is_draining:
            await self._engine.undrain()
            log.info("daemon.undrained")
        return True

    def shut_down(self, *, stop_work: bool) -> None:
        self._stop.set()
        if stop_work:
            self._stop_now.set()
        else:
            self._leaves_work = True

    # --- life ----------------------------------------------------------------------------------

    async def live(self) -> None:
        store, clock = await open_records(self._places)
        for path in store.set_aside:
            log.error("store.set_aside", path=path, database=self._places.database)
        if store.problem is not None:
            log.error("store.unwritable", problem=store.problem)
        configuration = self._configuration = Configuration(self._places, clock)
        try:
            async with anyio.create_task_group() as edges:
                built = build(
                    self._places,
                    configuration.settings,
                    store,
                    clock,
                    environ=self._environ,
                    secret_values=self.secret_values,
                    tasks=edges,
                    umask=self._umask,
                    sessions_log=self.sessions_log,
                    core_bytes=self._core_bytes,
                    socket=self.socket,
                )
                await self._serve(built, store, clock)
                edges.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()

    async def _serve(self, built: Built, store: Store, clock: SystemClock) -> None:
        engine = self._engine = built.engine
        self._built = built
        ran_until_at = await wiring.ran_until_at(store)
        configuration = self._configuration
        assert configuration is not None
        imports = self._imports = VoiceImport(engine, built.home)
        export = self._export = VoiceExport(engine, built.home, imports)
        export.path = configuration.loaded.export_voice
        sharing = self._sharing = SharingService(engine, self._environ, engine.world.mint)
        sharing.configure(configuration.loaded)
        engine.on_export = export.soon
        engine.clock_facts = lambda: clock_facts(clock)
        try:
            built.expect()
            await built.take_up_servers()
            async with anyio.create_task_group() as tasks:
                await tasks.start(_run_engine, engine)
                await imports.configure(configuration.loaded)
                await built.configure(configuration.loaded)
                notify = self._notify = NotifyFront(
                    engine, Path(self._places.state_dir, "notify"), self._find_client
                )
                notify.configure(configuration.loaded.notify)
                tasks.start_soon(notify.run)
                await tasks.start(sharing.run)  # a first `status` says already that it connects
                await tasks.start(self._hear_signals)  # before callers take descriptors
                server = self._server = RpcServer(engine, self, HANDLERS)
                tasks.start_soon(server.serve, self._endpoint.listener)
                tasks.start_soon(imports.run)
                tasks.start_soon(export.run)
                tasks.start_soon(built.projects.run)
                servers = watched_servers(configuration.loaded, self._environ)
                tasks.start_soon(built.opencode.run, servers)
                tasks.start_soon(built.gateway.run)
                tasks.start_soon(built.interactive.run)
                tasks.start_soon(PlanReads(engine).run)
                tasks.start_soon(self._watch_config, configuration)
                watchdog = Watchdog(self._notifier, store, every_s=self._watchdog_interval_s())
                await engine.handle(Ticked(ran_until_at=ran_until_at))
                tasks.start_soon(self._tick, engine, watchdog)
                tasks.start_soon(say_alive, store, clock)
                tasks.start_soon(keep_socket, self._endpoint, server)
                tasks.start_soon(keep_private, self._guard, engine, server)
                tasks.start_soon(watchdog.run)
                export.soon()
                self._notifier.ready(self._status())
                log.info(
                    "daemon.started",
                    version=self.version,
                    pid=self.pid,
                    socket=self.socket,
                    state_dir=self.state_dir,
                    sentence=self._ready_sentence(engine),
                )
                heap.collect_from_now_on()
                await self._stop.wait()
                await self._finish(engine)
                await server.settle(limit_s=SETTLE_S)
                tasks.cancel_scope.cancel()
            await export.finish()
        finally:
            with anyio.CancelScope(shield=True):
                await self._clients.aclose()
                for transport in built.transports:
                    # Where we fail, the work does not: the next daemon takes it up.
                    await (transport.aclose() if self._is_finished else transport.detach())
        log.info("daemon.stopped")

    async def _finish(self, engine: Engine) -> None:
        await self.drain()
        running = len(engine.snapshot().active)
        self._notifier.stopping(f"draining, {running} running")
        log.info("daemon.draining", running=running)

        async def hurry(scope: anyio.CancelScope) -> None:
            await self._stop_now.wait()
            scope.cancel()

        with anyio.CancelScope() as patience:
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(hurry, patience)
                self._notifier.extend(DRAIN_S + 15)
                limit_s = 0.0 if self._is_restart else DRAIN_S
                await engine.finish_work(limit_s=limit_s, stop_rest=not self._leaves_work)
                waiting.cancel_scope.cancel()
        if self._stop_now.is_set():
            await engine.finish_work(limit_s=0)
        self._is_finished = not engine.snapshot().active

    async def _take(self, settings: Settings) -> None:
        engine, configuration, export = self._engine, self._configuration, self._export
        assert engine is not None
        assert configuration is not None
        assert export is not None
        assert self._imports is not None
        assert self._built is not None
        self._built.withhold_credentials(settings)
        await engine.set_settings(settings)
        if self._sharing is not None:
            self._sharing.configure(configuration.loaded)
        export.path = configuration.loaded.export_voice
        await self._imports.configure(configuration.loaded)
        export.soon()
        await self._built.configure(configuration.loaded)
        self._built.opencode.configure(watched_servers(configuration.loaded, self._environ))
        if self._notify is not None:
            self._notify.configure(configuration.loaded.notify)

    async def _tell(self, is_good: bool, fields: dict[str, object]) -> None:
        assert self._engine is not None
        await self._engine.note_config(accepted=is_good, fields=fields)
        self._notifier.status(self._status())

    # --- background tasks ----------------------------------------------------------------------

    async def _watch_config(self, configuration: Configuration) -> None:
        async def changed() -> None:
            await self.reload_config()

        await watch(self._places.config, changed, seen=lambda: configuration.digest)

    async def _tick(self, engine: Engine, watchdog: Watchdog) -> None:
        def ticked() -> None:
            watchdog.ticked()
            self._notifier.status(self._status())

        await run_ticker(engine, on_tick=ticked)

    def _watchdog_interval_s(self) -> float | None:
        return watchdog_interval_s(
            self._environ.get("WATCHDOG_USEC"),
            self._environ.get("WATCHDOG_PID"),
            own_pid=self.pid,
        )

    async def _hear_signals(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    self._notifier.reloading()
                    await self.reload_config()
                    self._notifier.ready(self._status())
                elif self._stop.is_set():
                    self._stop_now.set()
                else:
                    await self._hear_stop(number)

    async def _hear_stop(self, number: signal.Signals) -> None:
        """A restart leaves the work to the daemon that follows at once; a stop ends it."""
        assert self._built is not None
        if number == signal.SIGTERM and await is_restart(
            self._environ, inheritable=self._built.inheritable
        ):
            log.info("daemon.restarting")
            self._is_restart = self._leaves_work = True
        self._stop.set()

    def _ready_sentence(self, engine: Engine) -> str:
        """Say, to people who have started it in a terminal, that the daemon is ready."""
        usable = usable_names(engine.snapshot(), engine.settings.policy, now=engine.clock.now())
        many = "1 backend" if len(usable) == 1 else f"{len(usable)} backends"
        names = f" ({', '.join(usable)})" if usable else ""
        return f"fallbackd {self.version} is ready: {many} available{names}; socket {self.socket}"

    def _status(self) -> str:
        if self._engine is None:
            return "starting"
        running = len(self._engine.snapshot().active)
        errors = " (the configuration file is not in effect)" if self.config().errors else ""
        return f"{running} running{errors}"


async def _run_engine(
    engine: Engine, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    await engine.run(ready=task_status.started)
