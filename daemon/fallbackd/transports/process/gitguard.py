"""
Guard of what git runs and obeys in a repository: as it was before an attempt, and put back after
it.

git writes its configuration for `git remote add`, `git branch --track` and the like, beside the
hooks, so neither can be closed to an agent that may commit. What an attempt has changed of hooks,
and of settings that are not known to be harmless, is dropped when it has ended.

The agent may have written everything in there meanwhile, so directories are opened by their
identity, and no link is followed.
"""

import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Literal

import msgspec
from msgspec import Struct

from fallbackd.transports.process.runner.confine import git_places, work_tree

ASIDE = ".dropped"
MAX_BYTES = 256 * 1024
MAX_HOOKS = 200
MAX_INNER = 200
MAX_BELOW = 50
MAX_DEPTH = 3
MAX_FOLDERS = 1000
MAX_INCLUDED = 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_HARMLESS = re.compile(
    r"branch\..+\.(remote|pushremote|merge|rebase|description|gh-merge-base|vscode-merge-base"
    r"|github-pr-owner-number)"
    r"|remote\.(pushdefault|.+\.(url|pushurl|fetch|push|tagopt|prune|gh-resolved))"
    r"|submodule\.(active|.+\.(url|active|branch))"
    r"|user\.(name|email)|init\.defaultbranch|color\.[a-z.]+|lfs\.(.+\.access|.+\.locksverify)"
    r"|core\.(autocrlf|eol|filemode|ignorecase|logallrefupdates|quotepath|safecrlf)"
    r"|(commit|tag)\.gpgsign|fetch\.prune|gc\.auto|merge\.(conflictstyle|ff)|pull\.(ff|rebase)"
    r"|push\.(autosetupremote|default)|rebase\.(autosquash|autostash)|rerere\.enabled",
    re.DOTALL,
)
"""Settings that name no program, no file and no further settings. Source: git-config(1)."""
_REMOTE = re.compile(r"(branch\..*\.(push)?remote|remote\..*(url|pushdefault)|submodule\..*\.url)")
_FOREIGN = re.compile(r"-|[^/]*::|(?!(https?|ssh|git|file|git\+ssh|ssh\+git)://)[^/:]*://", re.I)
"""An address for which git starts a helper of that name."""


class Kept(Struct, frozen=True):
    kind: Literal["file", "link", "other"]
    mode: int
    data: bytes
    """Content, target, or the identity and times of what is not kept."""


class Place(Struct, frozen=True):
    path: str
    above: tuple[int, int]
    """Device and inode of the directory that it is in."""
    identity: tuple[int, int]
    files: dict[str, Kept | None]
    """Settings, and where they are; None: it is not there."""
    is_repository: bool = True
    hooks: dict[str, Kept] = {}
    other_hooks: Kept | None = None
    """Instead of a directory of hooks."""


_PASSED_OVER = frozenset((".git", "node_modules", ".venv", "venv", "target"))
_CONFIGS = ("config", "config.worktree", "commondir")
_POINTERS = ("commondir", ".git")
"""Files that say where a repository is."""


