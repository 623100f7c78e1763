"""Claude Code's status line: how much of the plan is used, and who could take over."""

from __future__ import annotations

import os
import subprocess
import time

from fallbackd_client.interactive.hook import ask, home_of, resuming_of
from fallbackd_client.interactive.words import USABLE, sentence, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.calls import Json

LIMIT_S = 0.05
"""A line that comes without the daemon's words is better than one that comes late."""
_THEN_S = 10.0
_WINDOWS = {"five_hour": ("5h", 5 * 3600.0), "seven_day": ("7d", 7 * 86400.0)}
"""As Claude Code names them; windows of single models say nothing of the whole plan."""
_ABSENT = ("not_installed", "not_configured")
_GAP = " \u00b7 "


class Own:
    """The status line command of the user, which runs beside ours."""

    def __init__(self, command: str, given: bytes) -> None:
        self._given = given
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def said(self) -> str:
        """As it is, with its colours: it is for this terminal."""
        try:
            out, _ = self._process.communicate(self._given, timeout=_THEN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return ""
        return out.decode(errors="replace").rstrip("\n")


def line(event: Mapping[str, Json], socket: str | None) -> str:
    """`5h 83% · 7d 41% · codex ok`; what is not known is left out."""
    windows = windows_of(event)
    params = {
        "agent": "claude",
        "windows": [
            {"window_s": _WINDOWS[name][1], "used_percent": used, "resets_at": at}
            for name, used, at in windows
        ],
        **home_of(os.environ),
    }
    found = ask(socket, "interactive.plan", params, limit_s=LIMIT_S)
    words = [f"{_WINDOWS[name][0]} {used:.0f}%" for name, used, _ in windows]
    words += _others(found.get("others"))
    backend, health = found.get("backend"), found.get("health")
    if isinstance(backend, str) and isinstance(health, dict):
        limit = None
        if health.get("state") not in USABLE:
            limit = sentence(backend, health, resuming=resuming_of(event))
        words += [limit] if limit else []
    return _GAP.join(words)


def windows_of(event: Mapping[str, Json]) -> list[tuple[str, float, float | None]]:
    """(name, percent used, when it begins anew): only what has not begun anew since."""
    limits = event.get("rate_limits")
    found = []
    for name in _WINDOWS:
        one = limits.get(name) if isinstance(limits, dict) else None
        if not isinstance(one, dict):
            continue
        used = one.get("used_percentage")
        if isinstance(used, bool) or not isinstance(used, int | float) or not 0 <= used <= 1000:
            continue
        at = one.get("resets_at")
        ends_at = float(at) if isinstance(at, int | float) and at > 0 else None
        if ends_at is None or ends_at > time.time():
            found.append((name, float(used), ends_at))
    return found


def joined(own: str, ours: str) -> str:
    """Ours at the end of the last line of the user's own."""
    return _GAP.join(one for one in (own, ours) if one)


def _others(health: Json) -> list[str]:
    """In the order of the chain, up to the first that can be used."""
    words = []
    for name, entry in health.items() if isinstance(health, dict) else ():
        if not isinstance(entry, dict) or entry.get("reason") in _ABSENT:
            continue
        words.append(short(name, entry))
        if entry.get("state") in USABLE:
            break
    return words
