"""A front that watches a double of an opencode server, over a real engine."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec import structs
from tests.support import wires
from tests.support.clock import ManualClock
from tests.support.opencode import DIRECTORY, OpencodeDouble, WhoseDouble
from tests.support.running_engine import HANG_S, engine_in, settings

from fallbackd.classify.rules import Rule
from fallbackd.core.policy import Policy
from fallbackd.core.records import Session
from fallbackd.engine.api import Engine
from fallbackd.engine.opencode import Watched, Where
from fallbackd.fronts.opencode.convert import Around
from fallbackd.fronts.opencode.sessions import Sessions


class NoFiles:
    """Projects that say nothing of their own."""

    async def look(self, directory: str) -> None:
        pass

    def rules(self, directory: str) -> tuple[Rule, ...]:
        return ()

    def warned(self, directory: str) -> tuple[str, ...]:
        return ()


class Watching:
    def __init__(
        self,
        engine: Engine,
        clock: ManualClock,
        server: OpencodeDouble,
        sessions: Sessions,
        whose: WhoseDouble,
        around: Around,
        events: wires.InOrder | None = None,
    ) -> None:
        self._events = events
        self.link = sessions._link
        self.whose = whose
        self.around = around
        self.engine = engine
        self.clock = clock
        self.server = server
        self.sessions = sessions
        self.watched = Watched(engine)
        self.notices: list[Mapping[str, Any]] = []

    async def rest(self) -> None:
        """Until everything that was heard is done."""
        with anyio.fail_after(HANG_S):
            while (self._events is not None and self._events.waiting) or any(
                one.is_working for one in self.sessions._tracks.values()
            ):
                await anyio.sleep(0)

    async def session(self, name: str = "ses_1") -> Session:
        found = await self.watched.session(name)
        assert found is not None, f"no session {name}"
        return found

    def told(self, kind: str) -> list[str]:
        return [str(one["text"]) for one in self.notices if one["notice"] == kind]

    def where(self, name: str = "ses_1", agent: str | None = "build") -> Where:
        return Where(session=name, server=self.server.url, project=DIRECTORY, agent=agent)


@asynccontextmanager
async def watching(
    place: Path, policy: Policy, *, clock: ManualClock | None = None, **world: Any
) -> AsyncIterator[Watching]:
    clock = clock or ManualClock()
    config = structs.replace(settings(), policy=policy)
    async with engine_in(place, config, clock=clock, **world) as engine:
        server = OpencodeDouble(now=clock.now)
        async with anyio.create_task_group() as tasks:
            whose = WhoseDouble()
            link = wires.linked(server)
            second = link if isinstance(link, wires.SecondLink) else None
            around = Around(whose, link)
            sessions = Sessions(
                Watched(engine), link, NoFiles(), around, lambda work: tasks.start_soon(work)
            )

            def hear(event: Mapping[str, Any]) -> None:
                sessions.hear(event, directory=DIRECTORY)

            server.hear, events = hear, None
            if second is not None:
                events = wires.InOrder(second)
                tasks.start_soon(events.run, hear)
                server.hear = events.put
            found = Watching(engine, clock, server, sessions, whose, around, events)
            engine.subscribe(
                lambda told: (
                    found.notices.append(told.note.fields)
                    if getattr(getattr(told, "note", None), "kind", "") == "session.notice"
                    else None
                )
            )
            yield found
            tasks.cancel_scope.cancel()
