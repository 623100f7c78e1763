"""
Check that only the daemon's user reaches its places, before the start and ever after.

What is ours and only open is closed. What others may change is closed too while the daemon runs: an
agent of the same user can open it at any time. At the start, when nothing is known of what others
have done there, it is said with the command that fixes it, and nothing is started beside it. What
is not ours stops new work.
"""

import os
import stat

import structlog
from msgspec import Struct

from fallbackd.api.host import Trouble
from fallbackd.app.places import Places
from fallbackd.lib.privacy import ROOT, Fault, command, fault_of, user_name

EXPOSED = "exposed"
UNPROTECTED = "unprotected"
ENV_FILE = "env"
"""Beside the configuration: variables that the unit gives to the daemon."""

log = structlog.get_logger("private")


class WatchedPath(Struct, frozen=True, kw_only=True):
    """Paths that may be missing."""

    private: tuple[str, ...]
    """Directories with what was asked and answered."""
    files: tuple[str, ...]
    socket: str
    config: str


def watched(places: Places, *, socket: str) -> WatchedPath:
    """
    Args:
        socket: Where the daemon listens, which the service manager may have chosen.
    """
    state = places.state_dir
    directories = (state, places.runs, places.servers, os.path.join(state, "samples"))
    files = tuple(f"{places.database}{suffix}" for suffix in ("", "-wal", "-shm"))
    return WatchedPath(
        private=directories,
        files=(*files, places.digest_key, places.lock),
        socket=socket,
        config=places.config,
    )


def look(what: WatchedPath, *, uid: int | None = None, closes: bool = False) -> tuple[Trouble, ...]:
    """
    Make our own files private; return those that are not safe. Blocks for a few µs each.

    Args:
        closes: Also those to which others may write, or we may not.
    """
    me = os.geteuid() if uid is None else uid
    found: list[Trouble] = []
    place = os.path.dirname(what.socket)
    is_shared = os.path.basename(place) != "fallbackd"
    if closes:
        own = (*what.private, *(() if is_shared else (place,)))
        for path, mode in (*((one, 0o700) for one in own), *((one, 0o600) for one in what.files)):
            _close_own(path, mode, me)
    for directory in what.private:
        found += _exposed(_directory(directory, me))
    if (seen := _stat(place)) is not None:
        found += _exposed(fault_of(place, seen, uid=me, is_shared=is_shared))
    for path in what.files:
        found += _exposed(_file(path, me))
    found += _exposed(_socket(what.socket, me))
    found += _unprotected(what.config, me)
    return tuple(found)


def require(what: WatchedPath, *, uid: int | None = None) -> str | None:
    """Return the reasons why no daemon may start here, a sentence each; None: it may."""
    grave = [one for one in look(what, uid=uid) if one.stops_work]
    return "\n".join(f"{one.message}. Run `{one.fix}`." for one in grave) or None


class Guard:
    """Looks again and again, and says what has changed."""

    def __init__(self, what: WatchedPath) -> None:
        self._what = what
        self._known: dict[str, Trouble] = {}

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        return tuple(self._known.values())

    def look(self) -> str | None:
        """Return why no new work may be begun; None: it may."""
        now = {one.message: one for one in look(self._what, closes=True)}
        for message, one in now.items():
            if message not in self._known:
                tell = log.error if one.stops_work else log.warning
                tell(f"place.{one.kind}", problem=message, fix=one.fix)
        for message in self._known:
            if message not in now:
                log.warning("place.fixed", problem=message)
        self._known = now
        grave = next((one for one in now.values() if one.stops_work), None)
        return None if grave is None else f"{grave.message}; run `{grave.fix}`"


def _exposed(fault: Fault | None) -> list[Trouble]:
    if fault is None:
        return []
    return [Trouble(kind=EXPOSED, message=fault.what, fix=fault.fix, stops_work=True)]


def _stat(path: str, *, follow: bool = True) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError:
        return None


def _directory(path: str, uid: int) -> Fault | None:
    seen = _stat(path)
    if seen is None:
        return None
    fault = fault_of(path, seen, uid=uid)
    if fault is None and seen.st_mode & 0o077:
        _close(path, 0o700)
    return fault


def _file(path: str, uid: int) -> Fault | None:
    seen = _stat(path, follow=False)
    if seen is None:
        return None
    fault = fault_of(path, seen, uid=uid)
    if fault is None and seen.st_mode & 0o077:
        _close(path, 0o600)
    return fault


def _socket(path: str, uid: int) -> Fault | None:
    """Close a socket that others may connect to; they would be refused in any case."""
    seen = _stat(path, follow=False)
    if seen is None or not stat.S_ISSOCK(seen.st_mode):
        return None
    if seen.st_uid == uid:
        if seen.st_mode & 0o177:
            _close(path, 0o600)
        return None
    return fault_of(path, seen, uid=uid)


def _close_own(path: str, mode: int, uid: int) -> None:
    seen = _stat(path, follow=False)
    if seen is None or seen.st_uid != uid or stat.S_ISLNK(seen.st_mode):
        return
    if seen.st_mode & 0o022 or seen.st_mode & mode != mode:
        _close(path, mode)


def _close(path: str, mode: int) -> None:
    try:
        os.chmod(path, mode)
    except OSError as error:
        log.error("place.open", path=path, error=error.strerror, fix=f"chmod {mode:o} {path}")
        return
    log.warning("place.closed", path=path, mode=f"{mode:04o}")


def _unprotected(config: str, uid: int) -> list[Trouble]:
    """Files of the user's own: it is for them to say who may write there."""
    found = []
    directory = os.path.dirname(config)
    for path in (directory, config):
        seen = _stat(path)
        if seen is None:
            continue
        if seen.st_uid not in (uid, ROOT):
            what = f"{path} belongs to {user_name(seen.st_uid)}, and says what is run in your name"
            found.append((what, command("sudo", "chown", user_name(uid), path)))
        elif seen.st_mode & 0o022 and not seen.st_mode & stat.S_ISVTX:
            what = f"others may write to {path}, which says what is run in your name"
            found.append((what, command("chmod", "go-w", path)))
    env_file = os.path.join(directory, ENV_FILE)
    seen = _stat(env_file)
    if seen is not None and seen.st_mode & 0o077:
        what = f"others may read {env_file}, where keys may be"
        found.append((what, command("chmod", "600", env_file)))
    return [Trouble(kind=UNPROTECTED, message=what, fix=fix) for what, fix in found]
