"""
Private files of delegations: the prompt, the answer, one directory for each attempt.

    <root>/<delegation>/prompt      what was asked            0600
    <root>/<delegation>/request     the other parameters      0600
    <root>/<delegation>/record      what is on record of it, one line for each attempt and its end
    <root>/<delegation>/answer      what came back, at the end 0600
    <root>/<delegation>/made        files that were made for it in the folders of agents
    <root>/<delegation>/history-*   conversations that programs were given
    <root>/<delegation>/work/       the working directory of a session whose callers name none
    <root>/<delegation>/<n>/        log and exit record of attempt n
    <root>/planted                  configuration that attempts have changed: see `planted`

Names are minted by the daemon; nothing that a caller says becomes part of a path.

The run directory has the record too: one line for each attempt and for the end, never ahead of the
database. At a start on an older database, or on none, `later_records` finds what it does not know,
and it is taken over before anything is resumed. Files are opened relative to their directory,
without following links, without waiting, regular files only, up to a size (`lib/privatefile`).
"""

import os
import secrets
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec
import structlog
from msgspec import Struct

from fallbackd.core.ids import AttemptId, BackendId, DelegationId, attempt_number, delegation_of
from fallbackd.core.records import Delegation
from fallbackd.engine.environment import EndLeftover
from fallbackd.lib import atomicfile, privatefile
from fallbackd.lib.failpoints import hit
from fallbackd.ports.store import Store

BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system. Source: stat(2)."""
MAX_PROMPT_BYTES = 64 * 1024 * 1024
MAX_REQUEST_BYTES = 8 * 1024 * 1024
MAX_TEXT_BYTES = 8 * 1024 * 1024
"""Bytes of an answer that are given out; JSON may spell each byte with six."""
MAX_GIT_BYTES = 64 * 1024 * 1024
ANSWER_DRAFT = "answer.part"
RECORD = "record"
PLANTED = "planted"
RESERVED_BYTES = 65_536
RECENT = 64
RECENT_CHARS = 16_384
"""Characters of all of them together, a few megabytes at most."""
READERS = 8
"""Reads for callers at the same time. A file system that hangs takes no more threads than these."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Kept(NamedTuple):
    delegation: DelegationId
    size_bytes: int
    """Size on the disk, which takes whole blocks."""
    changed_at: float
    """Time of the newest change of a file."""


class MadeFile(Struct, frozen=True, kw_only=True):
    """A conversation that was written into the folder of an agent, or into its database."""

    backend: BackendId
    id: str
    path: str = ""
    """Empty: it is in a database, and its program removes it."""


class KeptAnswer(Struct, frozen=True, kw_only=True):
    text: str
    path: str
    """Path of the file with all of it."""
    is_whole: bool = True


