"""
Directories of unfinished work: their place now, and whether they are what they were.

Each is held open, so that it is found again after a rename.

Digests of what any kind would obey in a directory (`BackendKind.project`) are taken at the start of
an attempt and compared at its end. `start` of a kind heeds `Work.planted`; a kind that cannot is
not started. A directory is locked by device and inode, looked at through every mount, and looked at
again before each start. Nested work shares its parent's lock, so it is stopped and verified gone,
at any depth, before anything follows that attempt.
"""

import hashlib
import os
import resource
import stat
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from math import inf

import anyio.to_thread
import msgspec
from msgspec import Struct

from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.events import WorkspaceMoved
from fallbackd.core.ids import AttemptId, DelegationId, SessionId
from fallbackd.core.opencode.session import FILES
from fallbackd.core.policy import Policy
from fallbackd.core.records import Delegation, Snapshot
from fallbackd.core.work.workspaces import writer_at
from fallbackd.engine.runs import Runs
from fallbackd.lib.directories import identities, identity, is_below, levels, overlap
from fallbackd.lib.privatefile import regular

_PLENTY = 1024
"""Limit of descriptors below which they are all left to the work itself."""


class Workspaces:
    def __init__(self) -> None:
        self._held: dict[DelegationId, tuple[int, str]] = {}
        """A descriptor, and the path at which the directory was last seen."""

    def hold(self, one: Delegation) -> None:
        """Keep the directory in sight until `release`. One that is gone is not held."""
        if one.delegation in self._held or not one.cwd_ids or not _has_plenty():
            return
        places = [one.cwd]
        if one.running is not None and one.running.pid is not None:
            places.append(f"/proc/{one.running.pid}/cwd")  # it was moved while no daemon ran
        for place in places:
            try:
                handle = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            if identity(handle) == one.cwd_ids[0]:
                self._held[one.delegation] = (handle, one.cwd)
                return
            os.close(handle)

    def release(self, delegation: DelegationId) -> None:
        held = self._held.pop(delegation, None)
        if held is not None:
            os.close(held[0])

    def release_all(self) -> None:
        for name in list(self._held):
            self.release(name)

    def moved(self) -> Iterator[WorkspaceMoved]:
        """List those that lie elsewhere than when they were last looked at."""
        for name, (handle, path) in list(self._held.items()):
            now = os.readlink(f"/proc/self/fd/{handle}")
            if now == path:
                continue
            found = identities(now)
            if found[:1] == (identity(handle),):
                self._held[name] = (handle, now)
                yield WorkspaceMoved(delegation=name, cwd_ids=found)


def why_not_there(one: Delegation, seen: Snapshot, policy: Policy) -> str | None:
    """Reason why nothing may be started in the directory of a delegation; None: it may."""
    if not one.cwd_ids:
        return None
    found = identities(one.cwd)
    if not found:
        return "it is no longer there"
    if found[0] != one.cwd_ids[0]:
        return "it is another directory now than when the work was accepted"
    other = writer_at(seen, policy, one, found)
    if other is not None:
        return f"it is in use by {other.delegation} now"
    return None


def _has_plenty() -> bool:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or soft >= _PLENTY


MAX_BYTES = 256 * 1024
MAX_FILES = 500
"""Files of one place. What is larger, or comes after these, counts by its size and times."""


def digests(places: Iterable[str]) -> dict[str, str]:
    """Digest what is at each place, links followed. An empty place is left out."""
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
    Test whether a place, its content or a directory between it and `top` was last changed then.

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


MAX_KEPT = 1000
MAX_ENDED = 200
_COARSE_S = 0.1
"""Times of files lag behind the clock by less than this."""


class Pinned(Struct, frozen=True, kw_only=True):
    """Findings of an attempt at its start."""

    attempt: AttemptId
    delegation: DelegationId
    session: SessionId
    cwd: str
    at: float
    places: tuple[str, ...]
    digests: Mapping[str, str]


class Left(Struct, frozen=True, kw_only=True):
    """A file as an attempt has left it."""

    digest: str
    attempt: AttemptId
    session: SessionId
    at: float


