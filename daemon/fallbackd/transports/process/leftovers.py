"""
Leftovers of an earlier daemon in the directory of an attempt: it runs still, has ended, or was
never started.

    claim   attempt.json   runner   exit.json
     no                                        never started: fenced with a claim of our own
     yes         no        alive        no     about to start: looked at again in a moment
     yes         yes       alive        no     runs: met at its line
     yes                   gone         yes    ended: judged by its record
     yes                   alive        yes    runs: its runner writes that record last
     yes                   gone         no     unknown: its processes are ended, which only its
                                                control group proves

A record that calls everything gone is none while anything of it lives (`orphans.recorded_exit`).
What cannot be read (a link in its place, a damaged record, no free descriptor) is none of these.
"""

import os
import secrets
import signal
import socket
import stat
import time
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from fallbackd.core.protocol import Exit, ProcessExit
from fallbackd.lib import privatefile, processes
from fallbackd.lib.failpoints import hit
from fallbackd.transports.process.orphans import (
    RUNNER_NAME,
    Family,
    end_below,
    end_family,
    end_group,
    find_members,
    find_runner,
    recorded_exit,
)
from fallbackd.transports.process.recording import clear_drafts, read_exit, read_record
from fallbackd.transports.process.runner import cgroup, tree
from fallbackd.transports.process.runner.meeting import (
    ATTEMPT_FILE,
    CLAIM_FILE,
    LINE_FILE,
    claim,
    line_path,
)
from fallbackd.transports.process.running import RunnerLimits, RunningProcess

MEETING_S = 5.0
"""Time that a runner that lives may take to be met: it is there within milliseconds."""
_LOOK_S = 0.02
REBOOTED = "the machine was restarted; how it ended is unknown"
UNRECORDED = "its runner has exited; how it ended is unknown"


class Identity(Struct, frozen=True, kw_only=True):
    """The claimant of a directory, and what was started there."""

    by: str = "runner"
    runner: int = 0
    runner_start: int = 0
    boot_id: str = ""
    pid: int = 0
    start: int = 0
    token: str = ""
    cgroup: str = ""


def fence(directory: str) -> bool:
    """
    See to it that nothing is ever started there. False: a runner was first.

    The directory is put aside, so that the attempt can be made after all.
    """
    try:
        handle = privatefile.open_directory(directory)
    except FileNotFoundError:
        return True
    try:
        claim(handle, by="daemon")
    except FileExistsError:
        found = read_identity(directory)
        if found is None or found.by != "daemon":  # or of one that did not come further
            return False
    finally:
        os.close(handle)
    hit("fence.claimed")
    os.rename(directory, f"{directory}.void-{secrets.token_hex(4)}")
    return True


async def take_up(
    directory: str, *, attempt: str, limits: RunnerLimits, now: Callable[[], float]
) -> RunningProcess | None:
    """
    Find what was started there.

    Returns:
        None: nothing was, and nothing will be.

    Raises:
        OSError: What was started there is unknown.
    """
    if (
        _recorded(directory) is None
        and await anyio.to_thread.run_sync(fence, directory)
        # Else the directory of something that runs was taken away.
        and not find_members(Family(directory=directory, pid=0, start=0))
    ):
        return None
    left = RunningProcess.left(
        directory,
        lambda: end_leftover(
            directory,
            grace_s=limits.stop_grace_s,
            bound_s=limits.kill_bound_s,
        ),
        limits,
        now,
    )
    until = time.monotonic() + MEETING_S
    while _recorded(directory) is None and time.monotonic() < until:
        found = read_identity(directory)
        if found is not None:
            runner = _runner(found) if found.boot_id == tree.boot_id() else None
            if runner is None:
                break
            if runner.state in "Tt":
                tree.send_signal(runner, signal.SIGCONT)
        line = _connect(directory, found)
        if line is not None:
            token = "" if found is None else found.token
            running = RunningProcess(line, directory, token, limits, now, attempt=attempt)
            try:
                is_met = await running.meet()
            except BaseException:
                running.release()
                raise
            if is_met:
                left.release()
                return running
            running.release()
        await anyio.sleep(_LOOK_S)
    return left


def read_identity(directory: str) -> Identity | None:
    """
    Read the identity of the attempt, else of the runner that is about to start it. None: neither is
    written yet, or neither can be made sense of.

    Raises:
        OSError: They cannot be looked at.
    """
    for name in (ATTEMPT_FILE, CLAIM_FILE):
        if (found := _identity(read_record(directory, name))) is not None:
            return found
    return None


def _identity(record: dict[str, Any] | None) -> Identity | None:
    try:
        found = None if record is None else msgspec.convert(record, Identity)
    except msgspec.ValidationError:
        return None
    return found if found is not None and found.runner > 0 and found.boot_id else None


def _recorded(directory: str) -> Exit | None:
    """
    Read how it ended; None: it has not, or that is not known.

    Raises:
        OSError: It cannot be looked at.
    """
    found = read_identity(directory)
    is_older = found is None or found.boot_id != tree.boot_id()
    runner = None if found is None or is_older else _runner(found)
    return recorded_exit(_family(directory, None if is_older else found), runner)


def _runner(of: Identity) -> tree.Process | None:
    """The runner that wrote the record, if it lives."""
    found = tree.process(of.runner)
    is_same = found is not None and found.start == of.runner_start and not found.is_dead
    return found if is_same else None


