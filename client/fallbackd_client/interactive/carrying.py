"""
A conversation is carried over to another agent: read, cleaned, written as the other's own, and the
command line that opens it.

The session that was made belongs to the person from then on, like any other of that agent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from pathlib import Path

from fallbackd_conversations import files
from fallbackd_conversations.agents import AGENTS, is_same
from fallbackd_conversations.opencode_versions import unsupported
from fallbackd_conversations.redact import redact
from fallbackd_conversations.words import (
    DEFAULT_CONTEXT_TOKENS,
    bounded,
    cleaned,
    given_to,
    left_out,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fallbackd_client.interactive.targets import Target
    from fallbackd_conversations.agents import FoundSession, Rendered
    from fallbackd_conversations.turns import Utterance

MAX_PROMPT_CHARS = 30_000
"""A longer one stays in the history, as one with files: a command line takes none."""
_VERSION_S = 10.0
_IMPORT_S = 120.0
"""With the first start of the program, which prepares its database."""
_ASKED_BY_HAND = ("opencode",)
"""They drop a prompt beside the session that they open: it stays the last one of the history."""


class NotCarried(Exception):
    """Why it cannot be carried over, and what to do."""


class Carried:
    """
    Args:
        command: What opens it; to be run in `cwd`.
        environ: Beside that of the person.
        turns: Prompts of the person in the history.
        left_out: What of it is not, in words; empty: nothing.
        prompt: What was not answered yet, which the agent is asked at once; empty: nothing.
        waits: The last prompt of the history has no answer, and the agent gives none by itself.
    """

    def __init__(
        self,
        *,
        id: str,
        command: list[str],
        cwd: str,
        environ: Mapping[str, str],
        turns: int,
        left_out: str,
        prompt: str,
        waits: bool,
    ) -> None:
        self.id = id
        self.command = command
        self.cwd = cwd
        self.environ = environ
        self.turns = turns
        self.left_out = left_out
        self.prompt = prompt
        self.waits = waits


class ReadSession:
    """
    Args:
        agent: Which has held it.
        cwd: Its directory; where that is gone, the one of the person.
        said: Cleaned, without secrets.
    """

    def __init__(self, agent: str, cwd: str, said: tuple[Utterance, ...]) -> None:
        self.agent = agent
        self.cwd = cwd
        self.said = said


def read(session: FoundSession, environ: Mapping[str, str], *, home: str) -> ReadSession:
    """
    Raises:
        NotCarried: There is nothing in it that can be carried over.
    """
    source = AGENTS[session.agent]
    stored = source.read(source.place(environ, home), session.id)
    if stored is None:
        raise NotCarried(f"the session {session.id} of {session.agent} cannot be read")
    said = cleaned(stored.said, redact=redact)
    if not unanswered(said)[0]:
        raise NotCarried(
            f"the session {session.id} of {session.agent} holds no answer yet: there is nothing to"
            " carry over; start the other agent and repeat the prompt"
        )
    cwd = session.cwd if os.path.isdir(session.cwd) else os.getcwd()
    return ReadSession(session.agent, cwd, said)


def carry(
    session: ReadSession,
    target: Target,
    environ: Mapping[str, str],
    *,
    home: str,
    now: float,
    state: str,
) -> Carried:
    """
    Args:
        state: Directory for a file that the agent is given.

    Raises:
        NotCarried: It cannot be written for that agent.
    """
    answered, prompt = unanswered(session.said)
    if target.agent in _ASKED_BY_HAND:
        answered, prompt = session.said, ""
    agent = AGENTS[target.agent]
    history = given_to(
        bounded(answered, max_turns=target.max_turns, context_tokens=target.context_tokens),
        agent.takes,
    )
    if not history:
        raise NotCarried(
            f"the last turn is too long for {target.backend}, which holds"
            f" {target.context_tokens or DEFAULT_CONTEXT_TOKENS} tokens"
        )
    cwd = session.cwd
    place = {**environ, **target.environ}
    where = agent.place(place, home)
    why = agent.why_unread(where)
    if target.agent == "opencode":
        why = why or _unsupported(place)
    if why:
        raise NotCarried(f"{target.agent} cannot be given a conversation: {why}")
    written = agent.render(
        history,
        place=where,
        cwd=os.path.realpath(cwd),
        now=now,
        seed=str(uuid.uuid4()),
        owner="person",
        model=target.model,
    )
    if written is None:
        why = f"the name of {cwd} is too long"
        if target.agent == "opencode":
            why = "it has not been used with any model yet"
        raise NotCarried(f"{target.agent} cannot be given a conversation: {why}")
    try:
        path = _make(written, history, Path(state) / "continued", where)
        if target.agent == "opencode":
            _import(path, cwd, place)
    except OSError as error:
        raise NotCarried(f"{error.filename}: {error.strerror}") from error
    return Carried(
        id=written.id,
        command=command(target.agent, written.id, str(path), prompt),
        cwd=cwd,
        environ=target.environ,
        turns=sum(one.role == "user" for one in history),
        left_out=left_out(answered, history),
        prompt=prompt,
        waits=history[-1].role == "user",
    )


def unanswered(said: Sequence[Utterance]) -> tuple[tuple[Utterance, ...], str]:
    """What was said up to the last answer, and what was asked behind it, as far as it is text."""
    end = max((number for number, one in enumerate(said, 1) if one.role == "assistant"), default=0)
    prompt = "\n\n".join(one.text for one in said[end:])
    if len(prompt) > MAX_PROMPT_CHARS or any(one.files for one in said[end:]):
        return tuple(said), ""
    return tuple(said[:end]), prompt


def command(agent: str, id: str, path: str, prompt: str) -> list[str]:
    """What a person would type to open it."""
    if prompt.startswith("-"):
        prompt = f" {prompt}"  # not an option
    asked = [prompt] if prompt else []
    match agent:
        case "codex":
            return ["codex", "resume", id, *asked]
        case "claude":
            return ["claude", "--resume", id, *asked]
        case "gemini":
            return ["gemini", "--session-file", path, *(["-i", prompt] if prompt else [])]
        case _:
            return ["opencode", "--session", id]


def _make(written: Rendered, said: Sequence[Utterance], own: Path, place: Path) -> Path:
    """
    Raises:
        NotCarried: It does not read back as it was written.
        OSError: It cannot be written.
    """
    agent = AGENTS[written.agent]
    path = written.path or own / f"{written.id}.json"
    files.make(path, written.data)
    is_apart = written.path is None
    stored = agent.parse(files.read_ends(path)) if is_apart else agent.read(place, written.id)
    if not is_same(said, stored):
        path.unlink(missing_ok=True)
        raise NotCarried(f"what was written for {written.agent} does not read back the same")
    return path


def _unsupported(environ: Mapping[str, str]) -> str:
    """A reason why this opencode takes no conversation; empty: it does, or says no version."""
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        ran = subprocess.run(
            ["opencode", "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            check=False,
        )
        return unsupported(ran.stdout.decode("utf-8", "replace"))
    return ""


def _import(path: Path, cwd: str, environ: Mapping[str, str]) -> None:
    """
    Raises:
        NotCarried: opencode did not take it in.
    """
    try:
        subprocess.run(
            ["opencode", "import", str(path)],
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_IMPORT_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise NotCarried(f"opencode did not take in the conversation: {error}") from error
    finally:
        path.unlink(missing_ok=True)
