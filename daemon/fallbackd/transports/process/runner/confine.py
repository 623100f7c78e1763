"""
Places that a program may write to and read from, as rules for the kernel.

Writing is allowed in the places that are named. Reading is allowed everywhere but in the places
that are hidden: the kernel knows no exceptions, so on the way to each of them everything beside it
is allowed, one rule for each entry:

    /          bin  boot  dev  etc  usr …  home▾
    /home      you  me▾
    /home/me   src  .ssh  .gitconfig …  .codex▾
    .codex     sessions  config.toml …  auth.json (no rule: cannot be read)

What appears in one of these directories later, or is replaced there, cannot be read by programs
that run already; what is below the others can.
"""

import os
import stat
from collections.abc import Iterable
from typing import Any

from fallbackd.transports.process.runner.landlock import (
    FOLDERS,
    MIN_ABI,
    READ,
    WRITE,
    Ruleset,
    kernel_abi,
)

# --- places of git -------------------------------------------------------------------------------
# Where git keeps what belongs to a working directory, outside of it.
#
# The files that say so lie in the working directory, so the last agent may have written them: a
# place counts only where it names the working tree in return, and looks like a repository.

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
    """Return whether the repository of a submodule says that this is its working tree."""
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


# --- rules ---------------------------------------------------------------------------------------

MAX_ENTRIES = 20_000
"""
Bound of one directory on the way to a hidden place; with more, all that is below it can be read.
Each takes some 10 µs of processor time.
"""

_DEVICES = (
    *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm"),
    *("dri", "kfd", "kvm", "fuse"),
)
_OPEN = os.O_PATH | os.O_CLOEXEC


def build(
    confine: dict[str, Any] | None, place: int = -1, *, abi: int | None = None
) -> Ruleset | None:
    """
    Args:
        place: The working directory, open.
        confine: `writable`, `made`, `folders`, `readable`, `hidden`: lists of absolute paths, see
            `process.environment`; `cwd`: the working directory where it may be written to, or
            empty; `toolchains`, with the `path` on which their programs are.
        abi: Of the kernel; None: asked for.

    Returns:
        None where nothing is to be confined, or the kernel cannot.

    Raises:
        OSError: The kernel could, and fails to.
    """
    if confine is None:
        return None
    abi = kernel_abi() if abi is None else abi
    if abi < MIN_ABI:
        return None
    hidden = _existing(confine["hidden"])
    rules = Ruleset(abi=abi, reads=bool(hidden))
    try:
        _allow_devices(rules)
        writable = places_of(confine)
        if confine["cwd"]:
            _allow_open(rules, place, READ | WRITE)
            for path in git_places(os.readlink(f"/proc/self/fd/{place}")):
                _allow(rules, path, READ | WRITE, is_real=True)
        for path in dict.fromkeys(path.rstrip("/") or "/" for path in writable):
            _allow(rules, path, READ | WRITE)  # a file too, where a directory would be made
        for path in confine.get("folders", ()):
            _make(path)
            _allow(rules, path, FOLDERS)
        if hidden:
            for path in confine["readable"]:
                _allow(rules, path, READ)
            _allow_beside(rules, "/", _tree(hidden))
    except BaseException:
        rules.close()
        raise
    return rules


def places_of(confine: dict[str, Any]) -> list[str]:
    """List what may be written to beside the working directory. Makes what is to be made."""
    for path in confine["made"]:
        _make(path)
    tools = _of_toolchains(confine) if confine["cwd"] else []
    return [*confine["made"], *confine["writable"], *tools]


def _make(path: str) -> None:
    """A directory that is missing, for its owner alone."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)  # the umask of runners leaves others nothing
    except OSError:
        pass  # the program says it better


def _make_file(path: str) -> None:
    _make(os.path.dirname(path))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        pass


def _of_toolchains(confine: dict[str, Any]) -> list[str]:
    """Their places. Those that are missing are made where the tool is there, or asked for."""
    places: list[str] = []
    tops = {confine["cwd"], work_tree(confine["cwd"])} - {"/"}
    folders = [each for each in confine["path"].split(":") if os.path.isabs(each)]
    for each in confine["toolchains"]:
        own = [*each["directories"], *each["files"]]
        places += own
        if all(map(os.path.lexists, own)):
            continue
        if _has_any(folders, each["programs"]) or _has_any(tops, each["signs"]):
            for path in each["directories"]:
                _make(path)
            for path in each["files"]:
                _make_file(path)
    return places


def _has_any(directories: Iterable[str], names: Iterable[str]) -> bool:
    return any(os.path.exists(os.path.join(each, name)) for name in names for each in directories)


def _allow_devices(rules: Ruleset) -> None:
    for name in _DEVICES:
        _allow(rules, f"/dev/{name}", READ | WRITE)
    if os.geteuid() != 0:
        _allow(rules, "/proc", READ | WRITE)  # of its own processes; the rest is not the user's


def _allow(rules: Ruleset, path: str, rights: int, *, is_real: bool = False) -> None:
    """
    Nothing where there is no such path.

    Args:
        is_real: Nothing either where a link leads elsewhere: it was put there meanwhile.
    """
    try:
        place = os.open(path, _OPEN)
    except OSError:
        return
    try:
        if not is_real or os.readlink(f"/proc/self/fd/{place}") == path:
            _allow_open(rules, place, rights)
    finally:
        os.close(place)


def _allow_open(rules: Ruleset, place: int, rights: int) -> None:
    rules.allow(place, rights, is_directory=stat.S_ISDIR(os.fstat(place).st_mode))


_Tree = dict[str, "_Tree"]
"""Places by name; an empty one is hidden itself."""


def _existing(paths: Iterable[str]) -> list[str]:
    """Real paths. None is `/`: who hides that allows nothing."""
    real = {os.path.realpath(path) for path in paths if os.path.lexists(path)}
    return sorted(path for path in real if path != "/")


def _tree(paths: Iterable[str]) -> _Tree:
    root: _Tree = {}
    for path in paths:  # sorted: what holds a place comes before what is in it
        node = root
        *above, name = path.strip("/").split("/")
        for part in above:
            if part in node and not node[part]:
                break
            node = node.setdefault(part, {})
        else:
            node[name] = {}
    return root


def _allow_beside(rules: Ruleset, path: str, hidden: _Tree) -> None:
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        # Its content cannot be listed. Its named parts are still covered.
        for name, below in hidden.items():
            if below:
                _allow_beside(rules, os.path.join(path, name), below)
        return
    try:
        names = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name not in hidden and not entry.is_symlink():
                    names.append(entry.name)
                    if len(names) > MAX_ENTRIES:
                        rules.allow(directory, READ, is_directory=True)
                        return
        for name in names:
            try:
                place = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=directory)
            except OSError:
                continue  # gone meanwhile
            try:
                rules.allow(place, READ, is_directory=False)  # the same right for both
            finally:
                os.close(place)
    finally:
        os.close(directory)
    for name, below in hidden.items():
        if below:
            _allow_beside(rules, os.path.join(path, name), below)
