"""Where a call comes from: the conversation it belongs to, and the directory it may work in."""

from __future__ import annotations

import json
import os

from fallbackd_client.mcp.call import ToolFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.mcp.call import Call

_ROOTS_S = 2.0
_MAX_SESSION = 150
_OWN = os.urandom(4).hex()
"""Names the conversation of a client that does not: it starts one server for each."""


def session(call: Call) -> str:
    """`mcp/claude/<id>`: the conversation of the client, so that its work stays together."""
    claude = os.environ.get("CLAUDE_CODE_SESSION_ID")
    if claude:
        name = f"mcp/claude/{claude}"
    elif found := _codex_turn(call).get("session_id"):
        name = f"mcp/codex/{found}"
    else:
        name = f"mcp/{call.peer.name or 'client'}/{_OWN}"
    return "".join(one if one.isprintable() else "_" for one in name)[:_MAX_SESSION]


def directory(call: Call) -> str:
    """
    The directory of the work, absolute.

    Raises:
        ToolFailed: It lies outside of the project.
    """
    base = _project(call)
    given = call.arguments.get("cwd")
    if not given:
        return base
    if not _is_path(given):
        raise ToolFailed("`cwd` is not a path: no file name holds such a character")
    path = os.path.normpath(os.path.join(base, os.path.expanduser(given)))
    allowed = [base]
    if _is_below(path, allowed):
        return path
    allowed += _roots(call)
    if not _is_below(path, allowed):
        raise ToolFailed(
            f"cwd: {path} is outside of the project ({', '.join(allowed)}); name a directory inside"
            " of it, or have the user start the client there"
        )
    return path


def _project(call: Call) -> str:
    claude = os.environ.get("CLAUDE_PROJECT_DIR")
    if claude and os.path.isabs(claude):
        return claude
    workspaces = _codex_turn(call).get("workspaces")
    if isinstance(workspaces, dict):
        for path in workspaces:
            if os.path.isabs(path) and _is_path(path):
                return str(path)
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise ToolFailed("the working directory is gone: pass `cwd`") from error


def _codex_turn(call: Call) -> dict[str, Json]:
    found = call.meta.get("x-codex-turn-metadata")
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def _is_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half of a character
        return False


def _is_below(path: str, allowed: list[str]) -> bool:
    real = os.path.realpath(path)
    for one in allowed:
        root = os.path.realpath(one)
        if real == root or real.startswith(root.rstrip("/") + "/"):
            return True
    return False


def _roots(call: Call) -> list[str]:
    if not call.peer.has_roots:
        return []
    found = call.ask("roots/list", {}, _ROOTS_S)
    roots = found.get("roots") if isinstance(found, dict) else None
    paths = []
    for root in roots if isinstance(roots, list) else []:
        uri = root.get("uri") if isinstance(root, dict) else None
        if isinstance(uri, str) and uri.startswith("file:///"):
            from urllib.parse import unquote

            paths.append(unquote(uri.removeprefix("file://")))
    return [path for path in paths if _is_path(path)]
