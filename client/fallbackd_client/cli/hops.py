"""Moves to another backend, as sentences."""

from __future__ import annotations

import time

from fallbackd_client.cli.render import clock, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

_WHY = {
    "rate_limit": "is rate-limited",
    "usage_limit": "hit its usage limit",
    "billing": "needs credit or a payment method",
    "auth": "rejected its login",
    "overloaded": "is overloaded",
    "server_error": "reported a server error",
    "network": "cannot be reached",
    "local_network": "cannot be reached without a network",
    "timeout": "timed out",
    "stalled": "stopped responding",
    "crash": "crashed",
    "empty_result": "gave no answer",
    "model_not_found": "does not offer the model",
    "content_policy": "refused the prompt",
    "provider_policy": "is not allowed by the settings of its account",
    "format_error": "did not accept the request",
    "not_installed": "is not installed",
    "not_configured": "is not set up",
    "permission": "lacks a permission",
    "tls": "has a certificate that is not accepted",
    "local_budget": "has used up its budget",
    "context_overflow": "has too small a context for the prompt",
    "payload_too_large": "does not take a prompt of this size",
    "session": "did not take the conversation",
    "approval_required": "needs an approval",
    "manual": "was taken out of rotation",
}
"""By reason; of any other one only the name is said."""


def hop_sentence(hop: dict[str, Json], delegation: dict[str, Json]) -> str:
    """
    `codex hit its usage limit (resets 23:09); continuing with opencode.`

    Args:
        hop: One of `hops`, cleaned.
        delegation: Where its attempts state when a limit ends.
    """
    source, target = _name(hop, "from"), _name(hop, "to")
    reason = one_line(hop.get("reason") or "unknown")
    what = said(reason)
    details = [hop.get("evidence"), *(one.get("detail") for one in _failures(hop, delegation))]
    if reason == "not_configured" and "version" in details:
        what = "is of a version that is not supported"
    at = _reset_at(hop, delegation)
    now = time.time()
    when = "" if at is None or at <= now else f" (resets {_minutes(clock(at, now))})"
    return f"{source} {what}{when}; continuing with {target}."


def said(reason: str) -> str:
    """The reason of an outage behind the name of its backend: `rejected its login`."""
    return _WHY.get(reason, f"failed ({reason})")


def cause(reason: object) -> str:
    """
    `codex hit its usage limit`

    Args:
        reason: The `fallback_reason` of a delegation, a sentence that is too long for a column.
    """
    word, _, rest = one_line(reason).partition(": ")
    return f"{rest.partition(' ')[0]} {_WHY[word]}" if word in _WHY else one_line(reason)


def _name(hop: dict[str, Json], end: str) -> str:
    name = one_line(hop.get(end) or "?")
    # A model is said where it is what changes.
    if hop.get("from") == hop.get("to") and hop.get(f"{end}_model"):
        name += f" [{one_line(hop[f'{end}_model'])}]"
    return name


def _failures(hop: dict[str, Json], delegation: dict[str, Json]) -> list[dict[str, Json]]:
    """Failures of the attempts at the backend that was left."""
    attempts = delegation.get("attempts") or []
    found = [one.get("failure") for one in attempts if one.get("backend") == hop.get("from")]
    return [one for one in found if isinstance(one, dict)]


def _reset_at(hop: dict[str, Json], delegation: dict[str, Json]) -> float | None:
    stated = [one.get("stated_reset_at") for one in _failures(hop, delegation)]
    return next((float(at) for at in stated if isinstance(at, int | float)), None)


def _minutes(shown: str) -> str:
    return shown.rpartition(":")[0]
