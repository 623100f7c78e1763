"""
Programs that are made ready before their prompt is known.

`prepare` is asked for by a caller that will have a prompt soon. The standby is started when a
prompt of a person has been answered: the candidate behind the one that served it, so that a hop of
the next prompt costs no start.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from anyio.abc import TaskGroup

from fallbackd.backends.spec import NotConfigured
from fallbackd.core.callers.lease import Resolution
from fallbackd.core.events import ResolveRequested
from fallbackd.core.ids import BackendId, SessionId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import CommandLine, Permissions, Work
from fallbackd.core.records import Delegation
from fallbackd.core.scopes import find_backend
from fallbackd.engine import callers
from fallbackd.engine.admission import Directory
from fallbackd.engine.attempts import equipped, runs_commands, texts_of
from fallbackd.engine.confinement import with_own_roots
from fallbackd.engine.credentials import credential_of, environ_of
from fallbackd.engine.requests import Draining
from fallbackd.engine.workspaces import Reader, of_kind

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

log = structlog.get_logger("preparing")


async def prepare(
    engine: "Engine",
    asked: ResolveRequested,
    directory: Directory,
    permissions: Permissions,
    *,
    reader: Reader | None = None,
) -> tuple[Resolution, bool]:
    """
    Start the program of the candidate that would be used now.

    Args:
        reader: The work for whose session it waits; None: it is asked for now.

    Returns:
        The candidate, and whether a program of it is there for the prompt, or on its way.

    Raises:
        Draining: Nothing is started.
    """
    if engine.is_draining:
        raise Draining
    engine.require_room()
    found = await callers.resolve(engine, asked)
    if found.backend is None or not directory.path:
        return found, False
    id, settings, world = BackendId(found.backend), engine.settings, engine.world
    backend, options = find_backend(settings.policy, id), settings.options_of(id)
    if backend is None or backend.kind not in world.kinds or not settings.policy.defaults.residents:
        return found, False
    kind = world.kinds[backend.kind]
    credential = credential_of(options, found.credential)
    if kind.program(options) is None or (found.credential and credential is None):
        return found, False
    reader = reader or Reader(session=SessionId(asked.session or ""), since_at=engine.clock.now())
    planted = of_kind(await engine.planted.look(reader, directory.path), kind)
    work = Work(
        prompt="",
        prompt_path="",
        cwd=directory.path,
        scratch="",
        model=found.model,
        credential=credential,
        session=asked.session or "",
        permissions=permissions,
        runs_commands=runs_commands(settings, id, asked.role),
        mode="interactive",
        planted=tuple(planted),
        files=texts_of(world, kind, environ_of(settings, world, id)),
        inherited={name: world.environ[name] for name in kind.reads_env if name in world.environ},
    )
    work = with_own_roots(settings, world, id, work, inside=False)
    try:
        call = kind.start(work, options)
    except (NotConfigured, ValueError):
        return found, False
    call = equipped(call, work, settings, world, id, cwd_ids=directory.ids, inside=False)
    watches = isinstance(call, CommandLine) and call.residency and call.residency.watches
    if watches and engine.planted.is_written(directory.path):
        return found, False
    return found, await world.keep_ready(call)


def standby(engine: "Engine", tasks: TaskGroup) -> Callable[[Delegation], None]:
    """Make the listener for news of delegations."""

    def hear(one: Delegation) -> None:
        if one.state == "succeeded":
            tasks.start_soon(_keep_standby, engine, one)

    return hear


async def _keep_standby(engine: "Engine", one: Delegation) -> None:
    """Have the next candidate ready, where a second program may stay. Never raises."""
    defaults = engine.settings.policy.defaults
    is_alone = not one.cwd or defaults.residents < 2 or one.mode != "interactive" or one.above
    behind = _behind(one)
    if is_alone or not behind:
        return
    asked = ResolveRequested(chain=behind, role=one.role, allow_metered=one.turn.allow_metered)
    try:
        directory = Directory(one.cwd, one.cwd_ids)
        await prepare(engine, asked, directory, one.permissions, reader=Reader.of(one))
    except Draining:
        pass
    except Exception:
        log.exception("standby.broke", delegation=one.delegation)


def _behind(one: Delegation) -> tuple[Entry, ...]:
    names = [entry.backend for entry in one.turn.candidates]
    if one.served_by not in names:
        return ()
    following = one.turn.candidates[names.index(one.served_by) + 1 :]
    return tuple(entry for entry in following if entry.backend != one.served_by)
