"""
Running attempts: what transports start, and what goes on when the daemon is dead.

Truth is here: who runs, since when, in which condition its provider is. The daemon sees no more of
it than chunks and an exit.
"""

from collections.abc import AsyncIterator
from random import Random

import anyio
from tests.simulation.agents import BLAME, FOREVER, Play, answers, fails, talks, waits
from tests.simulation.script import Member
from tests.simulation.stage import Stage

from fallbackd.core.ids import AttemptId, delegation_of
from fallbackd.core.protocol import Call, Chunk, CommandLine, Exit, NotStarted, ProcessExit
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation
from fallbackd.core.work.sessions import resumed_conversation

BLIND = frozenset({Reason.TIMEOUT, Reason.STALLED})
"""What a program is blamed for that could not run for a while."""


class Program:
    """One attempt in the world. `exit` is how it ended, None while it runs."""

    def __init__(
        self, stage: Stage, attempt: str, member: Member, delegation: Delegation, play: Play
    ) -> None:
        self.stage = stage
        self.attempt = AttemptId(attempt)
        self.member = member
        self.delegation = delegation
        self.play = play
        self.began_s = stage.elapsed()
        self.blame = play.blame
        self.text = f"answer of {attempt}"
        self.log: list[Chunk] = []
        self.log_bytes = 0
        self.exit: Exit | None = None
        self.is_unproven = False
        """Nobody could see it go: it counts as running for nobody."""
        self.changed = anyio.Event()
        self.stopping = anyio.Event()
        self._grace_s = 0.0
        luck = Random(f"{stage.script.seed} {attempt} stop")
        self._habit = luck.choices(
            ("polite", "slow", "finishes", "unproven"), weights=(60, 20, 10, 3)
        )[0]

    @property
    def is_alive(self) -> bool:
        return self.exit is None

    async def live(self) -> None:
        if self.play.nests:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._show_life)
                await self.stage.nest(self)
                tasks.cancel_scope.cancel()
        for delay_s, stream, text in self.play.lines:
            if not await self._goes_on(delay_s):
                return
            self._print(stream, text)
        if await self._goes_on(self.play.end_s):
            self._end(ProcessExit(gone=True, code=self.play.code, signal=self.play.signal))

    async def _show_life(self) -> None:
        while True:
            self._print(*waits(self.member.kind))
            await anyio.sleep(50.0)

    async def _goes_on(self, for_s: float) -> bool:
        """False: it was stopped meanwhile, and is over."""
        with anyio.move_on_after(None if for_s == FOREVER else for_s):
            await self.stopping.wait()
        if not self.stopping.is_set():
            return True
        await self._stopped()
        return False

    async def _stopped(self) -> None:
        match self._habit:
            case "polite":
                await anyio.sleep(0.05)
                self._end(ProcessExit(gone=True, signal=15, stopped=True))
            case "finishes" if self._can_finish():
                for _, stream, text in self.play.lines[len(self.log) :]:
                    self._print(stream, text)
                self._end(ProcessExit(gone=True, code=0, stopped=True))
            case "unproven":
                await anyio.sleep(self._grace_s + 5.0)
                self.is_unproven = self.is_alive  # not where the machine lost its power meanwhile
                self._end(ProcessExit(signal=9, stopped=True, gone=False))
            case _:
                await anyio.sleep(self._grace_s + 0.1)
                self._end(ProcessExit(gone=True, signal=9, stopped=True))

    def _can_finish(self) -> bool:
        is_whole = self.play.end_s != FOREVER and self.play.code == 0
        return is_whole and self.member.kind == "codex" and len(self.log) <= len(self.play.lines)

    def lose_power(self) -> None:
        """The machine is started anew: nobody knows how it ended."""
        self._over(ProcessExit(gone=True, note="the machine was restarted", rebooted=True))

    def _print(self, stream: str, text: str) -> None:
        data = text.encode()
        self.log.append(Chunk(stream, data, self.stage.wall()))  # type: ignore[arg-type]
        self.log_bytes += len(data)
        self._tell()

    def _end(self, exit: ProcessExit) -> None:
        if self.exit is not None:
            return  # it lost its power before
        if self.play.writes:
            self.stage.touch(self.delegation.cwd)
        self._over(exit)

    def _over(self, exit: ProcessExit) -> None:
        self.exit = exit
        self.stage.tell(f"{self.attempt} exits {exit.code} {exit.signal} gone={exit.gone}")
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def stop(self, grace_s: float) -> None:
        if not self.stopping.is_set():
            self._grace_s = grace_s
            self.stopping.set()


class Taken:
    """What a daemon holds of a program: `Running`."""

    def __init__(self, program: Program, *, recorded_bytes: int) -> None:
        self._program = program
        self.recorded_bytes = recorded_bytes
        self.log_bytes = 0
        self.pid = 4242

    async def chunks(self) -> AsyncIterator[Chunk]:
        program, number = self._program, 0
        while True:
            while number < len(program.log):
                chunk = program.log[number]
                number += 1
                self.log_bytes += len(chunk.data)
                yield chunk
            if program.exit is not None:
                return
            await program.changed.wait()

    def stop(self, *, grace_s: float) -> None:
        self._program.stop(grace_s)

    @property
    def exit(self) -> Exit:
        assert self._program.exit is not None
        return self._program.exit


