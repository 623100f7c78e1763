"""
A conversation is taken over by another agent as its own.

It is read from where the agent that held it has stored it, and written in the format of the next
one. Every file that is made for that is on record first, in the directory of its delegation, and
goes with it. Whatever cannot be done is said (`NotTaken`), and the past is given in another way.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct, structs

from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import BackendId, attempt_number
from fallbackd.core.past import AgentConversation
from fallbackd.core.protocol import CommandLine, ProcessExit
from fallbackd.engine.credentials import environ_of
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.live import LiveHost, Prepared
from fallbackd.engine.runs import MadeFile, Runs

if TYPE_CHECKING:
    from fallbackd_conversations.agents import Rendered, StoredBy
    from fallbackd_conversations.turns import Stored, Utterance

log = structlog.get_logger("attempts")


IMPORT_S = 120.0
"""With the first start of the program, which prepares its database."""


class TakenOver(Struct, frozen=True, kw_only=True):
    """A conversation that the agent of an attempt can continue."""

    resume: str | None = None
    """Its id."""
    history: str | None = None
    """A file that the program is given; then the program names the conversation."""


class NotTaken(Exception):
    """Why it cannot be given to the agent as its own, for people."""


async def read_stored(host: LiveHost, own: AgentConversation) -> tuple[Utterance, ...] | None:
    """What the agent that held it has stored. None: it cannot be read."""
    from fallbackd_conversations.agents import find  # slow to load

    backend = find_backend(host.settings.policy, own.backend)
    if backend is None:
        return None
    environ = _environ(host, own.backend, {})
    stored = await anyio.to_thread.run_sync(
        lambda: find(backend.kind, own.id, environ, home=host.world.home)
    )
    return None if stored is None else stored.said


def up_to(said: Sequence[Utterance], answers: Sequence[str]) -> tuple[Utterance, ...] | None:
    """The messages up to the last of these answers. None: they are not there in this order."""
    wanted = [" ".join(one.split()) for one in answers]
    turn, end = "", 0
    for number, one in enumerate(said, start=1):
        turn = "" if one.role == "user" else f"{turn} {' '.join(one.text.split())}"
        is_over = number == len(said) or said[number].role == "user"
        if is_over and wanted and wanted[0] in turn:  # a short one may stand in a turn twice
            end = number
            wanted.pop(0)
    return None if wanted else tuple(said[:end])


def asked_by(
    said: Sequence[Utterance], prompts: Sequence[str], *, is_whole: bool
) -> tuple[Utterance, ...] | None:
    """
    The same, with the prompts of users as they are on record. An agent can write to its own store:
    any other text in a user's name is its own.

    Args:
        is_whole: The record goes back to the first of them.

    Returns:
        None: some prompt on record is not there.
    """
    wanted, at = [_bare(one) for one in prompts], -1
    found = []
    for one in said:
        if one.role == "user":
            text = _bare(one.text)
            fits = (n for n in (at + 1, at) if 0 <= n < len(wanted) and wanted[n] in text)
            if (number := next(fits, None)) is not None:
                at = number
                one = structs.replace(one, text=prompts[at])
            elif is_whole or at >= 0:
                one = structs.replace(one, role="assistant", files=())
        found.append(one)
    return tuple(found) if at == len(wanted) - 1 else None


def _bare(prompt: str) -> str:
    """Without what stands in it only so that a program reads no command into it."""
    return "".join(prompt.encode("utf-8", "replace").decode().replace("\\", "").split())


def may_take(kind: BackendKind, options: Options) -> bool:
    """Whether a conversation can be written for this kind of agent."""
    from fallbackd_conversations.agents import AGENTS

    return kind.name in AGENTS and kind.resumes(options)


async def take_over(
    host: LiveHost,
    prepared: Prepared,
    kind: BackendKind,
    options: Options,
    said: Sequence[Utterance],
    *,
    cwd: str,
) -> TakenOver:
    """
    Write what was said as a conversation of the agent that the running attempt is of.

    Raises:
        NotTaken: It cannot be done, or does not read back as it was written.
    """
    from fallbackd_conversations.agents import AGENTS, is_same
    from fallbackd_conversations.words import given_to

    running = prepared.delegation.running
    assert running is not None
    agent = AGENTS[kind.name]
    said = given_to(said, agent.takes)
    environ = _environ(host, running.backend, prepared.env)
    place = agent.place(environ, host.world.home)
    written = await anyio.to_thread.run_sync(
        lambda: agent.render(
            said,
            place=place,
            cwd=cwd,
            now=host.clock.now(),
            seed=str(uuid.uuid4()),
            owner="program",
            model=running.model or options.model or "",
        )
    )
    if written is None:
        raise NotTaken(f"{running.backend} cannot be given a conversation in {cwd}")
    own = host.runs.path(prepared.delegation.delegation)
    own = own / f"history-{attempt_number(running.attempt)}-{written.id[-8:]}"
    try:
        path = await anyio.to_thread.run_sync(
            _made, host.runs, prepared, agent, written, place, said, own, kind.imports is not None
        )
    except OSError as error:
        raise NotTaken(f"no file can be made: {error.strerror}") from error
    if written.path is not None:
        return TakenOver(resume=written.id)
    if kind.imports is None:
        return TakenOver(history=str(path))
    await _import(host, prepared, kind.imports(str(path), cwd, options), directory=own)
    stored = await anyio.to_thread.run_sync(agent.read, place, written.id)
    if not is_same(said, stored):
        raise NotTaken(f"{running.backend} did not store it as it was written")
    return TakenOver(resume=written.id)


def _made(
    runs: Runs,
    prepared: Prepared,
    agent: StoredBy,
    written: Rendered,
    place: Path,
    said: Sequence[Utterance],
    own: Path,
    is_imported: bool,
) -> Path:
    """
    Make its file, read it back, and take it away again where it says something else.

    Args:
        own: A name of this attempt in the directory of its delegation.
    """
    from fallbackd_conversations import files
    from fallbackd_conversations.agents import is_same

    delegation, path = prepared.delegation, written.path
    assert delegation.running is not None
    backend = delegation.running.backend
    stored: Stored | None
    if path is None:
        path = own.with_suffix(".json")
        if is_imported:
            runs.note_made(delegation.delegation, MadeFile(backend=backend, id=written.id))
        files.make(path, written.data)
        stored = agent.parse(files.read_ends(path))
    else:
        made = MadeFile(backend=backend, id=written.id, path=str(path))
        runs.note_made(delegation.delegation, made)
        files.make(path, written.data)
        stored = agent.read(place, written.id)
    if not is_same(said, stored):
        path.unlink(missing_ok=True)
        raise NotTaken("what was written does not read back the same")
    return path


async def _import(
    host: LiveHost, prepared: Prepared, call: CommandLine, *, directory: Path
) -> None:
    """
    Have the program take the file in.

    Raises:
        NotTaken: It did not, or not in time.
    """
    delegation = prepared.delegation
    assert delegation.running is not None
    limit_s = IMPORT_S
    env = {"FALLBACKD_DELEGATION": str(delegation.delegation)}
    try:
        is_done = await _ran(
            host.world, call, delegation.running.attempt, directory, env=env, limit_s=limit_s
        )
    except OSError as error:
        raise NotTaken(f"no directory can be made: {error.strerror}") from error
    except TimeoutError as error:
        raise NotTaken(f"the program did not take it in within {limit_s:g} s") from error
    if not is_done:
        raise NotTaken("the program did not take it in")


async def drop(settings: Settings, world: World, made: MadeFile, *, directory: Path) -> None:
    """Have the program remove what it has taken in, as far as it can."""
    backend = find_backend(settings.policy, made.backend)
    kind = None if backend is None else world.kinds.get(backend.kind)
    if kind is None or kind.drops is None:
        return
    call = kind.drops(made.id, settings.options_of(made.backend))
    try:
        await _ran(
            world, call, "tidying", directory, env={}, limit_s=settings.policy.handoff.start_s
        )
    except OSError:
        log.info("history.not_dropped", backend=made.backend, conversation=made.id)


async def _ran(
    world: World,
    call: CommandLine,
    attempt: str,
    directory: Path,
    *,
    env: dict[str, str],
    limit_s: float,
) -> bool:
    """
    Run a program beside the attempts, to its end. Whether it ended well.

    Raises:
        OSError: No directory can be made for it, or (`TimeoutError`) it was not done in time.
    """
    await anyio.Path(directory).mkdir(mode=0o700)
    with anyio.CancelScope(shield=True):
        running = await world.transports.command.open(
            call, attempt=attempt, directory=str(directory), env=env
        )

    async def drain() -> None:
        async for _ in running.chunks():
            pass

    with anyio.move_on_after(limit_s) as limit:
        await drain()
    if limit.cancelled_caught:
        running.stop(grace_s=1)
        with anyio.CancelScope(shield=True):
            await drain()
        raise TimeoutError
    return isinstance(running.exit, ProcessExit) and running.exit.code == 0


def _environ(host: LiveHost, backend: BackendId, added: Mapping[str, str]) -> dict[str, str]:
    return {**environ_of(host.settings, host.world, backend), **added}
