"""
Gives memory back to the system that a burst has needed.

Source: mallopt(3), malloc_trim(3) of glibc. Its threshold for blocks of their own grows with the
blocks that are freed, and then large buffers lie between small ones for ever. With another C
library nothing is done.
"""

import ctypes

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
