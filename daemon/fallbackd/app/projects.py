"""The files of opencode projects: read when a session of theirs is seen, and kept up to date."""

import os
from collections import OrderedDict
from collections.abc import Mapping

import anyio
import anyio.to_thread
import structlog

from fallbackd.app.opencode_log import OpencodeLog, log_path
from fallbackd.classify.rules import Rule
from fallbackd.config.fallback_file import NEWER, OLDER
from fallbackd.config.fields import Problem, problem
from fallbackd.config.files import WRITING_S
from fallbackd.config.load import Loaded
from fallbackd.config.project_files import OWN, FoundFiles, look, stamp_of
from fallbackd.engine.api import Engine
from fallbackd.engine.opencode import Watched

log = structlog.get_logger("projects")

LOOK_S = 2.0
MAX_DIRECTORIES = 200
"""Whose files are kept up to date: those whose sessions were seen last."""
USER = ""


class Projects:
    def __init__(self, engine: Engine, log: OpencodeLog, *, home: str) -> None:
        self._watched = Watched(engine)
        self._planted = engine.planted
        self._log = log
        self._home = os.path.realpath(home)
        self._found: OrderedDict[str, FoundFiles] = OrderedDict()
        self._explicit: dict[str, str] = {}
        """Files that the configuration names, by directory."""
        self._is_on = True
        self._lock = anyio.Lock()

    async def configure(self, loaded: Loaded) -> None:
        """The configuration says which files to import, and whether others are looked for."""
        explicit: dict[str, str] = {}
        for path in loaded.imports:
            place = f"{self._home}/{path[2:]}" if path.startswith("~/") else path
            folder, name = os.path.split(place)
            if name in (NEWER, OLDER):
                above, last = os.path.split(folder)
                explicit[above if last == OWN else USER] = place
        async with self._lock:
            self._is_on = loaded.opencode.projects
            self._explicit = explicit
            for directory in dict.fromkeys((USER, *explicit, *self._found)):
                await self._read(directory)
            self._publish()
        users = self._found[USER]
        imported = None if users.path is None else users.fallbacks
        self._log.write_to(log_path(loaded.opencode, imported, home=self._home))

    async def run(self) -> None:
        """Run until cancelled: a change on disk takes effect within a second or two."""
        while True:
            await anyio.sleep(LOOK_S)
            async with self._lock:
                changed = await anyio.to_thread.run_sync(self._changed, tuple(self._found))
                if changed:  # a file that is being written is empty, or not there, for an instant
                    await anyio.sleep(WRITING_S)
                for directory in changed:
                    await self._read(directory)
                if changed:
                    self._publish()

    async def look(self, directory: str) -> None:
        if directory in self._found:
            self._found.move_to_end(directory)
            return
        async with self._lock:
            if directory not in self._found and directory.startswith("/"):
                await self._read(directory)
                self._publish()

    def rules(self, directory: str) -> tuple[Rule, ...]:
        found = self._found.get(directory) or self._found.get(USER)
        return () if found is None else found.rules

    def warnings(self, directory: str | None = None) -> tuple[Problem, ...]:
        """About the files that hold in one directory, or in all that are known."""
        found = self._found.values() if directory is None else (self.of(directory),)
        return tuple(dict.fromkeys(one for each in found for one in each.warnings))

    def warned(self, directory: str) -> tuple[str, ...]:
        return tuple(str(one) for one in self.warnings(directory))

    async def check(self, directory: str) -> tuple[Problem, ...]:
        """List the problems of the files that hold in a directory, as they are now."""
        explicit = self._explicit.get(directory)
        found = await anyio.to_thread.run_sync(
            lambda: look(directory, home=self._home, explicit=explicit)
        )
        return found.warnings

    def of(self, directory: str) -> FoundFiles:
        """Return the settings that hold in a directory now."""
        found = self._found.get(directory)
        if found is None or found.path is None:
            found = self._found.get(USER)
        return found or FoundFiles()

    def _changed(self, directories: tuple[str, ...]) -> list[str]:
        return [one for one in directories if self._stamp(one) != self._found[one].stamp]

    def _stamp(self, directory: str) -> object:
        if not self._is_on and directory not in self._explicit:
            return ()
        return stamp_of(directory, home=self._home, explicit=self._explicit.get(directory))

    def _look(self, directory: str) -> FoundFiles:
        if not self._is_on and directory not in self._explicit:
            return FoundFiles()
        return look(directory, home=self._home, explicit=self._explicit.get(directory))

    async def _read(self, directory: str) -> None:
        before = self._found.get(directory)
        found = await anyio.to_thread.run_sync(self._look, directory)
        for one in found.warnings:
            log.warning("config.questioned", path=one.path, message=one.message)
        was_good = before is not None and before.is_valid and before.project is not None
        if directory and (attempt := await self._planted.left_by(p for p, _, _ in found.stamp)):
            why = f"{attempt} changed it, so it is not used; look at it, and change it yourself."
            found = _kept(before, found, problem(found.path or directory, why))
        elif not found.is_valid and before is not None and was_good:
            # The last good configuration stays in force after a mistake.
            log.error("config.kept", directory=directory, path=found.path)
            found = _kept(before, found)
        elif found.project is not None:
            log.info("config.imported", directory=directory, path=found.path)
        self._found[directory] = found
        while len(self._found) > MAX_DIRECTORIES:
            oldest = next(one for one in self._found if one != USER)
            del self._found[oldest]

    def _publish(self) -> None:
        self._watched.take_projects(
            {name: one.project for name, one in self._found.items() if one.project is not None}
        )


def _kept(before: FoundFiles | None, found: FoundFiles, *warnings: Problem) -> FoundFiles:
    """Return the last good files, with the problems of those that are there now."""
    before = before or FoundFiles()
    return FoundFiles(
        project=before.project,
        fallbacks=before.fallbacks,
        path=before.path,
        rules=before.rules,
        warnings=(*found.warnings, *warnings),
        stamp=found.stamp,
    )


def watched_servers(loaded: Loaded, environ: Mapping[str, str]) -> dict[str, str | None]:
    """Addresses of the configuration, each with its password."""
    return {
        one.url: None if one.password_env is None else environ.get(one.password_env)
        for one in loaded.opencode.servers
    }
