"""
One life of the daemon: a real engine on a real store, until it is killed.

A kill is what SIGKILL is: from that instant nothing of this daemon is written, started or
answered, whatever its tasks still do on their way out.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import anyio
from msgspec import structs
from tests.simulation.programs import Launch, NotThere, Taken
from tests.simulation.stage import Stage

from fallbackd.app.wiring import clock_facts, last_instant, say_alive
from fallbackd.backends import KINDS
from fallbackd.core.decision import Decision, Journaled
from fallbackd.core.events import Event
from fallbackd.core.health import from_disk
from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.core.protocol import Call
from fallbackd.core.records import Keys, Snapshot
from fallbackd.engine.api import Engine
from fallbackd.engine.environment import Transports, World
from fallbackd.engine.live import Audience
from fallbackd.engine.loop import Committing
from fallbackd.engine.runs import Runs
from fallbackd.engine.ticker import tick
from fallbackd.lib.clock import SystemClock
from fallbackd.ports.store import Outlives
from fallbackd.stores.database import Database
from fallbackd.stores.memory import MemoryStore
from fallbackd.stores.mirror import LoadedRecords, Mirror
from fallbackd.stores.sqlite import Since, SqliteStore, open_sqlite
from fallbackd.stores.writes import Writes

ResultT = TypeVar("ResultT")


class Dead(BaseException):
    """What a killed daemon wanted to do is not done."""


class Lost(Exception):
    """The connection is gone: the daemon, or the patience of the caller, has ended."""


class Daemon:
    def __init__(self, stage: Stage, life: int) -> None:
        self.stage = stage
        self.is_dead = False
        self.commits_left: int | None = None
        """Killed after so many more commits, before anything is done about the last one."""
        self.decisions_left: int | None = None
        """Killed when so many more were decided, before the last one is kept."""
        self.dies_in_trial = False
        """Killed as soon as a trial was ordered."""
        self.died = anyio.Event()
        self.disk = anyio.Lock()
        self.store: MemoryStore | SqliteStore
        self.engine: ObservedEngine
        self.tasks: anyio.abc.TaskGroup
        self._luck = Random(f"{stage.script.seed} disk {life}")
        self.launches: list[Launch] = []
        self._calls: set[anyio.CancelScope] = set()

    # --- life --------------------------------------------------------------------------------

    async def live(self, opened: Callable[["Daemon"], Awaitable[Any]]) -> None:
        """Serve until killed or closed."""
        stage = self.stage
        try:
            async with anyio.create_task_group() as tasks:
                self.tasks = tasks
                clock = self.clock = Clock(stage)
                self.store = await opened(self)
                self.engine = ObservedEngine(self, Kept(self), clock)
                self.engine.clock_facts = lambda: clock_facts(clock)
                tasks.start_soon(self._run_engine)
                tasks.start_soon(self._tick, clock)
        except BaseExceptionGroup as errors:
            if (other := errors.split(Dead)[1]) is not None:
                raise other
        finally:
            stage.down()

    async def _run_engine(self) -> None:
        await self.engine.run(ready=lambda: self.stage.up(self))

    async def _tick(self, clock: SystemClock) -> None:
        """As the app does: the tick, and the facts that the next life wants to know."""
        number = 0
        while True:
            number += 1
            await say_alive(self.engine.store, clock)
            await anyio.sleep(self.stage.tick_s)
            await tick(self.engine, prune=number % 20 == 0)

    def kill(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self.stage.died()
        self.died.set()
        self.stage.tell("the daemon is killed")
        for launch in self.launches:
            launch.moved.set()
        self.close()

    def close(self) -> None:
        self.stage.down()
        self.tasks.cancel_scope.cancel()
        for call in list(self._calls):
            call.cancel()

    def require_alive(self) -> None:
        if self.is_dead:
            raise Dead

    async def call(
        self, ask: Callable[[Engine], Awaitable[ResultT]], *, for_s: float | None = None
    ) -> ResultT:
        """
        One request over one connection, which the caller drops after `for_s`.

        Raises:
            Lost: Nobody knows what has come of it.
        """
        with anyio.move_on_after(for_s) as scope:
            self._calls.add(scope)
            try:
                self.require_alive()
                return await ask(self.engine)
            except Dead:
                raise Lost from None
            finally:
                self._calls.discard(scope)
        raise Lost

    # --- its disk ----------------------------------------------------------------------------

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        await self.wait_for_disk()
        return work()

    async def wait_for_disk(self) -> None:
        self.require_alive()
        if self.stage.script.disk_s:
            await anyio.sleep(self._luck.random() * self.stage.script.disk_s)
            self.require_alive()

    def before_commit(self) -> None:
        self.require_alive()
        if self.decisions_left is not None:
            self.decisions_left -= 1
            if self.decisions_left <= 0:
                self.stage.laws.forget_decided()
                self.kill()
                raise Dead

    def after_commit(self) -> None:
        """What was decided is durable."""
        if not self.stage.laws.take_decided():
            return
        if self.commits_left is not None:
            self.commits_left -= 1
            if self.commits_left <= 0:
                self.kill()
                raise Dead
        if self.dies_in_trial and self.stage.laws.has_begun_trial:
            self.kill()
            raise Dead


class ObservedEngine(Engine):
    def __init__(self, daemon: Daemon, store: Any, clock: SystemClock) -> None:
        stage = daemon.stage
        transport = Ports(daemon)
        super().__init__(
            store,
            clock,
            stage.settings,
            World(
                transports=Transports(command=transport, http=transport, served=transport),
                kinds=KINDS | {"codex": structs.replace(KINDS["codex"], resumes=lambda _: True)},
                find_program=stage.find_program,
                read_text=lambda _: None,
                changed_at=lambda _: None,
                environ={},
                fingerprint=stage.fingerprint,
                read_log=lambda *_, offset, max_bytes: (b"", offset, 0),
                home=str(stage.place / "home"),
                runs_root=stage.place / "runs",
                luck=stage.luck,
                mint=stage.mint,
                has_route=lambda: stage.has_route,
                attach=transport.attach,
                boot_id=stage.boot,
            ),
        )
        self._daemon = daemon
        self.runs = Files(stage.place / "runs", daemon)
        self._committing = Watched(self, self._audience, daemon)


class Watched(Committing):
    """What is decided is shown to the laws."""

    def __init__(self, host: Engine, audience: Audience, daemon: Daemon) -> None:
        super().__init__(host, audience)
        self._daemon = daemon

    def _decide(self, seen: Snapshot, event: Event, *, now: float) -> Decision:
        self._daemon.require_alive()
        decision = super()._decide(seen, event, now=now)
        policy = self._host.settings.policy
        self._daemon.stage.laws.decided(seen, event, decision, policy, now=now)
        return decision


class Files(Runs):
    """Run directories of a daemon that may be dead the next moment: it does not tidy up then."""

    def __init__(self, root: Path, daemon: Daemon) -> None:
        super().__init__(root)
        self._daemon = daemon

    def create(self, delegation: DelegationId, prompt: str, request: bytes) -> None:
        self._daemon.require_alive()
        super().create(delegation, prompt, request)

    def prepare(self, attempt: AttemptId) -> Path:
        self._daemon.require_alive()
        return super().prepare(attempt)

    def remove(self, delegation: DelegationId) -> None:
        self._daemon.require_alive()
        super().remove(delegation)


class Kept:
    """The store, as a daemon sees it that may be dead the next moment."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._store = daemon.store

    def __getattr__(self, name: str) -> Any:
        self._daemon.require_alive()
        return getattr(self._store, name)

    def transact_now(self, keys: Keys, run: Callable[[Snapshot], Decision]) -> None:
        """The disk is where a daemon dies."""
        self._daemon.require_alive()

    async def transact(
        self,
        keys: Keys,
        run: Callable[[Snapshot], Decision],
        *,
        must_keep: bool = True,
        outlives: Outlives = "machine",
    ) -> tuple[Decision, Sequence[Journaled]]:
        daemon = self._daemon
        daemon.require_alive()
        if not isinstance(self._store, MemoryStore):
            return await self._store.transact(keys, run, must_keep=must_keep, outlives=outlives)

        def decide(seen: Snapshot) -> Decision:
            decision = run(seen)
            daemon.before_commit()
            return decision

        async with daemon.disk:
            await daemon.wait_for_disk()
            found = await self._store.transact(keys, decide, must_keep=must_keep)
            daemon.after_commit()
        return found


