"""`explain`: how a delegation was routed, in short or decision by decision."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits, ids
from fallbackd_client.cli.output import (
    Style,
    clock,
    duration,
    one_line,
    safe,
    shorten,
    show,
    wrapped,
)
from fallbackd_client.cli.views import (
    candidates_table,
    exit_code,
    hop_sentence,
    now,
    question_view,
    usage_words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

NONE_AVAILABLE = "no backend in the chain is available"
_HOPS_SHOWN = 2
_EVIDENCE_WIDTH = 160
_AFTER = {0: "", 1: " after 1 failover"}
_IN_USE = frozenset({"chosen", "healthy", "unproven", "tried"})


def summary(found: dict[str, Json], *, now: float) -> list[str]:
    """
    Args:
        found: A delegation, cleaned.
    """
    hops = [hop for hop in found.get("hops") or [] if isinstance(hop, dict)]
    sentences = [_outcome(found, now, _AFTER.get(len(hops), f" after {len(hops)} failovers"))]
    sentences += [hop_sentence(hop, found) for hop in hops[:_HOPS_SHOWN]]
    sentences += _evidence(found)
    sentences += _unused(found, now)
    return sentences[:5]


def _again(found: dict[str, Json], now: float) -> str:
    """Say when a backend is available again, where waiting helps."""
    at = found.get("retry_at")
    if at is None or exit_code(found) != exits.TRY_LATER:
        return ""
    return f"; available again at {clock(at, now)}"


def _outcome(found: dict[str, Json], now: float, after: str) -> str:
    state = str(found.get("state"))
    backend = one_line(found.get("served_by") or found.get("active") or "?")
    took = _took(found, now)
    match state:
        case "succeeded":
            return f"{backend} answered{after} ({took})."
        case "failed":
            return f"The work failed on {backend}{after} ({took}){_why(found)}."
        case "refused":
            why = _why(found).removeprefix(f": {NONE_AVAILABLE}")
            return f"No backend in the chain was available{why}{_again(found, now)}."
        case "cancelled":
            return f"The work was cancelled on {backend} ({took}){_why(found)}."
        case "handed_back":
            return "The work was handed back to the caller."
        case "awaiting_answer":
            return f"The work waits for an answer ({took})."
        case "running":
            return f"{backend} is working{after} ({took})."
        case _:
            return f"The work is {one_line(state)} ({took})."


def _why(found: dict[str, Json]) -> str:
    failure = found.get("failure")
    words = found.get("message")
    if not words and isinstance(failure, dict):
        words = failure.get("detail") or failure.get("reason")
    return f": {one_line(words)}" if words else ""


def _took(found: dict[str, Json], now: float) -> str:
    end = found.get("ended_at")
    return duration((now if end is None else end) - (found.get("created_at") or now))


def _evidence(found: dict[str, Json]) -> list[str]:
    """Show the output that the first failure was read from."""
    for attempt in found.get("attempts") or []:
        failure = attempt.get("failure")
        if isinstance(failure, dict) and failure.get("evidence") and not _is_ours(failure):
            said = shorten(one_line(failure["evidence"]), _EVIDENCE_WIDTH)
            return [f'{one_line(attempt.get("backend", "?"))} reported: "{said}".']
    return []


def _is_ours(failure: dict[str, Json]) -> bool:
    """Return whether fallbackd itself ended the attempt, so that the words are its own."""
    own = str(failure.get("signature") or "").startswith("fallbackd/")
    return own or failure.get("reason") == "cancelled"


def _unused(found: dict[str, Json], now: float) -> list[str]:
    groups: dict[str, list[str]] = {}
    for candidate in found.get("candidates") or []:
        verdict = str(candidate.get("verdict") or "?")
        if verdict in _IN_USE:
            continue
        words = one_line(verdict.replace("_", " ").replace("cooldown", "recovering"))
        if verdict in ("rate_limited", "paused") and candidate.get("until_at") is not None:
            words += f" until {clock(candidate['until_at'], now)}"
        groups.setdefault(words, []).append(one_line(candidate.get("backend", "?")))
    if not groups:
        return []
    shown = "; ".join(f"{', '.join(names)} ({words})" for words, names in groups.items())
    return [f"Not used: {shown}."]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "delegation",
        metavar="DELEGATION",
        nargs="?",
        default=ids.LAST,
        help=f"{ids.HELP}; or the id of a gateway call",
    )
    parser.add_argument("right", metavar="REASON", nargs="?", help="with --wrong: the right reason")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show every decision with its evidence"
    )
    parser.add_argument(
        "--wrong",
        action="store_true",
        help="the failure was misclassified: keep a sample, print a signature to paste",
    )
    parser.add_argument("--attempt", metavar="A", help="with --wrong: which one (the last)")
    parser.add_argument("--reason", metavar="R", help="the same as REASON")
    parser.add_argument("--note", metavar="TEXT", help="with --wrong: kept with the sample")


def run(args: argparse.Namespace, client: Client) -> int:
    if args.wrong:
        attempt = args.attempt
        given = {
            "delegation": args.delegation,
            "attempt": int(attempt) if attempt and attempt.isdecimal() else attempt,
            "reason": args.reason or args.right,
            "note": args.note,
        }
        params = {name: value for name, value in given.items() if value is not None}
        show(args, client.call("classification.wrong", params), wrong_view)
        return exits.OK
    wanted = {"delegation": args.delegation}
    # A call of the gateway has no record beside its decisions.
    if args.json or args.verbose or args.delegation.startswith(ids.GATEWAY_CALL):
        show(args, client.call("explain", wanted), explain_view)
    else:
        show(args, client.call("delegation.get", wanted), short_view)
    return exits.OK


def short_view(found: dict[str, Json], style: Style) -> str:
    name = one_line(found.get("delegation", "?"))
    lines = [style.paint(f"delegation {name}", "bold")]
    lines += [part for line in summary(found, now=now()) for part in wrapped(line, style)]
    if isinstance(found.get("question"), dict):
        lines += ["", question_view(found["question"])]
    hint = f"Every decision: fallbackd-client explain -v {name}"
    hints = [style.paint(part, "dim") for part in wrapped(hint, style)]
    return "\n".join([*lines, "", *hints])


def wrong_view(found: dict[str, Json], style: Style) -> str:
    kept = f"# {one_line(found.get('attempt', '?'))}: kept in {one_line(found['sample_path'])}"
    if found.get("row_path"):
        kept += f"\n# a row that you can send: {one_line(found['row_path'])}"
    hint = "# Private and redacted. To be understood next time, add to the configuration:"
    return "\n".join([style.paint(kept, "dim"), hint, "", safe(found["signature_toml"]).rstrip()])


def explain_view(found: dict[str, Json], style: Style) -> str:
    name = str(found.get("delegation", "?"))
    what = "gateway call" if name.startswith(ids.GATEWAY_CALL) else "delegation"
    heading = f"{what} {name}"
    words = [
        str(found[name]) if name == "state" else f"{label} {found[name]}"
        for name, label in (
            ("state", ""),
            ("requested", "asked of"),
            ("served_by", "served by"),
        )
        if found.get(name)
    ]
    used = usage_words(found.get("usage"))
    words += [used] if used else []
    if words:
        heading += ": " + ", ".join(words)
    parts = [style.paint(heading, "bold")]
    if found.get("truncated"):
        parts.append("(older decisions were dropped)")
    for number, decision in enumerate(found.get("decisions") or [], start=1):
        parts.append(_decision(number, decision, style))
    parts += [question_view(question) for question in found.get("questions") or []]
    if not found.get("decisions"):
        parts.append("no decisions on record")
    return "\n\n".join(parts)


def _decision(number: int, decision: dict[str, Json], style: Style) -> str:
    at = decision.get("at")
    words = [
        "" if at is None else _instant(at),
        style.paint(one_line(decision.get("event", "?")), "cyan"),
        one_line(decision.get("attempt") or ""),
    ]
    lines = [f"{number}. " + "  ".join(word for word in words if word)]
    if decision.get("text"):
        lines.append(f"   {one_line(decision['text'])}")
    if decision.get("candidates"):
        lines.append(candidates_table(decision["candidates"], style, indent="   "))
    for name, label in (("evidence", "evidence"), ("policy", "policy")):
        if decision.get(name):
            lines.append(f"   {style.paint(label + ':', 'dim')} {_pairs(decision[name])}")
    for name, label in (("changes", "kept"), ("effects", "then")):
        mark = style.paint(label + ":", "dim")
        lines += [f"   {mark} {_pairs(word)}" for word in decision.get(name) or []]
    return "\n".join(lines)


def _instant(at: float) -> str:
    """Format to the millisecond: decisions follow each other fast."""
    return f"{clock(at, now())}.{int(at * 1000) % 1000:03d}"


def _pairs(value: Json) -> str:
    """Nested values as `name=value`, those that say nothing left out."""
    if isinstance(value, dict):
        shown = {name: inner for name, inner in value.items() if inner not in (None, "", [], {})}
        return ", ".join(f"{name}={_value(inner)}" for name, inner in shown.items())
    return one_line(value)


def _value(value: Json) -> str:
    if isinstance(value, dict):
        return "{" + _pairs(value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return one_line(value)
