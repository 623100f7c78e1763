"""
Identity of directories, by whatever path they are reached.

A directory that was renamed, or that is mounted at a second place, is the same directory. Its
device and inode say so; what lies above it is found at every place where it can be seen.

Source: proc_pid_mountinfo(5), fields 3 to 5.

Places of a user may be moved by the environment: `${CODEX_HOME:-~/.codex}/auth.json`. The words
after `:-` may be such a place themselves.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_MOUNTS = "/proc/self/mountinfo"
_MAX_PLACES = 1000
"""Each ancestor at each of its places; more than any sane set of mounts has."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


class _Mount(NamedTuple):
    device: str
    root: str
    """The directory of the file system that is mounted."""
    point: str


def identity(path: str | int) -> str:
    """
    `device:inode` of a directory, the same at each of its names.

    Raises:
        OSError: It cannot be looked at.
    """
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}"


def identities(path: str) -> tuple[str, ...]:
    """
    The identity of a directory first, then those of the directories above it.

    Of a directory in a bind mount these are the ones above the mount point and the ones above the
    original. Empty: there is no such directory.

    Args:
        path: Absolute, without symbolic links.
    """
    try:
        found = dict.fromkeys((identity(path),))
    except OSError:
        return ()
    mounts = _read_mounts()
    pending, seen = [path], set[str]()
    while pending and len(seen) < _MAX_PLACES:
        place = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        try:
            here = identity(place)
        except OSError:
            continue
        found.setdefault(here)
        pending.append(os.path.dirname(place))
        pending += [other for other in _elsewhere(place, mounts) if _is(other, here)]
    return tuple(found)


def _is(path: str, wanted: str) -> bool:
    """Check whether it is there to be seen: another mount may cover it."""
    try:
        return identity(path) == wanted
    except OSError:
        return False


def _elsewhere(path: str, mounts: list[_Mount]) -> list[str]:
    """Paths of the directory by way of other mounts."""
    covering = [one for one in mounts if is_below(path, one.point)]
    if not covering:
        return []
    # The deepest one; of several at one point the last hides the others.
    mount = max(enumerate(covering), key=lambda one: (len(one[1].point), one[0]))[1]
    inside = _join(mount.root, os.path.relpath(path, mount.point))
    return [
        _join(one.point, os.path.relpath(inside, one.root))
        for one in mounts
        if one.device == mount.device and one is not mount and is_below(inside, one.root)
    ]


def levels(directory: str) -> tuple[str, ...]:
    """The directory and those above it, up to the root of its work tree; without one it alone."""
    found = [directory]
    while not os.path.lexists(f"{found[-1]}/.git"):
        above = os.path.dirname(found[-1])
        if above in ("", "/"):
            return (directory,)
        found.append(above)
    return tuple(found)


def is_below(inner: str, outer: str) -> bool:
    """Check whether `inner` is `outer` or below it, by name."""
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def overlap(one: str, other: str) -> bool:
    """Check whether one of two paths is the other or below it, by name."""
    return is_below(one, other) or is_below(other, one)


def _join(above: str, below: str) -> str:
    return os.path.normpath(os.path.join(above, below))


def _read_mounts() -> list[_Mount]:
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(" ", 5) for line in file]
    except OSError:
        return []
    return [
        _Mount(device=words[2], root=_unescaped(words[3]), point=_unescaped(words[4]))
        for words in lines
        if len(words) > 5
    ]


def _unescaped(word: str) -> str:
    """Spaces, tabs, line feeds and backslashes are written in octal."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), word)


_MOVED = re.compile(r"\$\{(\w+):-((?:[^{}]|\$\{[^{}]*\})*)\}")


def expand(place: str, environ: Mapping[str, str], *, home: str) -> str | None:
    """
    The absolute path of a place, for a program with this environment. A `/` at its end stays.

    Args:
        home: Where `environ` has no `HOME`.

    Returns:
        None where it is no absolute path.
    """
    while (moved := _MOVED.match(place)) is not None:
        given = environ.get(moved[1], "")
        place = (given if os.path.isabs(given) else moved[2]) + place[moved.end() :]
    if place == "~" or place.startswith("~/"):
        own = environ.get("HOME", "")
        place = (own if os.path.isabs(own) else home) + place[1:]
    return place if os.path.isabs(place) and "\0" not in place else None


def variables_in(place: str) -> tuple[str, ...]:
    """The variables that may move a place."""
    return tuple(re.findall(r"\$\{(\w+):-", place))


def places(given: Iterable[str], environ: Mapping[str, str], *, home: str) -> tuple[str, ...]:
    """The absolute paths of several, each once; without those that are none."""
    found = (expand(place, environ, home=home) for place in given)
    return tuple(dict.fromkeys(path for path in found if path is not None))