class Runs:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._root = str(root)
        self.readers = anyio.CapacityLimiter(READERS)
        self.survivors: set[str] = set()
        """Attempts that no record knows, and that could not be proven gone."""
        self._held: dict[DelegationId, str] = {}
        """Answers that the disk did not take yet. Few: no new work is taken then."""
        self._writes_held = threading.Lock()
        self._recent: OrderedDict[DelegationId, str] = OrderedDict()
        """Short answers of work that has just ended: a caller waits for each."""

    def create(self, delegation: DelegationId, prompt: str, request: bytes) -> None:
        """Make the directory, write the prompt and what was asked beside it. Raises `OSError`."""
        directory = self._directory(delegation)
        try:
            os.mkdir(directory, 0o700)
        except FileNotFoundError:  # the first one, or the directory was removed
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.mkdir(directory, 0o700)
        hit("run.directory")
        _write_new(f"{directory}/prompt", prompt.encode("utf-8", "surrogatepass"))
        hit("run.prompt")
        _write_new(f"{directory}/request", request)
        _reserve(f"{directory}/{ANSWER_DRAFT}")
        if self._held:  # the disk takes something again
            self.write_held()

    def path(self, delegation: DelegationId) -> Path:
        return self.root / delegation

    def _directory(self, delegation: DelegationId) -> str:
        return f"{self._root}/{delegation}"

    def prompt_path(self, delegation: DelegationId) -> str:
        return f"{self._directory(delegation)}/prompt"

    def attempt_path(self, attempt: AttemptId) -> str:
        return f"{self._directory(delegation_of(attempt))}/{attempt_number(attempt)}"

    def read_prompt(self, delegation: DelegationId) -> str | None:
        """Read the prompt; None: it cannot be read any more."""
        try:
            path = self.prompt_path(delegation)
            data = privatefile.read_file(path, max_bytes=MAX_PROMPT_BYTES, names=1)
            return data.decode("utf-8", "surrogatepass")
        except (OSError, UnicodeDecodeError):
            return None

    def take_up(self, delegation: DelegationId) -> str | None:
        """
        Remove the answer that an earlier daemon was writing: the work may end without one now.
        Returns the prompt, as `read_prompt` does.
        """
        with suppress(OSError):
            (self.path(delegation) / ANSWER_DRAFT).unlink()
        return self.read_prompt(delegation)

    def read_request(self, delegation: DelegationId) -> bytes | None:
        """Read the parameters beside the prompt; None: they are not on record any more."""
        try:
            path = self.path(delegation) / "request"
            return privatefile.read_file(path, max_bytes=MAX_REQUEST_BYTES, names=1)
        except OSError:
            return None

    def read_prompt_start(self, delegation: DelegationId, *, max_bytes: int) -> str | None:
        """Its first characters; None: it cannot be read any more."""
        try:
            data, _ = privatefile.read_start(
                self.prompt_path(delegation), max_bytes=max_bytes, names=1
            )
        except OSError:
            return None
        return data.decode("utf-8", "ignore")

    def prepare(self, attempt: AttemptId) -> str:
        directory = self.attempt_path(attempt)
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:  # of an attempt that no record knows
            if attempt in self.survivors:
                raise
            os.rename(directory, f"{directory}.void-{secrets.token_hex(4)}")
            os.mkdir(directory, 0o700)
        hit("attempt.directory")
        return directory

    def make_work(self, delegation: DelegationId) -> None:
        Path(self.work_path(delegation)).mkdir(mode=0o700, exist_ok=True)

    def work_path(self, delegation: DelegationId) -> str:
        return f"{self._directory(delegation)}/work"

    def write_prompt(self, attempt: AttemptId, text: str) -> str:
        """The prompt of one attempt, where it differs from what the caller said."""
        path = f"{self.attempt_path(attempt)}/prompt"
        _write_new(path, text.encode("utf-8", "surrogatepass"))
        return path

    def earlier_path(self, attempt: AttemptId) -> str:
        return f"{self.attempt_path(attempt)}/earlier.md"

    def write_earlier(self, attempt: AttemptId, text: str) -> None:
        """Write what was said before into the file to which the prompt refers."""
        _write_new(self.earlier_path(attempt), text.encode("utf-8", "replace"))

    def note_made(self, delegation: DelegationId, made: MadeFile) -> None:
        """Record a file before it is made: others are never removed. Raises `OSError`."""
        self._append(delegation, "made", msgspec.json.encode(made))

    def made(self, delegation: DelegationId) -> list[MadeFile]:
        """Files on record as made for a delegation."""
        try:
            path = self.path(delegation) / "made"
            data = privatefile.read_file(path, max_bytes=MAX_REQUEST_BYTES, names=1)
        except OSError:
            return []
        found = []
        for line in data.splitlines():
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=MadeFile))
        return found

    def pass_on_made(self, before: DelegationId, delegation: DelegationId, *, id: str) -> None:
        """A conversation that is continued is kept as long as the last delegation that did."""
        found = [one for one in self.made(before) if one.id == id]
        if found and all(one.id != id for one in self.made(delegation)):
            for one in found:
                self.note_made(delegation, one)
            rest = [one for one in self.made(before) if one.id != id]
            path = self.path(before) / "made"
            path.unlink()
            for one in rest:
                self.note_made(before, one)

    def keep_given(self, attempt: AttemptId, data: bytes) -> None:
        """Record how an attempt is given the past of its session, for a daemon that resumes it."""
        _write_new(f"{self.attempt_path(attempt)}/given", data)

    def given(self, attempt: AttemptId) -> bytes | None:
        return self._read(attempt, "given", MAX_REQUEST_BYTES)

    def _read(self, attempt: AttemptId, name: str, max_bytes: int) -> bytes | None:
        try:
            return privatefile.read_file(
                f"{self.attempt_path(attempt)}/{name}", max_bytes=max_bytes
            )
        except OSError:
            return None

    def keep_git(self, attempt: AttemptId, data: bytes) -> None:
        """Record what git obeyed at the start of an attempt. Without room nothing is put back."""
        with suppress(OSError):
            _write_new(f"{self.attempt_path(attempt)}/git", data)

    def git(self, attempt: AttemptId) -> bytes:
        return self._read(attempt, "git", MAX_GIT_BYTES) or b""

    def keep_pinned(self, attempt: AttemptId, data: bytes) -> None:
        """Record what an attempt found at its start; without room, in memory alone."""
        with suppress(OSError):
            _write_new(f"{self.attempt_path(attempt)}/pinned", data)

    def pinned(self, attempt: AttemptId) -> bytes | None:
        return self._read(attempt, "pinned", MAX_REQUEST_BYTES)

    def end_pinned(self, attempt: AttemptId, *, at: float) -> None:
        """Note the end of an attempt, as the time of the file that it had at its start."""
        with suppress(OSError):
            os.utime(f"{self.attempt_path(attempt)}/pinned", (at, at), follow_symlinks=False)

    def last_pinned(self, most: int) -> list[tuple[AttemptId, float]]:
        """The last attempts that have such a file, each with its time, the oldest first."""
        found = []
        for path in self.root.glob("*/[0-9]*/pinned"):
            if not path.parent.name.isdigit():
                continue  # set aside: nothing ran there, or no record knows it
            with suppress(OSError):
                attempt = AttemptId(f"{path.parent.parent.name}.{path.parent.name}")
                found.append((attempt, path.lstat().st_mtime))
        return sorted(found, key=lambda one: one[1])[-most:]

    def keep_planted(self, data: bytes) -> None:
        """Record what attempts have left that later ones must not obey, as `keep_pinned` does."""
        with suppress(OSError):
            atomicfile.write(f"{self._root}/{PLANTED}", data)

    def planted(self) -> bytes | None:
        try:
            path = f"{self._root}/{PLANTED}"
            return privatefile.read_file(path, max_bytes=MAX_REQUEST_BYTES, names=1)
        except OSError:
            return None

    def keep_answer(self, delegation: DelegationId, text: str) -> bool:
        """
        Durable before the success is announced. False: the disk does not take it now, so it
        is held in memory; `write_held` tries again.
        """
        try:
            self._write_answer(delegation, text)
        except OSError:
            self._held[delegation] = text
            return False
        if len(text) <= RECENT_CHARS:
            self._recent[delegation] = text.encode("utf-8", "replace").decode()
            while len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return True

    def note_record(self, record: Delegation) -> None:
        """
        Write down what is on record, for a start that finds the database lost or an older one. A
        disk that does not take it does not stop anything: the database has it.
        """
        with suppress(OSError, UnicodeEncodeError):
            self._append(record.delegation, RECORD, msgspec.json.encode(record))

    def _append(self, delegation: DelegationId, name: str, line: bytes) -> None:
        place = privatefile.open_directory(self.path(delegation), names=1)
        try:
            privatefile.append_line(name, line, directory=place)
        finally:
            os.close(place)

    def noted_record(self, delegation: DelegationId) -> Delegation | None:
        """
        The last one that is whole; None: there is none that can be read. A success without its
        answer does not count: the daemon was killed while the answer was in memory alone. The
        record before it leads to what the attempt has printed.
        """
        try:
            path = self.path(delegation) / RECORD
            data = privatefile.read_file(path, max_bytes=MAX_REQUEST_BYTES, names=1)
        except OSError:
            return None
        for line in reversed(data.splitlines()):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found = msgspec.json.decode(line, type=Delegation)
                if found.delegation != delegation:
                    return None
                if found.state != "succeeded" or self._has_answer(delegation):
                    return found
        return None

    def _has_answer(self, delegation: DelegationId) -> bool:
        try:
            return stat.S_ISREG(os.lstat(f"{self._directory(delegation)}/answer").st_mode)
        except OSError:
            return False

    def drop_reserve(self, delegation: DelegationId) -> None:
        """Release what was reserved for the answer of a delegation that has ended."""
        if delegation not in self._held:
            with suppress(OSError):
                os.unlink(f"{self._directory(delegation)}/{ANSWER_DRAFT}")

    def is_held(self, delegation: DelegationId) -> bool:
        """Its answer is in memory alone."""
        return delegation in self._held

    def write_held(self) -> int:
        """Write what is held. Returns how many answers are held still."""
        with self._writes_held:
            for delegation, text in list(self._held.items()):
                try:
                    self._write_answer(delegation, text)
                except OSError:
                    continue
                self._held.pop(delegation, None)  # its directory may have been removed meanwhile
        return len(self._held)

    def _write_answer(self, delegation: DelegationId, text: str) -> None:
        directory = self._directory(delegation)
        part = f"{directory}/{ANSWER_DRAFT}"
        hit("answer.before")
        _write_over(part, text.encode("utf-8", "replace"))
        hit("answer.written")
        os.replace(part, f"{directory}/answer")
        hit("answer.kept")

    def recent_answer(self, delegation: DelegationId) -> KeptAnswer | None:
        """The answer, where it is at hand."""
        text = self._recent.get(delegation)
        if text is None:
            return None
        return KeptAnswer(text=text, path=f"{self._directory(delegation)}/answer")

    def read_answer(self, delegation: DelegationId) -> KeptAnswer | None:
        """The answer, its end left out where it is very long; None: it cannot be read any more."""
        path = f"{self._directory(delegation)}/answer"
        held = self._held.get(delegation)
        if held is not None:
            is_whole = len(held) <= MAX_TEXT_BYTES
            return KeptAnswer(text=held[:MAX_TEXT_BYTES], path=path, is_whole=is_whole)
        try:
            data, is_whole = privatefile.read_start(path, max_bytes=MAX_TEXT_BYTES, names=1)
        except OSError:
            return None
        text = data.decode("utf-8", "replace" if is_whole else "ignore")
        return KeptAnswer(text=text, path=path, is_whole=is_whole)

    def measure(self) -> list[Kept]:
        """Every directory, with the space that it takes."""
        try:
            found = [one for one in os.scandir(self.root) if one.is_dir(follow_symlinks=False)]
            names = sorted(one.name for one in found)
        except OSError:
            return []
        return [_measured(self.root / name) for name in names]

    def remove(self, delegation: DelegationId) -> None:
        self._held.pop(delegation, None)
        self._recent.pop(delegation, None)
        path = self.path(delegation)
        for made in self.made(delegation):
            _remove_made(made)
        if path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _remove_made(made: MadeFile) -> None:
    """Remove a file that bears an id of ours, so that no other program has made it."""
    path = Path(made.path)
    try:
        if made.id and made.id in path.name and stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
    except (OSError, ValueError):
        return  # the directory was removed


