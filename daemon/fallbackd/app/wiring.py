"""Configuration to objects: the one file that names concrete edges."""

import os
import random
import secrets
import socket as sockets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path

import anyio.to_thread
import structlog
from anyio.abc import TaskGroup
from msgspec import Struct

from fallbackd.app.gateway import GatewayService, Tokens
from fallbackd.app.interactive import InteractiveService, Windows
from fallbackd.app.opencode_log import OpencodeLog
from fallbackd.app.places import Places, digest_key
from fallbackd.app.private import ENV_FILE
from fallbackd.app.projects import Projects
from fallbackd.backends import KINDS, SIGNATURES
from fallbackd.config.load import Loaded
from fallbackd.core.authority import Authority, nothing
from fallbackd.core.ids import attempt_number
from fallbackd.core.policy import Defaults
from fallbackd.core.records import Delegation
from fallbackd.engine.api import Engine
from fallbackd.engine.credentials import secret_variables
from fallbackd.engine.environment import Settings, Taught, Transports, World
from fallbackd.engine.preparing import standby
from fallbackd.engine.runs import list_directories
from fallbackd.fronts.opencode.front import OpencodeFront
from fallbackd.lib import privatefile
from fallbackd.lib.clock import Instant, SystemClock
from fallbackd.lib.descriptors import has_room, shortage
from fallbackd.lib.processes import OutOfSight, client_socket, held, read_variables
from fallbackd.lib.secretvalues import SecretValues
from fallbackd.ports.store import Store
from fallbackd.ports.transport import Running, Transport, Unsent
from fallbackd.stores import open_store
from fallbackd.stores.opening import note_loss
from fallbackd.transports.http.transport import HttpTransport
from fallbackd.transports.machine import Machine, fingerprint, has_default_route
from fallbackd.transports.opencode.link import OpencodeLink
from fallbackd.transports.opencode.transport import ServedTransport
from fallbackd.transports.opencode.whose import ProcessOwners
from fallbackd.transports.probe import FreeProbe
from fallbackd.transports.process.environment import Inheritable, open_places
from fallbackd.transports.process.gitguard import GitGuard
from fallbackd.transports.process.leftovers import end_stray, is_unproven
from fallbackd.transports.process.recording import read_ends, read_log
from fallbackd.transports.process.runner.cgroup import find_home
from fallbackd.transports.process.running import RunnerLimits
from fallbackd.transports.process.transport import ProcessTransport
from fallbackd.transports.resident.record import TURN_FILE
from fallbackd.transports.resident.transport import ResidentTransport
from fallbackd.transports.secrets import KEY_BYTES, SecretSources

log = structlog.get_logger("daemon")

STRAY_BOUND_S = 10.0
"""How long KILL may take for an attempt without a record."""
INSTANT_KEY = "instant"
"""Fact: the last moment of which it is known that a daemon ran."""


class Built(Struct):
    engine: Engine
    transports: tuple[Transport, ...]
    """In the order in which they are to be closed."""
    opencode: OpencodeFront
    gateway: GatewayService
    interactive: InteractiveService
    projects: Projects
    home: str
    authority_of: Callable[[sockets.socket], Authority]
    """What the peer of a connection may ask, by the processes above it."""
    expect: Callable[[], None]
    """Know the processes of attempts that an earlier daemon has left, before they are met."""
    inheritable: Mapping[str, str]
    """What of the daemon's environment every program that it starts is given."""
    withhold_credentials: Callable[[Settings], None]
    """Keep the secrets of these settings out of what programs are given."""
    take_up_servers: Callable[[], Awaitable[None]]
    """Find the helper servers and residents that a daemon before this one has left."""

    async def configure(self, loaded: Loaded) -> None:
        """Apply the settings to what stands around the engine, which has its own by then."""
        await self.projects.configure(loaded)
        self.gateway.configure(loaded.gateway)
        self.interactive.configure(loaded.interactive)


async def open_records(
    places: Places, clock: SystemClock | None = None
) -> tuple[Store, SystemClock]:
    """
    Open the database, with a clock that continues from the last run of the same boot.

    Raises:
        fallbackd.stores.opening.StoreTooNew: It is of a newer version.
    """
    clock = clock or SystemClock()

    def since(facts: Mapping[str, str]) -> tuple[float, float]:
        stopped_s = clock.follow(last_instant(facts))
        return clock.now(), stopped_s

    if await anyio.to_thread.run_sync(list_directories, Path(places.runs)):
        lost = note_loss(Path(places.database), now=clock.now())
        if lost is not None:
            log.error("store.lost", database=places.database, runs=places.runs, mark=lost)
    store = await open_store(f"sqlite:{places.database}", now=clock.now(), since=since)
    return store, clock


