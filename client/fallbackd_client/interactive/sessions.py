"""The sessions that agents have stored on this machine, and which of them a person had open."""

from __future__ import annotations

import json
import os
import re

from fallbackd_client.errors import ClientError
from fallbackd_conversations import claude
from fallbackd_conversations.agents import AGENTS, FoundSession
from fallbackd_conversations.files import read_ends
from fallbackd_conversations.turns import is_plain_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fallbackd_client.client import Client
    from fallbackd_conversations.claude import ResumingWord

_ATTEMPTS_OF = 200
"""Delegations."""
_ASK_S = 5.0
_PROCESSES = "/proc"
_END_BYTES = 64 * 1024
_LIMITS = {
    "claude": re.compile(r'"error"\s*:\s*"rate_limit"'),
    "codex": re.compile(r'"codex_error_info"\s*:\s*"(?:usage_limit_exceeded|rate_limit_exceeded)"'),
}
"""In the last lines of a session whose last turn has met a limit."""
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
    Those of a person, newest first; at most so many of each agent.

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
        found = client.call("delegation.list", {"limit": _ATTEMPTS_OF}, timeout_s=_ASK_S)
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
    """Whether its agent, where a person has it open, continues the last turn by itself."""
    found = resuming_in(one.path) if one.agent == "claude" else "no"
    return found if found == "no" or is_open(one) else "no"


def resuming_in(path: Path) -> ResumingWord:
    """The same of a file of claude, whether it is open or not."""
    return claude.resuming(read_ends(path, tail_bytes=_END_BYTES)[-_END_BYTES:])


def is_open(one: FoundSession) -> bool:
    """Whether its agent runs in its directory; where processes cannot be seen, it does."""
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
    """From the end. What stands within the words of a message has its quotes escaped there."""
    data = read_ends(path, tail_bytes=_END_BYTES)[-_END_BYTES:]
    return reversed(data.decode("utf-8", "replace").splitlines())


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
