"""
Ends a family of processes whose runner is gone.

Without the runner there is no kernel proof, so this looks for what its children carry: the token
in their environment, their session and process group, and whoever descends from those. Gone is
what two looks in a row do not find. A process that changed its session and emptied its
environment and lost its parent before the first look is not found.
"""

import os
import signal
import time
from pathlib import Path

import anyio
from msgspec import Struct, structs

from fallbackd.transports.runner import tree

TOKEN_VARIABLE = "FALLBACKD_RUN"
ATTEMPT_VARIABLE = "FALLBACKD_ATTEMPT"
_LOOK_S = 0.02


class Family(Struct, frozen=True, kw_only=True):
    token: str = ""
    attempt: str = ""
    """Known instead of the token where there is no record of the start."""
    pid: int
    start: int
    """Clock ticks since boot at which `pid` started, or nobody of it had."""


async def end_family(family: Family, *, grace_s: float, bound_s: float) -> list[int]:
    """
    TERM, KILL after `grace_s`, until nobody is found or `bound_s` more have passed.

    Returns:
        The pids that are left: empty when the family is gone.
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
                tree.send_signal(each, signal.SIGTERM)
        await anyio.sleep(_LOOK_S)


def find_members(family: Family) -> list[tree.Process]:
    everybody = tree.processes()
    leader = tree.process(family.pid)
    if leader is not None and leader.start != family.start:
        family = structs.replace(family, pid=0)  # its number has been given to another one
    mark = f"{TOKEN_VARIABLE}={family.token}".encode()
    if not family.token:
        mark = f"{ATTEMPT_VARIABLE}={family.attempt}".encode()
    roots = {each.pid for each in everybody if _belongs(each, family, mark)}
    below = tree.descendants(roots, everybody)
    found = {each.pid: each for each in everybody if each.pid in roots}
    found |= {each.pid: each for each in below}
    found.pop(os.getpid(), None)
    return [each for each in found.values() if not each.is_dead]


def _belongs(process: tree.Process, family: Family, mark: bytes) -> bool:
    if process.start < family.start:
        return False  # older than the family: a number that was used before
    if family.pid > 1 and family.pid in (process.session, process.group):
        return True
    try:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return False
    return mark in environment.split(b"\0")