def last_instant(facts: Mapping[str, str]) -> Instant | None:
    """Also from the three facts in which earlier versions kept it."""
    found = Instant.decode(facts.get(INSTANT_KEY))
    if found is not None or "alive_at" not in facts:
        return found
    at = float(facts["alive_at"])
    offset_s = float(facts.get("clock_offset_s", 0.0))
    return Instant(at=at, elapsed_s=at - offset_s, boot_id=facts.get("boot_id", ""))


async def ran_until_at(store: Store) -> float | None:
    """The last moment of which it is known that the daemon before this one ran."""
    found = Instant.decode(await store.get_meta(INSTANT_KEY))
    return None if found is None else found.at


async def say_alive(store: Store, clock: SystemClock) -> None:
    """Remember until when there was a daemon: after a long stop old beliefs are tried anew."""
    for key, value in clock_facts(clock):
        await store.set_meta(key, value)


def clock_facts(clock: SystemClock) -> tuple[tuple[str, str], ...]:
    """Return how the clock of the records relates to the time of this boot, for the next run."""
    return ((INSTANT_KEY, clock.instant().encode()),)


def build(
    places: Places,
    settings: Settings,
    store: Store,
    clock: SystemClock,
    *,
    environ: Mapping[str, str],
    tasks: TaskGroup,
    umask: int,
    secret_values: SecretValues | None = None,
    sessions_log: OpencodeLog | None = None,
    core_bytes: int | None = None,
    socket: str | None = None,
) -> Built:
    """
    Args:
        secret_values: Learns every secret that is read; None: a new one.
        tasks: Where helper servers live; outlives the engine.
        umask: What agent CLIs run with, which is the user's and not our own.
        socket: Where the daemon listens; None: as `places` say.
        core_bytes: The same for their core files; None: as ours.
    """
    defaults: Defaults = settings.policy.defaults
    hidden = secret_values or SecretValues(environ)
    inheritable = Inheritable(environ)
    of_person = Inheritable(environ, is_for_all=bool)
    secrets_of = SecretSources(
        environ=environ,
        now=clock.now,
        key=digest_key(places.digest_key, size=KEY_BYTES),
        inheritable=of_person,
        learn=hidden.learn,
    )

    def withhold_credentials(settings: Settings) -> None:
        found = secret_variables(settings, KINDS)
        inheritable.withhold(found)
        of_person.withhold(found)

    withhold_credentials(settings)
    processes = ProcessTransport(
        environ=inheritable,
        now=clock.now,
        umask=umask,
        secrets=secrets_of,
        cgroup_home=find_home(environ),
        limits=RunnerLimits(max_log_bytes=defaults.max_log_bytes, core_bytes=core_bytes),
    )
    http = HttpTransport(clock=clock, environ=environ, secrets=secrets_of)
    residents = ResidentTransport(
        processes,
        tasks=tasks,
        directory=places.residents,
        clock=clock,
        secrets=secrets_of,
        most=lambda: engine.settings.policy.defaults.residents,
        environ=inheritable,
    )
    served = ServedTransport(
        processes, tasks=tasks, directory=places.servers, clock=clock, environ=inheritable
    )
    machine = Machine(environ)
    windows = Windows(environ, socket=socket or places.socket)
    tasks.start_soon(windows.run)

    def begun_by(directory: str) -> Transport:
        """
        Choose by the record that each leaves before it begins; processes have a runner for that.
        """
        if privatefile.exists(os.path.join(directory, "served.json")):
            return served
        if privatefile.exists(os.path.join(directory, "http.json")):
            return http
        if privatefile.exists(os.path.join(directory, TURN_FILE)):
            return residents
        return processes

    async def end_found(directory: str, *, attempt: str) -> bool:
        if (is_gone := await served.end_leftover(attempt, directory)) is not None:
            return is_gone
        if (is_gone := await residents.end_leftover(attempt, directory)) is not None:
            return is_gone
        return await end_stray(directory, grace_s=defaults.stop_grace_s, bound_s=STRAY_BOUND_S)

    async def attach(*, attempt: str, directory: str) -> Running | Unsent | None:
        return await begun_by(directory).attach(attempt=attempt, directory=directory)

    tokens = Tokens(places.gateway_token)
    git = GitGuard()
    world = World(
        transports=Transports(command=residents, http=http, served=served),
        kinds=KINDS,
        signatures=SIGNATURES,
        find_program=machine.find_program,
        is_program_of=machine.is_program_of,
        inheritable=inheritable,
        of_person=of_person,
        read_text=machine.read_text,
        changed_at=machine.changed_at,
        environ=environ,
        fingerprint=fingerprint,
        read_log=_read_log,
        read_chunks=read_ends,
        home=machine.home,
        runs_root=Path(places.runs),
        taught=Taught(Path(places.runs).parent / "weights.json"),
        luck=random.random,
        mint=lambda: mint(clock.now()),
        has_route=has_default_route,
        keep_ready=residents.prepare,
        end_watchers=residents.end_watchers,
        residents=residents.list,
        attach=attach,
        end_leftover=end_found,
        boot_id=clock.boot_id(),
        variables_of=read_variables,
        open_window=windows.open,
        open_places=open_places,
        look_at_git=git.look,
        recall_git=git.recall,
        put_git_back=git.put_back,
        private=private_places(places, environ),
        shortage=shortage,
        has_room=has_room,
        secret_values=hidden,
        secrets=secrets_of,
        probe=FreeProbe(http, environ=inheritable),
        gateway_token=tokens.of_attempt,
    )
    engine = Engine(store, clock, settings, world)
    engine.on_news = standby(engine, tasks)

    def authority_of(connection: sockets.socket) -> Authority:
        try:
            with held(connection) as pid:
                attempts = residents.working_for(served.attempts_above(pid))
        except OSError as error:
            return unseen(error)
        return engine.authority_of(attempts)

    async def authority_at(connection: sockets.socket) -> Authority | None:
        """
        Return the authority of the peer of a TCP connection; None: it is no process of an attempt.
        """
        if not processes.has_any:
            return None
        try:
            inode = await anyio.to_thread.run_sync(client_socket, connection)
            pid = None if inode is None else await processes.holding(inode)
            if pid is None:
                return None
            attempts = residents.working_for(served.attempts_above(pid))
        except OSError as error:
            return unseen(error)
        return engine.authority_of(attempts)

    def expect() -> None:
        for attempt, directory in may_run(store.peek().active.values(), Path(places.runs)):
            processes.expect(attempt, directory)
        processes.settle()

    async def take_up() -> None:
        await residents.take_up()
        await served.take_up()

    projects = Projects(engine, sessions_log or OpencodeLog(), home=machine.home)
    return Built(
        engine=engine,
        opencode=OpencodeFront(engine, OpencodeLink, projects, ProcessOwners(processes.above)),
        gateway=GatewayService(engine, http.pass_on, places, tokens, authority_of, authority_at),
        interactive=InteractiveService(engine),
        projects=projects,
        transports=(residents, served, http, processes),
        home=machine.home,
        authority_of=authority_of,
        expect=expect,
        inheritable=inheritable,
        withhold_credentials=withhold_credentials,
        take_up_servers=take_up,
    )


