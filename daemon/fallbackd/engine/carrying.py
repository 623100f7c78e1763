"""
How an attempt is given the past of its session.

The best way that its agent can take comes first: its own conversation, messages of the request, a
conversation that is written in its format, a brief. A way that its agent refuses is not tried
again: the attempt after it gets the next one.
"""

import os

import anyio.to_thread
import msgspec
import structlog
from msgspec import Struct

from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.past import MAX_TURNS, AgentConversation, CarriedWord, Past
from fallbackd.core.records import Delegation
from fallbackd.core.work.remembering import refused
from fallbackd.engine.confinement import footprint_of
from fallbackd.engine.live import LiveHost, Prepared
from fallbackd.engine.runs import Runs
from fallbackd.engine.takeover import (
    NotTaken,
    TakenOver,
    asked_by,
    may_take,
    read_stored,
    take_over,
    up_to,
)
from fallbackd_conversations import words
from fallbackd_conversations.turns import Utterance, is_plain_id

log = structlog.get_logger("attempts")


class GivenPast(Struct, frozen=True, kw_only=True):
    """What an attempt is given of the past."""

    how: CarriedWord | None = None
    """None: nothing; there is no past, or none of it is wanted."""
    why: str = ""
    """Why it is not given more, for people."""
    prompt: str
    resume: str | None = None
    history: str | None = None
    """A file with all of it in the format of its agent, which its program is given."""
    said: tuple[Utterance, ...] = ()
    text: str = ""
    """All of it, for a file to which `prompt` refers; empty: it does not."""


def on_record(given: GivenPast) -> bytes:
    """Without what was said, which is in files of its own."""
    return msgspec.json.encode({"how": given.how, "why": given.why, "resume": given.resume})


def from_record(data: bytes | None) -> GivenPast:
    """What an attempt was given that an earlier daemon has started; of what was said, nothing."""
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
    why = "" if not_taken is None else f"{running.backend} did not take the conversation"
    if past.conversation is not None and not_taken is None:
        why = await _why_not_resumed(host, delegation, kind, options, past.conversation)
        if not why:
            return await _resumed(host, delegation, past.conversation, prompt)
    said, without = await _bounded(host, past, running.backend)
    if not said:
        return GivenPast(prompt=prompt, why="the earlier turns are not on record any more")
    why = "; ".join(part for part in (why, without and f"{without} left out") if part)
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
    """Whether it is a program that the kernel does not hold to its own directories."""
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
    """As the agent has stored it, with its tools; else the prompts and answers on record."""
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
