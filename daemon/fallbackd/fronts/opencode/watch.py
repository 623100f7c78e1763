"""
One opencode server, for as long as it is known: found, followed, lost, found again.

    known ──▶ answers ──▶ models learned, sessions caught up with, rescues resumed
                │                                 │
                └──── waits, up to 10 s ◀── stream of events ends
"""

from collections.abc import Mapping
from typing import Any

import anyio
import anyio.abc
import structlog

from fallbackd.engine.watched import Watched
from fallbackd.fronts.opencode.convert import Fields
from fallbackd.fronts.opencode.sessions import ProjectFiles, Sessions
from fallbackd.ports.opencode import Link

log = structlog.get_logger("opencode")

HEALTH_LIMIT_S = 1.0
"""A request in the first moment of its socket is never answered (measured)."""
FIRST_WAIT_S = 0.2
MAX_WAIT_S = 10.0


class Watch:
    """
    Attributes:
        is_up: It answers, and its events are followed.
    """

    def __init__(
        self, watched: Watched, link: Link, files: ProjectFiles, *, is_announced: bool
    ) -> None:
        self.link = link
        self.is_announced = is_announced
        self.is_up = False
        self.version: str | None = None
        self.since_at: float | None = None
        self.problem = ""
        self.sessions: Sessions | None = None
        self._watched = watched
        self._files = files
        self._sooner = anyio.Event()

    @property
    def url(self) -> str:
        return self.link.url

    def look_now(self) -> None:
        """It has just shown itself."""
        self._sooner.set()

    async def run(self) -> None:
        """Until cancelled."""
        wait_s = FIRST_WAIT_S
        async with anyio.create_task_group() as tasks:
            self.sessions = Sessions(
                self._watched, self.link, self._files, lambda work: tasks.start_soon(work)
            )
            while True:
                try:
                    if await self._answers():
                        wait_s = FIRST_WAIT_S
                        await self._follow(tasks)
                except Exception:  # a bug with one server must not end the watch of all
                    log.exception("server.broke", server=self.url)
                if self.is_up:
                    self.is_up = False
                    log.warning("server.lost", server=self.url)
                with anyio.move_on_after(wait_s):
                    await self._sooner.wait()
                    wait_s = FIRST_WAIT_S
                self._sooner = anyio.Event()
                wait_s = min(wait_s * 2, MAX_WAIT_S)

    async def _answers(self) -> bool:
        called = await self.link.call("GET", "/global/health", limit_s=HEALTH_LIMIT_S)
        if called.status == 404:  # a server that does not know the call
            called = await self.link.call("GET", "/config", limit_s=HEALTH_LIMIT_S)
        self.problem = called.problem
        if called.status in (401, 403):
            self.problem = f"{called.problem}: it wants a password that is not known here"
        if called.is_good and isinstance(called.body, dict):
            version = called.body.get("version")
            self.version = version if isinstance(version, str) else None
        return called.is_good

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
            self._watched.know(models_of(await self._get("/config/providers")))
            await sessions.catch_up(await self._watched.living_at(self.url))
            for session in await self._watched.unfinished():
                called = await self.link.call(
                    "GET", f"/session/{session.session}", directory=session.project
                )
                # A session is known to every server of its user, whoever wrote it down.
                if called.is_good or session.server == self.url:
                    await sessions.resume(session)
        except Exception:
            log.exception("server.broke", server=self.url)

    async def _get(self, path: str) -> Any:
        called = await self.link.call("GET", path)
        return called.body if called.is_good else None


def models_of(found: object) -> list[str]:
    """`provider/model` of everything that a server lists."""
    providers = found.get("providers") if isinstance(found, Mapping) else None
    names: list[str] = []
    for provider in providers if isinstance(providers, list) else ():
        table: Fields = provider if isinstance(provider, dict) else {}
        models = table.get("models")
        if isinstance(models, dict):
            names.extend(f"{table.get('id')}/{name}" for name in models)
    return names
