"""The sessions that agents have stored on this machine, and which of them a person had open."""

from __future__ import annotations

import json
import os
import re

from fallbackd_conversations.agents import AGENTS, FoundSession, is_plain_id
from fallbackd_conversations.files import read_ends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

LOOKED_AT = 40
"""Of each agent: programs, the daemon among them, leave sessions too."""
_END_BYTES = 64 * 1024
_OF_A_PROGRAM = {
    "claude": re.compile(rb'"entrypoint"\s*:\s*"sdk-'),
    "codex": re.compile(rb'"source"\s*:\s*"exec"'),
}
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
    agents: Iterable[str], environ: Mapping[str, str], *, home: str, limit: int
) -> list[FoundSession]:
    """Those of a person, newest first; at most so many of each agent."""
    where = places(environ, home)
    found: list[FoundSession] = []
    for name in agents:
        of_people = (
            one for one in AGENTS[name].newest(where[name], LOOKED_AT) if not is_of_a_program(one)
        )
        found += [one for _, one in zip(range(limit), of_people, strict=False)]
    return sorted(found, key=lambda one: -one.changed_at)


def by_id(agent: str, id: str, environ: Mapping[str, str], *, home: str) -> FoundSession | None:
    """Any stored session, also one that a program has held."""
    place = places(environ, home)[agent]
    stored = AGENTS[agent].read(place, id) if is_plain_id(id) else None
    if stored is None:
        return None
    return FoundSession(
        agent=agent,
        id=id,
        path=place,
        changed_at=0.0,
        cwd=stored.cwd,
        first_words=stored.first_words,
    )


def is_of_a_program(one: FoundSession) -> bool:
    pattern = _OF_A_PROGRAM.get(one.agent)
    if pattern is None:
        return False
    head = read_ends(one.path, tail_bytes=0)
    if one.agent == "codex":
        head = head.partition(b"\n")[0]
    return pattern.search(head) is not None


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