def _measured(directory: Path) -> Kept:
    """Follows no link: what an agent has pointed to is not ours."""
    size_bytes, changed_at = 0, 0.0
    for place, _, names in os.walk(directory):
        for path in (place, *(os.path.join(place, name) for name in names)):
            try:
                seen = os.lstat(path)
            except OSError:
                continue  # it was there a moment ago
            size_bytes += seen.st_blocks * BLOCK_BYTES
            changed_at = max(changed_at, seen.st_mtime)
    return Kept(DelegationId(directory.name), size_bytes, changed_at)


def _write_new(path: str, data: bytes) -> None:
    fd = os.open(path, _CREATE, 0o600)
    try:
        _write_all(fd, data)
    finally:
        os.close(fd)


def _reserve(path: str) -> None:
    """Room for a short answer, which then is kept on a disk that has become full meanwhile."""
    with suppress(OSError):
        fd = os.open(path, _CREATE, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVED_BYTES)
        finally:
            os.close(fd)


def _write_over(path: str, data: bytes) -> None:
    """Durable. Into what was reserved, where that is there and a file."""
    try:
        fd = privatefile.regular(path, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, _CREATE, 0o600)
    try:
        _write_all(fd, data)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


log = structlog.get_logger("leftovers")

DRAFTS = (ANSWER_DRAFT, "*/.*.new")
"""Below the directory of a delegation."""
BARE = frozenset({"prompt", "request", "work"})
"""Content of a delegation's directory before the work is accepted."""


