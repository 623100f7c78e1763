"""Looks at this machine that cost little: programs, small files, directories and their size."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from fallbackd.lib.privatefile import regular

MAX_SETTINGS_BYTES = 256 * 1024
MAX_FILES = 20_000
"""More files than this are not looked at: a look must not take longer than starting an agent."""
SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", ".mypy_cache", "target"})


class Machine:
    """`environ` is the one that children get: their PATH finds the programs."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.home = environ.get("HOME") or str(Path.home())

    def find_program(self, program: str) -> str | None:
        """A name is looked up on PATH, a path is taken as it is; `~/` is the home directory."""
        path = self._environ.get("PATH", os.defpath)
        return shutil.which(self._expanded(program), path=path)

    def is_program_of(self, package: str, path: str) -> bool:
        """Return whether the program at `path` is the vendor's own: from its package, or native."""
        real = os.path.realpath(path)
        if f"/{package}/" in real:
            return True
        try:
            with open(real, "rb", opener=regular) as file:
                return file.read(4) == b"\x7fELF"
        except OSError:
            return False

    def read_text(self, path: str) -> str | None:
        try:
            with open(self._expanded(path), "rb", opener=regular) as file:
                return file.read(MAX_SETTINGS_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def changed_at(self, path: str) -> float | None:
        try:
            return os.stat(self._expanded(path)).st_mtime
        except OSError:
            return None

    def _expanded(self, path: str) -> str:
        return self.home + path[1:] if path.startswith("~/") else path


_UP = 0x1
_REJECT = 0x200


def has_default_route(root: str = "/proc/net") -> bool:
    """
    Return whether a packet to anywhere would leave this machine. True where that is unknown.

    Source: proc_net(5) and the kernel's route files: `route` has destination, flags and mask in
    columns 2, 4 and 8; `ipv6_route` has destination, prefix length, flags and device in columns
    1, 2, 9 and 10, numbers in hex.
    """
    tables = 0
    for name, is_default in (("route", _is_default_v4), ("ipv6_route", _is_default_v6)):
        try:
            with open(f"{root}/{name}", encoding="ascii", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            continue  # built without this protocol, or hidden from us
        tables += 1
        if any(is_default(line.split()) for line in lines):
            return True
    return tables == 0


def _is_default_v4(words: list[str]) -> bool:
    if len(words) < 8 or words[1] != "00000000" or words[7] != "00000000":
        return False
    flags = int(words[3], 16)
    return bool(flags & _UP) and not flags & _REJECT


def _is_default_v6(words: list[str]) -> bool:
    if len(words) < 10 or words[0] != "0" * 32 or words[1] != "00" or words[9] == "lo":
        return False
    flags = int(words[8], 16)
    return bool(flags & _UP) and not flags & _REJECT


def fingerprint(directory: str) -> Mapping[str, tuple[int, int]] | None:
    """(mtime in ns, size) of each file below; None where there are too many to look at."""
    found: dict[str, tuple[int, int]] = {}
    todo = [directory]
    start = len(directory.rstrip("/")) + 1
    while todo:
        try:
            entries = list(os.scandir(todo.pop()))
        except OSError:
            continue  # unreadable, or gone while we looked: no news of it
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in SKIPPED:
                        todo.append(entry.path)
                    continue
                seen = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode):
                found[entry.path[start:]] = (seen.st_mtime_ns, seen.st_size)
                if len(found) > MAX_FILES:
                    return None
    return found


# --- the size of a project -----------------------------------------------------------------------
# How much text a project holds, by a bounded walk.
#
# git is not asked: it runs programs that a repository names, and an agent may have made the
# repository.

BYTES_OF_TOKEN = 4
"""A rough average over prose and code; only compared with whole context sizes."""

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
