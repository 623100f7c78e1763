"""Which conversation a request belongs to, by what the clients send of it."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from fallbackd.backends.passage import WRITES, Passage
from fallbackd.fronts.gateway.routes import CHAIN
from fallbackd.lib import foreign_json

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


_NOTHING = msgspec.Raw()


class _Said(Struct):
    """Of a body, as it was written: one look at what may be long."""

    prompt_cache_key: msgspec.Raw = _NOTHING
    metadata: msgspec.Raw = _NOTHING
    user: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    contents: msgspec.Raw = _NOTHING


class _Message(Struct):
    role: str = ""


class _Metadata(Struct):
    session_id: str | None = None


def session_of(
    named: Mapping[str, str],
    asked: Passage,
    body: bytes,
    *,
    is_role: bool = False,
    within: Iterable[str] = (),
) -> str | None:
    """
    The session of a conversation; None: the request stands alone.

    What callers send is hashed: it may be an account of theirs, and is of any length. Each name of
    a model or a chain has a session of its own: a program asks for several in one conversation,
    each with a cache of its own.

    Args:
        is_role: What is named is a role. All roles have one session: who wrote in it counts for
            who may judge.
        within: The delegations from inside which it comes: they join no session of others.
    """
    if asked.side not in WRITES:
        return None
    found = next((named[name] for name in _HEADERS if named.get(name)), None)
    if found is not None and (agent := named.get(_AGENT)):
        found = f"{found}/{agent}"
    if found is None:
        found = _in_body(body)
    if not found:
        return None
    name = named.get(CHAIN) or asked.model
    if name and not is_role:
        found = f"{found}\n{name}"
    found = "\n".join((found, *within))
    return "gateway-" + hashlib.sha256(found.encode()).hexdigest()[:16]


def _in_body(body: bytes) -> str | None:
    said = _read(body, _Said)
    return None if said is None else _named_in(said) or _begun_with(said)


def _named_in(said: _Said) -> str | None:
    """What the body says: a key of the cache, the session of Claude Code, or a user."""
    metadata = _read(said.metadata, dict[str, Any]) or {}
    user_id = metadata.get("user_id")
    if not isinstance(user_id, str):
        user_id = None
    within = None if user_id is None else _read(user_id.encode(), _Metadata)
    session = None if within is None else within.session_id
    key, user = _read(said.prompt_cache_key, str), _read(said.user, str)
    return key or session or user_id or user


def _begun_with(said: _Said) -> str | None:
    """
    The first words of its user, where the conversation has gone on since.

    The system prompt is the same in all conversations of a program. A request that stands alone
    has no place to return to, and each would be kept as a session.
    """
    lists = (_read(one, list[msgspec.Raw]) for one in (said.messages, said.contents, said.input))
    first: msgspec.Raw | None = None
    for item in next((one for one in lists if one), ()):
        message = _read(item, _Message)
        role = "" if message is None else message.role
        if role == "user" and first is None:
            first = item
        if role in ("assistant", "model") and first is not None:
            return hashlib.sha256(first).hexdigest()
    return None


def _read(data: bytes | msgspec.Raw, kind: Any) -> Any:
    """None: it is not there, or of another shape."""
    if not data:
        return None
    try:
        return foreign_json.decode(data, kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
