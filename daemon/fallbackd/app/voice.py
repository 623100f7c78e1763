"""Health that is shared with voice agents, by the file that they read and write."""

import os
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.to_thread
import structlog

from fallbackd.config.load import VOICE_FILE, Loaded
from fallbackd.config.voice import VoiceHealth, VoiceMark, read_voice, render_voice
from fallbackd.core.views import health_entries
from fallbackd.engine import feedback
from fallbackd.engine.api import Engine
from fallbackd.lib import atomicfile
from fallbackd.lib.failpoints import hit
from fallbackd.lib.privatefile import regular

log = structlog.get_logger("voice")

FOR_EVER_S = 365 * 86_400.0
LOOK_S = 1.0
GATHER_S = 0.2
"""Changes that come together are written once."""


Stamp = tuple[int, int, int] | None
"""Inode, time of change and size; None: there is no file."""


class VoiceImport:
    """Takes marks from the files that the configuration names, whenever one of them has changed."""

    def __init__(self, engine: Engine, home: str) -> None:
        self._engine = engine
        self._home = home
        self._paths: tuple[str, ...] = ()
        self._stamps: dict[str, Stamp] = {}
        self._lock = anyio.Lock()
        self._is_watching = anyio.Event()
        """Set while there is a file to look at."""

    async def configure(self, loaded: Loaded) -> None:
        """Take what the files say that `loaded` names, and watch those from now on."""
        named = (one for one in loaded.imports if os.path.basename(one) == VOICE_FILE)
        self._paths = tuple(_expanded(one, self._home) for one in named)
        self._stamps.clear()
        if self._paths:
            self._is_watching.set()
        elif self._is_watching.is_set():
            self._is_watching = anyio.Event()
        for path in self._paths:
            await self.take(path)

    async def run(self) -> None:
        """Run until cancelled: a change of a file takes effect within a second or two."""
        while True:
            await self._is_watching.wait()
            await anyio.sleep(LOOK_S)
            for path in self._paths:
                if await anyio.to_thread.run_sync(_stamp, path) != self._stamps.get(path):
                    await self.take(path)

    async def take(self, path: str) -> None:
        """
        Take the entries that are new or changed since the last time.

        The newer mark of a backend counts: an entry that is older than what is on record about it
        says nothing. An entry that another program has removed takes its mark with it.
        """
        if path not in self._paths:
            return
        async with self._lock:
            self._stamps[path] = await anyio.to_thread.run_sync(_stamp, path)
            text = await anyio.to_thread.run_sync(_read, path)
            if text is None:
                return
            key = f"imported:{path}"
            before = await self._engine.store.get_meta(key) or ""
            if before == text:
                return
            now = self._engine.clock.now()
            found = read_voice(text, path=path, now=now)
            for problem in found.warnings:
                log.warning("import.questioned", path=problem.path, message=problem.message)
            if not found.is_valid:
                return  # marks are withdrawn by an entry that is missing, not by a damaged file
            known = set(read_voice(before, path=path, now=now).marks)
            taken = await self._apply(found, known)
            hit("import.taken")
            await self._engine.store.set_meta(key, text)
            log.info("import.taken", path=path, marks=taken)

    async def _apply(self, found: VoiceHealth, known: set[VoiceMark]) -> int:
        """Take what is new, withdraw what is gone; the number of marks that were taken."""
        news = [one for one in found.marks if one not in known and self._is_newer(one)]
        for mark in news:
            ttl_s = FOR_EVER_S if mark.ttl_s is None else mark.ttl_s
            await feedback.import_mark(
                self._engine, mark.backend, reason=mark.words, since_at=mark.since_at, ttl_s=ttl_s
            )
        named = {one.backend for one in found.marks} | found.ours
        for mark in known:
            if mark.backend not in named and self._is_on_record(mark):
                await feedback.clear(self._engine, mark.backend)
        return len(news)

    def _since_at(self, backend: str) -> float | None:
        entry = self._entries().get(backend)
        return None if entry is None or entry["state"] == "healthy" else entry["since_at"]

    def _is_newer(self, mark: VoiceMark) -> bool:
        since_at = self._since_at(mark.backend)
        return since_at is None or mark.since_at > since_at

    def _is_on_record(self, mark: VoiceMark) -> bool:
        return self._since_at(mark.backend) == mark.since_at

    def _entries(self) -> Mapping[str, Any]:
        engine = self._engine
        return health_entries(
            engine.snapshot(), engine.settings.policy, now=engine.clock.now(), only="unhealthy"
        )


class VoiceExport:
    """Writes the file anew after health has changed; nothing without a configured path."""

    def __init__(self, engine: Engine, home: str, imports: VoiceImport) -> None:
        self._engine = engine
        self._imports = imports
        self.home = home
        self.path: str | None = None
        self._is_due = anyio.Event()
        self._changes = 0
        self._written = 0
        """So many of the changes are in the file, or were tried."""
        self._tidied: str | None = None
        """The place where nothing is left of an earlier daemon that was killed at it."""
        self._said: tuple[str, str] | None = None
        """The trouble that the log has heard of: each is said once, not at every change."""

    def soon(self) -> None:
        self._changes += 1
        self._is_due.set()

    async def run(self) -> None:
        while True:
            await self._is_due.wait()
            await anyio.sleep(GATHER_S)
            self._is_due = anyio.Event()
            await self.write()

    async def write(self) -> None:
        if self.path is None:
            return
        place = _expanded(self.path, self.home)
        await self._imports.take(place)  # what another program has written there is kept
        changes = self._changes
        text = render_voice(self._marks())
        if place != self._tidied:
            await anyio.to_thread.run_sync(atomicfile.clear_drafts, place)
            self._tidied = place
        try:
            await anyio.to_thread.run_sync(_replace, place, text)
        except OSError as error:
            trouble = (place, error.strerror or str(error))
            if trouble != self._said:
                log.warning("export.failed", path=place, error=trouble[1])
            self._said = trouble
        else:
            if self._said is not None:
                log.info("export.written_again", path=place)
            self._said = None
        self._written = changes

    async def finish(self) -> None:
        """Write what is still due, also where `run` was cancelled in the middle of it."""
        if self._written < self._changes:
            await self.write()

    def _marks(self) -> list[VoiceMark]:
        engine = self._engine
        entries = health_entries(
            engine.snapshot(), engine.settings.policy, now=engine.clock.now(), only="unhealthy"
        )
        found = []
        for backend, entry in entries.items():
            if entry["state"] not in ("rate_limited", "broken", "paused"):
                continue
            if entry["source"] == "readiness":
                continue  # what is not installed or not set up, other programs see themselves
            since_at = entry["since_at"]
            found.append(
                VoiceMark(
                    backend=backend,
                    words=_words(entry),
                    since_at=engine.clock.now() if since_at is None else since_at,
                    ttl_s=entry["ttl_seconds"],
                )
            )
        return found


def _words(entry: Mapping[str, Any]) -> str:
    """A person's own words alone; else the reason, then what the provider said."""
    reason, detail = entry["reason"] or entry["state"], entry["detail"]
    if detail and reason in ("manual", "paused"):
        return str(detail)
    return ": ".join(str(part) for part in (reason, detail) if part)


def _replace(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    hit("export.before")
    atomicfile.write(path, text)
    hit("export.after")


def _expanded(path: str, home: str) -> str:
    return os.path.join(home, path[2:]) if path.startswith("~/") else path


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace", opener=regular) as file:
            return file.read(1024 * 1024)
    except OSError as error:
        log.warning("import.failed", path=path, error=error.strerror or str(error))
        return None
