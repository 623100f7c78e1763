"""
Where git keeps what belongs to a working directory, outside of it.

The files that say so lie in the working directory, so the last agent may have written them: a
place counts only where it names the working tree in return, and looks like a repository.
"""

import os

_MAX_BYTES = 4096


def work_tree(directory: str) -> str:
    """The nearest one above with a `.git`, or the root."""
    directory = os.path.realpath(directory)
    while directory != "/" and not os.path.lexists(os.path.join(directory, ".git")):
        directory = os.path.dirname(directory)
    return directory


def git_places(cwd: str) -> list[str]:
    """
    Directories that `git commit` writes to: of a linked worktree, of a submodule, of the repository
    above. Empty where there is none, or all of it is in `cwd`.
    """
    top = work_tree(cwd)
    marker = os.path.join(top, ".git")
    if os.path.islink(marker) or not os.path.exists(marker):
        return []
    if os.path.isdir(marker):
        return [marker] if _is_repository(marker) else []
    said = _read(marker)
    if not said.startswith("gitdir: "):
        return []
    own = os.path.realpath(os.path.join(top, said.removeprefix("gitdir: ")))
    above = os.path.dirname(own)
    if os.path.basename(above) == "worktrees":
        common = os.path.dirname(above)
        names_it = os.path.realpath(os.path.join(own, _read(os.path.join(own, "gitdir"))))
        return [common] if _is_repository(common) and names_it == marker else []
    return [own] if _is_repository(own) and _is_module(own, top) else []


def _is_repository(path: str) -> bool:
    parts = (os.path.join(path, name) for name in ("objects", "refs"))
    return os.path.isfile(os.path.join(path, "HEAD")) and all(map(os.path.isdir, parts))


def _is_module(own: str, top: str) -> bool:
    """Whether the repository of a submodule says that this is its working tree."""
    for line in _read(os.path.join(own, "config")).splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "worktree":
            return os.path.realpath(os.path.join(own, value.strip().strip('"'))) == top
    return False


def _read(path: str) -> str:
    """Empty for what is no small regular file. Never waits for a pipe."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not os.path.isfile(f"/proc/self/fd/{handle}"):
                return ""
            return os.fsdecode(os.read(handle, _MAX_BYTES)).strip("\n")
        finally:
            os.close(handle)
    except OSError:
        return ""
