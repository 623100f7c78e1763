"""
No core dump, and no look into the memory by other programs of the same user.

What is in the memory of the daemon (prompts, keys of its environment) would lie in a file, or in
the journal of the machine, long after the work is done.
"""

import ctypes
import resource

_PR_SET_DUMPABLE = 4


def forbid() -> int:
    """
    Forbid both for this process.

    Returns:
        The limit of core files that it had, for the programs that it starts: they are the user's.

    Source: core(5), prctl(2). A program that is executed is dumpable again, limits are inherited.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    hide_memory()
    return before


def hide_memory() -> None:
    """For this process and what is forked from it; also for what the kernel pipes to a handler."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