class Reader(Struct, frozen=True, kw_only=True):
    """Work whose program would obey the files of its directory."""

    session: SessionId
    since_at: float
    """When it was accepted."""
    delegation: DelegationId | None = None
    is_inside: bool = False

    @classmethod
    def of(cls, one: Delegation) -> "Reader":
        return cls(
            session=one.session,
            since_at=one.created_at,
            delegation=one.delegation,
            is_inside=one.parent is not None,
        )

    def must_not_obey(self, session: SessionId, at: float) -> bool:
        """Test this for what was left in a session by then."""
        return self.is_inside or self.session == session or self.since_at <= at


class Planted:
    def __init__(self, runs: Runs, kinds: Mapping[str, BackendKind], *, home: str) -> None:
        self._runs = runs
        of_kinds = (one for kind in kinds.values() for one in kind.project.places)
        self._names = tuple(dict.fromkeys((*of_kinds, *FILES)))
        self._home = os.path.realpath(home)
        self._running: dict[AttemptId, Pinned] = {}
        self._ended: deque[tuple[Pinned, float]] | None = None
        """
        The last ones that have ended, and when: what they changed further below. None: those of an
        earlier daemon are to be read first.
        """
        self._left: dict[str, Left] | None = None
        self._keeps = threading.Lock()

    async def begin(
        self, attempt: AttemptId, delegation: Delegation, cwd: str, *, writes: bool, now: float
    ) -> dict[str, AttemptId]:
        """
        Pin what is there at the start of an attempt, of which nothing runs yet.

        Args:
            writes: It may change its directory.

        Returns:
            Files that it must not obey, each with the attempt that has changed it.
        """
        return await anyio.to_thread.run_sync(self._begin, attempt, delegation, cwd, writes, now)

    def _begin(
        self, attempt: AttemptId, delegation: Delegation, cwd: str, writes: bool, now: float
    ) -> dict[str, AttemptId]:
        places = self._places(cwd)
        seen = digests(places)
        found = self._found(Reader.of(delegation), seen)
        if writes:
            pinned = Pinned(
                attempt=attempt,
                delegation=delegation.delegation,
                session=delegation.session,
                cwd=cwd,
                at=now,
                places=places,
                digests=seen,
            )
            self._running[attempt] = pinned
            self._runs.keep_pinned(attempt, msgspec.json.encode(pinned))
        return found

    async def look(self, reader: Reader, cwd: str) -> dict[str, AttemptId]:
        """Return the same for a program that is to wait there for a prompt."""
        return await anyio.to_thread.run_sync(
            lambda: self._found(reader, digests(self._places(cwd)))
        )

    def is_written(self, cwd: str) -> bool:
        """Test whether an attempt may change that directory now, or what lies above or below."""
        return any(overlap(one.cwd, cwd) for one in self._running.values())

    def _found(self, reader: Reader, seen: Mapping[str, str]) -> dict[str, AttemptId]:
        found = self._known(reader, seen)
        for other in tuple(self._running.values()):
            if other.delegation != reader.delegation:
                found |= dict.fromkeys(_changed(other, seen), other.attempt)
        for other, until in tuple(self._past()):
            if reader.must_not_obey(other.session, until):
                below = (one for one in seen if _is_changed_below(other, one, until=until))
                found |= dict.fromkeys(below, other.attempt)
        return found

    def _known(self, reader: Reader, seen: Mapping[str, str]) -> dict[str, AttemptId]:
        left = self._read()
        return {
            place: one.attempt
            for place, digest in seen.items()
            if (one := left.get(place)) is not None
            and one.digest == digest
            and reader.must_not_obey(one.session, one.at)
        }

    async def left_by(self, places: Iterable[str]) -> AttemptId | None:
        """The attempt that has left one of these files as it is now, or that changes it."""
        return await anyio.to_thread.run_sync(self._left_by, tuple(places))

    def _left_by(self, places: tuple[str, ...]) -> AttemptId | None:
        seen, left = digests(places), self._read()
        for other in tuple(self._running.values()):
            for _ in _changed(other, seen):
                return other.attempt
        for place, digest in seen.items():
            if (known := left.get(place)) is not None and known.digest == digest:
                return known.attempt
        return None

    def recall(self, attempt: AttemptId) -> None:
        """Know again an attempt that an earlier daemon has begun."""
        if (pinned := self._pinned(attempt)) is not None:
            self._running[attempt] = pinned

    def _pinned(self, attempt: AttemptId) -> Pinned | None:
        data = self._runs.pinned(attempt)
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return None if data is None else msgspec.json.decode(data, type=Pinned)
        return None

    def _past(self) -> deque[tuple[Pinned, float]]:
        with self._keeps:
            if self._ended is None:
                known = ((self._pinned(one), at) for one, at in self._runs.last_pinned(MAX_ENDED))
                found = ((pinned, at) for pinned, at in known if pinned is not None)
                self._ended = deque(found, maxlen=MAX_ENDED)
            return self._ended

    async def end(self, attempt: AttemptId, *, now: float) -> tuple[str, ...]:
        """
        Keep what it has changed, before its end is known to anything that could start next.

        Returns:
            A warning for people, where there is one.
        """
        if (pinned := self._running.get(attempt)) is None:
            return ()
        changed = await anyio.to_thread.run_sync(self._end, pinned, now)
        del self._running[attempt]
        if not changed:
            return ()
        what = in_words(dict.fromkeys(changed, attempt), cwd=pinned.cwd)
        return (f"{what}: agents that start in this directory obey it, so look at it first",)

    def _end(self, pinned: Pinned, now: float) -> tuple[str, ...]:
        places = dict.fromkeys((*pinned.places, *self._places(pinned.cwd)))
        changed = {
            place: Left(digest=digest, attempt=pinned.attempt, session=pinned.session, at=now)
            for place, digest in digests(places).items()
            if pinned.digests.get(place) != digest
        }
        self._past().append((pinned, now))
        self._runs.end_pinned(pinned.attempt, at=now)
        if changed:
            with self._keeps:
                left = {**self._read(), **changed}
                newest = sorted(left.items(), key=lambda one: one[1].at)[-MAX_KEPT:]
                self._left = dict(newest)
                self._runs.keep_planted(msgspec.json.encode(self._left))
        return tuple(changed)

    def _read(self) -> dict[str, Left]:
        if self._left is None:
            self._left = {}
            data = self._runs.planted()
            if data is not None:
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    self._left = msgspec.json.decode(data, type=dict[str, Left])
        return self._left

    def _places(self, cwd: str) -> tuple[str, ...]:
        """Places to look at. In the home directory they are its user's settings."""
        found = (one for one in levels(cwd) if one != self._home)
        return tuple(f"{level}/{name}" for level in found for name in self._names)


