"""
How much text a project holds, by a bounded walk.

git is not asked: it runs programs that a repository names, and an agent may have made the
repository.
"""

import os
import stat
from collections.abc import Iterator

BYTES_OF_TOKEN = 4
"""A rough average over prose and code; only compared with whole context sizes."""
MAX_FILES = 20_000
MAX_FOLDERS = 5_000
MAX_FILE_BYTES = 1024 * 1024
"""Larger ones are data, not text that an agent reads."""
_HEAD_BYTES = 1024
_BUILT = frozenset(
    {"node_modules", "__pycache__", "target", "dist", "build", "venv", "vendor", "site-packages"}
)


def project_tokens(root: str, *, enough: int) -> int:
    """
    Tokens of the text files below `root`, without hidden and the usual build directories.

    Stops at `enough` tokens, after `MAX_FILES` files and `MAX_FOLDERS` directories: the result is a
    lower bound then.

    Raises:
        NotADirectoryError: `root` is no directory that can be read.
    """
    if not os.path.isdir(root):
        raise NotADirectoryError(root)
    size_bytes = 0
    for count, path in enumerate(_walked(root)):
        size_bytes += _text_bytes(path)
        if count >= MAX_FILES or size_bytes >= enough * BYTES_OF_TOKEN:
            break
    return size_bytes // BYTES_OF_TOKEN


def _walked(root: str) -> Iterator[str]:
    for number, (folder, folders, names) in enumerate(os.walk(root)):
        folders[:] = [one for one in folders if not one.startswith(".") and one not in _BUILT]
        for name in names:
            yield os.path.join(folder, name)
        if number >= MAX_FOLDERS:
            return


def _text_bytes(path: str) -> int:
    """The size of a text file; 0 for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        found = os.fstat(handle)
        is_small = stat.S_ISREG(found.st_mode) and found.st_size <= MAX_FILE_BYTES
        if not is_small or b"\0" in os.read(handle, _HEAD_BYTES):
            return 0
        return found.st_size
    except OSError:
        return 0
    finally:
        os.close(handle)