class NotThere:
    """A program that the operating system could not start."""

    recorded_bytes = 0
    log_bytes = 0
    pid = None

    def __init__(self, path: str, at: float) -> None:
        self.exit = NotStarted(
            error="ENOENT", text=f"{path}: no such file", path=path, at=at, gone=True
        )

    async def chunks(self) -> AsyncIterator[Chunk]:
        for chunk in ():
            yield chunk

    def stop(self, *, grace_s: float) -> None:
        """There is nothing."""


class Launch:
    """A program that is about to start. Whoever is first claims its place, or fences it."""

    def __init__(self) -> None:
        self.is_claimed = False
        self.is_fenced = False
        self.running: Taken | NotThere | None = None
        self.moved = anyio.Event()


class Programs:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.known: dict[str, Program] = {}
        self.missing: set[str] = set()
        """Attempts whose program was not there."""
        self._launches: dict[str, Launch] = {}
        self._luck = Random(f"{stage.script.seed} launches")

    def alive(self) -> list[Program]:
        return [one for one in self.known.values() if one.is_alive]

    def launch(self, call: Call, *, attempt: str, env: dict[str, str]) -> Launch:
        assert isinstance(call, CommandLine)
        self.stage.laws.require(env["FALLBACKD_ATTEMPT"] == attempt, "it is marked as itself")
        launch = self._launches[attempt] = Launch()
        self.stage.tasks.start_soon(self._launch, launch, call, attempt)
        return launch

    async def _launch(self, launch: Launch, call: CommandLine, attempt: str) -> None:
        stage = self.stage
        slowness = self._luck.choice((0.0, 0.01, 0.01, 0.6))
        await anyio.sleep(slowness)
        if launch.is_fenced:
            return
        launch.is_claimed = True
        await anyio.sleep(slowness)
        if launch.is_fenced:
            return
        delegation = stage.record_of(delegation_of(AttemptId(attempt)))
        member = stage.member(delegation.attempts[-1].backend)
        if stage.condition(member) == "missing":
            self.missing.add(attempt)
            launch.running = NotThere(call.argv[0], stage.wall())
        else:
            program = Program(stage, attempt, member, delegation, self._play(member, attempt))
            stage.laws.began(program)
            self.known[attempt] = program
            stage.tell(f"{attempt} runs on {member.backend.id}: {stage.condition(member)}")
            stage.tasks.start_soon(program.live)
            launch.running = Taken(program, recorded_bytes=0)
        launch.moved.set()

    async def attach(self, attempt: str) -> Taken | NotThere | None:
        """What a new daemon finds of an attempt that a dead one has begun."""
        launch = self._launches.get(attempt)
        if launch is None:
            return None
        while launch.is_claimed and launch.running is None:
            await anyio.sleep(0.02)
        if launch.running is None:
            launch.is_fenced = True
            return None
        program = self.known.get(attempt)
        if program is None:
            return launch.running
        return Taken(program, recorded_bytes=program.log_bytes)

    def lose_power(self) -> None:
        for launch in self._launches.values():
            launch.is_fenced = True
            launch.is_claimed = launch.running is not None
        for program in self.alive():
            program.lose_power()

    def _play(self, member: Member, attempt: str) -> Play:
        stage = self.stage
        luck = Random(f"{stage.script.seed} {attempt}")
        delegation = stage.record_of(delegation_of(AttemptId(attempt)))
        takes_s = member.takes_s * (0.5 + luck.random())
        if not stage.has_route and not member.backend.loopback:
            failed = fails(member.kind, "unreachable", stated_s=None, takes_s=0.5, luck=luck)
            return failed._replace(blame=frozenset())
        spell = stage.spell(member)
        if spell is None or spell.condition == "missing":
            text = f"answer of {attempt}"
            task = stage.task_of(delegation)
            answered = answers(member.kind, task, text, takes_s=takes_s, luck=luck)
            return talks(answered, self._thread(delegation, attempt, luck))
        stated_s = None
        left_s = spell.end_s - stage.elapsed()
        match spell.tells:
            case "truth":
                stated_s = left_s + 1
            case "too_short":
                stated_s = 5.0
            case "too_long":
                stated_s = left_s * 10 + 3_000_000
        failed = fails(
            member.kind,
            spell.condition,
            stated_s=stated_s,
            takes_s=luck.choice((0.2, 2.0, 8.0)),
            luck=luck,
            # In an outage no provider answers at all.
            begins=stage.script.outage is None and stage.task_of(delegation) == "writes",
        )
        return talks(failed, self._thread(delegation, attempt, luck))

    def _thread(self, delegation: Delegation, attempt: str, luck: Random) -> str:
        """What the program calls its conversation."""
        record = delegation.attempt(AttemptId(attempt))
        resumed = None if record is None else resumed_conversation(delegation, record)
        own = "thread-" + attempt.replace(".", "-")
        return own if resumed is None or luck.random() < 0.1 else resumed

    def blame_of(self, attempt: str) -> frozenset[Reason]:
        """What its backend may be marked for."""
        blame: frozenset[Reason] = frozenset()
        if attempt in self.missing:
            blame = BLAME["missing"]
        elif (found := self.known.get(attempt)) is not None:
            blame = found.blame
            if self.stage.slept_since(found.began_s):
                blame |= BLIND
        name = delegation_of(AttemptId(attempt))
        record = self.stage.record_of(name).attempt(AttemptId(attempt))
        before = None if record is None else record.retry_of or record.resumes
        if before is not None:
            blame |= self.blame_of(before)  # one patience with both
        return blame