def may_run(active: Iterable[Delegation], runs: Path) -> Iterator[tuple[str, str]]:
    """Attempts of which something may run, with their directories: their ends are not proven."""
    for one in active:
        if one.running is not None:
            number = attempt_number(one.running.attempt)
            yield one.running.attempt, str(runs / one.delegation / str(number))
    for claim in runs.glob("*/[0-9]*/claim"):
        if is_unproven(directory := str(claim.parent)):
            yield ".".join(claim.parts[-3:-1]), directory


def unseen(error: OSError) -> Authority:
    """The authority of a caller whose process could not be looked at, with what to do."""
    to_do = "connect again"
    if isinstance(error, OutOfSight):
        to_do = "run the client in the container of the daemon, or give both one PID namespace"
    why = error.strerror or str(error)
    return nothing(f"the calling process cannot be looked at ({why}); {to_do}")


def private_places(places: Places, environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the places that no agent may read: prompts and answers of others, settings, keys."""
    env_file = os.path.join(os.path.dirname(places.config), ENV_FILE)
    keys = environ.get("CREDENTIALS_DIRECTORY", "")
    return (places.state_dir, places.config, env_file, *((keys,) if keys else ()))


def mint(now: float) -> str:
    """Sortable by time, unique by chance: eleven digits of milliseconds, eight of chance."""
    return f"{int(now * 1000):011x}"[-11:] + secrets.token_hex(4)


def _read_log(directory: str, *, offset: int, max_bytes: int) -> tuple[bytes, int, int]:
    if not os.path.isdir(directory):
        return b"", offset, 0
    found = read_log(directory, offset=offset, max_bytes=max_bytes)
    return found.data, found.next_offset, found.end_offset
