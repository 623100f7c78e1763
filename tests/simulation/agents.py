"""
What the program of a backend prints and how it ends, by the condition of its provider.

`text` prints words for people, `jsonl` one event a line, `codex` what codex prints. Which reasons
a condition may be blamed on is said beside it: nothing else may ever mark a backend.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

from fallbackd.core.reasons import Reason

Condition = Literal[
    "healthy",
    "throttled",
    "plan_limit",
    "login_gone",
    "overloaded",
    "server_error",
    "unreachable",
    "missing",
    "hanging",
    "stalling",
    "crashing",
    "silent",
]
Kind = Literal["text", "jsonl", "codex"]
Task = Literal["plain", "poison", "prose", "fails", "writes", "nests"]

BLAME: dict[Condition, frozenset[Reason]] = {
    "healthy": frozenset(),
    "throttled": frozenset({Reason.RATE_LIMIT, Reason.USAGE_LIMIT}),
    # A throttle that lasts for hours is a plan.
    "plan_limit": frozenset({Reason.USAGE_LIMIT}),
    "login_gone": frozenset({Reason.AUTH}),
    "overloaded": frozenset({Reason.OVERLOADED}),
    "server_error": frozenset({Reason.SERVER_ERROR}),
    "unreachable": frozenset({Reason.NETWORK}),
    "missing": frozenset({Reason.NOT_INSTALLED}),
    "hanging": frozenset({Reason.TIMEOUT}),
    "stalling": frozenset({Reason.STALLED, Reason.TIMEOUT}),
    "crashing": frozenset({Reason.CRASH}),
    "silent": frozenset({Reason.EMPTY_RESULT}),
}
PROSE = "I read that 429 Too Many Requests means: rate limit exceeded, retry after 7200 seconds. "
FOREVER = float("inf")


class Play(NamedTuple):
    """One run of a program that nobody stops."""

    lines: tuple[tuple[float, str, str], ...]
    """(seconds after the line before, stream, text)."""
    end_s: float
    """Seconds from the last line to the exit; infinite: it hangs."""
    code: int | None = 0
    signal: int | None = None
    blame: frozenset[Reason] = frozenset()
    writes: bool = False
    """It changes files in its directory."""
    nests: bool = False
    """It delegates first, which takes a provider that answers."""


def answers(kind: Kind, task: Task, text: str, *, takes_s: float, luck: Random) -> Play:
    """What a healthy provider makes of a task."""
    nests = task == "nests"
    if task == "poison":
        blame = frozenset({Reason.UNKNOWN, Reason.CRASH})
        return Play((), takes_s, code=1, blame=blame)
    said = text + "\n" + (PROSE * 12 if task == "prose" else "")
    if kind == "text":
        progress = ((takes_s / 2, "stderr", "thinking\n"),) if luck.random() < 0.5 else ()
        return Play(
            (*progress, (takes_s / 2, "stdout", said)), 0.01, writes=task == "writes", nests=nests
        )
    steps = 1 + int(takes_s // 100)
    lines = [(takes_s / (steps + 1), "stdout", _step(kind, task, n)) for n in range(steps)]
    if task == "fails":
        lines.append((takes_s / (steps + 1), "stdout", _says(kind, PROSE)))
        return Play(tuple(lines), 0.01, code=1)
    lines.append((takes_s / (steps + 1), "stdout", _says(kind, said) + _done(kind)))
    return Play(tuple(lines), 0.01, writes=task == "writes", nests=nests)


def talks(play: Play, thread: str) -> Play:
    """The same run, with the name of its conversation where codex says it."""
    named = _event({"type": "thread.started", "thread_id": thread})
    lines = tuple((at, to, text.replace(_UNNAMED, named)) for at, to, text in play.lines)
    return play._replace(lines=lines)


def fails(
    kind: Kind,
    condition: Condition,
    *,
    stated_s: float | None,
    takes_s: float,
    luck: Random,
    begins: bool = False,
) -> Play:
    """
    What a program makes of a provider in trouble.

    Args:
        begins: The trouble comes behind its first tool, where it shows tools.
    """
    blame = BLAME[condition]
    match condition:
        case "hanging":
            return Play((), FOREVER, blame=blame)
        case "stalling":
            begun = _begins(kind)
            return Play(((takes_s, begun[0], begun[1]),), FOREVER, blame=blame)
        case "crashing":
            return Play((), takes_s, code=None, signal=11, blame=blame)
        case "silent":
            return Play((), takes_s, code=0, blame=blame)
        case "healthy" | "missing":
            raise AssertionError(condition)
        case _:
            statement = _STATEMENTS[condition](stated_s)
    lines: list[tuple[float, str, str]] = []
    begun: list[tuple[float, str, str]] = []
    if kind == "codex" and begins:
        begun = [(0.1, "stdout", _step(kind, "writes", number)) for number in range(2)]
    if kind == "codex" and luck.random() < 0.4:
        # It tries again by itself, for longer than anybody has patience.
        why = f"Reconnecting... 1/5 ({statement.codex})"
        lines = [(takes_s, "stdout", _event({"type": "error", "message": why}))]
        lines += [(30.0, "stdout", _event({"type": "error", "message": why}))] * 4
    code = 75 if condition == "throttled" and kind == "text" and luck.random() < 0.2 else 1
    stream = "stderr" if kind == "text" else "stdout"
    lines.append((takes_s, stream, _fails(kind, statement)))
    lingers_s = FOREVER if kind == "jsonl" and luck.random() < 0.3 else 0.01
    return Play((*begun, *lines), lingers_s, code=code, blame=blame, writes=bool(begun))


class _Statement(NamedTuple):
    text: str
    codex: str
    code: int | None = None


def _retry(stated_s: float | None) -> str:
    return "" if stated_s is None else f" Please try again in {stated_s:.0f} seconds."


_STATEMENTS: dict[str, Callable[[float | None], _Statement]] = {
    "throttled": lambda s: _Statement(
        "429 Too Many Requests: rate limit exceeded." + _retry(s),
        "unexpected status 429 Too Many Requests: Rate limit reached." + _retry(s),
        429,
    ),
    "plan_limit": lambda s: _Statement(
        "You've hit your usage limit." + _retry(s), "You've hit your usage limit." + _retry(s)
    ),
    "login_gone": lambda _: _Statement(
        "401 Unauthorized: invalid api key", "unexpected status 401 Unauthorized: ", 401
    ),
    "overloaded": lambda _: _Statement(
        "529 overloaded_error: Overloaded",
        "Selected model is at capacity. Please try a different model.",
        529,
    ),
    "server_error": lambda _: _Statement(
        "500 Internal Server Error", "unexpected status 500 Internal Server Error: ", 500
    ),
    "unreachable": lambda _: _Statement(
        "connect ECONNREFUSED api.example.com:443",
        "stream disconnected before completion: error sending request for url "
        "(https://api.example.com/v1)",
    ),
}


def waits(kind: Kind) -> tuple[str, str]:
    """(stream, text) of a program that works on and shows it."""
    return ("stderr", "waiting\n") if kind == "text" else ("stdout", _says(kind, "waiting"))


def statement(condition: Condition, stated_s: float | None) -> str:
    """What a caller that talks to the provider itself is told."""
    return _STATEMENTS[condition](stated_s).text


def _event(event: object) -> str:
    return json.dumps(event) + "\n"


_UNNAMED = _event({"type": "thread.started"})


def _begins(kind: Kind) -> tuple[str, str]:
    if kind == "text":
        return "stderr", "starting\n"
    return "stdout", _step(kind, "plain", 0)


def _step(kind: Kind, task: Task, number: int) -> str:
    if kind == "jsonl":
        return _event({"type": "progress", "step": number})
    if number == 0:
        return _event({"type": "thread.started"}) + _event({"type": "turn.started"})
    item = {"id": f"i{number}", "type": "reasoning", "text": "hm"}
    if task == "writes":
        item = {"id": f"i{number}", "type": "command_execution", "command": f"make step{number}"}
    return _event({"type": "item.completed", "item": item})


def _says(kind: Kind, text: str) -> str:
    if kind == "jsonl":
        return _event({"type": "text", "text": text})
    item = {"id": "said", "type": "agent_message", "text": text}
    return _event({"type": "item.completed", "item": item})


def _done(kind: Kind) -> str:
    if kind == "jsonl":
        return ""
    usage = {"input_tokens": 7, "output_tokens": 5}
    return _event({"type": "turn.completed", "usage": usage})


def _fails(kind: Kind, said: _Statement) -> str:
    if kind == "text":
        return f"Error: {said.text}\n"
    if kind == "jsonl":
        error = {"message": said.text, **({} if said.code is None else {"code": said.code})}
        return _event({"type": "error", "error": error})
    return _event({"type": "error", "message": said.codex}) + _event(
        {"type": "turn.failed", "error": {"message": said.codex}}
    )
