"""
A conversation is taken over by another agent as its own.

It is read from where the agent that held it has stored it, and written in the format of the next
one. Every file that is made for that is on record first, in the directory of its delegation, and
goes with it. Whatever cannot be done is said (`NotTaken`), and the past is given in another way.

A conversation is written in the format of another agent from what the one before has stored, where
that holds every answer on record; each file in an agent's folder is on record before it is made
(`Runs.note_made`) and goes with its run directory. For codex that is a rollout file:
`thread/inject_items` of its app server costs a process more, and its threads are what a person's
`codex resume --last` opens next. A refused conversation is a retry of the same candidate with a
brief.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec
import structlog
from msgspec import Struct, structs

from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.ids import BackendId, DelegationId, attempt_number
from fallbackd.core.protocol import CommandLine, ProcessExit
from fallbackd.core.records import MAX_TURNS, AgentConversation, CarriedWord, Delegation, Past
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.sessions import refused
from fallbackd.engine.confinement import footprint_of
from fallbackd.engine.credentials import environ_of
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.live import LiveHost, Prepared
from fallbackd.engine.runs import MadeFile, Runs
from fallbackd_conversations import words
from fallbackd_conversations.turns import Utterance, is_plain_id

if TYPE_CHECKING:
    from fallbackd_conversations.agents import Rendered, StoredBy
    from fallbackd_conversations.turns import Stored, Utterance


log = structlog.get_logger("attempts")


IMPORT_S = 120.0
"""Limit for an import, with the first start of the program, which prepares its database."""


class TakenOver(Struct, frozen=True, kw_only=True):
    """A conversation that the agent of an attempt can continue."""

    resume: str | None = None
    """Its id."""
    history: str | None = None
    """A file that the program is given; then the program names the conversation."""


class NotTaken(Exception):
    """Reason why it cannot be given to the agent as its own, for people."""


async def read_stored(host: LiveHost, own: AgentConversation) -> tuple[Utterance, ...] | None:
    """Read what the agent that held it has stored. None: it cannot be read."""
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
    Restore the prompts of users as they are on record. An agent can write to its own store:
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
    """Strip what stands in it only so that a program reads no command into it."""
    return "".join(prompt.encode("utf-8", "replace").decode().replace("\\", "").split())


def may_take(kind: BackendKind, options: Options) -> bool:
    """Test whether a conversation can be written for this kind of agent."""
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
    await _import(
        host, prepared, kind.imports(str(path), cwd, options, written.line), directory=own
    )
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


class GivenPast(Struct, frozen=True, kw_only=True):
    """Part of the past that an attempt is given."""

    how: CarriedWord | None = None
    """Way in which it is given; None: there is no past, or none of it is wanted."""
    why: str = ""
    """Reason why it is not given more, for people."""
    prompt: str
    resume: str | None = None
    history: str | None = None
    """A file with all of it in the format of its agent, which its program is given."""
    said: tuple[Utterance, ...] = ()
    text: str = ""
    """All of it, for a file to which `prompt` refers; empty: it does not."""


def on_record(given: GivenPast) -> bytes:
    """Encode all but what was said, which is in files of its own."""
    return msgspec.json.encode({"how": given.how, "why": given.why, "resume": given.resume})


def from_record(data: bytes | None) -> GivenPast:
    """Decode what an attempt of an earlier daemon was given, without what was said."""
    try:
        found = msgspec.json.decode(data or b"{}", type=_Record)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = _Record()
    resume = found.resume if found.resume is not None and is_plain_id(found.resume) else None
    return GivenPast(how=found.how, why=found.why, resume=resume, prompt="")


class _Record(Struct, frozen=True, kw_only=True):
    how: CarriedWord | None = None
    why: str = ""
    resume: str | None = None


def place_of(runs: Runs, delegation: Delegation) -> str:
    """The working directory: a session whose callers name none has one for all of its work."""
    if delegation.cwd:
        return delegation.cwd
    earlier = delegation.past.work
    if earlier is not None and os.path.isdir(path := runs.work_path(earlier)):
        return path
    return runs.work_path(delegation.delegation)


async def carried(
    host: LiveHost, prepared: Prepared, kind: BackendKind, options: Options, *, path: str
) -> GivenPast:
    """
    Args:
        path: Where the file with all of it will be, if there is one.
    """
    delegation, prompt = prepared.delegation, prepared.prompt or ""
    handoff = host.settings.policy.handoff
    past, running = delegation.past, delegation.running
    if running is None or not past.turns or handoff.mode == "none":
        return GivenPast(prompt=prompt)
    not_taken = refused(delegation, running)
    why = ""
    if not_taken is not None:
        why = f"{running.backend} did not take the conversation"
    elif past.conversation is not None:
        why = await _why_not_resumed(host, delegation, kind, options, past.conversation)
        if not why:
            return await _resumed(host, delegation, past.conversation, prompt)
    said, without = await _bounded(host, past, running.backend)
    if not said:
        return GivenPast(prompt=prompt, why="the earlier turns are not on record any more")
    why = "; ".join(filter(None, (why, without and f"{without} left out")))
    given = await _as_own(
        host, prepared, kind, options, said, why=why, may_write=not_taken != "native"
    )
    if isinstance(given, GivenPast):
        return given
    why = given
    if not _can_read_file(host, delegation, running.backend, kind, options):
        return GivenPast(how="brief", why=why, prompt=words.brief(said, prompt, path=""))
    prompt = words.brief(said, prompt, path=path)
    return GivenPast(how="brief", why=why, prompt=prompt, text=words.as_text(said))


def _can_read_file(
    host: LiveHost,
    delegation: Delegation,
    name: BackendId,
    kind: BackendKind,
    options: Options,
) -> bool:
    """Test whether the kernel leaves the program free to read outside its own directories."""
    if kind.program(options) is None:
        return False
    held = footprint_of(
        host.settings, host.world, name, delegation.permissions, inside=bool(delegation.above)
    )
    return held is None


async def _as_own(
    host: LiveHost,
    prepared: Prepared,
    kind: BackendKind,
    options: Options,
    said: tuple[Utterance, ...],
    *,
    why: str,
    may_write: bool,
) -> GivenPast | str:
    """
    The earlier turns as a conversation of the agent's own; else why it has none.

    Args:
        may_write: Into the agent's store.
    """
    prompt = prepared.prompt or ""
    if host.settings.policy.handoff.mode != "native":
        return why
    if kind.takes_messages(options):
        return GivenPast(how="messages", why=why, prompt=prompt, said=said)
    if not may_write:
        return why
    try:
        taken = await _taken(host, prepared, kind, options, said)
    except NotTaken as reason:
        return f"{why}; {reason}" if why else str(reason)
    return GivenPast(
        how="native", why=why, prompt=prompt, resume=taken.resume, history=taken.history
    )


async def _resumed(
    host: LiveHost, delegation: Delegation, own: AgentConversation, prompt: str
) -> GivenPast:
    last = delegation.past.turns[-1]
    await anyio.to_thread.run_sync(
        lambda: host.runs.pass_on_made(last, delegation.delegation, id=own.id)
    )
    return GivenPast(how="resumed", prompt=prompt, resume=own.id)


async def _why_not_resumed(
    host: LiveHost,
    delegation: Delegation,
    kind: BackendKind,
    options: Options,
    own: AgentConversation,
) -> str:
    """Empty: the agent of the running attempt can resume its own conversation."""
    running = delegation.running
    if running is None or own.backend != running.backend:
        return f"the conversation was held with {own.backend}"
    if not kind.resumes(options):
        return f"{running.backend!r} is now configured with a command of its own"
    if not kind.resumes_anywhere and not _is_there(host.runs, delegation, own):
        return "the conversation was held in another directory"
    if kind.forks and await _is_forked(host, own, delegation.past.turns[-1]):
        return f"another program has written to the conversation of {own.backend}"
    return ""


def _is_there(runs: Runs, delegation: Delegation, own: AgentConversation) -> bool:
    """The delegation works where the conversation was held."""
    if own.cwd != delegation.cwd:
        return False
    work = delegation.past.work
    if delegation.cwd or work is None:
        return bool(delegation.cwd)
    return place_of(runs, delegation) == runs.work_path(work)


async def _is_forked(host: LiveHost, own: AgentConversation, last: DelegationId) -> bool:
    """The last answer is not in what would be continued."""
    answer = await anyio.to_thread.run_sync(host.runs.read_answer, last)
    if answer is None or not answer.is_whole:
        return False
    stored = await read_stored(host, own)
    return stored is not None and up_to(stored, [answer.text]) is None


async def _taken(
    host: LiveHost,
    prepared: Prepared,
    kind: BackendKind,
    options: Options,
    said: tuple[Utterance, ...],
) -> TakenOver:
    """
    Raises:
        NotTaken: It is given in another way.
    """
    if not may_take(kind, options):
        raise NotTaken(f"no conversation can be written for a {kind.name} backend")
    cwd = place_of(host.runs, prepared.delegation)
    return await take_over(host, prepared, kind, options, said, cwd=cwd)


async def _bounded(
    host: LiveHost, past: Past, target: BackendId
) -> tuple[tuple[Utterance, ...], str]:
    """
    The past conversation, cut to what the target can take, without secrets.

    Returns:
        Also what was cut off, in words.
    """
    max_turns = host.settings.policy.handoff.max_turns
    backend = find_backend(host.settings.policy, target)
    said = words.cleaned(await _said(host, past, max_turns=max_turns), redact=host.world.redact)
    kept = words.bounded(
        said,
        max_turns=max_turns,
        context_tokens=None if backend is None else backend.context_tokens,
    )
    return kept, words.left_out(said, kept, turns=len(past.turns))


async def _said(host: LiveHost, past: Past, *, max_turns: int) -> tuple[Utterance, ...]:
    """Conversation as its agent has stored it, with tools; else as it is on record."""
    turns = past.turns[-max_turns:]
    ours = await anyio.to_thread.run_sync(_on_record, host.runs, turns)
    if past.conversation is not None:
        answers = [one.text for one in ours if one.role == "assistant"]
        stored = await read_stored(host, past.conversation)
        known = None if stored is None else up_to(stored, answers)
        prompts = [one.text for one in ours if one.role == "user"]
        is_whole = len(prompts) == len(past.turns) < MAX_TURNS
        if known and (known := asked_by(known, prompts, is_whole=is_whole)):
            return known  # complete: no other program has changed it
    return ours


def _on_record(runs: Runs, turns: tuple[DelegationId, ...]) -> tuple[Utterance, ...]:
    """The prompts and answers that can still be read."""
    found: list[Utterance] = []
    for one in turns:
        prompt, answer = runs.read_prompt(one), runs.read_answer(one)
        if prompt is not None and answer is not None:
            found += (
                Utterance(role="user", text=prompt),
                Utterance(role="assistant", text=answer.text),
            )
    return tuple(found)
