"""
Memory: what is loaded at the start stays, and what a burst has needed is given back to the system.

Source: mallopt(3), malloc_trim(3) of glibc. Its threshold for blocks of their own grows with the
blocks that are freed, and then large buffers lie between small ones for ever. With another C
library nothing is done.
"""

import ctypes
import gc

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


def collect_from_now_on() -> None:
    """
    Look for garbage, but no more at what is there now: modules and classes, which stay.

    The other half of `gc.disable()`, with which a start is quicker.
    """
    gc.freeze()
    gc.enable()
