"""Prompts to residents in tests: a double of a program that stays, started as a real process."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec import structs
from tests.support.served import LIMIT_S, Ticks

from fallbackd.core.protocol import Chunk, CommandLine, Exit, ProcessExit, Residency
from fallbackd.ports.transport import Running, Unsent
from fallbackd.transports.process.transport import ProcessTransport
from fallbackd.transports.resident.transport import ResidentLimits, ResidentTransport
from fallbackd.transports.secrets import SecretSources

DOUBLE = Path(__file__).parent.parent / "transports" / "data" / "resident_double.py"


class Heard:
    def __init__(self, running: Running) -> None:
        self.running = running
        self.chunks: list[Chunk] = []

    async def listen(self, when: Callable[["Heard"], Any] | None = None) -> "Heard":
        with anyio.fail_after(LIMIT_S):
            async for chunk in self.running.chunks():
                self.chunks.append(chunk)
                if when is not None:
                    when(self)
        return self

    @property
    def exit(self) -> Exit:
        return self.running.exit

    @property
    def ended(self) -> ProcessExit:
        assert isinstance(self.exit, ProcessExit), self.exit
        return self.exit

    @property
    def output(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks if chunk.stream == "stdout")

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = []
        for line in self.output.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("type") == kind:
                found.append(event)
        return found

    @property
    def text(self) -> str | None:
        results = self.events("result")
        return results[-1]["result"] if results else None


class Place:
    """A transport, and what the double notes of it."""

    def __init__(self, transport: ResidentTransport, root: Path) -> None:
        self.transport = transport
        self.root = root
        self.start = ""
        self.work = root / "work"
        self.work.mkdir(exist_ok=True)
        self.count = len(list(root.glob("attempt*")))

    def call(
        self, prompt: str, *, resume: str | None = None, cwd: Path | None = None, **more: Any
    ) -> CommandLine:
        message = {"role": "user", "content": [{"type": "text", "text": prompt}]}
        stdin = json.dumps({"type": "user", "message": message}).encode() + b"\n"
        words = more.pop("words", ())
        argv = (sys.executable, str(DOUBLE), *words)
        residency = Residency(
            way="claude",
            argv=argv,
            conversation=resume,
            continues=() if resume is None else ("--resume", resume),
            session={"mode": "plan"},
            reads=(str(self.root / "settings"),),
            watches=True,
            stored=str(self.root / "{conversation}.jsonl"),
        )
        env = {"DOUBLE_NOTES": str(self.root / "notes"), "DOUBLE_START": self.start}
        return CommandLine(
            argv=argv if resume is None else (*argv, "--resume", resume),
            cwd=str(cwd or self.work),
            stdin=stdin,
            env={**env, **more.pop("env", {})},
            residency=structs.replace(residency, **more),
        )

    async def open(self, call: CommandLine) -> Running:
        self.count += 1
        directory = self.root / f"attempt{self.count}"
        directory.mkdir(mode=0o700)
        return await self.transport.open(
            call,
            attempt=f"d1.{self.count}",
            directory=str(directory),
            env={"FALLBACKD_ATTEMPT": f"d1.{self.count}"},
        )

    async def ask(
        self, prompt: str, *, when: Callable[[Heard], Any] | None = None, **more: Any
    ) -> Heard:
        return await Heard(await self.open(self.call(prompt, **more))).listen(when)

    async def attach(self, number: int = 1) -> "Running | Unsent | None":
        with anyio.fail_after(LIMIT_S):
            return await self.transport.attach(
                attempt=f"d1.{number}", directory=str(self.root / f"attempt{number}")
            )

    async def taken_up(self, number: int = 1) -> Heard:
        running = await self.attach(number)
        assert running is not None
        assert not isinstance(running, Unsent)
        return await Heard(running).listen()

    def notes(self, word: str) -> list[dict[str, Any]]:
        try:
            lines = (self.root / "notes").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [each for each in map(json.loads, lines) if each["word"] == word]

    @property
    def pids(self) -> list[int]:
        return [each["pid"] for each in self.notes("start")]

    async def noted(self, word: str, count: int = 1) -> list[dict[str, Any]]:
        with anyio.fail_after(LIMIT_S):
            while len(found := self.notes(word)) < count:
                await anyio.sleep(0.01)
        return found


@asynccontextmanager
async def staying(
    root: Path,
    *,
    most: int = 3,
    leaves: bool = False,
    is_killed: bool = False,
    has_memory: Callable[[], bool] = lambda: True,
    **limits: float,
) -> AsyncIterator[Place]:
    """
    Args:
        leaves: Turns at the end are left to a later transport, as by a daemon that ends.
        is_killed: Everything is left as it is, as by a daemon that was killed.
    """
    processes, clock = ProcessTransport(), Ticks()
    async with anyio.create_task_group() as tasks:
        transport = ResidentTransport(
            processes,
            tasks=tasks,
            directory=str(root / "residents"),
            clock=clock,
            secrets=SecretSources(environ={}, now=clock.now),
            most=lambda: most,
            has_memory=has_memory,
            limits=ResidentLimits(**limits),
        )
        await transport.take_up()
        try:
            yield Place(transport, root)
        finally:
            with anyio.CancelScope(shield=True):
                if is_killed:
                    tasks.cancel_scope.cancel()
                elif leaves:
                    await transport.detach()
                    await processes.detach()
                else:
                    await transport.aclose()
                    await processes.aclose()
            tasks.cancel_scope.cancel()
    await processes.detach()
