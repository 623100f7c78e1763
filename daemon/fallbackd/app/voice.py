"""Health that is shared with voice agents, by the file that they read and write."""

import os
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.to_thread
import structlog

from fallbackd.config.load import VOICE_FILE, Loaded
from fallbackd.config.voice import VoiceMark, read_voice, render_voice
from fallbackd.core.views import health_entries
from fallbackd.engine.loop import Engine
from fallbackd.lib import atomicfile
from fallbackd.lib.failpoints import hit

log = structlog.get_logger("voice")

FOR_EVER_S = 365 * 86_400.0
GATHER_S = 0.2
"""Changes that come together are written once."""


async def import_marks(engine: Engine, loaded: Loaded, home: str) -> None:
    """Take over marks of files that have changed since they were taken the last time."""
    for path in loaded.imports:
        if os.path.basename(path) != VOICE_FILE:
            continue
        place = _expanded(path, home)
        text = await anyio.to_thread.run_sync(_read, place)
        if text is None:
            continue
        key = f"imported:{place}"
        if await engine.store.get_meta(key) == text:
            continue
        found = read_voice(text, path=place, now=engine.clock.now())
        for problem in found.warnings:
            log.warning("import.questioned", path=problem.path, message=problem.message)
        for mark in found.marks:
            ttl_s = FOR_EVER_S if mark.ttl_s is None else mark.ttl_s
            await engine.import_mark(
                mark.backend, reason=mark.words, since_at=mark.since_at, ttl_s=ttl_s
            )
        hit("import.taken")
        await engine.store.set_meta(key, text)
        log.info("import.taken", path=place, marks=len(found.marks))


class VoiceExport:
    """Writes the file anew after health has changed; nothing without a configured path."""

    def __init__(self, engine: Engine, home: str) -> None:
        self._engine = engine
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
        changes = self._changes
        text = render_voice(self._marks())
        place = _expanded(self.path, self.home)
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


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1024 * 1024)
    except OSError as error:
        log.warning("import.failed", path=path, error=error.strerror or str(error))
        return None
