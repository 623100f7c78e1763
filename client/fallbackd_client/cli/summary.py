"""What became of a delegation, in at most five sentences."""

from __future__ import annotations

from fallbackd_client.cli import exits
from fallbackd_client.cli.hops import hop_sentence
from fallbackd_client.cli.refusals import exit_code
from fallbackd_client.cli.render import clock, duration, one_line
from fallbackd_client.cli.tables import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

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
    """When a backend is available again, where waiting helps."""
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
    """What the first failure was read from."""
    for attempt in found.get("attempts") or []:
        failure = attempt.get("failure")
        if isinstance(failure, dict) and failure.get("evidence") and not _is_ours(failure):
            said = shorten(one_line(failure["evidence"]), _EVIDENCE_WIDTH)
            return [f'{one_line(attempt.get("backend", "?"))} reported: "{said}".']
    return []


def _is_ours(failure: dict[str, Json]) -> bool:
    """Whether fallbackd itself ended the attempt, so that the words are its own."""
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
