"""
Which processes below a helper server are the tools of one prompt, and their end.

A tool runs in a session of its own; language and tool servers stay in the session of the helper
server. What the prompt may have started is what was not there when it began. Of that, its own is
what works inside its directory, everything below such a process, and, where it had the server to
itself, every new session, wherever it works.

The runner above the server is a sub-reaper, so what loses its parent stays below the runner.
"""

import os
import signal

import anyio
from msgspec import Struct

from fallbackd.transports.process.runner import tree

TERM_S = 1.0
"""For tools to end by themselves, after the server has dropped them."""
KILL_S = 5.0
_LOOK_S = 0.02


class ToolWatch(Struct, frozen=True, kw_only=True):
    """What ran below the server when a prompt began."""

    server_pid: int
    cwd: str
    before: frozenset[tuple[int, int]]


def watch_tools(server_pid: int, cwd: str) -> ToolWatch:
    before = frozenset((each.pid, each.start) for each in _below(server_pid))
    return ToolWatch(server_pid=server_pid, cwd=cwd, before=before)


def find_tools(
    watch: ToolWatch, *, is_alone: bool, all_sessions: bool = False
) -> list[tree.Process]:
    """
    The prompt's own processes that live.

    Args:
        is_alone: No other prompt has used the server since this one began.
        all_sessions: With those in the server's own session (language servers and the like).
    """
    server = tree.process(watch.server_pid)
    fresh = [
        each for each in _below(watch.server_pid) if (each.pid, each.start) not in watch.before
    ]
    elsewhere = [each for each in fresh if server is None or each.session != server.session]
    if not all_sessions:
        fresh = elsewhere
    own = {each.pid for each in fresh if _works_in(each, watch.cwd)}
    if is_alone and server is not None:
        own |= {each.pid for each in elsewhere}
    below = {each.pid for each in tree.descendants(own, fresh)}
    return [each for each in fresh if each.pid in own or each.pid in below]


async def end_tools(watch: ToolWatch, *, is_alone: bool, all_sessions: bool = False) -> bool:
    """
    TERM, then KILL, until two looks in a row find none.

    Returns:
        Whether they are gone.
    """
    started_at = anyio.current_time()
    asked: set[tuple[int, int]] = set()
    clean_looks = 0
    while True:
        tools = find_tools(watch, is_alone=is_alone, all_sessions=all_sessions)
        clean_looks = 0 if tools else clean_looks + 1
        if clean_looks == 2:
            return True
        elapsed_s = anyio.current_time() - started_at
        if elapsed_s > TERM_S + KILL_S:
            return False
        for each in tools:
            if elapsed_s > TERM_S:
                tree.send_signal(each, signal.SIGKILL)
            elif (each.pid, each.start) not in asked:
                asked.add((each.pid, each.start))
                tree.send_signal(each, signal.SIGTERM)
        await anyio.sleep(_LOOK_S)


def _below(server_pid: int) -> list[tree.Process]:
    processes = tree.processes()
    roots = {server_pid}
    server = next((each for each in processes if each.pid == server_pid), None)
    # Never the daemon itself or init: they have children that are none of ours.
    if server is not None and server.parent not in (0, 1, os.getpid()):
        roots.add(server.parent)
    below = tree.descendants(roots, processes)
    return [each for each in below if each.pid not in roots and not each.is_dead]


def _works_in(process: tree.Process, cwd: str) -> bool:
    try:
        at = os.readlink(f"/proc/{process.pid}/cwd")
    except FileNotFoundError:
        return False  # it has just ended
    except OSError:
        return True  # not ours to look at, so not ours to clear either
    return at == cwd or at.startswith(cwd.rstrip("/") + "/")
