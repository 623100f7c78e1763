"""
Directories of a program's own, with what is in those of its user: what it adds ends with it.

For caches, which hold programs that are run later (those of npx, hooks of pre-commit, files that
shells read at their start), and for settings that a program writes beside. The own one has a copy
of each small file, and a link for everything else, which can be read, and written to where the
program may write at the other end.
"""

import os
import shutil
from collections.abc import Sequence
from typing import Any

DEPTH = 2
MAX_ENTRIES = 1000
"""Of one directory: beyond that, it is a link itself."""
MAX_COPY_BYTES = 4 * 1024 * 1024


def make(copies: Sequence[dict[str, Any]]) -> None:
    """
    Args:
        copies: `real`, the path of a directory, whose copy is made in `top` (or `below` it);
            `shared`: places in it that stay as they are; `fresh`: those that begin empty; `hidden`:
            those that are left out.
    """
    for each in copies:
        own = os.path.join(each["top"], each["below"])
        try:
            os.makedirs(own, mode=0o700, exist_ok=True)
            _fill(each, own, each["real"], DEPTH)
        except OSError:
            continue  # what is missing there is made by the program, as in a new home


def _fill(copy: dict[str, Any], own: str, real: str, depth: int) -> None:
    with os.scandir(real) as entries:
        for entry in entries:
            at = f"{own}/{entry.name}"
            if entry.path in copy["hidden"]:
                continue
            if entry.path in copy["fresh"]:
                os.mkdir(at, 0o700)
            elif entry.path in copy["shared"] or not _may_be_own(entry, depth):
                os.symlink(entry.path, at)
            elif entry.is_dir():
                os.mkdir(at, 0o700)
                _fill(copy, at, entry.path, depth - 1)
            else:
                shutil.copy2(entry.path, at, follow_symlinks=False)


def _may_be_own(entry: "os.DirEntry[str]", depth: int) -> bool:
    try:
        if entry.is_dir(follow_symlinks=False):
            return depth > 1 and len(os.listdir(entry.path)) <= MAX_ENTRIES
        is_small = entry.stat(follow_symlinks=False).st_size <= MAX_COPY_BYTES
        return is_small and entry.is_file(follow_symlinks=False)
    except OSError:
        return False