class GitGuard:
    """Attempts that work in one repository at a time share what the first of them has found."""

    def __init__(self) -> None:
        self._held: dict[str, list[Place]] = {}
        self._lock = threading.Lock()

    def look(self, attempt: str, cwd: str) -> bytes:
        """Record what is to be put back after an attempt in a directory; empty: nothing."""
        with self._lock:
            held: dict[object, Place] = {}
            for one in (each for places in self._held.values() for each in places):
                for key in (_where(one), _key(one)):
                    held.setdefault(key, one)
            found = [held.get(_where(one)) or held.get(_key(one), one) for one in _places(cwd)]
            if not found:
                return b""
            self._held[attempt] = found
            return msgspec.json.encode(found)

    def recall(self, attempt: str, known: bytes) -> None:
        """Hold what an earlier daemon has found."""
        with self._lock, suppress(msgspec.MsgspecError):
            self._held[attempt] = msgspec.json.decode(known, type=list[Place])

    def put_back(self, attempt: str, known: bytes) -> tuple[str, ...]:
        """
        Drop what has changed since. Returns the paths.

        Raises:
            OSError: Some of it stays.
            MsgspecError: What is known cannot be read.
        """
        changed: list[str] = []
        failed: list[str] = []
        with self._lock:
            held = self._held.pop(attempt, None)
            if held is None:
                held = msgspec.json.decode(known, type=list[Place]) if known else []
            for one in held:
                try:
                    changed += [os.path.join(one.path, name) for name in _restore(one)]
                except OSError as error:
                    failed.append(f"{one.path}: {error.strerror or error}")
        if failed:
            done = f"; dropped: {', '.join(changed)}" if changed else ""
            raise OSError("; ".join(failed) + done)
        return tuple(dict.fromkeys(changed))


def _where(one: Place) -> str:
    return one.path if one.is_repository else os.path.join(one.path, *one.files)


def _key(one: Place) -> tuple[object, ...]:
    return one.identity, one.is_repository, *([] if one.is_repository else sorted(one.files))


def _places(cwd: str) -> list[Place]:
    """List the places of the repository, its linked trees and submodules, and of those below."""
    found: dict[tuple[object, ...], Place] = {}
    for tree in (work_tree(cwd), *islice(_trees_below(os.path.realpath(cwd)), MAX_BELOW)):
        marker = os.path.join(tree, ".git")
        if not os.path.lexists(marker):
            continue
        looked = [] if os.path.isdir(marker) else [_look(tree, (".git",))]
        for place in _directories(tree):
            one = _look(place, _CONFIGS, is_repository=True)
            looked += [one, *_included(one, tree)]
        for one in looked:
            if one is not None:
                found.setdefault(_key(one), one)
    return list(found.values())


def _trees_below(cwd: str) -> Iterator[str]:
    for number, (folder, folders, files) in enumerate(os.walk(cwd)):
        if number >= MAX_FOLDERS:
            return
        if folder != cwd and (".git" in folders or ".git" in files):
            yield folder
        is_deep = folder[len(cwd) :].count("/") >= MAX_DEPTH
        folders[:] = [] if is_deep else [one for one in folders if one not in _PASSED_OVER]


def _directories(tree: str) -> Iterator[str]:
    for place in git_places(tree):
        yield place
        for above in ("worktrees", "modules"):
            yield from islice(_inner(os.path.join(place, above)), MAX_INNER)


def _inner(above: str) -> Iterator[str]:
    for folder, folders, files in os.walk(above):
        if "HEAD" in files:
            yield folder
            folders[:] = [name for name in folders if name == "modules"]


def _included(one: Place | None, tree: str) -> Iterator[Place | None]:
    """Files of settings in the working tree or the repository that its settings include."""
    if one is None:
        return
    waiting: list[tuple[str, Kept | None]] = [
        (one.path, kept) for name, kept in one.files.items() if name not in _POINTERS
    ]
    for _ in range(MAX_INCLUDED):
        if not waiting:
            return
        folder, kept = waiting.pop()
        for name, value in _settings(kept) or ():
            if not re.fullmatch(r"include(if\..*)?\.path", name, re.DOTALL) or not value:
                continue
            path = os.path.realpath(os.path.join(folder, os.path.expanduser(value)))
            if path.startswith((f"{tree}/", f"{one.path}/")):
                inner = _look(os.path.dirname(path), (os.path.basename(path),))
                waiting += [(inner.path, each) for each in inner.files.values()] if inner else []
                yield inner


