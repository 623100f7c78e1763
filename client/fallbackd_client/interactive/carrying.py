"""
A conversation is carried over to another agent: read, cleaned, written as the other's own, and the
command line that opens it.

The session that was made belongs to the person from then on, like any other of that agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path

from fallbackd_client.errors import ClientError
from fallbackd_conversations import claude, files
from fallbackd_conversations.agents import AGENTS, FoundSession, is_same
from fallbackd_conversations.files import read_ends
from fallbackd_conversations.opencode import is_second as is_second_store
from fallbackd_conversations.opencode_versions import importing, line_of, unsupported
from fallbackd_conversations.redact import redact
from fallbackd_conversations.turns import is_plain_id
from fallbackd_conversations.words import (
    DEFAULT_CONTEXT_TOKENS,
    bounded,
    cleaned,
    given_to,
    left_out,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_conversations.agents import FoundSession, Rendered
    from fallbackd_conversations.claude import ResumingWord
    from fallbackd_conversations.turns import Utterance

_ATTEMPTS_OF = 200
"""Delegations."""
_ASK_ATTEMPTS_S = 5.0
_PROCESSES = "/proc"
_END_BYTES = 64 * 1024
_LIMITS = {
    "claude": re.compile(r'"error"\s*:\s*"rate_limit"'),
    "codex": re.compile(r'"codex_error_info"\s*:\s*"(?:usage_limit_exceeded|rate_limit_exceeded)"'),
}
"""Words in the last lines of a session whose last turn has met a limit."""
_TURN_ENDS = {
    "claude": re.compile(r'"type"\s*:\s*"(?:assistant|user)"'),
    "codex": re.compile(r'"type"\s*:\s*"(?:task_complete|task_started|turn_aborted)"'),
}


def places(environ: Mapping[str, str], home: str) -> dict[str, Path]:
    return {name: agent.place(environ, home) for name, agent in AGENTS.items()}


def newest(
    agents: Iterable[str],
    environ: Mapping[str, str],
    *,
    home: str,
    limit: int,
    without: frozenset[str] = frozenset(),
) -> list[FoundSession]:
    """
    Return a person's sessions, newest first; at most so many of each agent.

    Args:
        without: Ids of sessions that belong to attempts.
    """
    where = places(environ, home)
    found: list[FoundSession] = []
    for name in agents:
        of_people = AGENTS[name].newest(where[name], limit + len(without))
        found += [one for one in of_people if one.id not in without][:limit]
    return sorted(found, key=lambda one: -one.changed_at)


def unread(agents: Iterable[str], environ: Mapping[str, str], *, home: str) -> list[str]:
    """Reasons why sessions of agents are not read, one sentence for each."""
    where = places(environ, home)
    return [why for one in agents if (why := AGENTS[one].why_unread(where[one]))]


def by_id(agent: str, id: str, environ: Mapping[str, str], *, home: str) -> FoundSession | None:
    """Any stored session, also one that a program has held."""
    place = places(environ, home)[agent]
    path = AGENTS[agent].file(place, id) if is_plain_id(id) else None
    stored = None if path is None else AGENTS[agent].read(place, id)
    if path is None or stored is None:
        return None
    return FoundSession(
        agent=agent,
        id=id,
        path=path,
        changed_at=0.0,
        cwd=stored.cwd,
        first_words=stored.first_words,
    )


def of_attempts(client: Client) -> frozenset[str]:
    """The conversations of attempts: gemini does not store how a session was begun."""
    try:
        found = client.call("delegation.list", {"limit": _ATTEMPTS_OF}, timeout_s=_ASK_ATTEMPTS_S)
        ids = (try_.get("conversation") for one in found["delegations"] for try_ in one["attempts"])
        return frozenset(id for id in ids if isinstance(id, str))
    except (ClientError, KeyError, TypeError):
        return frozenset()


def last_limited(found: Sequence[FoundSession], cwd: str) -> FoundSession | None:
    """The newest one whose last turn has met a limit; one of this directory goes first."""
    limited = [one for one in found if has_met_limit(one)]
    return next((one for one in limited if is_here(one, cwd)), next(iter(limited), None))


def has_met_limit(one: FoundSession) -> bool:
    ends, limit = _TURN_ENDS.get(one.agent), _LIMITS.get(one.agent)
    if ends is None or limit is None:
        return False
    last = next((line for line in _last_lines(one.path) if ends.search(line)), "")
    return _is_object(last) and limit.search(last) is not None


def resuming(one: FoundSession) -> ResumingWord:
    """Return whether its agent, where a person has it open, continues the last turn by itself."""
    found = resuming_in(one.path) if one.agent == "claude" else "no"
    return found if found == "no" or is_open(one) else "no"


def resuming_in(path: Path) -> ResumingWord:
    """Judge by a file of claude, whether it is open or not."""
    return claude.resuming(read_ends(path, tail_bytes=_END_BYTES)[-_END_BYTES:])


def is_open(one: FoundSession) -> bool:
    """Return whether its agent runs in its directory; where processes cannot be seen, it does."""
    if not os.path.isdir(_PROCESSES):
        return True
    return any(
        _is_running(f"{_PROCESSES}/{pid}", one) for pid in os.listdir(_PROCESSES) if pid.isdecimal()
    )


def _is_running(process: str, one: FoundSession) -> bool:
    try:
        with open(f"{process}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")[:2]
        names = {os.path.basename(os.fsdecode(word)).partition(".")[0] for word in words}
        place = os.path.realpath(f"{process}/cwd")
    except OSError:
        return False
    # The directory of a session may change within it; its folder is named after the first one.
    is_there = place == os.path.realpath(one.cwd) or claude.slug(place) == one.path.parent.name
    return one.agent in names and is_there


def is_here(one: FoundSession, cwd: str) -> bool:
    return bool(one.cwd) and os.path.realpath(one.cwd) == os.path.realpath(cwd)


def _last_lines(path: Path) -> Iterator[str]:
    """Last lines, the last first. Quotes within the words of a message are escaped there."""
    data = read_ends(path, tail_bytes=_END_BYTES)[-_END_BYTES:]
    return reversed(data.decode("utf-8", "replace").splitlines())


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


ORDER = ("claude", "codex", "opencode", "gemini")
"""Without a daemon, which knows chains and what is limited."""
MAX_TURNS = 40
"""Earlier prompts that are carried over, where `[handoff]` says nothing else."""
_ASK_S = 5.0
_HOMES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_DATA_HOME")
_USABLE = ("chosen", "healthy", "unproven", "cooldown", "same_as_failed")


class Target:
    """
    Args:
        backend: Its id in the configuration, or the name of the agent.
        environ: Of its account, beside that of the person.
        model: As configured; empty: the agent's own default.
        context_tokens: What it holds; None: that is not known.
        max_turns: Most earlier prompts that it is given.
    """

    def __init__(
        self,
        backend: str,
        agent: str,
        environ: Mapping[str, str],
        model: str = "",
        *,
        context_tokens: int | None = None,
        max_turns: int = MAX_TURNS,
    ) -> None:
        self.backend = backend
        self.agent = agent
        self.environ = environ
        self.model = model
        self.context_tokens = context_tokens
        self.max_turns = max_turns


class NoTarget(Exception):
    """The reason why no agent can continue, and what to do."""


def choose(
    client: Client, source: str, wanted: str | None, environ: Mapping[str, str], *, home: str
) -> list[Target]:
    """
    Return the agents that can continue, the best first.

    Args:
        source: The agent whose conversation it is.
        wanted: A backend or a chain; None: the chain of the source.
        environ: Of the person.

    Raises:
        NoTarget: None is there.
    """
    path = environ.get("PATH")
    try:
        found_config = client.call("config.get", {}, timeout_s=_ASK_S)
        config, file = found_config["config"], found_config.get("path")
        backends = config["backends"]
    except (ClientError, KeyError, TypeError):
        return _without_daemon(source, wanted, path, _written(_config_path(environ, home)))
    is_backend = wanted in {*backends, *AGENTS}
    names = [str(wanted)] if is_backend else _candidates(client, source, wanted)
    homes, max_turns = _homes(_written(file)), _max_turns(config)
    targets = [_target(name, backends, homes, max_turns=max_turns) for name in names]
    able = [one for one in targets if one is not None and shutil.which(one.agent, path=path)]
    found = [
        one for one in able if one.backend == wanted or _is_another(one, source, environ, home)
    ]
    if not found:
        raise _none(", ".join(names) or wanted)
    return found


def _none(names: str | None) -> NoTarget:
    return NoTarget(
        f"none of {names or 'the chain'} can continue the conversation now;"
        f" name an agent that is installed with --to: {', '.join(AGENTS)}"
    )


def _is_another(target: Target, source: str, environ: Mapping[str, str], home: str) -> bool:
    """Another agent, or another account of the same one."""
    place = AGENTS[target.agent].place({**environ, **target.environ}, home)
    return place != AGENTS[source].place(environ, home)


def _candidates(client: Client, source: str, chain: str | None) -> list[str]:
    params: dict[str, Json] = {"backend": source} if chain is None else {"chain": chain}
    try:
        found = client.call("resolve", params, timeout_s=_ASK_S)
    except ClientError as error:
        data = getattr(error, "data", None)
        found = data if isinstance(data, dict) else {}
        if chain is not None and not found.get("candidates"):
            raise NoTarget(f"--to {chain}: {error}") from error
    verdicts = found.get("candidates") or []
    return [one["backend"] for one in verdicts if one.get("verdict") in _USABLE]


def _config_path(environ: Mapping[str, str], home: str) -> str:
    base = environ.get("XDG_CONFIG_HOME", "")
    base = base if os.path.isabs(base) else os.path.join(home, ".config")
    return environ.get("FALLBACKD_CONFIG") or os.path.join(base, "fallbackd", "config.toml")


def _written(file: str | None) -> dict[str, Json]:
    """The configuration as it was written; empty: there is none that can be read."""
    from fallbackd_client.settings.editing import read
    from fallbackd_client.settings.jsonc import Unreadable
    from fallbackd_client.settings.toml_block import parse

    try:
        found: dict[str, Json] = parse(read(file) or "") if file else {}
    except Unreadable:
        return {}
    return found


def _max_turns(config: Mapping[str, Json]) -> int:
    handoff = config.get("handoff")
    return _count(handoff.get("max_turns") if isinstance(handoff, dict) else None) or MAX_TURNS


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _homes(config: Mapping[str, Json]) -> dict[str, dict[str, str]]:
    """Return the directories of accounts: the daemon does not say what is in `env`."""
    tables = config.get("backends")
    found = {}
    for name, table in tables.items() if isinstance(tables, dict) else ():
        env = table.get("env") if isinstance(table, dict) else None
        if isinstance(env, dict):
            found[name] = {
                key: os.path.expanduser(value)
                for key, value in env.items()
                if key in _HOMES and isinstance(value, str)
            }
    return found


def _target(
    name: str,
    backends: Mapping[str, Json],
    homes: Mapping[str, dict[str, str]],
    *,
    max_turns: int,
) -> Target | None:
    known = backends.get(name) or {}
    agent = known.get("kind") or name
    if agent not in AGENTS:
        return None
    return Target(
        name,
        agent,
        homes.get(name, {}),
        str(known.get("model") or ""),
        context_tokens=_count(known.get("context_tokens")),
        max_turns=max_turns,
    )


def _without_daemon(
    source: str, wanted: str | None, path: str | None, config: Mapping[str, Json]
) -> list[Target]:
    if wanted is not None and wanted not in AGENTS:
        raise NoTarget(
            f"--to {wanted}: without the daemon only the agents themselves are known:"
            f" {', '.join(AGENTS)}"
        )
    names = [wanted] if wanted is not None else [one for one in ORDER if one != source]
    max_turns = _max_turns(config)
    found = [
        Target(name, name, {}, max_turns=max_turns)
        for name in names
        if shutil.which(name, path=path)
    ]
    if found:
        return found
    raise NoTarget(f"none of {', '.join(names)} is installed; install one to continue with it")


MAX_PROMPT_CHARS = 30_000
"""A longer one stays in the history, as one with files: a command line takes none."""
_VERSION_S = 10.0
_IMPORT_S = 120.0
"""With the first start of the program, which prepares its database."""
_ASKED_BY_HAND = ("opencode",)
"""They drop a prompt beside the session that they open: it stays the last one of the history."""


class NotCarried(Exception):
    """The reason why it cannot be carried over, and what to do."""


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
    version = version_of_opencode(place) if target.agent == "opencode" else ""
    why = why or unsupported(version)
    if (line_of(version) == 2) is not is_second_store(where) and version:
        why = why or f"this opencode ({version.strip()}) has not made its own database yet"
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
            _import(path, cwd, place, line=written.line)
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
    """Return all turns up to the last answer, and the text of the prompts after it."""
    end = max((number for number, one in enumerate(said, 1) if one.role == "assistant"), default=0)
    prompt = "\n\n".join(one.text for one in said[end:])
    if len(prompt) > MAX_PROMPT_CHARS or any(one.files for one in said[end:]):
        return tuple(said), ""
    return tuple(said[:end]), prompt


def command(agent: str, id: str, path: str, prompt: str) -> list[str]:
    """Return the command that a person would type to open it."""
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


def version_of_opencode(environ: Mapping[str, str]) -> str:
    """Return what opencode prints about its version; empty: nothing."""
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        ran = subprocess.run(
            ["opencode", "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            check=False,
        )
        return ran.stdout.decode("utf-8", "replace")
    return ""


def _import(path: Path, cwd: str, environ: Mapping[str, str], *, line: int) -> None:
    """
    Raises:
        NotCarried: opencode did not take it in.
    """
    try:
        subprocess.run(
            ["opencode", *importing(str(path), cwd, line=line)],
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