AT_ONCE = 500
"""Records that are kept in one transaction."""
Names = Collection[DelegationId]


async def tidy(runs: Runs, store: Store, before: Names, active: Callable[[], Names]) -> None:
    """
    Args:
        before: Directories that were there before this daemon took any work.
        active: Whose files may be in the making now.
    """
    try:
        await _tidy(runs, store, before, active)
    except Exception:  # what is left over must not keep the daemon from its work
        log.exception("leftovers.broke")


async def _tidy(runs: Runs, store: Store, before: Names, active: Callable[[], Names]) -> None:
    removed = 0
    for delegation in before:
        if delegation in active():
            continue
        is_bare = await anyio.to_thread.run_sync(tidy_one, runs.path(delegation))
        # Where records are missing by damage, it is unknown which work was accepted.
        if is_bare and not store.set_aside and await store.delegation(delegation) is None:
            await anyio.to_thread.run_sync(runs.remove, delegation)
            removed += 1
    if removed:
        log.info("runs.removed", directories=removed, why="never taken on")


def later_records(
    runs: Runs, active: Mapping[DelegationId, Delegation], unknown: Names
) -> list[tuple[Delegation, ...]]:
    """
    Find what run directories know and the records do not: delegations, attempts, ends. Each that is
    unfinished, or is to be, is alone, since its session is decided with it; oldest first.
    """
    alone: list[Delegation] = []
    ended: list[Delegation] = []
    for name in (*active, *unknown):
        found, known = runs.noted_record(name), active.get(name)
        if found is None:
            continue
        if known is None and found.is_ended:
            ended.append(found)
        elif known is None or _reach(found) > _reach(known):
            alone.append(found)
    alone.sort(key=lambda one: (not one.is_ended, one.created_at))
    together = [tuple(ended[at : at + AT_ONCE]) for at in range(0, len(ended), AT_ONCE)]
    return together + [(one,) for one in alone]


