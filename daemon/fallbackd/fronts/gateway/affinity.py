"""Which conversation a request belongs to, by what the clients send of it."""

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from fallbackd.backends.passage import Passage

_HEADERS = (
    "x-fallbackd-session",
    "x-claude-code-session-id",
    "x-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "thread-id",
)
"""Of callers who say it, then Claude Code, opencode and codex."""


class _Marks(Struct):
    prompt_cache_key: str | None = None
    user: str | None = None


def session_of(named: Mapping[str, str], asked: Passage, body: bytes) -> str | None:
    """
    The session of a conversation; None: the request stands alone.

    What callers send is hashed: it may be an account of theirs, and is of any length.
    """
    if asked.side:
        return None
    found = next((named[name] for name in _HEADERS if named.get(name)), None)
    if found is None:
        try:
            found = msgspec.json.decode(body, type=_Marks).prompt_cache_key
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
    if not found:
        return None
    return "gateway-" + hashlib.sha256(found.encode()).hexdigest()[:16]