class Ports:
    """The transport of a daemon that may be dead the next moment."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def open(self, call: Call, *, attempt: str, directory: str, env: dict[str, str]) -> Any:
        self._daemon.require_alive()
        stage = self._daemon.stage
        stage.laws.require(directory.endswith(attempt.replace(".", "/")), "a place of its own")
        launch = stage.programs.launch(call, attempt=attempt, env=env)
        self._daemon.launches.append(launch)
        await launch.moved.wait()
        self._daemon.require_alive()
        return launch.running

    async def attach(self, *, attempt: str, directory: str) -> Taken | NotThere | None:
        self._daemon.require_alive()
        found = await self._daemon.stage.programs.attach(attempt)
        if found is None and os.path.isdir(directory):
            os.rename(directory, f"{directory}.void")
        return found

    async def detach(self) -> None:
        """Programs do not end with us."""

    async def aclose(self) -> None:
        """Nothing is kept alive."""


# --- stores ------------------------------------------------------------------------------------


class WatchedDatabase(Database):
    """Tells when decisions are durable."""

    def __init__(self, path: Path, daemon: Daemon) -> None:
        super().__init__(path)
        self._daemon = daemon

    def write(self, writes: Writes) -> None:
        self._daemon.before_commit()
        super().write(writes)
        self._daemon.after_commit()


class Disk:
    """What is left of a daemon: its records."""

    def __init__(self, place: Path, *, sqlite: bool) -> None:
        self._path = place / "records.sqlite"
        self._is_sqlite = sqlite
        self._memory: MemoryStore | None = None
        self._database: WatchedDatabase | None = None

    async def open(self, daemon: Daemon) -> MemoryStore | SqliteStore:
        now = daemon.stage.wall()

        def since(facts: Mapping[str, str]) -> tuple[float, float]:
            stopped_s = daemon.clock.follow(last_instant(facts))
            return daemon.clock.now(), stopped_s

        if self._is_sqlite:
            self.close()
            self._database = WatchedDatabase(self._path, daemon)
            return await open_sqlite(self._path, now=now, since=since, database=self._database)
        self._memory = await _reborn(self._memory, since)
        return self._memory

    def close(self) -> None:
        """What the kernel does with the files of a dead process."""
        if self._database is not None:
            self._database.close()
            self._database = None


async def _reborn(before: MemoryStore | None, since: Since) -> MemoryStore:
    """The records of a memory store, as if they had been on a disk."""
    after = MemoryStore()
    if before is None:
        return after
    left = before._mirror
    now, stopped_s = since(left.facts)
    running = {one.running.attempt for one in left.active.values() if one.running is not None}
    mirror = Mirror()
    mirror.load(
        LoadedRecords(
            health=[
                from_disk(one, now=now, stopped_s=stopped_s, running=running)
                for one in left.health.values()
            ],
            meters=tuple(left.meters.values()),
            sessions=left.sessions(limit=10_000),
            active=tuple(left.active.values()),
            finished=left.finished,
            last_seq=left.last_seq,
        )
    )
    for one in left.ended.values():
        mirror.remember(one)
    mirror._journal.extend(left._journal)
    after._mirror = mirror
    after._stories = before._stories
    mirror.facts = left.facts
    return after


class Clock(SystemClock):
    def __init__(self, stage: Stage) -> None:
        super().__init__(wall=stage.wall, elapsed=stage.uptime, awake=stage.time)
        self._boot = stage.boot

    def boot_id(self) -> str:
        return self._boot