def _look(path: str, names: tuple[str, ...], *, is_repository: bool = False) -> Place | None:
    try:
        above = _identity(os.stat(os.path.dirname(path)))
        handle = os.open(path, _DIRECTORY)
    except OSError:
        return None
    try:
        files = {name: _read(name, handle) for name in names}
        identity = _identity(os.fstat(handle))
        if not is_repository:
            return Place(path, above, identity, files, is_repository=False)
        return Place(path, above, identity, files, True, *_hooks(handle))
    except OSError:
        return None
    finally:
        os.close(handle)


def _identity(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_dev, seen.st_ino


def _hooks(repository: int) -> tuple[dict[str, Kept], Kept | None]:
    try:
        handle = os.open("hooks", _DIRECTORY, dir_fd=repository)
    except OSError:
        return {}, _read("hooks", repository)
    try:
        names = sorted(filter(_is_run, os.listdir(handle)))[:MAX_HOOKS]
        return {name: one for name in names if (one := _read(name, handle)) is not None}, None
    finally:
        os.close(handle)


def _is_run(name: str) -> bool:
    return not name.endswith((ASIDE, ".sample"))


def _read(name: str, directory: int) -> Kept | None:
    try:
        seen = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(seen.st_mode):
        return Kept("link", 0, os.fsencode(os.readlink(name, dir_fd=directory)))
    mode = stat.S_IMODE(seen.st_mode)
    if stat.S_ISREG(seen.st_mode) and seen.st_size <= MAX_BYTES:
        with suppress(OSError), os.fdopen(os.open(name, _FILE, dir_fd=directory), "rb") as file:
            return Kept("file", mode, file.read(MAX_BYTES + 1))
    stamp = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
    return Kept("other", mode, repr(stamp).encode())


def _restore(known: Place) -> Iterator[str]:
    above, name = os.path.split(known.path)
    try:
        parent = os.open(above, _DIRECTORY)
    except FileNotFoundError:
        return  # it has been removed
    try:
        if _identity(os.fstat(parent)) != known.above:
            if os.path.lexists(known.path):
                raise OSError("the directory that it is in is another one now")
            return
        now = _read(name, parent)
        if now is None:
            return
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            if not known.is_repository:
                raise OSError("it is not a directory any more")
            _write(name, None, parent)
            yield ""
            return
        if now.mode & 0o700 != 0o700:
            os.chmod(name, now.mode | 0o700, dir_fd=parent)
        handle = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            yield from _put_back(handle, known)
        finally:
            os.close(handle)
    finally:
        os.close(parent)


def _put_back(handle: int, known: Place) -> Iterator[str]:
    """Put one back in the directory that stands there now, which the agent may have made."""
    for name, before in known.files.items():
        now = _read(name, handle)
        if before == now:
            continue
        if name not in _POINTERS and now is not None:
            there, is_told = _settings(before), _settings(now)
            if there is not None and is_told is not None and _told(there) == _told(is_told):
                continue
        _write(name, before, handle)
        yield name
    if known.is_repository:
        yield from _put_hooks_back(handle, known)


def _put_hooks_back(repository: int, known: Place) -> Iterator[str]:
    try:
        handle = os.open("hooks", _DIRECTORY, dir_fd=repository)
    except OSError:  # nothing, a link to another directory, or a file
        now = _read("hooks", repository)
        if now == known.other_hooks and not (now is not None and known.hooks):
            return
        _write("hooks", known.other_hooks, repository)
        yield "hooks"
        if not known.hooks:
            return
        os.mkdir("hooks", dir_fd=repository)
        handle = os.open("hooks", _DIRECTORY, dir_fd=repository)
    try:
        if known.other_hooks is not None:
            _write("hooks", known.other_hooks, repository)
            yield "hooks"
            return
        for name in sorted({*filter(_is_run, os.listdir(handle)), *known.hooks}):
            before, now = known.hooks.get(name), _read(name, handle)
            if before == now:
                continue
            if before is None and now is not None and now.kind == "file" and not now.mode & 0o111:
                continue  # git runs none that cannot be executed
            _write(name, before, handle)
            yield f"hooks/{name}"
    finally:
        os.close(handle)


def _write(name: str, kept: Kept | None, directory: int) -> None:
    """Whatever is there is set aside beside it, where git does not look."""
    both = {"src_dir_fd": directory, "dst_dir_fd": directory}
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if mode & 0o700 != 0o700:
        os.fchmod(directory, mode | 0o700)
    try:
        os.rename(name, f"{name}{ASIDE}", **both)
    except FileNotFoundError:
        pass
    except OSError:  # a directory has that name
        os.rename(name, f"{name}.{os.urandom(8).hex()}{ASIDE}", **both)
    if kept is None or kept.kind == "other":
        return
    draft = f"{name}.{os.urandom(8).hex()}{ASIDE}"
    if kept.kind == "link":
        os.symlink(os.fsdecode(kept.data), draft, dir_fd=directory)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(draft, flags, kept.mode, dir_fd=directory)
        with os.fdopen(handle, "wb") as file:
            file.write(kept.data)
            os.fchmod(handle, kept.mode)
    os.rename(draft, name, **both)


def _told(settings: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """List those that are not known to be harmless, in their order."""
    return [(name, value) for name, value in settings if not _is_harmless(name, value or "")]


def _is_harmless(name: str, value: str) -> bool:
    if not _HARMLESS.fullmatch(name):
        return False
    return not (_REMOTE.fullmatch(name) and _FOREIGN.match(value))


_NAME = r"[A-Za-z0-9-]"
_SECTION = re.compile(rf'\[((?:{_NAME}|\.)*)(?:[ \t\r]+"((?:[^"\\\n]|\\[^\n])*)")?\]')
_KEY = re.compile(rf"([A-Za-z]{_NAME}*)[ \t]*(=?)")
_BLANK = re.compile(r"(?:[ \t\r\n]|[#;][^\n]*)+")
_VALUE = re.compile(r'(?:(\\\n)|\\([tbn"\\])|(")|([#;])|([^\\\n]))')
_ESCAPED = {"t": "\t", "b": "\b", "n": "\n"}


def _settings(kept: Kept | None) -> list[tuple[str, str | None]] | None:
    """
    The settings of a file as git reads them, with their whole names; None: it cannot be read.

    The value None stands for a name alone. The grammar is that of `git_parse_source` in git.
    """
    if kept is None:
        return []
    if kept.kind != "file" or len(kept.data) > MAX_BYTES or b"\0" in kept.data:
        return None
    text = kept.data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    text = text.replace("\r\n", "\n") + "\n"
    found: list[tuple[str, str | None]] = []
    section, at = "", 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
        elif header := _SECTION.match(text, at):
            at, section = header.end(), header[1].lower()
            if header[2] is not None:
                section += "." + re.sub(r"\\(.)", r"\1", header[2])
        elif key := _KEY.match(text, at):
            name, value, at = f"{section}.{key[1].lower()}", None, key.end()
            if key[2]:
                read = _value(text, at)
                if read is None:
                    return None
                value, at = read
            elif text[at] != "\n":
                return None
            found.append((name, value))
        else:
            return None
    return found


def _value(text: str, at: int) -> tuple[str, int] | None:
    """A value, and where its line ends; None: git refuses it."""
    value, is_quoted, trimmed = "", False, 0
    while text[at] != "\n":
        part = _VALUE.match(text, at)
        if part is None:
            return None
        at = part.end()
        if part[3]:
            is_quoted = not is_quoted
        elif part[4] and not is_quoted:
            at = text.index("\n", at)
            break
        elif not part[1]:
            plain = part[4] or part[5]
            is_space = plain is not None and plain in " \t\r" and not is_quoted
            if is_space and not value:
                continue
            value += plain or _ESCAPED.get(part[2], part[2])
            if is_space:
                continue
        trimmed = len(value)
        if at >= len(text):
            return None
    return None if is_quoted else (value[:trimmed], at)
