"""A variable in the environment of a process, or of those that have started it."""

import os

MAX_ANCESTORS = 32
MAX_ENVIRON_BYTES = 1024 * 1024


def find_variable(pid: int, *names: str) -> str | None:
    """
    The value that the nearest process has of the first of these names, from `pid` upwards.

    Looks no further than this process itself: what stands above it is not of its making. A
    process that is gone, or that may not be read, ends the search.

    Source: proc_pid_environ(5), the environment at `execve`; proc_pid_stat(5), field 4.
    """
    for _ in range(MAX_ANCESTORS):
        if pid <= 1 or pid == os.getpid():
            return None
        try:
            found = _environ(pid)
            parent = _parent_of(pid)
        except (OSError, ValueError, IndexError):
            return None
        for name in names:
            if value := found.get(name):
                return value
        pid = parent
    return None


def read_variables(pid: int, names: tuple[str, ...]) -> dict[str, str]:
    """Those of `names` that a process was started with; none of one that is gone."""
    try:
        found = _environ(pid)
    except (OSError, ValueError):
        return {}
    return {name: found[name] for name in names if name in found}


def _environ(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        raw = file.read(MAX_ENVIRON_BYTES)
    pairs = (one.partition(b"=") for one in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name of the program may hold spaces and parentheses of its own.
        return int(file.read().rpartition(b")")[2].split()[1])


def read_environment(pid: int) -> dict[str, str]:
    """All that a process was started with; nothing of one that is gone."""
    try:
        return {name: value for name, value in _environ(pid).items() if name}
    except (OSError, ValueError):
        return {}
