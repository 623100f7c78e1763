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

from fallbackd_client.calls import inside_of
from fallbackd_client.client import Client
from fallbackd_client.errors import ClientError
from fallbackd_client.interactive.words import sentence
from fallbackd_client.paths import state_dir
from fallbackd_client.settings.files import regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.calls import Json
    from fallbackd_conversations.claude import ResumingWord

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
    """What Claude Code writes to a hook or a status line; empty where it is something else."""
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
    """Whether the session of an event waits for the reset of its limit."""
    from pathlib import Path

    from fallbackd_client.interactive.sessions import resuming_in

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
