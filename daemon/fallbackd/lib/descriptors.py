"""
File descriptors that this process has left.

Without any, a program cannot be started, an answer not written, a caller not accepted, and what
fails then looks like the fault of something else. So the last ones are kept for work that runs.
"""

import errno
import os
import resource

_ERRNOS = frozenset(
    {
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
        *(errno.ENOSPC, errno.EDQUOT, errno.EAGAIN),
    }
)
SPARE = 64
"""Kept for the work that runs: several for each attempt, and the files of its answer."""


FOR_ONE = 12
"""`KEPT`, and the rest for looks and callers."""


def is_scarce() -> bool:
    """
    Check whether a caller that is accepted now takes one of the last ones, which the daemon itself
    needs for its files, its programs and what it has yet to load.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return False
    try:
        lowest_free = os.dup(0)
    except OSError as error:
        return is_shortage(error)
    os.close(lowest_free)
    return lowest_free >= limit - min(FOR_ONE, limit // 5)


KEPT = 4
"""Descriptors of an attempt that runs: a line, a handle of the runner, two files."""


def has_room(beginning: int = 0) -> bool:
    """Check whether one more attempt can be followed, beside those that have yet to take theirs."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _used()
    if limit == resource.RLIM_INFINITY:
        return True
    return used is not None and limit - used - beginning * KEPT >= FOR_ONE


def shortage(beginning: int = 0) -> str | None:
    """
    Reason why nothing new should be begun; None: there are enough.

    Args:
        beginning: Attempts that have yet to take theirs.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    used = _used()
    if used is None:
        used = limit
    if limit - used - beginning * KEPT >= min(SPARE, max(FOR_ONE + KEPT, limit // 8)):
        return None
    return f"{used} of {limit} file descriptors are in use"


def _used() -> int | None:
    """Count the open descriptors; None: not even one is left for this look."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # without the one of this look
    except OSError:
        return None


def is_shortage(error: BaseException) -> bool:
    """Check whether the system had nothing left to give."""
    if isinstance(error, OSError):
        return error.errno in _ERRNOS
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)
