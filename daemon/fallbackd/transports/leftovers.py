"""
What an earlier daemon has left in the directory of an attempt: it runs still, has ended, or was
never started.

    claim   attempt.json   runner   exit.json
     no                                        never started: fenced with a claim of our own
     yes         no        alive        no     about to start: looked at again in a moment
     yes         yes       alive        no     runs: met at its line
     yes                                yes    ended: judged by its record
     yes                   gone         no     nobody knows: its family is ended
"""

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import anyio

from fallbackd.core.exchange import Exit, ProcessExit
from fallbackd.lib.failpoints import hit
from fallbackd.transports.orphans import Family, end_family
from fallbackd.transports.recording import read_exit, read_record
from fallbackd.transports.runner import tree
from fallbackd.transports.runner.attempt import ATTEMPT_FILE
from fallbackd.transports.runner.meeting import CLAIM_FILE, claim, line_path
from fallbackd.transports.running import RunnerLimits, RunningProcess

MEETING_S = 5.0
"""How long a runner that lives may take to be met: it is there within milliseconds."""
_LOOK_S = 0.02
REBOOTED = "the machine was started anew; how it ended is unknown"


def fence(directory: str) -> bool:
    """
    See to it that nothing is ever started there. False: a runner was first.

    The directory is put aside, so that the attempt can be made after all.
    """
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        claim(handle, by="daemon")
    except FileExistsError:
        if _record(directory).get("by") != "daemon":  # or of one that did not come further
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
    """
    if read_exit(directory) is None and await anyio.to_thread.run_sync(fence, directory):
        return None
    left = RunningProcess.left(
        directory,
        lambda: end_leftover(
            directory,
            grace_s=limits.stop_grace_s,
            bound_s=limits.kill_bound_s,
            attempt=attempt,
        ),
        limits,
        now,
    )
    until = time.monotonic() + MEETING_S
    while read_exit(directory) is None and time.monotonic() < until:
        record = _record(directory)
        if record.get("boot_id", tree.boot_id()) != tree.boot_id() or _runner(record) is None:
            break
        line = _connect(directory) if "token" in record else None
        if line is not None:
            running = RunningProcess(line, directory, record["token"], limits, now)
            if await running.meet():
                left.release()
                return running
            running.release()
        await anyio.sleep(_LOOK_S)
    return left


def _record(directory: str) -> dict[str, Any]:
    """Of the attempt, else of the runner that is about to start it; empty in between."""
    return read_record(directory, ATTEMPT_FILE) or read_record(directory, CLAIM_FILE) or {}


def _runner(record: dict[str, Any]) -> tree.Process | None:
    """The runner that wrote the record, if it lives. An empty record is of one that does."""
    if not record:
        return tree.process(os.getpid())
    found = tree.process(record["runner"])
    is_same = found is not None and found.start == record["runner_start"] and not found.is_dead
    return found if is_same else None


def _connect(directory: str) -> socket.socket | None:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        line.connect(line_path(handle))
    except OSError:  # nobody listens there: not yet, or no longer
        line.close()
        return None
    finally:
        os.close(handle)
    return line


async def end_leftover(
    directory: str, *, grace_s: float, bound_s: float, attempt: str = ""
) -> Exit | None:
    """
    End an attempt that an earlier daemon left running, by what its directory says of it.

    Args:
        attempt: Its id, by which its family is known before there is a record of it.

    Returns:
        How it ended; None when nothing was ever started there.
    """
    record = _record(directory)
    if (known := read_exit(directory)) is not None or not record:
        return known
    if record["boot_id"] != tree.boot_id():
        return ProcessExit(note=REBOOTED, rebooted=True)
    if (runner := _runner(record)) is not None:
        with anyio.move_on_after(grace_s + bound_s):
            handle = os.pidfd_open(runner.pid)
            try:
                tree.send_signal(runner, signal.SIGTERM)
                await anyio.wait_readable(handle)
            finally:
                os.close(handle)
        if (known := read_exit(directory)) is not None:
            return known
    if "token" in record:
        family = Family(token=record["token"], pid=record["pid"], start=record["start"])
    else:
        family = Family(attempt=attempt, pid=0, start=record["runner_start"])
    left = await end_family(family, grace_s=grace_s, bound_s=bound_s)
    return ProcessExit(gone=not left, note="its runner is gone; how it ended is unknown")
