"""
Destinations of a path, and the conversation that a request belongs to.

Source: the public references of the four APIs.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec
from msgspec import Struct

from fallbackd.backends.passage import (
    MODES,
    UNKNOWN,
    WRITES,
    AskedBody,
    Passage,
    Unreadable,
    read_body,
)
from fallbackd.backends.spec import ApiMode
from fallbackd.fronts.gateway.answers import Refusal
from fallbackd.fronts.gateway.incoming import HeadIn
from fallbackd.lib import foreign_json


class Destination(Struct, frozen=True, kw_only=True):
    """A place to which a request may be sent with POST."""

    mode: ApiMode
    side: str = ""
    model: str | None = None
    """Model of Google's own API: it stands in the path."""
    is_streamed: bool = False


_FIXED = {
    "/v1/chat/completions": Destination(mode="chat_completions"),
    "/v1/completions": Destination(mode="chat_completions", side="completions"),
    "/v1/embeddings": Destination(mode="chat_completions", side="embeddings"),
    "/v1/responses": Destination(mode="responses"),
    "/v1/responses/compact": Destination(mode="responses", side="compact"),
    "/v1/responses/input_tokens": Destination(mode="responses", side="input_tokens"),
    "/v1/messages": Destination(mode="messages"),
    "/v1/messages/count_tokens": Destination(mode="messages", side="count_tokens"),
}
_GOOGLE = re.compile(r"/v1(?:beta|alpha)?/models/(.+):(\w+)")
"""Names of models have colons and slashes of their own."""
_WRITING = frozenset({"generateContent", "streamGenerateContent"})
_ACTIONS = frozenset({*_WRITING, "countTokens", "embedContent", "batchEmbedContents"})

CHAIN = "x-fallbackd-chain"
"""Header that counts in place of the model."""
MAX_NAME_CHARS = 256
"""Names of models are kept with their health."""

ALIVE = frozenset({"/", "/api/hello"})
"""Asked by clients that want to know whether anything listens."""
MODELS = "/v1/models"
_MODELS = re.compile(r"/(v1|v1beta|v1alpha)/models(?:/(.+))?")
HEALTH = "/healthz"


def route_of(path: str) -> Destination | None:
    found = _FIXED.get(path)
    if found is not None:
        return found
    named = _GOOGLE.fullmatch(path)
    if named is None or named[2] not in _ACTIONS:
        return None
    return Destination(
        mode="generate_content",
        side="" if named[2] in _WRITING else named[2],
        model=unquote(named[1]),
        is_streamed=named[2] == "streamGenerateContent",
    )


def mode_of(path: str) -> ApiMode:
    """The API in whose form an error at this path is reported."""
    if path.startswith("/v1/messages"):
        return "messages"
    if path.startswith("/v1/responses"):
        return "responses"
    if path.startswith(("/v1beta/", "/v1alpha/")) or _GOOGLE.match(path):
        return "generate_content"
    near = meant(path)
    return "chat_completions" if near in (None, path) else mode_of(near or "")


def meant(path: str) -> str | None:
    """The path that a client with a wrong base URL means; None: there is none like it."""
    if _MODELS.fullmatch(path):
        return path
    plain = path.rstrip("/")
    if (google := re.search(r"/models/[^:]+:\w+$", plain)) is not None:
        return "/v1beta" + google[0]
    known = (*_FIXED, MODELS)
    return next((one for one in known if plain.endswith(one.removeprefix("/v1"))), None)


def nothing_at(path: str, port: int | None) -> Refusal:
    """Make the refusal of a path that is not known."""
    text, near = f"nothing is at {path}", meant(path)
    if near is not None and near != path:
        base = "" if mode_of(near) in ("messages", "generate_content") else "/v1"
        url = "the gateway's address" if port is None else f"http://127.0.0.1:{port}"
        text += f"; {near} is answered: the base URL of this client is {url}"
        text += f" with {base} behind it" if base and port is None else base
    return Refusal(404, text, "not_found")


def listed_model(request: HeadIn) -> tuple[bool, str] | None:
    """
    Return whether a list of models is asked for in Google's form, and the one that is named; empty:
    all are. None: the path is of another kind.
    """
    found = _MODELS.fullmatch(request.path)
    if found is None:
        return None
    # Google's own library asks at the path that the list has in OpenAI's and Anthropic's APIs.
    is_google = found[1] != "v1" or any(name.startswith("x-goog-") for name, _ in request.headers)
    return is_google, unquote(found[2] or "")


def listed_for(query: str) -> frozenset[ApiMode]:
    """The APIs whose models are to be listed: all of them, or the one that `api` names."""
    named = parse_qs(query, keep_blank_values=True).get("api")
    return MODES if named is None else frozenset(one for one in MODES if one in named)


def asked(route: Destination, request: HeadIn, body: bytes | None) -> Passage:
    """
    Args:
        body: None: compressed in a way that cannot be looked into.

    Raises:
        fallbackd.backends.passage.Unreadable: The body is no request, or asks for a stream in a
            form that is not passed on.
    """
    is_google = route.mode == "generate_content"
    form = parse_qs(request.query).get("alt", ["json"])[-1] if is_google else ""
    if is_google and form not in ("json", "sse"):
        raise Unreadable("an answer is JSON (alt=json), or a stream of events (alt=sse)")
    headers = dict(request.headers)
    if body is None:
        is_stream = "text/event-stream" in headers.get("accept", "")
        found = AskedBody(stream=is_stream, tools=UNKNOWN)
    else:
        found = read_body(body)
    model = route.model if is_google else found.model
    is_streamed = bool(found.stream) and route.side in WRITES
    if any(len(name or "") > MAX_NAME_CHARS for name in (model, headers.get(CHAIN))):
        raise Unreadable(f"the name of a model has {MAX_NAME_CHARS} characters at most")
    # The key of a caller may stand in a query of Google's API, and nothing else does.
    return Passage(
        mode=route.mode,
        model=model,
        is_streamed=route.is_streamed if is_google else is_streamed,
        side=route.side,
        is_listed=route.is_streamed and form == "json",
        query="" if is_google else request.query,
        is_single=found.is_single,
        previous=found.previous if route.mode == "responses" else None,
        acts=not route.side and found.acts(route.mode),
        is_stored=bytes(found.store) != b"false",
    )


# --- the conversation of a request ---------------------------------------------------------------
# Which conversation a request belongs to, by what the clients send of it.

_HEADERS = (
    "x-fallbackd-session",
    "x-claude-code-session-id",
    "x-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "thread-id",
)
"""Headers of callers who say it, then Claude Code, opencode and codex."""
_AGENT = "x-claude-code-agent-id"
"""A subagent has a conversation of its own within the session."""


_NOTHING = msgspec.Raw()


class _Said(Struct):
    """Parts of a body, as it was written: one look at what may be long."""

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
    """Find the name in the body: a key of the cache, the session of Claude Code, or a user."""
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
    """Read one part. None: it is not there, or of another shape."""
    if not data:
        return None
    try:
        return foreign_json.decode(data, kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
