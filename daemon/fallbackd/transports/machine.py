"""Looks at this machine that cost next to nothing: programs, small files, a directory's state."""

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

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

    def read_text(self, path: str) -> str | None:
        try:
            with open(self._expanded(path), "rb") as file:
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
