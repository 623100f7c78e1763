"""Small programs for the process transport, and ways to look at them from outside."""

import os
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from fallbackd.core.protocol import Chunk, CommandLine
from fallbackd.transports.process.running import RunningProcess
from fallbackd.transports.process.transport import ProcessTransport

HANG_S = 60


@asynccontextmanager
async def transport(**options: Any) -> AsyncIterator[ProcessTransport]:
    made = ProcessTransport(**options)
    try:
        with anyio.fail_after(HANG_S * 3):
            yield made
    finally:
        await made.aclose()


def python(code: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", textwrap.dedent(code), *words)


def shell(code: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", textwrap.dedent(code))


def private_directory(tmp_path: Path, name: str = "attempt") -> str:
    directory = tmp_path / name
    directory.mkdir(mode=0o700)
    return str(directory)


async def start(
    by: ProcessTransport,
    argv: tuple[str, ...],
    directory: str,
    *,
    cwd: str = "/",
    marks: dict[str, str] | None = None,
    **call: Any,
) -> RunningProcess:
    return await by.open(
        CommandLine(argv=argv, cwd=cwd, **call),
        attempt="d1.1",
        directory=directory,
        env=marks or {},
    )


async def collect(running: RunningProcess) -> list[Chunk]:
    return [chunk async for chunk in running.chunks()]


def text_of(chunks: list[Chunk], stream: str = "stdout") -> bytes:
    return b"".join(chunk.data for chunk in chunks if chunk.stream == stream)


async def until(is_so: Callable[[], Any]) -> Any:
    """Wait for something that happens outside this process."""
    with anyio.fail_after(HANG_S):
        while not (found := is_so()):
            await anyio.sleep(0.01)
    return found


async def read_pid(path: Path) -> int:
    return int(await until(lambda: path.exists() and path.read_text().strip()))


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def pids_with(mark: str) -> list[int]:
    """Who carries `mark` in its environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment and is_alive(int(name)):
            found.append(int(name))
    return found


def runner_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def unique_mark() -> str:
    return f"{os.getpid()}-{time.monotonic_ns()}"
