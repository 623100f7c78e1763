"""
Figures of plans: from the work (answers over HTTP, files of a session), and by asking for them.
"""

from typing import TYPE_CHECKING

import anyio
import structlog
from msgspec import Struct

from fallbackd.backends.figures import in_headers
from fallbackd.backends.spec import BackendKind
from fallbackd.core.figures import Figures
from fallbackd.core.ids import BackendId
from fallbackd.core.meter import attempts_in_hour
from fallbackd.core.protocol import Exit, HttpResponse, ProcessExit
from fallbackd.engine.credentials import environ_of
from fallbackd.lib.directories import places

if TYPE_CHECKING:
    from fallbackd.engine.live import LiveAttempt, LiveHost

log = structlog.get_logger("attempts")

TAIL_BYTES = 65_536
LOOK_S = 30.0
ASK_EVERY_S = 600.0
"""Providers limit such questions too: each login is asked at most this often."""
MAX_EVERY_S = 6 * 3600.0
"""The same where the program knows nothing, and its login stays as it is."""


async def heard_at_end(
    host: "LiveHost", live: "LiveAttempt", kind: BackendKind, exit: Exit, conversation: str | None
) -> None:
    """Take in what the end of an attempt says of its plan, where it says so nowhere else."""
    order, now = live.order, host.clock.now()
    seen: Figures = ()
    try:
        if isinstance(exit, HttpResponse):
            seen = in_headers(exit.headers, now=now, model=order.model, credential=order.credential)
        elif isinstance(exit, ProcessExit) and conversation is not None:
            seen = await anyio.to_thread.run_sync(_stored, host, order.backend, kind, conversation)
        if seen:
            await host.keep_figures(order.backend, seen)
    except Exception:
        # What another program writes beside its answer must not end what follows it.
        log.exception("quota.not_heard", attempt=order.attempt)


def _stored(host: "LiveHost", backend: BackendId, kind: BackendKind, id: str) -> Figures:
    """The last figures in the agent's own file of a conversation."""
    from fallbackd_conversations.agents import AGENTS  # slow to load
    from fallbackd_conversations.files import read_ends
    from fallbackd_conversations.turns import is_plain_id

    agent = AGENTS.get(kind.name)
    if agent is None or kind.sessions is None or not is_plain_id(id):
        return ()
    place = agent.place(environ_of(host.settings, host.world, backend), host.world.home)
    path = agent.file(place, id)
    if path is None:
        return ()
    data = read_ends(path, tail_bytes=TAIL_BYTES)
    return kind.sessions.read(data, data.split(b"\n"), host.clock.now()).windows


class _Asked(Struct):
    at: float
    every_s: float
    login: tuple[float | None, ...]
    """Time of the last change of each file of the login."""


class PlanReads:
    """
    Asks programs for the figures of their plans, where `[quota] ask` names their kind.

    One at a time, while work was done within the hour and no newer figure is known. Nothing is
    decided here: a low figure is a reason for one trial, and a high one closes nothing.
    """

    def __init__(self, host: "LiveHost") -> None:
        self._host = host
        self._asked: dict[tuple[str, ...], _Asked] = {}

    async def run(self) -> None:
        while True:
            await anyio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:
                # What another program answers must not end what asks the next one.
                log.exception("quota.not_asked")

    async def look(self) -> None:
        """Ask each login that is due."""
        host = self._host
        seen, now = host.store.peek(), host.clock.now()
        if seen.active or any(attempts_in_hour(one, now=now) for one in seen.meters.values()):
            for place, backends in self._logins().items():
                await self._ask(place, backends)

    def _logins(self) -> dict[tuple[str, ...], list[BackendId]]:
        """Backends by their kind and the files of its login, which several may share."""
        host, found = self._host, dict[tuple[str, ...], list[BackendId]]()
        settings, world = host.settings, host.world
        for name, one in settings.policy.backends.items():
            kind = world.kinds.get(one.kind)
            if one.kind not in settings.asks_plans_of or kind is None or kind.login is None:
                continue
            # A key has no plan, and a command of one's own may be another program.
            if one.enabled and not one.credentials and not settings.options_of(name).command:
                environ = environ_of(settings, world, name)
                files = places(kind.login.files, environ, home=world.home)
                found.setdefault((one.kind, *files), []).append(name)
        return found

    async def _ask(self, place: tuple[str, ...], backends: list[BackendId]) -> None:
        host = self._host
        settings, world, now = host.settings, host.world, host.clock.now()
        kind = world.kinds[place[0]]
        program = world.find_program(kind.program(settings.options_of(backends[0])) or "")
        login = self._login(place)
        if kind.plan is None or program is None or not any(login):
            return
        before = self._asked.get(place)
        every_s = ASK_EVERY_S if before is None or before.login != login else before.every_s
        if (before is not None and 0 <= now - before.at < every_s) or self._is_known(backends, now):
            return
        every_s = min(every_s * 2 * (1 + world.luck() / 10), MAX_EVERY_S)
        self._asked[place] = asked = _Asked(at=now, every_s=every_s, login=login)
        environ = environ_of(settings, world, backends[0])
        said = await world.probe.ask(program, kind.plan.inquiry, environ)
        seen = () if said is None else kind.plan.read(said, now)
        log.info("quota.asked", backend=backends[0], figures=len(seen))
        if not seen or login != self._login(place):
            return  # another login may have answered
        asked.every_s = ASK_EVERY_S * (1 + world.luck() / 10)
        for name in backends:
            await host.keep_figures(name, seen)

    def _login(self, place: tuple[str, ...]) -> tuple[float | None, ...]:
        return tuple(map(self._host.world.changed_at, place[1:]))

    def _is_known(self, backends: list[BackendId], now: float) -> bool:
        """Test whether a figure of the plan is recent enough."""
        meters = self._host.store.peek().meters
        figures = [one for name in backends if name in meters for one in meters[name].figures]
        return any(0 <= now - one.at < ASK_EVERY_S for one in figures if one.is_of_plan)
