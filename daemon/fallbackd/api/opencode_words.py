"""The state of one session for the person who works in it, as Markdown."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fallbackd.core.decision_log import model_words
from fallbackd.core.opencode.session import Unprotected
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import NOT_SET_UP
from fallbackd.core.records import Session
from fallbackd.core.routing.suggest import duration
from fallbackd.core.views import health_entries, health_entry
from fallbackd.engine.api import Engine
from fallbackd_conversations.redact import excerpt

MAX_HOPS = 20
MAX_WARNINGS = 20
_STATES: Mapping[Unprotected | None, str] = {
    None: "enabled",
    "switched_off": "disabled",
    "no_chain": "enabled, but no fallback chain is configured",
}
_PROBLEMS: Mapping[Unprotected, str] = {
    "switched_off": "`enabled` is false in model-fallback.json, or in [opencode] of config.toml",
    "no_chain": "no fallback chain is configured; put one into"
    " ~/.config/opencode/model-fallback.json",
}
_SIGNS = {"healthy": "✓", "cooldown": "~"}
_WORDS = {"cooldown": "recovery in", "rate_limited": "out for", "broken": "out for"}


def announced_problem(unprotected: Unprotected | None, warnings: Sequence[str]) -> str | None:
    """What the person in front of an opencode has to know when it is announced."""
    found = [] if unprotected is None else [_PROBLEMS[unprotected]]
    found += [_plain(one) for one in warnings[:1]]
    if len(warnings) > 1:
        found.append(f"{len(warnings) - 1} more warnings: /fallback-status")
    return "; ".join(found) or None


def status_words(
    engine: Engine,
    name: str | None,
    session: Session | None,
    *,
    verbose: bool,
    warnings: Sequence[str] = (),
    unprotected: Unprotected | None = None,
) -> str:
    """
    Args:
        name: Of the session that was asked for, whether it is on record or not.
        warnings: About the files that configure its project.
        unprotected: Why no failed turn of its project would be moved.
    """
    now = engine.clock.now()
    lines = ["## Model Fallback Status", "", f"**Fallback:** {_STATES[unprotected]}"]
    if name is not None:
        lines += ["", "### Current Session", "", f"- Session ID: {_plain(name)}"]
    if name is not None and session is None:
        lines.append("- Nothing has been seen of it yet")
    if session is not None:
        lines += _session(session)
    if warnings:
        lines += ["", "### Configuration Warnings", ""]
        lines += [f"- {_plain(one)}" for one in warnings[:MAX_WARNINGS]]
    lines += ["", "### Model Health", "", *_health(engine, session, now=now)]
    if verbose and session is not None:
        lines += _usage(session)
    return "\n".join(lines) + "\n"


def _session(session: Session) -> list[str]:
    lines = [
        f"- Agent: {_plain(session.role or 'unknown')}",
        f"- Original model: {model_words(session.original)}",
        f"- Current model: {model_words(session.current)}",
        f"- Fallback depth: {session.depth}",
    ]
    if session.rescue is not None:
        rescue = session.rescue
        lines.append(
            f"- Under way: {model_words(rescue.left)} → {model_words(rescue.to)}, at"
            f" {rescue.step} ({rescue.reason})"
        )
    hops = [
        f"- {_clock(hop.at)} — {model_words(hop.from_backend)} → {model_words(hop.to_backend)}"
        f" ({hop.reason}, {hop.trigger})"
        for hop in session.hops[-MAX_HOPS:]
    ]
    return [*lines, "", "### Fallback History", "", *(hops or ["- None"])]


def _health(engine: Engine, session: Session | None, *, now: float) -> list[str]:
    policy, snapshot = engine.settings.policy, engine.snapshot()
    entries = health_entries(snapshot, policy, now=now, only="unhealthy")
    for known in () if session is None else (session.original, session.current):
        if known not in entries:
            entries[str(known)] = health_entry(known, snapshot, policy, now=now)
    found = []
    for name, entry in entries.items():
        if "/" not in name and entry["reason"] in NOT_SET_UP:
            continue  # a program that was never set up
        if entry["state"] == "healthy" and not entry["count"]:
            continue
        found.append(_health_line(name, entry))
    return found or ["- All models healthy (no issues detected)"]


def _health_line(name: str, entry: dict[str, Any]) -> str:
    sign = _SIGNS.get(entry["state"], "✗")
    line = f"- {sign} {model_words(name)}: {entry['state']}"
    if entry["reason"]:
        line += f" ({entry['reason']})"
    if entry["seconds_remaining"] is not None:
        left = duration(entry["seconds_remaining"])
        line += f", {_WORDS.get(entry['state'], 'for')} {left}"
    if entry["count"]:
        line += f" [{entry['count']} failure{'s' if entry['count'] != 1 else ''}]"
    return line


def _usage(session: Session) -> list[str]:
    total = [used for _, used in session.usage]
    costs = [one.cost_usd for one in total if one.cost_usd is not None]
    whole = Usage(
        input_tokens=sum(one.input_tokens for one in total),
        output_tokens=sum(one.output_tokens for one in total),
        cost_usd=sum(costs) if costs else None,
    )
    lines = ["", "### Usage Summary", "", f"- Total: {_spent(whole)}", "", "**By model period:**"]
    ends = [_clock(one.from_at) for one in session.periods[1:]]
    for one, end in zip(session.periods, [*ends, "now"], strict=False):
        when = f"{_clock(one.from_at)} to {end}"
        lines.append(f"- {model_words(one.backend)}, {when}: {_spent(one.usage)}")
    return lines


def _spent(usage: Usage) -> str:
    cost = 0.0 if usage.cost_usd is None else usage.cost_usd
    return f"{usage.input_tokens} tokens in, {usage.output_tokens} out, ${cost:.6f}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")


def _plain(text: str) -> str:
    return excerpt(text, max_chars=200)
