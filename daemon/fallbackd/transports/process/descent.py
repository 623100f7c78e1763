"""Below which runner a process is, by the processes that the kernel names as its parents."""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fallbackd.lib.processes import open_sockets, read_variables
from fallbackd.transports.process.runner import cgroup, tree

MARK = "FALLBACKD_ATTEMPT"
"""A variable in the environment of what an attempt starts: it may only take authority away."""
MAX_DEPTH = 64
LOOKS = 8


class Started(Struct, frozen=True, kw_only=True):
    """A program that a daemon has started, with its runner."""

    attempt: str
    directory: str
    runner: tree.Process
    since: int = 0
    """No process of the program has started before, in ticks since boot."""


def runner_above(
    pid: int, runners: Mapping[int, Started], *, lost_since: int | None = None
) -> Started | None:
    """
    Args:
        pid: Of a process that lives until this has returned.
        runners: By process id.
        lost_since: When the first program started whose runner was killed, and which may run on;
            None: none does.

    Raises:
        ProcessLookupError: It has exited.
        OSError: It cannot be determined: a process above it is hidden, too many are there, or they
            change all the time, or it may be what a runner that was killed has left.
    """
    for _ in range(LOOKS):
        line = _line(pid, runners)
        if line is None:
            continue
        if line and (known := _known(line[-1], runners)) is not None:
            return known
        # A parent that has exited is followed by another one: the same one twice has lived all the
        # time, and its number was not given to a process elsewhere.
        if all(_is_as_before(one) for one in line):
            _require_no_part(line, lost_since)
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


def _require_no_part(line: Sequence[tree.Process], lost_since: int | None) -> None:
    """
    Raises:
        OSError: No runner is above it, and yet it may be part of an attempt.
    """
    # This daemon may have been started from inside an attempt of another one.
    own, own_groups = os.environ.get(MARK), cgroup.groups_of(os.getpid())
    for one in line:
        is_marked = read_variables(one.pid, (MARK,)).get(MARK, own) != own
        if is_marked or cgroup.groups_of(one.pid) - own_groups:
            raise OSError(errno.EACCES, "it is part of an attempt whose supervisor has ended")
    if lost_since is not None and _may_be_left(line, lost_since):
        raise OSError(errno.EACCES, "it may be left of an attempt whose supervisor was killed")


def _may_be_left(line: Sequence[tree.Process], since: int) -> bool:
    """
    Whether the first one of these that has started since then may have lost its parents: the one
    above it can have taken it over, and its session is no older.
    """
    younger = [one for one in line if one.start >= since]
    if not younger:
        return False
    top = younger[-1]
    # A session whose leader is in another namespace has the number 0: no attempt can make one.
    leader = tree.process(top.session)
    is_of_older_session = top.session == 0 or (leader is not None and leader.start < since)
    return top.parent in _reapers() and not is_of_older_session


def _reapers() -> set[int]:
    """Processes of which one takes over what loses its parents below this daemon."""
    found = {1}
    pid = os.getppid()
    while pid > 1 and pid not in found:
        found.add(pid)
        above = tree.process(pid)
        pid = 0 if above is None else above.parent
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
