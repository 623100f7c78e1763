"""Which conversation a request belongs to, by what the clients send of it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

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
_AGENT = "x-claude-code-agent-id"
"""A subagent has a conversation of its own within the session."""


class _Marks(Struct):
    prompt_cache_key: str | None = None
    metadata: Any = None
    user: str | None = None


class _Said(Struct):
    messages: list[msgspec.Raw] = []
    input: msgspec.Raw = msgspec.Raw(b"null")
    contents: list[msgspec.Raw] = []


class _Message(Struct):
    role: str = ""


class _Metadata(Struct):
    session_id: str | None = None


def session_of(
    named: Mapping[str, str], asked: Passage, body: bytes, *, model: str | None = None
) -> str | None:
    """
    The session of a conversation; None: the request stands alone.

    What callers send is hashed: it may be an account of theirs, and is of any length.

    Args:
        model: That the caller names by its real id. A program asks several of them in one
            conversation, each with a cache of its own.
    """
    if asked.side:
        return None
    found = next((named[name] for name in _HEADERS if named.get(name)), None)
    if found is not None and (agent := named.get(_AGENT)):
        found = f"{found}/{agent}"
    if found is None:
        found = _named_in(body) or _begun_with(body)
    if not found:
        return None
    if model is not None:
        found = f"{found}\n{model}"
    return "gateway-" + hashlib.sha256(found.encode()).hexdigest()[:16]


def _named_in(body: bytes) -> str | None:
    """What the body says: a key of the cache, the session of Claude Code, or a user."""
    marks = _read(body, _Marks)
    if marks is None:
        return None
    user_id = marks.metadata.get("user_id") if isinstance(marks.metadata, dict) else None
    if not isinstance(user_id, str):
        user_id = None
    within = None if user_id is None else _read(user_id.encode(), _Metadata)
    session = None if within is None else within.session_id
    return marks.prompt_cache_key or session or user_id or marks.user


def _begun_with(body: bytes) -> str | None:
    """
    The first words of its user, where the conversation has gone on since.

    The system prompt is the same in all conversations of a program. A request that stands alone
    has no place to return to, and each would be kept as a session.
    """
    said = _read(body, _Said)
    if said is None:
        return None
    items: Sequence[msgspec.Raw] = said.messages or said.contents
    if not items:
        items = _read(bytes(said.input), list[msgspec.Raw]) or ()
    first: str | None = None
    for item in items:
        message = _read(bytes(item), _Message)
        role = "" if message is None else message.role
        if role == "user" and first is None:
            first = hashlib.sha256(bytes(item)).hexdigest()
        if role in ("assistant", "model") and first is not None:
            return first
    return None


def _read(data: bytes, kind: Any) -> Any:
    """None: it is of another shape."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
