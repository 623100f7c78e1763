"""
One daemon with its callers: `die_at` a failpoint or `die_after` a while, `rise`, `settle`, audit.

    async with scene(tmp_path, seed="7", callers=4) as play:
        await play.die_at("store.commit.before", 3)
        await play.finish()
"""

import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import anyio
import anyio.abc
from tests.support.daemon import HANG_S, Daemon, DaemonDied
from tests.support.survival import quick_daemon
from tests.support.survival.audit import Audit
from tests.support.survival.load import BACK_S, Caller, Said, configure, voice_file
from tests.support.survival.points import AFTER, MEETING, RUNNER

from fallbackd.lib.failpoints import OPTION, VARIABLE
from fallbackd_client.aio import AsyncClient

LOOK_S = 0.01
REACHED_S = 300.0
"""A point that the load does not reach in this time it never reaches, also on a busy machine."""

Chain = Sequence[tuple[str, int]]
"""Failpoints and their hits, one death after the other."""


def _lasts(log: Path) -> bool:
    return log.read_bytes() == b"begun\n" and not (log.parent / "exit.json").exists()


class NotReached(AssertionError):
    """The load does not come by this point: it would show nothing."""


class Scene:
    def __init__(self, tmp_path: Path, *, seed: str, callers: int, pause_s: float) -> None:
        self.place = tmp_path
        self.said = Said()
        self.deaths = 0
        self._imported = tmp_path / "voice-platform-health.json"
        self.daemon = Daemon(tmp_path, config="", env={}, arguments=(), wrapper=())
        self.daemon.program = (str(Path(quick_daemon.__file__)),)
        self._text_of = configure(self.daemon.bin_dir, imported=self._imported)
        self._seed = seed
        self._callers = callers
        self._pause_s = pause_s
        self._number = 0
        self._is_over = False
        self._writing = anyio.Lock()

    async def _reconfigure(self) -> None:
        async with self._writing:
            self._number += 1
            self._imported.write_text(voice_file(self._number))
            draft = self.daemon.config_path.with_name("draft")
            draft.write_text(self._text_of(self._number))
            draft.replace(self.daemon.config_path)

    async def _call(self, number: int) -> None:
        client = AsyncClient(
            self.daemon.socket, timeout_s=2 * HANG_S, reconnect_s=BACK_S, connect_s=BACK_S
        )
        while not Path(self.daemon.socket).exists():  # nobody has ever been there
            await anyio.sleep(LOOK_S)
        async with client:
            name = f"c{number}"
            caller = Caller(
                client,
                self.said,
                name=name,
                seed=f"{self._seed}/{name}",
                pause_s=self._pause_s,
                reconfigure=self._reconfigure,
            )
            await caller.run(lambda: self._is_over)

    # --- dying and coming back -------------------------------------------------------------

    async def die_at(self, point: str, hit: int = 1) -> None:
        """Start it so that it ends there; the callers bring it there."""
        assert self.daemon.process is None
        before = self._said_of(point)
        try:
            with anyio.fail_after(REACHED_S):
                if point in MEETING:
                    await self._meet_the_next(point, hit)
                elif point in AFTER and hit > 1:
                    await self._come_back_to_several(point, hit)
                else:
                    await self._start_to_die(point, hit)
                while self._said_of(point) == before and self._is_alive():
                    await anyio.sleep(LOOK_S)
        except TimeoutError as error:
            raise NotReached(f"{point}, hit {hit}") from error
        if self.daemon.process is not None:
            await self.daemon.kill()
        if self._said_of(point) == before:
            raise NotReached(f"{point}: it died elsewhere\n{self.daemon.log()}")
        self.deaths += 1

    async def _start_to_die(self, point: str, hit: int) -> None:
        self.daemon.program = ("-X", OPTION, str(Path(quick_daemon.__file__)))
        self.daemon.env[VARIABLE] = f"{point}=kill@{hit}"
        try:
            await self.daemon.start()
        except DaemonDied:
            pass
        finally:
            self.daemon.program = (str(Path(quick_daemon.__file__)),)
            del self.daemon.env[VARIABLE]

    def _is_alive(self) -> bool:
        return self.daemon.process is not None and self.daemon.process.poll() is None

    async def _meet_the_next(self, point: str, hit: int) -> None:
        """Another daemon, for the runners that the one with the failpoint has started."""
        before = self._said_of(point)
        while True:
            known = self._begun()
            await self._start_to_die(point, hit)
            while not (begun := self._begun() - known):
                await anyio.sleep(LOOK_S)
            await self.daemon.kill()
            await self.daemon.start()
            # One that was being stopped already is not met: then there is another try.
            while begun & self._begun():
                if self._said_of(point) != before:
                    return
                await anyio.sleep(LOOK_S)
            await self.daemon.kill()

    async def _come_back_to_several(self, point: str, hit: int) -> None:
        """What only a start does, it does once for each attempt that the one before has left."""
        before = self._said_of(point)
        while True:
            known = self._begun()
            await self._start_to_die(point, hit)
            while len(begun := self._begun()) < hit or not begun - known:
                if self._said_of(point) != before or not self._is_alive():
                    return
                await anyio.sleep(LOOK_S)
            await self.daemon.kill()

    def _begun(self) -> set[Path]:
        """Attempts that last until they are stopped, and are not."""
        found: set[Path] = set()
        for place in (self.daemon.state_dir / "runs").glob("*"):
            with suppress(FileNotFoundError):  # what has ended is removed meanwhile
                found |= {log.parent for log in place.glob("*/output.log") if _lasts(log)}
        return found

    def _said_of(self, point: str) -> int:
        return self.daemon.log().count(f"failpoint {point}\n")

    async def die_after(self, seconds: float) -> None:
        """Start it, and kill it that long after that, whatever it does: also before it serves."""

        async def start() -> None:
            try:
                await self.daemon.start()
            except DaemonDied:
                pass

        async with anyio.create_task_group() as life:
            life.start_soon(start)
            await anyio.sleep(seconds)
            if self.daemon.process is not None:
                self.daemon.send(signal.SIGKILL)
        if self.daemon.process is not None:
            await self.daemon.wait()
        self.deaths += 1

    async def rise(self) -> None:
        """Start it to stay."""
        await self.daemon.start()

    async def settle(self) -> None:
        """No new work from the callers; each gets the answers that it waits for."""
        self._is_over = True
        with anyio.fail_after(2 * HANG_S):
            await self._ended.wait()

    async def _run_callers(self) -> None:
        self._ended = anyio.Event()
        async with anyio.create_task_group() as callers:
            for number in range(self._callers):
                callers.start_soon(self._call, number)
        self._ended.set()


