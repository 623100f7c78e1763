"""How much text a project holds, by a bounded walk."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator

BYTES_OF_TOKEN = 4
"""A rough average over prose and code; only compared with whole context sizes."""
MAX_FILES = 20_000
MAX_FILE_BYTES = 1024 * 1024
"""Larger ones are data, not text that an agent reads."""
_HEAD_BYTES = 1024
_GIT_S = 5.0
_MAX_LISTING_BYTES = 8 * 1024 * 1024
_BUILT = frozenset(
    {"node_modules", "__pycache__", "target", "dist", "build", "venv", "vendor", "site-packages"}
)


def project_tokens(root: str, *, enough: int) -> int:
    """
    Tokens of the text files below `root` that version control does not ignore.

    Stops at `enough` tokens and after `MAX_FILES` files: the result is a lower bound then. Without
    git, or outside a repository, hidden directories and the usual build directories are left out.

    Raises:
        NotADirectoryError: `root` is no directory that can be read.
    """
    if not os.path.isdir(root):
        raise NotADirectoryError(root)
    size_bytes = 0
    for count, path in enumerate(_listed_by_git(root) or _walked(root)):
        size_bytes += _text_bytes(path)
        if count >= MAX_FILES or size_bytes >= enough * BYTES_OF_TOKEN:
            break
    return size_bytes // BYTES_OF_TOKEN


def _listed_by_git(root: str) -> list[str]:
    """What git tracks or would; empty where there is no repository or no git."""
    git = shutil.which("git")
    if git is None:
        return []
    # A repository may name a program as its monitor, and that one is not started.
    options = ["-c", "core.fsmonitor=false", "-C", root]
    command = [git, *options, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": os.defpath, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"},
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    if done.returncode != 0:
        return []
    names = done.stdout[:_MAX_LISTING_BYTES].split(b"\0")[:-1]
    return [os.path.join(root, os.fsdecode(name)) for name in names]


def _walked(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [one for one in folders if not one.startswith(".") and one not in _BUILT]
        for name in names:
            yield os.path.join(folder, name)


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
