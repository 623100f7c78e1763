"""Prompts to a helper server in tests: a double of `opencode serve`, started as a real process."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import wires

from fallbackd.backends.opencode_server import OpencodeEventReader
from fallbackd.core.protocol import (
    Chunk,
    CommandLine,
    Exit,
    Observation,
    Reply,
    Retrying,
    ServedPrompt,
    ToolStarted,
)
from fallbackd.lib.processes import read_variables
from fallbackd.ports.transport import Running, Unsent
from fallbackd.transports.opencode.server import ServerLimits
from fallbackd.transports.opencode.transport import ServedTransport
from fallbackd.transports.process.runner import tree
from fallbackd.transports.process.transport import ProcessTransport

LIMIT_S = 60.0
"""Only a hang takes this long."""
_TESTS = Path(__file__).parent.parent
DOUBLE = _TESTS / "transports" / "data" / "opencode_double.py"
RECORDED = _TESTS / "backends" / "data" / "opencode_events"

When = Callable[[Running, Observation], None]


class Ticks:
    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        self.at += 1.0
        return self.at

    def slept(self) -> float:
        return 0.0

    def step(self) -> float:
        return 0.0

    def boot_id(self) -> str:
        return "boot"


class Place:
    """A transport with its server, and what the double notes of it."""

    def __init__(self, transport: ServedTransport, root: Path, start: str) -> None:
        self.transport = transport
        self.root = root
        self.start = start
        self.work = root / "work"
        self.work.mkdir(exist_ok=True)
        self.attempts = len(list(root.glob("attempt*")))

    def call(self, prompt: str, *, cwd: Path | None = None, **more: Any) -> ServedPrompt:
        server = CommandLine(
            argv=(sys.executable, str(DOUBLE), "serve"),
            cwd=str(self.root),
            env={
                "DOUBLE_NOTES": str(self.root / "notes"),
                "DOUBLE_START": self.start,
                "RECORDED_EVENTS": str(RECORDED),
            },
        )
        cwd = self.work if cwd is None else cwd
        more = {"key": "k", "server": server, "title": "t"} | more
        return ServedPrompt(prompt=prompt, cwd=str(cwd), **more)

    async def open(self, call: ServedPrompt) -> Running:
        self.attempts += 1
        directory = self.root / f"attempt{self.attempts}"
        directory.mkdir(mode=0o700)
        return await self.transport.open(
            call, attempt=f"d1.{self.attempts}", directory=str(directory), env={}
        )

    async def ask(self, prompt: str, *, when: When | None = None, **more: Any) -> "Heard":
        heard = Heard(await self.open(self.call(prompt, **more)))
        await heard.listen(when)
        return heard

    async def attach(self, number: int = 1) -> "Running | Unsent | None":
        with anyio.fail_after(LIMIT_S):
            return await self.transport.attach(
                attempt=f"d1.{number}", directory=str(self.root / f"attempt{number}")
            )

    async def taken_up(self, number: int = 1) -> "Heard":
        """The attempt of an earlier daemon, to its end."""
        running = await self.attach(number)
        assert running is not None
        assert not isinstance(running, Unsent)
        heard = Heard(running)
        await heard.listen()
        return heard

    def notes(self, word: str) -> list[dict[str, Any]]:
        return notes(self.root, word)


def notes(root: Path, word: str) -> list[dict[str, Any]]:
    """What the double has written down."""
    try:
        lines = (root / "notes").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [each for each in map(json.loads, lines) if each["word"] == word]


class Heard:
    def __init__(self, running: Running) -> None:
        self.running = running
        self.reader = OpencodeEventReader()
        self.chunks: list[Chunk] = []
        self.seen: list[Observation] = []
        self.arrived = anyio.Event()
        self.ended = anyio.Event()

    async def listen(self, when: When | None = None) -> None:
        with anyio.fail_after(LIMIT_S):
            async for chunk in self.running.chunks():
                self.chunks.append(chunk)
                if chunk.stream != "event":
                    continue
                for each in self.reader.feed_event(json.loads(chunk.data), chunk.at):
                    self.seen.append(each)
                    if isinstance(each, Retrying | ToolStarted):
                        self.arrived.set()
                    if when is not None:
                        when(self.running, each)
        self.ended.set()

    @property
    def exit(self) -> Exit:
        return self.running.exit

    @property
    def text(self) -> str:
        outcome = self.reader.outcome(self.exit)
        assert isinstance(outcome, Reply), outcome
        return outcome.text

    def events(self, kind: str) -> list[dict[str, Any]]:
        read = [json.loads(each.data) for each in self.chunks if each.stream == "event"]
        return [each for each in read if each["type"] == kind]

    @property
    def tool_pid(self) -> int:
        started = next(each for each in self.seen if isinstance(each, ToolStarted))
        pid: int = json.loads(started.key.partition(" ")[2])["pid"]
        return pid


@asynccontextmanager
async def serving(
    root: Path, *, start: str = "", leaves: bool = False, **limits: float
) -> AsyncIterator[Place]:
    """
    A daemon's run of the transport: what an earlier one has left is taken up first.

    Args:
        leaves: At its end servers and prompts are left to the next one, as by a daemon that dies.
    """
    processes = ProcessTransport()
    async with anyio.create_task_group() as tasks:
        transport = ServedTransport(
            processes,
            tasks=tasks,
            directory=str(root / "servers"),
            clock=Ticks(),
            limits=ServerLimits(**limits),
        )
        try:
            await transport.take_up()
            yield Place(transport, root, start or wires.chosen)
        finally:
            with anyio.CancelScope(shield=True), anyio.fail_after(LIMIT_S):
                await (transport.detach() if leaves else transport.aclose())
    await (processes.detach() if leaves else processes.aclose())


@asynccontextmanager
async def listening(running: Running) -> AsyncIterator["Heard"]:
    """To what is under way, until the end of the block; that leaves it under way."""
    heard = Heard(running)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heard.listen)
        yield heard
        tasks.cancel_scope.cancel()


@pytest.fixture
def doubles_end(tmp_path: Path) -> Iterator[None]:
    """Also those that a test which failed has left."""
    yield
    for each in notes(tmp_path, "start"):
        found = tree.process(each["pid"])
        if found is not None and read_variables(found.pid, ("DOUBLE_NOTES",)):
            tree.send_signal(found, signal.SIGKILL)


def stop_at(kind: type[Observation], *, grace_s: float = 20.0) -> When:
    def when(running: Running, seen: Observation) -> None:
        if isinstance(seen, kind):
            running.stop(grace_s=grace_s)

    return when


def lives(pid: int) -> bool:
    found = tree.process(pid)
    return found is not None and not found.is_dead


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(LIMIT_S):
        while not is_so():
            await anyio.sleep(0.01)


class Script:
    """Tells the double what to do next, also while no daemon is there."""

    def __init__(self, root: Path) -> None:
        self.path = root / "script"
        self._notes = root / "notes"
        if not self.path.exists():
            os.mkfifo(self.path)

    def prompt(self) -> str:
        return f"obey {self.path}"

    async def say(self, *lines: str) -> None:
        """Returns when the last one is done."""
        done = self._done()
        handle = os.open(self.path, os.O_RDWR)  # does not wait for a reader
        try:
            for line in lines:
                os.write(handle, f"{line}\n".encode())
            await until(lambda: self._done() == done + len(lines))
        finally:
            os.close(handle)

    def _done(self) -> int:
        return self._notes.read_text().count('"obeyed"') if self._notes.exists() else 0


async def leave(tmp_path: Path, *lines: str, shown: str, **more: Any) -> Script:
    """A daemon that has shown the event `shown` of a prompt, and its tool if it has one."""
    script = Script(tmp_path)
    async with (
        serving(tmp_path, leaves=True) as place,
        listening(await place.open(place.call(script.prompt(), **more))) as heard,
    ):
        await script.say(*lines)
        await until(lambda: bool(heard.events(shown)))
        if "tool" in lines:
            await until(lambda: any(isinstance(each, ToolStarted) for each in heard.seen))
    return script
