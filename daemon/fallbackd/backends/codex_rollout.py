"""
codex: `sessions/Y/M/D/rollout-…jsonl`, which it writes while a person works.

| line | means |
| --- | --- |
| `session_meta`, the first | whose session it is: `"source":"exec"` is one of a program |
| `event_msg` `token_count` | figures of the plan, in `rate_limits` |
| `event_msg` `task_complete` | the end of a turn; with `error`, it failed |
| `turn_context` | the model of a turn |

Source: files of codex 0.169.0.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from fallbackd.backends.codex_signatures import evidence_of
from fallbackd.backends.lines import fields, words
from fallbackd.backends.sessions import PlanWindow, SessionSeen
from fallbackd.core.protocol import Evidence
from fallbackd_conversations.codex import owner_of

FRESH_S = 60.0
"""It is heard of within seconds."""


def read(head: bytes, lines: Sequence[bytes], now: float) -> SessionSeen:
    """
    Ignores sessions that a program runs, since that program judges them, and old failures, since
    a session that is opened again repeats its last one.
    """
    if owner_of(head) == "program":
        return SessionSeen()
    windows: tuple[PlanWindow, ...] = ()
    turn: str | None = None
    failure: Evidence | None = None
    model: str | None = None
    worked_at: float | None = None
    for at, kind, event in _events(lines, now):
        if kind == "turn_context":
            model = words(event.get("model")) or None
            continue
        match event.get("type"):
            case "token_count":
                # Of one model alone (`limit_id`), they say nothing of the plan.
                limits = fields(event.get("rate_limits"))
                if words(limits.get("limit_id")) in ("", "codex") and (new := _windows(limits)):
                    windows, worked_at = new, at
            case "task_started":
                turn, failure = None, None
            case "task_complete":
                error = fields(event.get("error"))
                turn = words(event.get("turn_id")) or None
                failure = _with_reset(evidence_of(error), windows) if error else None
                if words(event.get("last_agent_message")) and not error:
                    worked_at = at
    if failure is not None or any(one.is_spent for one in windows):
        worked_at = None
    return SessionSeen(
        turn=turn, failure=failure, windows=windows, worked_at=worked_at, model=model
    )


def _events(lines: Sequence[bytes], now: float) -> Iterator[tuple[float, str, dict[str, Any]]]:
    for line in lines:
        if b'"event_msg"' not in line and b'"turn_context"' not in line:
            continue
        try:
            found = msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        kind = words(found.get("type")) if isinstance(found, dict) else ""
        if kind not in ("event_msg", "turn_context"):
            continue
        at = _instant(words(found.get("timestamp")))
        if at is not None and abs(now - at) <= FRESH_S:
            yield at, kind, fields(found.get("payload"))


def _instant(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _windows(limits: Mapping[str, Any]) -> tuple[PlanWindow, ...]:
    found = []
    for name in ("primary", "secondary"):
        one = fields(limits.get(name))
        used, minutes, at = (
            _number(one.get(key)) for key in ("used_percent", "window_minutes", "resets_at")
        )
        if used is not None and minutes:
            found.append(PlanWindow(window_s=minutes * 60, used_percent=used, resets_at=at or None))
    return tuple(found)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e12 else None


def _with_reset(evidence: Evidence, windows: tuple[PlanWindow, ...]) -> Evidence:
    """With the instant at which a spent window begins anew: the sentence has but the minute."""
    ends = [one.resets_at for one in windows if one.is_spent and one.resets_at is not None]
    if evidence.code != "usagelimitexceeded" or not ends:
        return evidence
    body = {"error": {"type": "usage_limit_reached", "resets_at": max(ends)}}
    return msgspec.structs.replace(evidence, body=body)
