"""
Agents that a person has open on this machine: a limit that is met there protects what is delegated.

A failure is judged like one of an attempt, and marks alike. Figures of a plan are only shown: they
lag behind, and what a provider answers decides.

A person's own sessions are heard of in two ways, and each ends in `report`: claude's hook calls
`interactive.failed`; of codex, `transports/session_files` reads what is appended to its files.
`continue` is the client's alone: it reads and writes with `fallbackd_conversations`, as the engine
does.
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fallbackd.backends.spec import SessionSeen
from fallbackd.core.callers.lease import ReportAnswer
from fallbackd.core.events import LoginAnswered, Reported
from fallbackd.core.figures import Figures
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Meter
from fallbackd.engine import callers
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.feedback import judged
from fallbackd.engine.judging import off_the_loop
from fallbackd.lib.directories import expand

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def backend_of(settings: Settings, world: World, agent: str, home: str | None) -> BackendId | None:
    """
    The backend that uses the same login as an agent that a person has started.

    Args:
        agent: A kind.
        home: Directory of its login; None: the usual one.
    """
    kind = world.kinds.get(agent)
    if kind is None or not kind.setup.home:
        return None
    usual = os.path.join(world.home, kind.setup.home_replaces)
    wanted = _real(home or usual)
    found = [
        name
        for name, one in settings.policy.backends.items()
        if one.kind == agent and one.enabled and not one.implicit
        if _home_of(settings, world, name, kind.setup.home, usual) == wanted
    ]
    # Several backends may share a login, such as one for each model: the plain one speaks for it.
    return min(found, key=lambda name: (name != agent, name), default=None)


def _of_same_login(settings: Settings, world: World, backend: BackendId) -> tuple[BackendId, ...]:
    agent = settings.policy.backends[backend].kind
    kind = world.kinds.get(agent)
    if kind is None or not kind.setup.home:
        return (backend,)
    usual = os.path.join(world.home, kind.setup.home_replaces)
    wanted = _home_of(settings, world, backend, kind.setup.home, usual)
    return tuple(
        name
        for name, one in settings.policy.backends.items()
        if one.kind == agent and _home_of(settings, world, name, kind.setup.home, usual) == wanted
    )


def _home_of(
    settings: Settings, world: World, backend: BackendId, variable: str, usual: str
) -> str:
    own = settings.options_of(backend).env.get(variable) or world.environ.get(variable)
    return _real(own or usual)


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:
        return path  # it leads through a link that must not be read


async def failed(
    engine: "Engine",
    backend: BackendId,
    evidence: Evidence,
    *,
    turn: str | None,
    model: str | None = None,
) -> ReportAnswer | None:
    """Judge what the agent itself shows, and mark as a report does. None: it says nothing."""
    found = await off_the_loop(evidence, partial(judged, engine, evidence, backend=backend))
    if found is None or found.reason is Reason.UNKNOWN:
        return None
    attempt = None if turn is None else AttemptId(turn)
    seen = Reported(
        outcome="failure", backend=backend, model=model, attempt=attempt, owner="interactive"
    )
    return await callers.report(engine, seen, evidence=evidence)


async def figures(engine: "Engine", backend: BackendId, seen: Figures) -> None:
    """Keep the figures of a plan. New ones that lie below every limit end one that is on record."""
    is_free = seen and not any(one.is_spent for one in seen)
    if is_free and _have_moved(engine.snapshot().meters.get(backend), seen):
        await worked(engine, backend, at=engine.clock.now())
    await engine.keep_figures(backend, seen)


def _have_moved(known: Meter | None, seen: Figures) -> bool:
    """A session that is idle repeats its last figures; others are news of its provider."""
    before = {} if known is None else {one.place: one for one in known.figures}
    return any(
        (one.used_percent, one.resets_at) != (old.used_percent, old.resets_at)
        for one in seen
        if (old := before.get(one.place)) is not None
    )


async def heard(engine: "Engine", backend: BackendId, seen: SessionSeen) -> None:
    """Take what an agent has written into the file of a session."""
    await figures(engine, backend, seen.windows)
    if seen.failure is not None:
        await failed(engine, backend, seen.failure, turn=seen.turn, model=seen.model)
    elif seen.worked_at is not None:
        await worked(engine, backend, at=seen.worked_at)


async def worked(engine: "Engine", backend: BackendId, *, at: float) -> None:
    """A person's own session was answered: a limit of the same login is over, or was lifted."""
    names = _of_same_login(engine.settings, engine.world, backend)
    if any(one.startswith(("backend:", "quota:")) for one in engine.snapshot().health):
        await engine.handle(LoginAnswered(backends=names, at=at))


def followed(settings: Settings, world: World, agents: Sequence[str]) -> dict[str, BackendId]:
    """Directories in which agents keep their sessions, each with the backend of its login."""
    found: dict[str, BackendId] = {}
    for agent in agents:
        kind = world.kinds.get(agent)
        if kind is None or kind.sessions is None:
            continue
        for name, one in settings.policy.backends.items():
            if one.kind == agent and one.enabled and not one.implicit:
                environ = {**world.environ, **settings.options_of(name).env}
                place = expand(kind.sessions.place, environ, home=world.home)
                if place is not None and (place not in found or name == agent):
                    found[place] = name
    return found
