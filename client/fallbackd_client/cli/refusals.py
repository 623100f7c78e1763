"""What to do about work that was refused: wait where that helps, else the command that does."""

from __future__ import annotations

from fallbackd_client.cli import exits
from fallbackd_client.cli.render import clean, one_line, when

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fallbackd_client.calls import Json

_STATUS = {
    "not_permitted": exits.NOT_PERMITTED,
    "configuration": exits.CONFIG,
    "failed": exits.FAILED,
}
"""By kind of what helps. Where nothing of that is named, waiting helps."""


def exit_code(data: dict[str, Json]) -> int:
    """
    75 where waiting helps with one candidate at least, else 77, 78 or 1.

    Args:
        data: A refused delegation, or the data of a refused `resolve`.
    """
    found = [_STATUS.get(str(fix.get("kind"))) for _, fix in _fixes(data)]
    if not found or None in found:
        return exits.TRY_LATER
    return next(c for c in _STATUS.values() if c in found)


def advice(data: dict[str, Json], *, now: float) -> list[str]:
    """Lines: when to try again, and what would help each candidate that waiting does not help."""
    shown = clean(data)
    lines = []
    if shown.get("retry_at") is not None and exit_code(data) == exits.TRY_LATER:
        lines.append(f"available again at {when(shown['retry_at'], now)}")
    lost = lost_programs(shown)
    if lost:
        lines.append(not_found(lost))
    if is_only_missing(shown):
        return lines  # the refusal itself has named them, and how to install one
    for backend, fix in _fixes(shown):
        if fix.get("kind") in _STATUS and backend not in lost:
            lines.append(f"{one_line(backend)}: {one_line(fix.get('text'))}")
    return list(dict.fromkeys(lines))


def lost_programs(data: dict[str, Json]) -> dict[str, str]:
    """Candidates that the daemon does not find and this shell does, each with its place."""
    missing = {
        str(one.get("backend")): str(one.get("detail") or "").partition(" ")[0]
        for one in data.get("candidates") or []
        if isinstance(one, dict) and one.get("verdict") == "not_installed"
    }
    if not missing:
        return {}
    from shutil import which  # slow to load, and needed only here

    found = {backend: which(program) for backend, program in missing.items() if program}
    return {backend: place for backend, place in found.items() if place is not None}


def not_found(lost: dict[str, str]) -> str:
    """
    Args:
        lost: Of `lost_programs`.
    """
    shown = ", ".join(f"{one_line(name)} ({one_line(place)})" for name, place in lost.items())
    return (
        f"installed, but not on the daemon's PATH: {shown};"
        " fix this with: fallbackd-client doctor --fix"
    )


def is_only_missing(data: dict[str, Json]) -> bool:
    """No candidate is installed: a table of them would say the same in each line."""
    found = [one for one in data.get("candidates") or [] if isinstance(one, dict)]
    return bool(found) and all(one.get("verdict") == "not_installed" for one in found)


def _fixes(data: dict[str, Json]) -> Iterable[tuple[str, dict[str, Json]]]:
    """Each candidate, with what the daemon says would help it."""
    for candidate in data.get("candidates") or []:
        if isinstance(candidate, dict):
            fix = candidate.get("fix")
            yield str(candidate.get("backend")), fix if isinstance(fix, dict) else {}
