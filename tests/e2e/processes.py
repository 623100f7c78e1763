"""What runs on this machine, as `/proc` shows it."""

import os
from collections.abc import Callable
from pathlib import Path

import anyio
from msgspec import Struct

HANG_S = 240.0
LOOK_S = 0.02


class Process(Struct, frozen=True, kw_only=True):
    pid: int
    argv: tuple[str, ...]
    env: tuple[str, ...]


def processes() -> list[Process]:
    """All that live, but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            argv = _words(entry / "cmdline")
            env = _words(entry / "environ")
        except OSError:
            continue  # it has ended, or is somebody else's
        if argv:  # a zombie has none
            found.append(Process(pid=int(entry.name), argv=argv, env=env))
    return found


def _words(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode(errors="replace").rstrip("\0").split("\0"))


def matching(wanted: Callable[[Process], bool]) -> list[Process]:
    return [each for each in processes() if wanted(each)]


async def appear(wanted: Callable[[Process], bool]) -> list[Process]:
    """Wait until there are some."""
    with anyio.fail_after(HANG_S):
        while not (found := matching(wanted)):
            await anyio.sleep(LOOK_S)
    return found


def runs(*argv: str) -> Callable[[Process], bool]:
    """These words, in a row, are part of its command line."""

    def wanted(process: Process) -> bool:
        words = process.argv
        return any(words[k : k + len(argv)] == argv for k in range(len(words)))

    return wanted


def belongs_to(delegation: str) -> Callable[[Process], bool]:
    """It carries the marks of an attempt of this delegation."""

    def wanted(process: Process) -> bool:
        return any(
            word.startswith(("FALLBACKD_ATTEMPT=", "FALLBACKD_DELEGATION=")) and delegation in word
            for word in process.env
        )

    return wanted
