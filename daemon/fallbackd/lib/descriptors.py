"""
How many file descriptors this process has left.

Without any, a program cannot be started, an answer not written, a caller not accepted, and what
fails then looks like the fault of something else. So the last ones are kept for work that runs.
"""

import os
import resource

SPARE = 64
"""Kept for the work that runs: several for each attempt, and the files of its answer."""


FOR_ONE = 12
"""Four are kept (a line, a handle of the runner, two files); the rest is for looks and callers."""


def has_room() -> bool:
    """Whether one more attempt can be followed."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _used()
    return limit == resource.RLIM_INFINITY or (used is not None and limit - used >= FOR_ONE)


def shortage() -> str | None:
    """Why nothing new should be begun; None: there are enough."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    used = _used()
    if used is None:
        used = limit
    if limit - used >= min(SPARE, limit // 8):
        return None
    return f"{used} of {limit} file descriptors are in use"


def _used() -> int | None:
    """None: not even one is left for this look."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # without the one of this look
    except OSError:
        return None
