"""
One opencode server, for as long as it is known: found, followed, lost, found again.

    known ──▶ answers ──▶ models learned, sessions caught up with, rescues resumed
                │                                 │
                └──── waits, up to 10 s ◀── stream of events ends
"""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import anyio.abc
import structlog

from fallbackd.engine.opencode import Watched
from fallbackd.fronts.opencode.around import Around
from fallbackd.fronts.opencode.convert import EventFields
from fallbackd.fronts.opencode.sessions import Sessions
from fallbackd.ports.opencode import Link, ProjectFiles, Whose

log = structlog.get_logger("opencode")

HEALTH_LIMIT_S = 1.0
"""A request in the first moment of its socket is never answered (measured)."""
MAX_DIRECTORIES = 200
FIRST_WAIT_S = 0.2
MAX_WAIT_S = 10.0
MAX_REFUSED_WAIT_S = 300.0
"""Until a person has changed its version or its password."""


class ServerWatch:
    """
    Attributes:
        is_up: It answers, and its events are followed.
        is_refused: It answers, and cannot be followed until its version or password changes.
        seen_at: When it showed itself last. Of no meaning while it is up.
    """

    def __init__(
        self,
        watched: Watched,
        link: Link,
        files: ProjectFiles,
        whose: Whose,
        *,
        is_announced: bool,
        seen_at: float,
    ) -> None:
        self.link = link
        self.is_announced = is_announced
        self.seen_at = seen_at
        self.is_up = False
        self.is_refused = False
        self.version: str | None = None
        self.since_at: float | None = None
        self.problem = ""
        self.sessions: Sessions | None = None
        self._watched = watched
        self._files = files
        self._around = Around(whose, link)
        self._directories: dict[str, None] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._sooner = anyio.Event()

    @property
    def url(self) -> str:
        return self.link.url

    def look_now(self) -> None:
        """It has just shown itself."""
        self.seen_at = self._watched.now
        self._sooner.set()

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(self._directories)

    def works_in(self, directory: str) -> None:
        """It has said that it has sessions there, which may be on no record."""
        if not directory or directory in self._directories:
            return
        self._directories[directory] = None
        while len(self._directories) > MAX_DIRECTORIES:
            self._directories.pop(next(iter(self._directories)))
        if self.is_up and self._tasks is not None and self.sessions is not None:
            self._tasks.start_soon(self._look_around, self.sessions, (directory,))

    async def run(self) -> None:
        """Until cancelled."""
        wait_s = FIRST_WAIT_S
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self.sessions = Sessions(
                self._watched,
                self.link,
                self._files,
                self._around,
                lambda work: tasks.start_soon(work),
            )
            while True:
                try:
                    if await self._answers() and await self._is_to_follow():
                        await self._follow(tasks)
                except Exception:  # a bug with one server must not end the watch of all
                    log.exception("server.broke", server=self.url)
                if self.is_up:
                    wait_s = FIRST_WAIT_S
                    self.is_up = False
                    self.seen_at = self._watched.now
                    log.warning("server.lost", server=self.url)
                with anyio.move_on_after(wait_s):
                    await self._sooner.wait()
                    wait_s = FIRST_WAIT_S
                self._sooner = anyio.Event()
                wait_s = min(wait_s * 2, MAX_REFUSED_WAIT_S if self.is_refused else MAX_WAIT_S)

    async def _answers(self) -> bool:
        called = await self.link.call("GET", "/global/health", limit_s=HEALTH_LIMIT_S)
        if called.status == 404:  # a server that does not know the call
            called = await self.link.call("GET", "/config", limit_s=HEALTH_LIMIT_S)
        problem = called.problem
        is_locked = called.status in (401, 403)
        if is_locked:
            problem = f"{called.problem}: it wants a password that is not known here"
        self.is_refused = is_locked or called.is_unsupported
        if self.is_refused and problem != self.problem:
            log.warning("server.refused", server=self.url, problem=problem)
        self.problem = problem
        if (called.is_good or called.is_unsupported) and isinstance(called.body, dict):
            version = called.body.get("version")
            self.version = version if isinstance(version, str) else None
        return called.is_good

    async def _is_to_follow(self) -> bool:
        if await self._around.look() == "engine":
            self.problem = "it works for a delegation, which fails over by itself"
            return False
        return True

    async def _follow(self, tasks: anyio.abc.TaskGroup) -> None:
        sessions = self.sessions
        assert sessions is not None
        events = self.link.events()
        try:
            async for heard in events:
                if not self.is_up:
                    # Only now nothing is missed any more.
                    self.is_up = True
                    self.since_at = self._watched.now
                    log.info("server.followed", server=self.url, version=self.version)
                    tasks.start_soon(self._catch_up, sessions)
                sessions.hear(heard.event, directory=heard.directory)
        finally:
            await events.aclose()

    async def _catch_up(self, sessions: Sessions) -> None:
        try:
            models = models_of(await self._get("/config/providers"))
            contexts = {name: size for name, size in models.items() if size is not None}
            self._watched.know(models, contexts=contexts)
            known = await self._watched.living_at(self.url)
            await sessions.catch_up(known, directories=self.directories)
            for session in await self._watched.unfinished():
                if session.server == self.url:  # elsewhere it would continue unseen
                    await sessions.resume(session)
        except Exception:
            log.exception("server.broke", server=self.url)

    async def _look_around(self, sessions: Sessions, directories: Sequence[str]) -> None:
        try:
            await sessions.catch_up((), directories=directories)
        except Exception:
            log.exception("server.broke", server=self.url)

    async def _get(self, path: str) -> Any:
        called = await self.link.call("GET", path)
        return called.body if called.is_good else None


def models_of(found: object) -> dict[str, int | None]:
    """`provider/model` of everything that a server lists, with the tokens that it holds."""
    providers = found.get("providers") if isinstance(found, Mapping) else None
    models: dict[str, int | None] = {}
    for provider in providers if isinstance(providers, list) else ():
        table: EventFields = provider if isinstance(provider, dict) else {}
        listed = table.get("models")
        for name, model in listed.items() if isinstance(listed, dict) else ():
            limit = model.get("limit") if isinstance(model, dict) else None
            size = limit.get("context") if isinstance(limit, dict) else None
            models[f"{table.get('id')}/{name}"] = size if isinstance(size, int) and size else None
    return models
