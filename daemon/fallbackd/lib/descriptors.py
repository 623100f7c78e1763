"""
How many file descriptors this process has left.

Without any, a program cannot be started, an answer not written, a caller not accepted, and what
fails then looks like the fault of something else. So the last ones are kept for work that runs.
"""

import os
import resource

SPARE = 64
"""Kept for the work that runs: several for each attempt, and the files of its answer."""


def shortage() -> str | None:
    """Why nothing new should be begun; None: there are enough."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = len(os.listdir("/proc/self/fd")) - 1  # without the one of this look
    except OSError:
        used = limit
    if limit - used >= min(SPARE, limit // 8):
        return None
    return f"{used} of {limit} file descriptors are in use"
