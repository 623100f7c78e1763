"""Below which runner a process is, by the processes that the kernel names as its parents."""

import errno
import os
from collections.abc import Iterable, Mapping

from msgspec import Struct

from fallbackd.lib.listeners import open_sockets
from fallbackd.transports.process.runner import tree

MAX_DEPTH = 4096
_LOOKS = 8


class Started(Struct, frozen=True, kw_only=True):
    """A program that a daemon has started, with its runner."""

    attempt: str
    directory: str
    runner: tree.Process


def runner_above(pid: int, runners: Mapping[int, Started]) -> Started | None:
    """
    Args:
        pid: Of a process that lives until this has returned.
        runners: By process id.

    Raises:
        ProcessLookupError: It has exited.
        OSError: It cannot be determined: a process above it is hidden, too many are there, or they
            change all the time.
    """
    for _ in range(_LOOKS):
        line = _line(pid, runners)
        if line is None:
            continue
        if line and (known := _known(line[-1], runners)) is not None:
            return known
        # A parent that has exited is followed by another one: the same one twice has lived all the
        # time, and its number was not given to a process elsewhere.
        if all(_is_as_before(one) for one in line):
            return None
    raise OSError(errno.EAGAIN, "the processes above it change all the time")


def _known(one: tree.Process, runners: Mapping[int, Started]) -> Started | None:
    found = runners.get(one.pid)
    return found if found is not None and found.runner.start == one.start else None


def _line(pid: int, runners: Mapping[int, Started]) -> list[tree.Process] | None:
    """A process and those above it, up to a runner or to the first of all; None: look again."""
    found: list[tree.Process] = []
    while pid > 0 and pid != os.getpid():
        one = tree.process(pid)
        if one is None:
            try:
                os.kill(pid, 0)
            except PermissionError:
                return found  # hidden, and another user's, as of a login: a runner is this user's
            except ProcessLookupError:
                if not found:
                    raise
                return None  # it has exited meanwhile: the one below has another parent by now
            raise OSError(errno.EACCES, f"process {pid} above it is hidden")
        found.append(one)
        if len(found) > MAX_DEPTH:
            raise OSError(errno.E2BIG, f"more than {MAX_DEPTH} processes are above it")
        if _known(one, runners) is not None:
            return found
        pid = one.parent
    return found


def _is_as_before(one: tree.Process) -> bool:
    now = tree.process(one.pid)
    return now is not None and (now.parent, now.start) == (one.parent, one.start)


def holder_below(runners: Iterable[int], socket_inode: int) -> int | None:
    """
    A process below these that has a socket open; None: none has.

    Raises:
        OSError: It cannot be determined: a process hides what it has open.
    """
    wanted = f"socket:[{socket_inode}]"
    for one in tree.descendants(runners, tree.processes()):
        try:
            found = open_sockets(one.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if wanted in found:
            return one.pid
    return None