def _changed(other: Pinned, seen: Mapping[str, str]) -> Iterable[str]:
    """Changes by a running attempt to what is seen."""
    for place, digest in seen.items():
        if place in other.places:
            if other.digests.get(place) != digest:
                yield place
        elif _is_changed_below(other, place):
            yield place


def _is_changed_below(other: Pinned, place: str, *, until: float = inf) -> bool:
    """Test whether it lies deeper than an attempt was looked at, and was changed while that ran."""
    if place in other.places or not is_below(place, other.cwd):
        return False
    return was_changed(place, other.cwd, since=other.at - _COARSE_S, until=until)


def of_kind(found: Mapping[str, AttemptId], kind: BackendKind) -> dict[str, AttemptId]:
    """Files that a program of this kind would obey."""
    ends = tuple(f"/{name}" for name in kind.project.places)
    return {place: attempt for place, attempt in found.items() if place.endswith(ends)}


def is_left_out(kind: BackendKind, options: Options) -> bool:
    """Test whether its program can be started without; a user's own command is taken as it is."""
    return kind.project.can_be_left_out and not options.command


def in_words(found: Mapping[str, AttemptId], *, cwd: str) -> str:
    """Say which attempts have changed what."""
    names = [os.path.relpath(place, cwd) for place in found]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{' and '.join(dict.fromkeys(found.values()))} changed {shown}"