def _reach(one: Delegation) -> tuple[bool, int]:
    return one.is_ended, len(one.attempts)


async def end_strays(
    runs: Runs, before: Names, active: Mapping[DelegationId, int], end: EndLeftover
) -> list[str]:
    """
    End attempts that run without a record: two agents must not work in one place.

    Args:
        active: How many attempts are on record of each unfinished delegation.

    Returns:
        A sentence for each that could not be proven gone.
    """
    found = await anyio.to_thread.run_sync(_strays, runs, before, active)
    left: list[str] = []

    async def stop(directory: Path, attempt: str) -> None:
        try:
            is_gone = await end(str(directory), attempt=attempt)
        except Exception:  # damaged records must not keep the daemon from starting
            log.exception("stray.broke", attempt=attempt)
            is_gone = False
        log.warning("stray.ended" if is_gone else "stray.survived", attempt=attempt)
        if not is_gone:
            runs.survivors.add(attempt)
            left.append(f"{attempt} ({directory}/attempt.json has its pid)")

    async with anyio.create_task_group() as tasks:
        for directory, attempt in found:
            tasks.start_soon(stop, directory, attempt)
    return left


def _strays(runs: Runs, names: Names, active: Mapping[DelegationId, int]) -> list[tuple[Path, str]]:
    found = []
    for delegation in sorted(names):
        for claim in runs.path(delegation).glob("[0-9]*/claim"):
            directory = claim.parent
            if not directory.name.isdigit() or int(directory.name) <= active.get(delegation, 0):
                continue
            if not (directory / "exit.json").exists():
                found.append((directory, f"{delegation}.{directory.name}"))
    return found


def list_directories(root: Path) -> list[DelegationId]:
    """The delegations that have a directory."""
    try:
        return sorted(
            DelegationId(each.name)
            for each in root.iterdir()
            if each.is_dir() and not each.is_symlink()
        )
    except OSError:
        return []


def tidy_one(directory: Path) -> bool:
    """Remove drafts. Returns whether the directory holds nothing that work has left."""
    for pattern in DRAFTS:
        for draft in directory.glob(pattern):
            if draft.parent.is_symlink():
                continue  # what lies behind it is not ours
            try:
                draft.unlink()
            except OSError:
                log.warning("draft.left", path=str(draft))
    try:
        names = {each.name for each in directory.iterdir()}
        return names <= BARE and not any((directory / "work").glob("*"))
    except OSError:
        return False
