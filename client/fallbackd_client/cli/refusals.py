"""What to do about work that was refused: wait where that helps, else the command that does."""

from __future__ import annotations

from fallbackd_client.cli import exits
from fallbackd_client.cli.render import clean, one_line, when

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fallbackd_client.calls import Json

_REPAIRS = {
    "auth": (exits.NOT_PERMITTED, "log in again"),
    "billing": (exits.NOT_PERMITTED, "its account needs credit or a payment method"),
    "permission": (exits.NOT_PERMITTED, "the daemon may not run it or use its directory"),
    "provider_policy": (exits.NOT_PERMITTED, "the settings of its account forbid this"),
    "not_installed": (exits.CONFIG, "install it"),
    "not_configured": (exits.CONFIG, "it needs a login or configuration"),
    "model_not_found": (exits.CONFIG, "choose another model"),
    "tls": (exits.CONFIG, "its certificate is not accepted: check proxy and CA settings"),
    "disabled": (exits.CONFIG, "enable it in the configuration"),
    "context_overflow": (exits.FAILED, "the prompt does not fit its context: shorten it"),
    "payload_too_large": (exits.FAILED, "the prompt is too large for it: shorten it"),
    "format_error": (exits.FAILED, "its provider does not accept the request"),
    "content_policy": (exits.FAILED, "its provider refuses the prompt"),
    "task_failed": (exits.FAILED, "the work itself failed there"),
}
"""By reason or verdict: the exit status, and what helps. With any other word waiting helps."""
_LOGIN = frozenset({"auth", "not_configured"})


def exit_code(data: dict[str, Json]) -> int:
    """
    75 where waiting helps with one candidate at least, else 77, 78 or 1.

    Args:
        data: A refused delegation, or the data of a refused `resolve`.
    """
    found = [_REPAIRS.get(word) for _, word in _causes(data)]
    if not found or None in found:
        return exits.TRY_LATER
    codes = {repair[0] for repair in found if repair is not None}
    return next(c for c in (exits.NOT_PERMITTED, exits.CONFIG, exits.FAILED) if c in codes)


def advice(data: dict[str, Json], *, now: float) -> list[str]:
    """Lines: when to try again, and what would help each candidate that waiting does not help."""
    shown = clean(data)
    lines = []
    if shown.get("retry_at") is not None and exit_code(data) == exits.TRY_LATER:
        lines.append(f"available again at {when(shown['retry_at'], now)}")
    for backend, word in _causes(shown):
        repair = _REPAIRS.get(word)
        if repair is not None:
            lines.append(f"{one_line(backend)}: {_command(backend, word) or repair[1]}")
    return list(dict.fromkeys(lines))


def _command(backend: str, word: str) -> str:
    """The command for a known program; empty where there is none."""
    from fallbackd_client.cli.doctor.programs import PROGRAMS  # only after a refusal

    program = next((one for one in PROGRAMS if one.name == backend), None)
    if program is None:
        return ""
    if word in _LOGIN and program.login:
        return f"log in with: {program.login}"
    if word == "not_installed" and program.install:
        return f"install it with: {program.install}"
    return ""


def _causes(data: dict[str, Json]) -> Iterable[tuple[str, str]]:
    """Backend and reason of each candidate; of one that was tried here the reason it failed for."""
    tried = {}
    for attempt in data.get("attempts") or []:
        failure = attempt.get("failure") if isinstance(attempt, dict) else None
        if isinstance(failure, dict):
            tried[str(attempt.get("backend"))] = str(failure.get("reason"))
    for candidate in data.get("candidates") or []:
        if not isinstance(candidate, dict):
            continue
        backend, reason = str(candidate.get("backend")), str(candidate.get("reason") or "")
        verdict = str(candidate.get("verdict") or "")
        known = reason if reason in _REPAIRS else verdict if verdict in _REPAIRS else reason
        yield backend, tried.get(backend, known)
