"""Reads the file from disk. What cannot be read is an error of the configuration, not of ours."""

import hashlib
import os
import stat
import threading
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import anyio
import anyio.to_thread
import msgspec
import structlog
from msgspec import Struct

from fallbackd.config import import_hermes, import_jkz
from fallbackd.config.fields import Problem
from fallbackd.config.importing import Imported
from fallbackd.config.load import Loaded, load, unusable

MAX_BYTES = 1024 * 1024
WRITING_S = 0.25
"""For a program that writes a file in its place: until then it is found empty, or not at all."""
BLANK = (
    "is empty, as a file is that is being written; the last good configuration stays in force. To"
    " return to the built-in configuration, delete the file"
)


class Content(Struct, frozen=True, kw_only=True):
    """The content of a path now. One of `text` and `problem` is null; both are for no file."""

    digest: str
    """Equal for equal content; another one for no file and for each way to be unreadable."""
    text: str | None = None
    problem: str | None = None

    @property
    def is_missing(self) -> bool:
        return self.text is None and self.problem is None


def read_content(path: str) -> Content:
    """Read the file. Never raises for what lies there."""
    try:
        # Not blocking, since a pipe without a writer would hold us here.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return Content(digest="missing")
    except (OSError, ValueError) as error:
        return _unreadable(f"cannot be opened: {_words(error)}")
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return _unreadable("is not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            found = file.read(MAX_BYTES + 1)
    except OSError as error:
        return _unreadable(f"cannot be read: {_words(error)}")
    finally:
        os.close(handle)
    digest = hashlib.sha256(found).hexdigest()
    if len(found) > MAX_BYTES:
        return Content(digest=digest, problem=f"is larger than {MAX_BYTES} bytes")
    try:
        return Content(digest=digest, text=found.decode())
    except UnicodeDecodeError as error:
        return Content(digest=digest, problem=f"is not UTF-8 at byte {error.start}")


def _unreadable(problem: str) -> Content:
    return Content(digest=problem, problem=problem)


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def load_file(
    path: str,
    environ: Mapping[str, str] = MappingProxyType({}),
    *,
    is_named: bool = False,
    was_filled: bool = False,
) -> Loaded:
    """
    Load the configuration from `path`; without a file, the built-in one.

    Args:
        environ: Where variables are that the file imports.
        is_named: The user has named the file, so that a missing one is worth a warning.
        was_filled: A file with settings is in force: one that is empty now is an error.
    """
    content = read_content(path)
    why = content.problem
    if was_filled and content.text is not None and not content.text.strip():
        why = BLANK
    if why is not None:
        found = unusable(path, why, environ)
        return msgspec.structs.replace(found, digest=content.digest)
    digests = [content.digest]

    def take(place: str) -> Imported | Problem | None:
        found = import_from(place, environ)
        digests.append(found.digest)
        return found.imported if found.problem is None else found.problem

    loaded = load(content.text, path=path, take=take, environ=environ)
    if is_named and content.text is None:
        missing = Problem(path, "there is no such file; until there is, what is built in is used")
        loaded = msgspec.structs.replace(loaded, warnings=(missing, *loaded.warnings))
    digest = "-".join(digests)
    return msgspec.structs.replace(loaded, digest=digest)


class FileImport(Struct, frozen=True, kw_only=True):
    """The file of another program. Both null: it is not taken from there."""

    digest: str = ""
    imported: Imported | None = None
    problem: Problem | None = None


def import_from(place: str, environ: Mapping[str, str]) -> FileImport:
    """
    Read the configuration of another program.

    Args:
        place: A path, absolute or beginning with `~/`, or `JKZ_*` for variables.
        environ: Where those variables are.
    """
    if place == import_jkz.ALL:
        found = {k: v for k, v in environ.items() if k.startswith(import_jkz.PREFIX)}
        named = repr(sorted(found.items())).encode()
        digest = hashlib.sha256(named).hexdigest()
        return FileImport(digest=digest, imported=import_jkz.read_jkz(found))
    if os.path.basename(place) != import_hermes.FILE_NAME:
        return FileImport()
    content = read_content(os.path.expanduser(place))
    if content.text is None:
        why = content.problem or "there is no such file"
        return FileImport(digest=content.digest, problem=Problem(place, why))
    return FileImport(
        digest=content.digest, imported=import_hermes.read_hermes(content.text, path=place)
    )


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
