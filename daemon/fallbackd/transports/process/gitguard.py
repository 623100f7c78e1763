"""
What git runs and obeys in a repository, as it was before an attempt, and put back after it.

git writes its configuration for `git remote add`, `git branch --track` and the like, beside the
hooks, so neither can be closed to an agent that may commit. What an attempt has changed of hooks,
and of settings that name a program, is dropped when it has ended.

The agent may have written everything in there meanwhile, so directories are opened by their
identity, and no link is followed.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import msgspec
from msgspec import Struct

from fallbackd.transports.process.runner.gitplaces import git_places, work_tree

ASIDE = ".dropped"
MAX_BYTES = 256 * 1024
MAX_HOOKS = 200
MAX_INNER = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_SECTIONS = frozenset(
    ("alias", "browser", "filter", "include", "includeif", "man", "pager", "protocol")
)
_KEYS = re.compile(
    r"fsmonitor|hook|command|program|pager|editor|askpass|proxy|helper|driver|textconv|external|cmd$"
    r"|difffilter|insteadof|uploadpack|receivepack|^vcs$|^clean$|^smudge$|^process$|^worktree$"
    r"|^update$|templatedir|worktreeconfig|attributesfile|sslverify"
)
"""Settings that name a program, or where further settings are. Source: git-config(1)."""


class Kept(Struct, frozen=True):
    mode: int
    data: bytes


class Repository(Struct, frozen=True):
    path: str
    identity: tuple[int, int]
    """Device and inode."""
    config: dict[str, Kept]
    """Files that say where settings are, or are such; those that may be there."""
    hooks: dict[str, Kept] | None
    """None: there is no directory of them."""


_CONFIGS = ("config", "config.worktree", "commondir")


def look(cwd: str) -> bytes:
    """What is to be put back of the repository of a working directory; empty: it has none."""
    found = [one for path in _directories(cwd) if (one := _look(path)) is not None]
    return msgspec.json.encode(found) if found else b""


def put_back(known: bytes) -> tuple[str, ...]:
    """Drop what has changed since. Returns the paths."""
    changed: list[str] = []
    for one in msgspec.json.decode(known, type=list[Repository]):
        try:
            handle = os.open(one.path, _DIRECTORY)
        except OSError:
            continue  # it has been removed
        try:
            seen = os.fstat(handle)
            if (seen.st_dev, seen.st_ino) == one.identity:
                changed += [os.path.join(one.path, name) for name in _put_back(handle, one)]
        finally:
            os.close(handle)
    return tuple(changed)


def _directories(cwd: str) -> Iterator[str]:
    """Of the repository, of its linked working trees, and of its submodules."""
    if not os.path.lexists(os.path.join(work_tree(cwd), ".git")):
        return
    for place in git_places(cwd):
        yield place
        for above in ("worktrees", "modules"):
            found = islice(_inner(os.path.join(place, above)), MAX_INNER)
            yield from found


def _inner(above: str) -> Iterator[str]:
    for folder, folders, files in os.walk(above):
        if "HEAD" in files:
            yield folder
            folders[:] = [name for name in folders if name == "modules"]


def _look(path: str) -> Repository | None:
    try:
        handle = os.open(path, _DIRECTORY)
    except OSError:
        return None
    try:
        seen = os.fstat(handle)
        config = {name: one for name in _CONFIGS if (one := _read(name, handle)) is not None}
        identity = (seen.st_dev, seen.st_ino)
        return Repository(path, identity, config, _hooks(handle))
    except OSError:
        return None
    finally:
        os.close(handle)


def _hooks(repository: int) -> dict[str, Kept] | None:
    try:
        handle = os.open("hooks", _DIRECTORY, dir_fd=repository)
    except OSError:
        return None
    try:
        names = sorted(os.listdir(handle))[:MAX_HOOKS]
        return {name: one for name in names if (one := _read(name, handle)) is not None}
    finally:
        os.close(handle)


def _read(name: str, directory: int) -> Kept | None:
    try:
        handle = os.open(name, _FILE, dir_fd=directory)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > MAX_BYTES:
            return None
        return Kept(stat.S_IMODE(seen.st_mode), file.read(MAX_BYTES))


def _put_back(handle: int, known: Repository) -> Iterator[str]:
    for name in _CONFIGS:
        before, now = known.config.get(name), _read(name, handle)
        if now is None and before is None and not _is_there(name, handle):
            continue
        if name != "commondir" and now is not None and _told(before) == _told(now):
            continue
        if before != now or now is None:
            _write(name, before, handle)
            yield name
    yield from _put_hooks_back(handle, known.hooks or {})


def _put_hooks_back(repository: int, known: dict[str, Kept]) -> Iterator[str]:
    try:
        handle = os.open("hooks", _DIRECTORY, dir_fd=repository)
    except FileNotFoundError:
        return  # none is run
    except OSError:  # a link to another directory, or a file
        _write("hooks", None, repository)
        yield "hooks"
        if not known:
            return
        os.mkdir("hooks", dir_fd=repository)
        handle = os.open("hooks", _DIRECTORY, dir_fd=repository)
    try:
        names = (name for name in os.listdir(handle) if not name.endswith(ASIDE))
        for name in sorted({*names, *known}):
            before, now = known.get(name), _read(name, handle)
            if before is not None and before == now:
                continue
            if before is None and now is not None and not now.mode & 0o111:
                continue  # git runs none that cannot be executed
            _write(name, before, handle)
            yield f"hooks/{name}"
    finally:
        os.close(handle)


def _is_there(name: str, directory: int) -> bool:
    try:
        os.lstat(name, dir_fd=directory)
    except OSError:
        return False
    return True


def _write(name: str, kept: Kept | None, directory: int) -> None:
    """Whatever is there is set aside beside it, where git does not look."""
    both = {"src_dir_fd": directory, "dst_dir_fd": directory}
    with suppress(FileNotFoundError):
        os.rename(name, f"{name}{ASIDE}", **both)
    if kept is None:
        return
    draft = f"{name}.{os.getpid()}{ASIDE}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(draft, flags, kept.mode, dir_fd=directory)
    with os.fdopen(handle, "wb") as file:
        file.write(kept.data)
        os.fchmod(handle, kept.mode)
    os.rename(draft, name, **both)


def _told(kept: Kept | None) -> list[str]:
    """The settings of a configuration that name programs, each with its section."""
    text = "" if kept is None else kept.data.decode("utf-8", "surrogateescape")
    section, found = "", []
    for line in text.replace("\\\n", "").splitlines():
        setting = line.strip()
        if setting.startswith("["):
            section, _, setting = setting.partition("]")
        kind = section[1:].strip().partition(" ")[0].partition(".")[0].partition('"')[0].lower()
        key = re.split(r"[\s=]", setting.strip(), maxsplit=1)[0].lower()
        if key and (kind in _SECTIONS or _KEYS.search(key)):
            found.append(f"{section} {setting.strip()}")
    return sorted(found)
