"""A script played to its end, and the look at what is left."""

import asyncio
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio
import structlog
from tests.simulation import loop
from tests.simulation.callers import Callers
from tests.simulation.daemon import Daemon, Disk
from tests.simulation.deeds import do
from tests.simulation.ending import hold_bounds, hold_quiet, hold_recovery
from tests.simulation.laws import Laws
from tests.simulation.programs import Programs
from tests.simulation.script import write
from tests.simulation.stage import Stage

AWAY_S = (0.001, 0.1, 0.5, 30.0)
"""How long it takes until a daemon is started again."""
EXPECTED_ERRORS = frozenset({"attempt.survived"})


class Played(NamedTuple):
    seed: int
    trace: tuple[str, ...]
    broken: tuple[str, ...]
    attempts: int
    delegations: int
    lives: int

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


@contextmanager
def somewhere() -> Iterator[Path]:
    """A directory for many plays. In memory where there is one: nothing here needs a disk."""
    shared = "/dev/shm"
    root = tempfile.mkdtemp(prefix="plays-", dir=shared if os.path.isdir(shared) else None)
    place = Path(os.path.realpath(root))
    try:
        for name in ("w/x", "v"):
            (place / name).mkdir(parents=True)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def play(seed: int, place: Path, *, sqlite: bool = False) -> Played:
    """Play one seed in a directory of `somewhere`."""
    script = write(seed)
    own = place / "play"
    own.mkdir()
    try:
        with _errors() as errors:
            stage = Stage(script, own)
            stage.laws = Laws(stage)
            cast = Cast(stage, Disk(own, sqlite=sqlite))
            try:
                loop.run(lambda: _play(stage, cast))
            except BaseExceptionGroup as found:
                errors += traceback.format_exception(found)
            except loop.Stuck as stuck:
                errors.append(f"stuck: {stuck}")
            return Played(
                seed=seed,
                trace=tuple(stage.trace),
                broken=(*stage.laws.broken, *errors),
                attempts=len(stage.laws.starts),
                delegations=len(stage.laws.delegations),
                lives=cast.lives,
            )
    finally:
        shutil.rmtree(own, ignore_errors=True)


@contextmanager
def _errors() -> Iterator[list[str]]:
    """What the daemon logs as an error is a breach: nobody else would hear of it."""
    found: list[str] = []

    def keep(_: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        if event["event"] not in EXPECTED_ERRORS:
            found.append(f"the daemon logs {event}")
            if event.get("exc_info"):
                found.extend(traceback.format_exception(sys.exception()))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR)
    )
    try:
        yield found
    finally:
        structlog.configure(**before)


async def _play(stage: Stage, cast: "Cast") -> None:
    script = stage.script
    stage.time = asyncio.get_running_loop().time
    async with anyio.create_task_group() as tasks:
        stage.tasks = tasks
        stage.programs = Programs(stage)
        callers = Callers(stage)
        stage.nest = callers.nest
        with loop.threads(cast.in_thread):
            tasks.start_soon(cast.live)
            async with anyio.create_task_group() as scene:
                for ask in script.asks:
                    scene.start_soon(_at, ask.at_s, callers.ask, ask)
                for deed in script.deeds:
                    scene.start_soon(_at, deed.at_s, do, stage, callers, deed)
            await hold_quiet(stage, callers)
            hold_bounds(stage)
            await hold_recovery(stage, callers)
            await cast.close()
        tasks.cancel_scope.cancel()


async def _at(at_s: float, do_it: Any, *args: Any) -> None:
    await anyio.sleep(at_s)
    await do_it(*args)


class Cast:
    """The lives of the daemon, one after the other."""

    def __init__(self, stage: Stage, disk: Disk) -> None:
        self.lives = 0
        self._stage = stage
        self._disk = disk
        self._daemon: Daemon | None = None
        self._is_closing = False
        self._luck = Random(f"{stage.script.seed} away")
        self._closed = anyio.Event()

    async def live(self) -> None:
        while not self._is_closing:
            self.lives += 1
            self._daemon = Daemon(self._stage, self.lives)
            await self._daemon.live(self._open)
            self._disk.close()
            await anyio.sleep(self._luck.choice(AWAY_S))
        self._closed.set()

    async def _open(self, daemon: Daemon) -> Any:
        store = await self._disk.open(daemon)
        self._stage.laws.woke_up(store.peek())
        return store

    async def in_thread(self, work: Any) -> Any:
        assert self._daemon is not None
        return await self._daemon.in_thread(work)

    async def close(self) -> None:
        self._is_closing = True
        daemon = await self._stage.until_up()
        daemon.close()
        await self._closed.wait()
