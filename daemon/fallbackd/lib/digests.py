"""Digests of files and directories, by which a later look finds what has changed there."""

import hashlib
import os
import stat
from collections.abc import Iterable
from math import inf

from fallbackd.lib.privatefile import regular

MAX_BYTES = 256 * 1024
MAX_FILES = 500
"""Of one place. What is larger, or comes after these, counts by its size and times."""


def digests(places: Iterable[str]) -> dict[str, str]:
    """What is at each place, links followed. A place at which there is nothing is left out."""
    found = {}
    above: dict[str, bool] = {}
    for place in places:
        folder = os.path.dirname(place)
        if folder not in above:  # most have nothing, and several places each
            above[folder] = os.path.isdir(folder)
        if not above[folder]:
            continue
        try:
            seen = os.lstat(place)
        except (OSError, ValueError):
            continue
        try:
            found[place] = _digest(place, seen)
        except OSError:
            found[place] = "unreadable"
    return found


def was_changed(place: str, top: str, *, since: float, until: float = inf) -> bool:
    """
    Whether a place, what is in it, or a directory between it and `top` was last changed then.

    The time of a change is the kernel's own: a program cannot set it.
    """
    paths = [place]
    while paths[-1] not in (top, "/"):
        paths.append(os.path.dirname(paths[-1]))
    return any(since <= _changed_at(path) <= until for path in (*paths[:-1], *_below(place)))


def _digest(place: str, seen: os.stat_result) -> str:
    digest = hashlib.sha256(_of_file(place, seen, has_room=True))
    for number, path in enumerate(_below(place)):
        try:
            content = _of_file(path, os.lstat(path), has_room=number < MAX_FILES)
        except OSError:
            continue
        digest.update(f"\0{path}\0".encode(errors="surrogateescape") + content)
    return digest.hexdigest()


def _below(place: str) -> list[str]:
    """Everything in a directory; each directory once, whatever links lead to it."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(place, followlinks=True):
        try:
            here = os.stat(folder)
        except OSError:
            continue
        if (here.st_dev, here.st_ino) in seen:
            folders.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        folders.sort()
        found += [f"{folder}/{name}" for name in (*folders, *sorted(files))]
    return found


def _of_file(path: str, seen: os.stat_result, *, has_room: bool) -> bytes:
    target = (
        os.readlink(path).encode(errors="surrogateescape") if stat.S_ISLNK(seen.st_mode) else b""
    )
    try:
        handle = regular(path, os.O_RDONLY)
    except OSError:
        return b"%s\0%o" % (target, stat.S_IFMT(seen.st_mode))
    with os.fdopen(handle, "rb") as file:
        known = os.fstat(handle)
        if has_room and known.st_size <= MAX_BYTES:
            return target + b"\0" + hashlib.sha256(file.read(MAX_BYTES + 1)).digest()
    return b"%s\0%d/%d/%d" % (target, known.st_size, known.st_mtime_ns, known.st_ctime_ns)


def _changed_at(path: str) -> float:
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0
