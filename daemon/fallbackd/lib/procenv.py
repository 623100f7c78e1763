"""What a process was started with."""

import os

MAX_ENVIRON_BYTES = 1024 * 1024


def read_variables(pid: int, names: tuple[str, ...]) -> dict[str, str]:
    """Those of `names` that a process was started with; none of one that is gone."""
    try:
        found = _environ(pid)
    except (OSError, ValueError):
        return {}
    return {name: found[name] for name in names if name in found}


def read_arguments(pid: int) -> tuple[str, ...]:
    """The words of its command line; none of one that is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(MAX_ENVIRON_BYTES)
    except OSError:
        return ()
    return tuple(os.fsdecode(one) for one in raw.removesuffix(b"\0").split(b"\0"))


def _environ(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        raw = file.read(MAX_ENVIRON_BYTES)
    pairs = (one.partition(b"=") for one in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def read_environment(pid: int) -> dict[str, str]:
    """All that a process was started with; nothing of one that is gone."""
    try:
        return {name: value for name, value in _environ(pid).items() if name}
    except (OSError, ValueError):
        return {}