@asynccontextmanager
async def scene(
    tmp_path: Path, *, seed: str, callers: int, pause_s: float = 0.0
) -> AsyncIterator[Scene]:
    """
    Callers wait for a daemon from the start: `rise` or `die_at` brings the first one.

    Args:
        pause_s: The longest time for which a caller thinks before it asks for something else.
    """
    play = Scene(tmp_path, seed=seed, callers=callers, pause_s=pause_s)
    await play._reconfigure()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(play._run_callers)
            yield play
            tasks.cancel_scope.cancel()
        if play.daemon.process is not None:
            await play.daemon.stop()
    finally:
        play.daemon.end()


def shuffled(names: list[str], seed: str) -> list[str]:
    found = sorted(names)
    Random(seed).shuffle(found)
    return found


async def survives(tmp_path: Path, chain: Chain, *, seed: str, callers: int = 4) -> list[str]:
    """Die at one point after the other, rise, settle. Returns what is wrong then, in words."""
    tmp_path.mkdir(exist_ok=True)
    is_spared = not any(point in RUNNER for point, _ in chain)
    async with scene(tmp_path, seed=seed, callers=callers) as play:
        for point, hit in chain:
            await play.die_at(point, hit)
        await play.rise()
        await play.settle()
        audit = Audit(play.daemon, play.said, is_spared=is_spared)
        await audit.run()
    return audit.problems


async def survive_all(
    tmp_path: Path, chains: Sequence[Chain], *, seed: str, at_once: int = 3
) -> dict[str, list[str]]:
    """Several daemons at the same time. Returns what is wrong, by chain."""
    problems: dict[str, list[str]] = {}
    limiter = anyio.CapacityLimiter(at_once)

    async def play(number: int, chain: Chain) -> None:
        async with limiter:
            found = await survives(tmp_path / str(number), chain, seed=f"{seed}/{number}")
            if found:
                problems[f"{number}: {chain}"] = found

    async with anyio.create_task_group() as plays:
        for number, chain in enumerate(chains):
            plays.start_soon(play, number, chain)
    return problems
