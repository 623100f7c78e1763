"""
Memory: what is loaded at the start stays, and what a burst has needed is given back to the system.

Source: mallopt(3), malloc_trim(3) of glibc. Its threshold for blocks of their own grows with the
blocks that are freed, and then large buffers lie between small ones for ever. With another C
library nothing is done.

No core dump is written, and no other program of the same user looks into the memory: prompts and
keys would lie in a file, or in the journal of the machine, long after the work is done.
"""

import ctypes
import gc
import resource

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 * 1024

_c = ctypes.CDLL(None)


def keep_large_blocks_apart() -> None:
    """Each is given back as soon as it is freed. Once, at the start."""
    if (mallopt := getattr(_c, "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def trim() -> None:
    """Give back what is free now. Takes milliseconds."""
    if (malloc_trim := getattr(_c, "malloc_trim", None)) is not None:
        malloc_trim(0)


class Crowd:
    """
    Says when what a crowd has needed can be given back: once no more of it are leaving. What is
    given back before that leaves the rest for good.

    Args:
        many: How many make a crowd.
    """

    def __init__(self, many: int) -> None:
        self._many = many
        self._most = self._before = 0

    def has_left(self, count: int) -> bool:
        """
        Args:
            count: How many are there now; asked again and again.
        """
        is_falling, self._before = count < self._before, count
        self._most = max(self._most, count)
        if is_falling or self._most - count < self._many:
            return False
        self._most = count
        return True


def collect_from_now_on() -> None:
    """
    Look for garbage, but no more at what is there now: modules and classes, which stay.

    The other half of `gc.disable()`, with which a start is quicker.
    """
    gc.freeze()
    gc.enable()


_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> int:
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
    """
    Close the memory of this process and its forks, also to a handler that the kernel pipes to.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
