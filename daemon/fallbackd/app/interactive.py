"""Files of sessions that a person has open, followed while the configuration asks for it."""

import anyio
import structlog

from fallbackd.config.read_interactive import Interactive
from fallbackd.core.ids import BackendId
from fallbackd.engine import interactive
from fallbackd.engine.api import Engine
from fallbackd.transports.session_files import NewLines, follow

log = structlog.get_logger("interactive")


class InteractiveService:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places: dict[str, BackendId] = {}
        self._changed = anyio.Event()

    def configure(self, wanted: Interactive) -> None:
        """Also where other things were configured: an account more is a place more."""
        engine = self._engine
        places = interactive.followed(engine.settings, engine.world, wanted.watch)
        if places != self._places:
            self._places = places
            self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed = anyio.Event()
            async with anyio.create_task_group() as tasks:
                if self._places:
                    tasks.start_soon(self._follow, dict(self._places))
                await self._changed.wait()
                tasks.cancel_scope.cancel()

    async def _follow(self, places: dict[str, BackendId]) -> None:
        following = follow(tuple(places))
        await anext(following)
        log.info("interactive.following", places=sorted(places))
        async for found in following:
            for news in found:
                await self._hear(places[news.place], news)

    async def _hear(self, backend: BackendId, news: NewLines) -> None:
        engine = self._engine
        known = engine.settings.policy.backends.get(backend)
        kind = None if known is None else engine.world.kinds.get(known.kind)
        if kind is None or kind.sessions is None:
            return
        try:
            await interactive.heard(
                engine, backend, kind.sessions.read(news.head, news.lines, engine.clock.now())
            )
        except Exception:
            # What another program writes must not end what hears of the next limit.
            log.exception("interactive.not_heard", path=news.path)
