"""
Ends a family of processes whose runner does not do it any more.

    runner alive    it is held still; as a sub-reaper it keeps everything below itself, so nothing
                    below it that lives is the proof that all of it has exited
    runner killed   its children are found by what they carry: the token and the directory in their
                    environment, their session and process group, and their descendants. One that
                    changed its session, emptied its environment and lost its parent is not found,
                    so finding none proves nothing. An empty control group does (`cgroup`).
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from fallbackd.core.protocol import Exit
from fallbackd.lib.processes import open_sockets, read_variables
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
    left = await end_all(lambda: find_members(family), 2, grace_s=grace_s, bound_s=bound_s)
    return [each.pid for each in left or ()]


async def end_below(runner: tree.Process, *, grace_s: float, bound_s: float) -> bool:
    """
    End everything below a runner that lives and does not answer. It is released afterwards.

    Returns:
        Whether all of it is proven to have exited. False also where the runner ended meanwhile.
    """

    def below() -> list[tree.Process] | None:
        found = tree.descendants([runner.pid], tree.processes())
        if not tree.is_same(runner):
            return None
        return [each for each in found if not each.is_dead]

    tree.send_signal(runner, signal.SIGSTOP)
    try:
        return await end_all(below, _CLEAN_LOOKS, grace_s=grace_s, bound_s=bound_s) == []
    finally:
        tree.send_signal(runner, signal.SIGCONT)


async def end_all(
    find: Callable[[], list[tree.Process] | None],
    clean_looks: int,
    *,
    grace_s: float,
    bound_s: float,
) -> list[tree.Process] | None:
    """
    End what `find` finds, until it has found nothing so many times on end.

    Returns:
        What is left; None: it cannot be known.
    """
    asked: set[tuple[int, int]] = set()
    kill_at = time.monotonic() + grace_s
    until = kill_at + bound_s
    clean = 0
    while True:
        if (members := find()) is None:
            return None
        clean = 0 if members else clean + 1
        if clean == clean_looks:
            return []
        now = time.monotonic()
        if now >= until:
            return members or None
        for each in members:
            if now >= kill_at:
                tree.send_signal(each, signal.SIGKILL)
            elif (each.pid, each.start) not in asked:
                asked.add((each.pid, each.start))
                _ask(each)
        await anyio.sleep(_LOOK_S)


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


# --- descent -------------------------------------------------------------------------------------
# Below which runner a process is, by the processes that the kernel names as its parents.

MARK = "FALLBACKD_ATTEMPT"
"""A variable in the environment of what an attempt starts: it may only take authority away."""
MAX_DEPTH = 64
MAX_SEEN = 1024
LOOKS = 8


class Started(Struct, frozen=True, kw_only=True):
    """A program that a daemon has started, with its runner."""

    attempt: str
    directory: str
    runner: tree.Process
    since: int = 0
    """No process of the program has started before, in ticks since boot."""


def runner_above(
    pid: int,
    runners: Mapping[int, Started],
    *,
    lost_since: int | None = None,
    seen: dict[int, tree.Process] | None = None,
) -> Started | None:
    """
    Args:
        pid: Of a process that lives until this has returned.
        runners: By process id.
        lost_since: When the first program started whose runner was killed, and which may run on;
            None: none does.
        seen: Processes above earlier callers that were no part of an attempt, by process id; those
            above this one are added.

    Raises:
        ProcessLookupError: It has exited.
        OSError: It cannot be determined: a process above it is hidden, too many are there, or they
            change all the time, or it may be what a runner that was killed has left.
    """
    seen = {} if seen is None else seen
    for _ in range(LOOKS):
        line = _line(pid, runners)
        if line is None:
            continue
        if line and (known := _known(line[-1], runners)) is not None:
            return known
        new = [*line[:1], *(one for one in line[1:] if not _is_equal(one, seen.get(one.pid)))]
        # A parent that has exited is followed by another one: the same one twice has lived all the
        # time, and its number was not given to a process elsewhere. One look may be an earlier one.
        if all(_is_equal(one, tree.process(one.pid)) for one in new):
            _require_no_part(line, new, lost_since)
            if len(seen) > MAX_SEEN:
                seen.clear()
            seen.update((one.pid, one) for one in line[1:])
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


def _require_no_part(
    line: Sequence[tree.Process], new: Iterable[tree.Process], lost_since: int | None
) -> None:
    """
    Args:
        new: Those of the line that were no part of an attempt at no earlier look.

    Raises:
        OSError: No runner is above it, and yet it may be part of an attempt.
    """
    # This daemon may have been started from inside an attempt of another one.
    own = os.environ.get(MARK)
    for one in new:
        is_marked = read_variables(one.pid, (MARK,)).get(MARK, own) != own
        groups = cgroup.groups_of(one.pid)
        if is_marked or (groups and groups - cgroup.groups_of(os.getpid())):
            raise OSError(errno.EACCES, "it is part of an attempt whose supervisor has ended")
    if lost_since is not None and _may_be_left(line, lost_since):
        raise OSError(errno.EACCES, "it may be left of an attempt whose supervisor was killed")


def _may_be_left(line: Sequence[tree.Process], since: int) -> bool:
    """
    Return whether the first one of these that has started since then may have lost its parents: the
    one above it can have taken it over, and its session is no older.
    """
    younger = [one for one in line if one.start >= since]
    if not younger:
        return False
    top = younger[-1]
    # A session whose leader is in another namespace has the number 0: no attempt can make one.
    leader = tree.process(top.session)
    is_of_older_session = top.session == 0 or (leader is not None and leader.start < since)
    return top.parent in _reapers() and not is_of_older_session


def is_any_left(runners: Mapping[int, Started], since: int) -> bool:
    """Return whether a process of this user may be left of a program that started then."""
    return any(_is_any_left(runners, since) for _ in range(_CLEAN_LOOKS))


def _is_any_left(runners: Mapping[int, Started], since: int) -> bool:
    for one in tree.processes():
        if one.start < since or one.is_dead or not tree.is_of_user(one.pid, os.geteuid()):
            continue
        try:
            line = _line(one.pid, runners)
        except ProcessLookupError:
            continue
        except OSError:
            return True
        if line is None:  # it changes just now
            return True
        if line and _known(line[-1], runners) is None and _may_be_left(line, since):
            return True
    return False


def _reapers() -> set[int]:
    """Processes of which one takes over what loses its parents below this daemon."""
    found = {1}
    pid = os.getppid()
    while pid > 1 and pid not in found:
        found.add(pid)
        above = tree.process(pid)
        pid = 0 if above is None else above.parent
    return found


def _is_equal(one: tree.Process, other: tree.Process | None) -> bool:
    """Return whether it is the same process below the same parent."""
    return other is not None and (other.parent, other.start) == (one.parent, one.start)


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
