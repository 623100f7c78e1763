"""Which programs still have a token of the gateway in their settings after it was replaced."""

from __future__ import annotations

from fallbackd_client.gateway.tools import TOOLS
from fallbackd_client.settings.files import regular
from fallbackd_client.settings.jsonc import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.gateway.tools import Gateway

_MAX_CHARS = 4 * 1024 * 1024


def holders(token: str, gateway: Gateway, environ: Mapping[str, str]) -> list[str]:
    """What to do for each of them, a sentence each."""
    found = []
    for name, tool in TOOLS.items():
        path = tool.file(environ)
        text = _text(path)
        if not token or token not in text:
            continue
        try:
            is_ours = token not in tool.part(path, gateway).take(text)
        except Unreadable:
            is_ours = False
        todo = "replace it there"
        if is_ours:
            todo = f"write the new one with: fallbackd-client gateway setup {name}"
        found.append(f"{name} still has the old token in {path}; {todo}")
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace", opener=regular) as file:
            return file.read(_MAX_CHARS)
    except OSError:
        return ""
