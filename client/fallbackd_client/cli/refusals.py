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
    for backend, fix in _fixes(shown):
        if fix.get("kind") in _STATUS:
            lines.append(f"{one_line(backend)}: {one_line(fix.get('text'))}")
    return list(dict.fromkeys(lines))


def _fixes(data: dict[str, Json]) -> Iterable[tuple[str, dict[str, Json]]]:
    """Each candidate, with what the daemon says would help it."""
    for candidate in data.get("candidates") or []:
        if isinstance(candidate, dict):
            fix = candidate.get("fix")
            yield str(candidate.get("backend")), fix if isinstance(fix, dict) else {}
