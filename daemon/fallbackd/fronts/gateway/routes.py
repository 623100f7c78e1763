"""What a path asks for. Source: the public references of the four APIs."""

import re
from urllib.parse import parse_qs, unquote

from msgspec import Struct

from fallbackd.backends.passage import (
    MODES,
    UNKNOWN,
    AskedBody,
    Passage,
    Unreadable,
    read_body,
)
from fallbackd.backends.spec import ApiMode
from fallbackd.fronts.gateway.incoming import HeadIn


class Destination(Struct, frozen=True, kw_only=True):
    """A place to which a request may be sent with POST."""

    mode: ApiMode
    side: str = ""
    model: str | None = None
    """Of Google's own API: it stands in the path."""
    is_streamed: bool = False


_FIXED = {
    "/v1/chat/completions": Destination(mode="chat_completions"),
    "/v1/responses": Destination(mode="responses"),
    "/v1/responses/compact": Destination(mode="responses", side="compact"),
    "/v1/messages": Destination(mode="messages"),
    "/v1/messages/count_tokens": Destination(mode="messages", side="count_tokens"),
}
_GOOGLE = re.compile(r"/v1(?:beta|alpha)?/models/(.+):(\w+)")
"""Names of models have colons and slashes of their own."""
_ACTIONS = frozenset({"generateContent", "streamGenerateContent", "countTokens"})

CHAIN = "x-fallbackd-chain"
"""Header that counts in place of the model."""
MAX_NAME_CHARS = 256
"""Names of models are kept with their health."""

ALIVE = frozenset({"/", "/api/hello"})
"""Asked by clients that want to know whether anything listens."""
MODELS = "/v1/models"
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
        side="countTokens" if named[2] == "countTokens" else "",
        model=unquote(named[1]),
        is_streamed=named[2] == "streamGenerateContent",
    )


def mode_of(path: str) -> ApiMode:
    """The API in whose form an error at this path is reported."""
    if path.startswith("/v1/messages"):
        return "messages"
    if path.startswith("/v1/responses"):
        return "responses"
    is_google = path.startswith(("/v1beta/", "/v1alpha/")) or _GOOGLE.match(path)
    return "generate_content" if is_google else "chat_completions"


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
    if is_google and route.is_streamed and parse_qs(request.query).get("alt") != ["sse"]:
        raise Unreadable("a stream is answered as server-sent events only: add ?alt=sse")
    if body is None:
        accepted = dict(request.headers).get("accept", "")
        found = AskedBody(stream="text/event-stream" in accepted, tools=UNKNOWN)
    else:
        found = read_body(body)
    model = route.model if is_google else found.model
    for name in (model, dict(request.headers).get(CHAIN)):
        if name is not None and len(name) > MAX_NAME_CHARS:
            raise Unreadable(f"the name of a model has {MAX_NAME_CHARS} characters at most")
    # The key of a caller may stand in a query of Google's API, and nothing else does.
    return Passage(
        mode=route.mode,
        model=model,
        is_streamed=route.is_streamed if is_google else bool(found.stream) and not route.side,
        side=route.side,
        query="" if is_google else request.query,
        is_single=bytes(found.n) in (b"1", b"null"),
        previous=found.previous_response_id if route.mode == "responses" else None,
        acts=not route.side and found.acts(route.mode),
        is_stored=bytes(found.store) != b"false",
    )
