"""
Ends a family of processes whose runner does not do it any more.

    runner alive    it is held still; as a sub-reaper it keeps everything below itself, so nothing
                    below it that lives is the proof that all of it has exited
    runner killed   its children are found by what they carry: the token and the directory in their
                    environment, their session and process group, and their descendants. One that
                    changed its session, emptied its environment and lost its parent is not found,
                    so finding none proves nothing. An empty control group does (`cgroup`).
"""

import os
import signal
import time
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from fallbackd.core.protocol import Exit
from fallbackd.transports.process.recording import read_exit
from fallbackd.transports.process.runner import cgroup, tree

TOKEN_VARIABLE = "FALLBACKD_RUN"
DIRECTORY_VARIABLE = "FALLBACKD_RUN_DIRECTORY"
RUNNER_NAME = "fallbackd-run"
_LOOK_S = 0.02
_CLEAN_LOOKS = 3
"""A process that forks and exits while the list is read can be missed once."""


class Family(Struct, frozen=True, kw_only=True):
    token: str = ""
    directory: str = ""
    """The private directory of the attempt, by which it is known where no record can be read."""
    pid: int
    start: int
    """Clock ticks since boot at which `pid` started; no process of the family is older."""


async def end_family(family: Family, *, grace_s: float, bound_s: float) -> list[int]:
    """
    TERM, KILL after `grace_s`, until no process is found or `bound_s` more have passed.

    Returns:
        The pids that are left. Empty: none is found any more, which proves nothing.
    """
    asked: set[tuple[int, int]] = set()
    kill_at = time.monotonic() + grace_s
    until = kill_at + bound_s
    clean_looks = 0
    while True:
        members = find_members(family)
        clean_looks = 0 if members else clean_looks + 1
        if clean_looks == 2:
            return []
        now = time.monotonic()
        if now >= until:
            return [each.pid for each in members]
        for each in members:
            if now >= kill_at:
                tree.send_signal(each, signal.SIGKILL)
            elif (each.pid, each.start) not in asked:
                asked.add((each.pid, each.start))
                _ask(each)
        await anyio.sleep(_LOOK_S)


async def end_below(runner: tree.Process, *, grace_s: float, bound_s: float) -> bool:
    """
    End everything below a runner that lives and does not answer. It is released afterwards.

    Returns:
        Whether all of it is proven to have exited. False also where the runner ended meanwhile.
    """
    asked: set[tuple[int, int]] = set()
    kill_at = time.monotonic() + grace_s
    until = kill_at + bound_s
    clean_looks = 0
    tree.send_signal(runner, signal.SIGSTOP)
    try:
        while True:
            below = tree.descendants([runner.pid], tree.processes())
            if not tree.is_same(runner):
                return False
            members = [each for each in below if not each.is_dead]
            clean_looks = 0 if members else clean_looks + 1
            if clean_looks == _CLEAN_LOOKS:
                return True
            now = time.monotonic()
            if now >= until:
                return False
            for each in members:
                if now >= kill_at:
                    tree.send_signal(each, signal.SIGKILL)
                elif (each.pid, each.start) not in asked:
                    asked.add((each.pid, each.start))
                    _ask(each)
            await anyio.sleep(_LOOK_S)
    finally:
        tree.send_signal(runner, signal.SIGCONT)


async def end_group(path: str, token: str, *, bound_s: float) -> bool:
    """
    End what is in the control group of an attempt, and remove it.

    Args:
        path: As it was recorded; empty: there is none.

    Returns:
        Whether nothing is left in it, which proves that all of the attempt has exited.
    """
    if not cgroup.is_of(path, token):
        return False
    is_over = await anyio.to_thread.run_sync(partial(cgroup.end, path, bound_s=bound_s))
    if is_over:
        cgroup.remove(path)
    return is_over


def find_runner(family: Family) -> tree.Process | None:
    """The runner above the processes that carry the marks of a family; None: none is found."""
    for member in find_members(family):
        above = tree.process(member.parent)
        while above is not None and above.pid > 1:
            if not above.is_dead and _name(above.pid) == RUNNER_NAME:
                return above
            above = tree.process(above.parent)
    return None


def find_members(family: Family) -> list[tree.Process]:
    processes = tree.processes()
    leader = tree.process(family.pid)
    if leader is not None and leader.start != family.start:
        family = structs.replace(family, pid=0)  # its number has been given to another one
    marks = {
        f"{name}={value}".encode()
        for name, value in ((TOKEN_VARIABLE, family.token), (DIRECTORY_VARIABLE, family.directory))
        if value
    }
    roots = {each.pid for each in processes if _belongs(each, family, marks)}
    below = tree.descendants(roots, processes)
    found = {each.pid: each for each in processes if each.pid in roots}
    found |= {each.pid: each for each in below}
    found.pop(os.getpid(), None)
    return [each for each in found.values() if not each.is_dead]


def recorded_exit(family: Family, runner: tree.Process | None) -> Exit | None:
    """
    The end of an attempt, as its runner has recorded it. A record that calls all of it gone is
    none while something of it lives: an agent of full permission may write one itself.

    Args:
        runner: The one that started it, if it lives.

    Raises:
        OSError: It cannot be looked at.
    """
    known = read_exit(family.directory)
    if known is not None and known.gone and (runner is not None or find_members(family)):
        return None
    return known


def _belongs(process: tree.Process, family: Family, marks: set[bytes]) -> bool:
    if process.start < family.start:
        return False  # older than the family: a number that was used before
    if family.pid > 1 and family.pid in (process.session, process.group):
        return True
    try:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return not marks.isdisjoint(environment.split(b"\0"))


def _ask(process: tree.Process) -> None:
    tree.send_signal(process, signal.SIGTERM)
    if process.state in "Tt":
        tree.send_signal(process, signal.SIGCONT)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
