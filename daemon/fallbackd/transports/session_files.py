"""
Files that other programs append to, below some directories: what is new at the end of each.

One thread waits for notices of the kernel. Where a notice is missed, as it can be in a directory
that has just been made, the newest files are looked at with the next one, or after some seconds.
"""

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec import Struct

MAX_NEW_BYTES = 256 * 1024
"""Size of the end of what was written since the last look, which alone is read."""
HEAD_BYTES = 4096
_DEBOUNCE_MS = 200
_STEP_MS = 200
_LOOK_MS = 5000
_ABSENT_S = 2.0
_KNOWN = 64
_NEWEST = 4
_DEPTH = 4
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class NewLines(Struct, frozen=True, kw_only=True):
    place: str
    path: str
    head: bytes
    lines: tuple[bytes, ...]


class Followed:
    """Places up to which each file was read. Files as they are at the first look are not news."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self._places = places
        self._read: OrderedDict[str, int] = OrderedDict()
        self._is_first = True

    def look(self, noticed: frozenset[str]) -> list[NewLines]:
        found = []
        for place in self._places:
            newest = list(_newest(place))
            paths = newest + [one for one in noticed if _is_below(one, place)]
            looked = (self._new_in(place, path) for path in dict.fromkeys(paths))
            found += [news for news in looked if news is not None]
        self._is_first = False
        return found

    def _new_in(self, place: str, path: str) -> NewLines | None:
        try:
            handle = os.open(path, _READ)
        except (OSError, ValueError):
            return None
        with os.fdopen(handle, "rb"):
            seen = os.fstat(handle)
            if not stat.S_ISREG(seen.st_mode):
                return None
            begin = self._read.get(path, seen.st_size if self._is_first else 0)
            if seen.st_size < begin:
                begin = 0  # written anew
            start = max(begin, seen.st_size - MAX_NEW_BYTES)
            head = os.pread(handle, HEAD_BYTES, 0)
            data = os.pread(handle, seen.st_size - start, start)
        whole, end, _ = data.rpartition(b"\n")
        self._note(path, start + len(whole) + len(end))
        lines = whole.split(b"\n") if whole else []
        if start > begin:
            lines = lines[1:]  # the rest of a line that was cut
        return NewLines(place=place, path=path, head=head, lines=tuple(lines)) if lines else None

    def _note(self, path: str, offset: int) -> None:
        self._read[path] = offset
        self._read.move_to_end(path)
        while len(self._read) > _KNOWN:
            self._read.popitem(last=False)


async def follow(places: tuple[str, ...]) -> AsyncIterator[list[NewLines]]:
    """
    Follow until it is closed; directories that do not exist yet are waited for.

    Yields:
        First nothing: what is written from then on is news.
    """
    from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError  # slow to load

    stop = threading.Event()
    limiter = anyio.CapacityLimiter(1)
    followed = Followed(places)
    yield await anyio.to_thread.run_sync(followed.look, frozenset[str]())
    try:
        while True:
            there = _there(places)
            try:
                if not there:
                    raise FileNotFoundError(places)
                notify = RustNotify(there, False, False, 0, True, True)
            except (OSError, WatchfilesRustInternalError):
                await anyio.sleep(_ABSENT_S)  # nothing there yet, or no watches left: look oneself
                yield await anyio.to_thread.run_sync(followed.look, frozenset[str]())
                continue
            with notify:
                yield await anyio.to_thread.run_sync(followed.look, frozenset[str]())
                while there == _there(places):
                    seen = await anyio.to_thread.run_sync(
                        notify.watch,
                        *(_DEBOUNCE_MS, _STEP_MS, _LOOK_MS, stop),
                        limiter=limiter,
                        abandon_on_cancel=True,
                    )
                    noticed = _paths(seen)
                    yield await anyio.to_thread.run_sync(followed.look, noticed)
    finally:
        stop.set()


def _there(places: tuple[str, ...]) -> list[str]:
    return [one for one in places if os.path.isdir(one)]


def _paths(seen: object) -> frozenset[str]:
    changes = seen if isinstance(seen, set) else ()
    return frozenset(path for _, path in changes if path.endswith(".jsonl"))


def _newest(place: str) -> Iterator[str]:
    """The files that changed last in the directory whose names are the last: that of today."""
    directory = place
    for _ in range(_DEPTH):
        try:
            with os.scandir(directory) as found:
                entries = [one for one in found if not one.name.startswith(".")]
                below = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
                files = [one.path for one in entries if one.name.endswith(".jsonl")]
        except OSError:
            return
        if not below:
            yield from sorted(files, key=_changed_at)[-_NEWEST:]
            return
        directory = os.path.join(directory, max(below))


def _changed_at(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _is_below(path: str, place: str) -> bool:
    return Path(path).is_relative_to(place)
