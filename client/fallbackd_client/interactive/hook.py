"""
Claude Code's hooks. `StopFailure`: a turn that failed is reported, and the way on is named.
`UserPromptSubmit`: the prompt that it sends by itself at the reset of a limit is held back where
its conversation continues with another agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time

from fallbackd_client.calls import inside_of
from fallbackd_client.cli.output import one_line
from fallbackd_client.client import Client
from fallbackd_client.errors import ClientError
from fallbackd_client.paths import state_dir
from fallbackd_client.settings.files import regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.calls import Json
    from fallbackd_conversations.claude import ResumingWord


CONTINUE = "continue here with: fallbackd-client continue"
FIRST = "press Esc, then "
USABLE = ("healthy", "cooldown")


def sentence(
    backend: str, health: Mapping[str, Json], *, resuming: ResumingWord = "no"
) -> str | None:
    """
    `claude is limited until 13:00; continue here with: …`; None: it can be used.

    Args:
        resuming: Whether the agent continues by itself; then the work would be done twice.
    """
    state = health.get("state")
    if state is None or state in USABLE:
        return None
    if state == "rate_limited":
        what = "is limited"
    elif health.get("reason") == "auth":
        what = "needs a login"
    else:
        what = "is unavailable"
    at = until(health)
    first = FIRST if resuming == "waits" else ""
    return f"{one_line(backend)} {what}{f' until {at}' if at else ''}; {first}{CONTINUE}"


def short(backend: str, health: Mapping[str, Json]) -> str:
    """`codex ok`, `codex from 13:00`, `codex out`."""
    name = one_line(backend)
    if health.get("state") in USABLE:
        return f"{name} ok"
    at = until(health)
    return f"{name} from {at}" if at else f"{name} out"


def until(health: Mapping[str, Json]) -> str:
    """The local time at which it is expected back, with the day where it is another one."""
    at = health.get("until_at")
    if not isinstance(at, int | float):
        return ""
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%b %d %H:%M", then)


LIMIT_S = 0.5
"""Claude Code waits for nothing here, and neither does the person."""
MAX_BYTES = 1024 * 1024
_MAX_CHARS = 8192
_REPORTED = frozenset(
    {
        "authentication_failed",
        "billing_error",
        "model_not_found",
        "oauth_org_not_allowed",
        "overloaded",
        "rate_limit",
        "server_error",
    }
)
"""The other words are about the prompt or the answer, not about the backend."""


def parsed(given: bytes) -> dict[str, Json]:
    """Parse the input of a hook or a status line; empty where it is something else."""
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def report(event: Mapping[str, Json], socket: str | None) -> str | None:
    """
    Report a failed turn; None where there is nothing to say or no daemon to say it to.

    Returns:
        A sentence for the person.
    """
    error, text = event.get("error"), event.get("last_assistant_message")
    if event.get("hook_event_name") != "StopFailure" or str(error) not in _REPORTED:
        return None
    if inside_of() is not None:
        return None  # an attempt of the daemon, which judges it itself
    details = event.get("error_details")
    words = "\n".join(one for one in (text, details) if isinstance(one, str) and one)
    params = {
        "agent": "claude",
        "error": error,
        "text": words[:_MAX_CHARS],
        **home_of(os.environ),
        **_named(event, "session", "session_id"),
        **_named(event, "turn", "prompt_id"),
    }
    found = ask(socket, "interactive.failed", params, limit_s=LIMIT_S)
    backend, health = found.get("backend"), found.get("health")
    if not isinstance(backend, str) or not isinstance(health, dict):
        return None
    return sentence(backend, health, resuming=resuming_of(event))


_BY_ITSELF = re.compile(r"\busage limit has reset\b", re.IGNORECASE)
"""Words of the prompt that is sent at the reset (claude 2.1.332)."""


def hold(session: str, agent: str) -> None:
    """Hold back what claude sends next by itself in a session that continues with an agent."""
    path = _mark_of(session)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(agent)


def held(event: Mapping[str, Json]) -> str | None:
    """
    The reason to hold a prompt back, once; None: it is sent. A prompt of the person takes the
    session back.
    """
    session, prompt = event.get("session_id"), event.get("prompt")
    is_prompt = event.get("hook_event_name") == "UserPromptSubmit" and isinstance(prompt, str)
    if not (is_prompt and isinstance(session, str) and session.replace("-", "").isalnum()):
        return None
    path = _mark_of(session)
    try:
        with open(path, encoding="utf-8", errors="replace", opener=regular) as file:
            agent = file.read(100)
        os.unlink(path)
    except OSError:
        return None
    if not _BY_ITSELF.search(str(prompt)):
        return None
    return f"this conversation continues with {agent}; to continue it here, send a prompt"


def _mark_of(session: str) -> str:
    return os.path.join(state_dir(os.environ), "continued", f"{session}.elsewhere")


def resuming_of(event: Mapping[str, Json]) -> ResumingWord:
    """Return whether the session of an event waits for the reset of its limit."""
    from pathlib import Path

    from fallbackd_client.interactive.carrying import resuming_in

    path = event.get("transcript_path")
    return resuming_in(Path(path)) if isinstance(path, str) and os.path.isabs(path) else "no"


def home_of(environ: Mapping[str, str]) -> dict[str, Json]:
    own = environ.get("CLAUDE_CONFIG_DIR", "")
    return {"home": own} if os.path.isabs(own) else {}


def ask(
    socket: str | None, method: str, params: Mapping[str, Json], *, limit_s: float
) -> dict[str, Json]:
    """The answer of a daemon that is there and quick; else empty."""
    try:
        with Client(socket, timeout_s=limit_s, connect_s=0.0, reconnect_s=0.0) as client:
            found = client.call(method, params)
    except ClientError:
        return {}
    return found if isinstance(found, dict) else {}


def _named(event: Mapping[str, Json], name: str, key: str) -> dict[str, Json]:
    found = event.get(key)
    is_name = isinstance(found, str) and found.isprintable() and 0 < len(found) <= 200
    return {name: found} if is_name else {}


LINE_LIMIT_S = 0.05
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
        """Return its line as it is, with its colours: it is for this terminal."""
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
    found = ask(socket, "interactive.plan", params, limit_s=LINE_LIMIT_S)
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
    """List the others in the order of the chain, up to the first that can be used."""
    words = []
    for name, entry in health.items() if isinstance(health, dict) else ():
        if not isinstance(entry, dict) or entry.get("reason") in _ABSENT:
            continue
        words.append(short(name, entry))
        if entry.get("state") in USABLE:
            break
    return words