def runner_in(directory: str) -> tree.Process | None:
    """The runner that has claimed a directory in this boot, dead or alive; None: there is none."""
    found = read_identity(directory)
    if found is None or found.by != "runner" or found.boot_id != tree.boot_id():
        return None
    gone = tree.Process(found.runner, 0, 0, 0, "X", found.runner_start)
    return _runner(found) or gone


def is_unproven(directory: str) -> bool:
    """
    Return whether a runner of this boot has started something there that has not ended with proof:
    a record of its runner, or a control group that could be removed.
    """
    try:
        found, known = read_identity(directory), read_exit(directory)
    except OSError:
        return False
    if found is None or found.by != "runner" or found.boot_id != tree.boot_id():
        return False
    is_empty = cgroup.is_of(found.cgroup, found.token) and not os.path.exists(found.cgroup)
    return not is_empty and (known is None or not known.gone)


def _connect(directory: str, found: Identity | None) -> socket.socket | None:
    """
    Connect to its runner. None: no runner waits there, not yet or no longer, or another process in
    its place.
    """
    try:
        handle = privatefile.open_directory(directory)
    except FileNotFoundError:
        return None
    line = None
    try:
        seen = os.stat(LINE_FILE, dir_fd=handle, follow_symlinks=False)
        if not stat.S_ISSOCK(seen.st_mode):
            return None
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        line.connect(line_path(handle))
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        if line is not None:
            line.close()
        return None
    finally:
        os.close(handle)
    if not _is_runner(processes.peer(line).pid, found):
        line.close()
        return None
    return line


def _is_runner(pid: int, found: Identity | None) -> bool:
    """Return whether a process is the runner of the claim, or any if that cannot be read."""
    runner = None if found is None or found.boot_id != tree.boot_id() else _runner(found)
    return tree.name_of(pid) == RUNNER_NAME and (runner is None or runner.pid == pid)


async def end_leftover(directory: str, *, grace_s: float, bound_s: float) -> Exit | None:
    """
    End an attempt that an earlier daemon left running, by what its directory says of it.

    Returns:
        How it ended; None when nothing was ever started there.
    """
    exit, _ = await _end(directory, grace_s=grace_s, bound_s=bound_s)
    return exit


async def end_stray(directory: str, *, grace_s: float, bound_s: float) -> bool:
    """
    End what is left of an attempt that no unfinished work waits for.

    Returns:
        Whether nothing of it is known to run. That is no proof: without one its own work has
        failed for that reason, and other work is not held up by what was never found.
    """
    _, left = await _end(directory, grace_s=grace_s, bound_s=bound_s)
    return not left


async def _end(
    directory: str, *, grace_s: float, bound_s: float
) -> tuple[Exit | None, Sequence[int]]:
    """End it. Returns how it ended, and its processes that survived."""
    found = None
    try:
        if (known := _recorded(directory)) is not None:
            return known, ()
        found = read_identity(directory)
        may_be_claimed = is_claimed = privatefile.exists(os.path.join(directory, CLAIM_FILE))
    except OSError:
        may_be_claimed, is_claimed = True, False
    if found is not None and found.by == "daemon":
        return None, ()
    if found is not None and tree.is_other_boot(found.boot_id):
        return ProcessExit(gone=True, note=REBOOTED, rebooted=True), ()
    family = _family(directory, found)
    if not may_be_claimed and not find_members(family):
        return None, ()
    runner = (None if found is None else _runner(found)) or find_runner(family)
    if runner is not None:
        limit_s = grace_s + bound_s
        told = await _ask(runner, directory, limit_s=limit_s) if is_claimed else None
        if told is not None:
            return told, ()
        if await end_below(runner, grace_s=grace_s, bound_s=bound_s):
            return ProcessExit(gone=True, note="its runner was held; how it ended is unknown"), ()
    group = "" if found is None else found.cgroup
    return await _end_by_force(family, group, grace_s=grace_s, bound_s=bound_s)


def _family(directory: str, found: Identity | None) -> Family:
    if found is None:
        return Family(directory=directory, pid=0, start=0)
    return Family(
        directory=directory,
        token=found.token,
        pid=found.pid,
        start=found.start or found.runner_start,
    )


async def _end_by_force(
    family: Family, group: str, *, grace_s: float, bound_s: float
) -> tuple[Exit, Sequence[int]]:
    """End it without its runner."""
    left = await end_family(family, grace_s=grace_s, bound_s=bound_s)
    is_proven = await end_group(group, family.token, bound_s=bound_s)
    clear_drafts(family.directory)
    if is_proven or not left:
        return ProcessExit(gone=is_proven, note=UNRECORDED), ()
    note = f"{UNRECORDED}; not killed: {', '.join(map(str, left))}"
    return ProcessExit(gone=is_proven, note=note), left


async def _ask(runner: tree.Process, directory: str, *, limit_s: float) -> Exit | None:
    """Let a runner end its program. None: it did not, or left no record of that."""
    try:
        handle = os.pidfd_open(runner.pid)
    except ProcessLookupError:
        return read_exit(directory)
    with anyio.move_on_after(limit_s):
        try:
            tree.send_signal(runner, signal.SIGTERM)
            tree.send_signal(runner, signal.SIGCONT)
            await anyio.wait_readable(handle)
        finally:
            os.close(handle)
    return read_exit(directory)
