"""
Notices that the configuration file is another one.

Editors replace files by rename, deployments swap symlinks, and a watched file that is replaced
is never heard of again. So directories are watched: each one that holds a symlink on the way to
the file, the one that holds the file (or the nearest that exists), and their parents. What
counts is the content: a wake-up without another content is no change.
"""

import os
import threading
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import structlog

from fallbackd.config.files import read_content

DEBOUNCE_MS = 250
_STEP_MS = 250
"""How often the watching thread looks up: half of the time until a change is noticed."""
_TIMEOUT_MS = 5000
"""A look without a notice, for file systems that send none."""
_RETRY_S = 0.5
_MAX_LINKS = 40  # as the kernel

_log = structlog.get_logger(__name__)

OnChange = Callable[[], Awaitable[None]]
WatchedPlaces = dict[str, tuple[int, int]]
"""Directory → its device and inode: a directory that was replaced is another one."""


async def watch(path: str, on_change: OnChange, *, seen: Callable[[], str] | None = None) -> None:
    """
    Call `on_change` after each change of the file at `path`, until cancelled.

    The file and its directory need not exist yet, may vanish and come back.

    Args:
        seen: `Loaded.digest` of what the caller has read last, by itself too; None: what lay there
            at the last look.
    """
    stop = threading.Event()
    async with anyio.create_task_group() as watching:
        watching.start_soon(_set_when_cancelled, stop)
        await _follow(path, on_change, seen, stop)
        watching.cancel_scope.cancel()


async def _set_when_cancelled(stop: threading.Event) -> None:
    # The thread that waits for notices cannot be cancelled: it looks at this event.
    try:
        await anyio.sleep_forever()
    finally:
        stop.set()


async def _follow(
    path: str, on_change: OnChange, seen: Callable[[], str] | None, stop: threading.Event
) -> None:
    # Here, because it takes a tenth of the time that the daemon has to get ready.
    from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

    limiter = anyio.CapacityLimiter(1)
    last = (await anyio.to_thread.run_sync(read_content, path)).digest if seen is None else ""
    seen = seen or (lambda: last)
    is_said = False
    while True:
        places = await anyio.to_thread.run_sync(_places, path)
        try:
            notify = RustNotify(list(places), False, False, 0, False, True)
        except (OSError, WatchfilesRustInternalError) as error:
            # A directory that has just gone, or no inotify watches left: look by ourselves.
            if not is_said:
                _log.warning("config.watch_failed", path=path, error=str(error))
                is_said = True
            await anyio.sleep(_RETRY_S)
            last = await _compare(path, on_change, seen())
            continue
        with notify:
            # Compared after the watch is in place: no change falls in between.
            while True:
                last = await _compare(path, on_change, seen())
                if await anyio.to_thread.run_sync(_places, path) != places:
                    break
                outcome = await anyio.to_thread.run_sync(
                    notify.watch, DEBOUNCE_MS, _STEP_MS, _TIMEOUT_MS, stop, limiter=limiter
                )
                if outcome == "stop":
                    return


async def _compare(path: str, on_change: OnChange, seen: str) -> str:
    digest = (await anyio.to_thread.run_sync(read_content, path)).digest
    # Behind it stand those of the files that it imports.
    if digest != seen and not seen.startswith(f"{digest}-"):
        try:
            await on_change()
        except Exception:
            # The watch outlives a bug in what it calls: the next change may be the cure.
            _log.exception("config.reload_failed", path=path)
    return digest


def _places(path: str) -> WatchedPlaces:
    """Existing directories in which a change may make `path` lead to another content."""
    found: WatchedPlaces = {}
    rest = [part for part in os.path.abspath(path).split("/") if part]
    here = "/"
    links = 0
    while rest:
        part = rest.pop(0)
        if part in (".", ""):
            continue
        if part == "..":
            here = os.path.dirname(here)
            continue
        there = os.path.join(here, part)
        try:
            target = os.readlink(there)
        except OSError:
            target = None
        if target is not None:
            _add(found, here)
            links += 1
            if links > _MAX_LINKS:
                break
            rest = [*target.split("/"), *rest]
            here = "/" if target.startswith("/") else here
        elif rest and os.path.isdir(there):
            here = there
        else:
            break
    _add(found, here)
    return found


def _add(found: WatchedPlaces, directory: str) -> None:
    for one in (directory, os.path.dirname(directory)):
        try:
            known = os.stat(one)
        except OSError:
            continue
        found[one] = (known.st_dev, known.st_ino)
