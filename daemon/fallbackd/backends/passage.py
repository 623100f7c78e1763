"""
A request that is passed on to a provider as its caller wrote it, and what is read of the answer.

Bytes stay as they are, but for the value of `model`. Four APIs can be spoken: the modes of
`http_calls` without `hermes_chat`. What an answer means is read by the parser of its mode; here
stands what differs for a caller who has tools of its own: a call of a tool, an answer cut at the
caller's limit and a refusal are complete answers.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import msgspec
from msgspec import Struct, structs

from fallbackd.backends import http_calls
from fallbackd.backends.http_answers import is_broken_off
from fallbackd.backends.http_calls import EMBEDS
from fallbackd.backends.lines import words
from fallbackd.backends.spec import ApiMode, Endpoint, Options
from fallbackd.core.protocol import (
    Chunk,
    CredentialRef,
    Evidence,
    Exit,
    HttpRequest,
    HttpResponse,
    Reply,
    Usage,
)
from fallbackd.lib import foreign_json, splicing

_WORDS: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    401: ("authentication_error", "UNAUTHENTICATED"),
    402: ("billing_error", "FAILED_PRECONDITION"),
    403: ("permission_error", "PERMISSION_DENIED"),
    404: ("not_found_error", "NOT_FOUND"),
    405: ("invalid_request_error", "INVALID_ARGUMENT"),
    413: ("request_too_large", "INVALID_ARGUMENT"),
    415: ("invalid_request_error", "INVALID_ARGUMENT"),
    429: ("rate_limit_error", "RESOURCE_EXHAUSTED"),
    503: ("overloaded_error", "UNAVAILABLE"),
    504: ("timeout_error", "DEADLINE_EXCEEDED"),
    508: ("api_error", "FAILED_PRECONDITION"),
}
_OTHER = ("api_error", "INTERNAL")
_FIRST: Mapping[str, Any] = {"id": "", "sequence_number": 0}


def error_body(mode: ApiMode, status: int, message: str, code: str) -> dict[str, Any]:
    """An error in the words of one API."""
    word, google = _WORDS.get(status, _OTHER)
    match mode:
        case "messages":
            return {"type": "error", "error": {"type": word, "message": message}}
        case "generate_content":
            return {"error": {"code": status, "message": message, "status": google}}
        case _:
            return {"error": {"message": message, "type": word, "param": None, "code": code}}


def error_event(mode: ApiMode, message: str, follows: Mapping[str, Any] = _FIRST) -> bytes:
    """
    The event that ends a stream which cannot go on. No API takes it for a good end.

    Args:
        follows: Of an answer of the responses API: its `id` and the next `sequence_number`; the
            `code` of the error, where there is one.
    """
    match mode:
        case "messages":
            name, value = "error", error_body(mode, 503, message, "")
        case "responses":
            name = "response.failed"
            error = {"code": follows.get("code", "server_error"), "message": message}
            failed = {"id": follows["id"], "object": "response", "status": "failed", "error": error}
            failed["output"] = []  # clients read it of each event that ends a response
            value = {
                "type": name,
                "sequence_number": follows["sequence_number"],
                "response": failed,
            }
        case _:
            name, value = "", error_body(mode, 503, message, "upstream_failed")
    head = f"event: {name}\n".encode() if name else b""
    return b"\n\n" + head + b"data: " + msgspec.json.encode(value) + b"\n\n"


MODES: frozenset[ApiMode] = frozenset(
    {"chat_completions", "responses", "messages", "generate_content"}
)
WRITES = frozenset({"", "completions"})
"""Values of `Passage.side` for which a model writes the answer, and may stream it."""
_COUNTS = frozenset({"count_tokens", "countTokens", "input_tokens"})
_BESIDE = frozenset({"completions", "embeddings"})
"""Sides of OpenAI's API, at paths that stand beside that of the conversation."""
MAX_HELD_BYTES = 64 * 1024
MAX_HELD_EVENTS = 48
"""Bound for an answer that says nothing yet. Then the held events are passed on."""
MAX_WHOLE_BYTES = 32 * 1024 * 1024
MAX_READ_BYTES = 64 * 1024
"""Bytes of an answer of which the text is kept beside its way."""

_NOT_FORWARDED = frozenset(
    {
        *("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"),
        *("host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
        *("content-length", "accept-encoding", "expect", "origin", "referer", "forwarded", "via"),
    }
)
"""Headers of a request: logins for us, and those about one connection."""
_NOT_RETURNED = frozenset(
    {
        *("connection", "keep-alive", "trailer", "transfer-encoding", "upgrade"),
        *("content-length", "set-cookie", "alt-svc", "location", "refresh"),
    }
)
"""Headers of an answer: those about one connection, and places to take a login."""
_OWN = ("proxy-", "sec-", "x-fallbackd-", "x-forwarded-")


class Passage(Struct, frozen=True, kw_only=True):
    """Wishes of a caller, as far as they matter for where it goes."""

    mode: ApiMode
    model: str | None
    is_streamed: bool
    side: str = ""
    """`count_tokens`, `compact`, `embeddings` …: a question beside the conversation of the API."""
    is_listed: bool = False
    """True: the stream is wanted as one list of JSON, and not as events."""
    query: str = ""
    is_single: bool = True
    """One answer is wanted, and not several to choose from."""
    previous: str | None = None
    """The answer or conversation that it continues, which only the provider that made it has."""
    acts: bool = False
    """
    True for a request that begins something that outlives or goes beyond its answer, and that would
    be done twice if it were sent twice.
    """
    is_stored: bool = True
    """The answer may be kept by its provider, to be asked for later."""

    @property
    def generates(self) -> bool:
        """Check whether a model makes the answer; counting tokens proves nothing about one."""
        return self.side not in _COUNTS

    @property
    def embeds(self) -> bool:
        """Check whether vectors are asked for, which those of no other model can replace."""
        return self.side in EMBEDS

    @property
    def is_any_object(self) -> bool:
        """Check whether an answer is judged by nothing but being a JSON object."""
        return self.side in _COUNTS or self.side == "compact"


class AskedBody(Struct):
    """Fields of the body of a request that decide where it goes."""

    model: str | None = None
    stream: bool | None = None
    n: msgspec.Raw = msgspec.Raw(b"1")
    prompt: msgspec.Raw = msgspec.Raw(b"null")
    previous_response_id: str | None = None
    conversation: msgspec.Raw = msgspec.Raw(b"null")
    background: msgspec.Raw = msgspec.Raw(b"false")
    store: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    mcp_servers: msgspec.Raw = msgspec.Raw(b"[]")

    @property
    def previous(self) -> str | None:
        """Reference to a part of the conversation that its provider alone knows."""
        try:
            known = foreign_json.decode(self.conversation, str | _Named | None)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            known = None  # of another API, or wrong: its provider will say so
        return self.previous_response_id or (known.id if isinstance(known, _Named) else known)

    @property
    def is_single(self) -> bool:
        """Check whether it asks for one answer; a list of prompts has one for each."""
        return bytes(self.n) in (b"1", b"null") and bytes(self.prompt)[:1] != b"["

    def acts(self, mode: ApiMode) -> bool:
        """Check whether it asks the provider of this API for more than an answer."""
        if mode not in ("responses", "messages"):
            return False
        if b"true" in (bytes(self.background), bytes(self.store)):
            return True
        if bytes(self.mcp_servers) not in (b"[]", b"null"):
            return True
        try:
            tools = foreign_json.decode(self.tools, list[_OfferedTool] | None) or []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        return not all(one.type is None or _HARMLESS_TOOLS.match(one.type) for one in tools)


class _Named(Struct):
    id: str | None = None


class _OfferedTool(Struct):
    type: str | None = None
    """Type of the tool; None: a function of the caller."""


_HARMLESS_TOOLS = re.compile(
    r"function$|custom$|namespace$|local_shell$|apply_patch$|computer|bash_|text_editor_|memory_"
    r"|web_search|web_fetch_|file_search$|tool_search|image_generation$"
)
"""
Tools that the caller runs, and those of the provider that only look something up or draw. One that
is not known may do anything.
"""


UNKNOWN = msgspec.Raw(b"")
"""Stands for tools that cannot be looked at."""


class Unreadable(ValueError):
    """The body is no request of this API. The text says why."""


def read_body(body: bytes) -> AskedBody:
    """
    Raises:
        Unreadable: It is not a JSON object, or they are of another type.
    """
    try:
        found: AskedBody = foreign_json.decode(body, AskedBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"the body is not a request of this API: {error}") from error
    return found


_AMBIGUOUS = "the body has no single `model` that could be replaced, or another field twice"


def with_model(body: bytes, model: str) -> bytes:
    """
    The body with another value of `model` in its place, and every other byte as it was. One that
    names no model names it first.

    Raises:
        Unreadable: Its `model` is no string, or a field stands in it twice.
    """
    try:
        found = splicing.members(body)
    except splicing.Unreadable as error:
        raise Unreadable(f"{_AMBIGUOUS}: {error}") from error
    named = msgspec.json.encode(model)
    if "model" not in found:
        return splicing.added(body, "model", named)
    start, end = found["model"].value, found["model"].end
    if body[start : start + 1] != b'"' and body[start:end] != b"null":
        raise Unreadable(_AMBIGUOUS)
    return b"".join((body[:start], named, body[end:]))


def _with_google_model(body: bytes, model: str) -> bytes:
    """
    Put in the model where it stands in the path, and is repeated.

    Raises:
        Unreadable: The body is no request.
    """
    named = msgspec.json.encode(f"models/{model.removeprefix('models/')}")
    try:
        for path in (("model",), ("requests", splicing.EVERY, "model")):
            body = splicing.changed(body, path, lambda _: named)
    except splicing.Unreadable as error:
        raise Unreadable(f"{_AMBIGUOUS}: {error}") from error
    return body


CHARS_PER_TOKEN = 3.2
"""Few, so that code and other languages than English are not taken for less than they are."""
TOKENS_PER_IMAGE = 1_500
_FILES = frozenset({"image", "image_url", "input_image", "document", "input_file", "input_audio"})
_INLINE = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
_SEALED = frozenset({"signature", "encrypted_content", "thoughtSignature"})
"""Fields written neither by a person nor by a model, and not counted by their length."""


def prompt_tokens(body: bytes, *, exact_from: int) -> int:
    """
    Estimate the tokens of the text of a request.

    Args:
        exact_from: A body that cannot reach this many is not looked into.
    """
    most = int(len(body) / CHARS_PER_TOKEN)
    if most <= exact_from:
        return most
    try:
        return _tokens_of(foreign_json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return most


def _tokens_of(request: object) -> int:
    chars = files = 0
    left = [request]
    while left:
        value = left.pop()
        if isinstance(value, str):
            chars += len(value)
        elif isinstance(value, list):
            left.extend(value)
        elif isinstance(value, dict):
            if words(value.get("type")) in _FILES or not _INLINE.isdisjoint(value):
                files += 1
            else:
                left.extend(one for name, one in value.items() if name not in _SEALED)
    return int(chars / CHARS_PER_TOKEN) + files * TOKENS_PER_IMAGE


def forwarded(headers: list[tuple[str, str]]) -> dict[str, str]:
    """The headers of a request that go on. An open list: what is not known is passed on."""
    listed = _listed(headers)
    found: dict[str, str] = {}
    for name, value in headers:
        if name in _NOT_FORWARDED or name in listed or name.startswith(_OWN):
            continue
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _forwarded_query(query: str) -> str:
    """
    Return the part of the query of a request that is forwarded. Its `key` is a login for us, at any
    path.
    """
    return "&".join(one for one in query.split("&") if unquote_plus(one.split("=")[0]) != "key")


def returned(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers of an answer that go back."""
    listed = _listed(headers)
    return [
        (name, value)
        for name, value in headers
        if name not in _NOT_RETURNED and name not in listed and not name.startswith("x-fallbackd-")
    ]


def _listed(headers: list[tuple[str, str]]) -> set[str]:
    """Names listed in `connection`, which are about one connection too."""
    found = (value for name, value in headers if name == "connection")
    return {word.strip().lower() for value in found for word in value.split(",")}


def template_of(
    endpoint: Endpoint,
    options: Options,
    asked: Passage,
    *,
    model: str | None,
    credential: CredentialRef | None,
    inherited: Mapping[str, str],
) -> HttpRequest:
    """
    The request to one backend as far as it is the same for all callers.

    Args:
        model: What the provider is asked for.

    Raises:
        NotConfigured: No address, or a key that would leave in the clear.
    """
    options = structs.replace(options, model=model)
    request = http_calls.request_to(endpoint, credential, inherited, options, mode=asked.mode)
    return structs.replace(request, method="POST", url=_url(endpoint, options, asked, model))


def call_of(
    template: HttpRequest,
    options: Options,
    asked: Passage,
    *,
    model: str | None,
    headers: Mapping[str, str],
    body: bytes,
) -> HttpRequest:
    """
    Make the call with the body that one caller writes.

    Args:
        headers: As `forwarded` leaves them.

    Raises:
        Unreadable: The model cannot be put into the body.
    """
    if model is not None and model != asked.model and "content-encoding" not in headers:
        if asked.mode != "generate_content":
            body = with_model(body, model)
        elif asked.embeds:
            body = _with_google_model(body, model)
    own = {name: text for name, text in template.headers.items() if name not in headers}
    configured = {name.lower(): text for name, text in options.headers.items()}
    return structs.replace(
        template,
        headers={**own, **headers, **configured, "accept-encoding": "identity"},
        body=body,
        once=asked.acts,
    )


def _url(endpoint: Endpoint, options: Options, asked: Passage, model: str | None) -> str:
    parts = urlsplit(options.base_url or endpoint.base_url)
    if asked.side in _BESIDE:
        parts = urlsplit(http_calls.url_beside(parts, asked.side))
    else:
        parts = urlsplit(http_calls.url_of(parts, asked.mode, model))
    query = [one for one in (parts.query, _forwarded_query(asked.query)) if one]
    if asked.mode == "generate_content":
        action = asked.side or ("streamGenerateContent" if asked.is_streamed else "generateContent")
        path = parts.path.rpartition(":")[0] + ":" + action
        query = ["alt=sse"] if asked.is_streamed else []
    else:
        is_below = asked.side not in {"", *_BESIDE}
        path = f"{parts.path}/{asked.side}" if is_below else parts.path
    return parts._replace(path=path, query="&".join(query)).geturl()


LAST_EVENTS: Mapping[ApiMode, bytes] = {
    "chat_completions": b"data: [DONE]\n\n",
    "messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
}
"""Event after the reason of an end, where it is one of its own."""

_STILL_COMPLETE = frozenset(
    {"output_limit", "filtered_answer", "unfinished_answer", "answer_in_background"}
)
"""Shortfalls that are the caller's own affair."""


class AnswerWatch:
    """
    Reads an answer beside its way to the caller: when it has begun, whether it is whole.

    Args:
        side: See `Passage`.
        waits_for_text: What the model thinks does not begin an answer.
    """

    def __init__(self, mode: ApiMode, *, side: str = "", waits_for_text: bool = False) -> None:
        self._mode = mode
        self._waits_for_text = waits_for_text
        self._parser = http_calls.parser_of(mode, side)
        self._kept_bytes = 0

    @property
    def is_committed(self) -> bool:
        """A piece of what the provider says has arrived."""
        return self._parser.has_said or (self.has_thought and not self._waits_for_text)

    @property
    def has_thought(self) -> bool:
        """A piece of what the model thinks has arrived."""
        return self._parser.has_thought

    @property
    def has_failed(self) -> bool:
        """The provider says inside of the answer that it failed or broke off, or it is damaged."""
        return self._parser.error is not None or is_broken_off(self._parser.finish_word)

    @property
    def is_told(self) -> bool:
        """The failure is stated in the words of the API, which the caller understands."""
        return self._parser.error is not None and self._parser.error.body is not None

    @property
    def has_ended(self) -> bool:
        """The provider has said why its answer ends, and nothing but its last event is awaited."""
        is_certain = self._parser.is_over or not self._parser.may_repeat_end
        return self._parser.has_ended and is_certain

    @property
    def is_over(self) -> bool:
        """The last event of the API has come."""
        return self._parser.is_over

    @property
    def response_id(self) -> str:
        """Name for later requests; empty: the API has no such names."""
        return self._parser.response_id

    @property
    def usage(self) -> Usage:
        return self._parser.usage

    @property
    def events(self) -> int:
        """Number of events that have come."""
        return self._parser.read_events

    @property
    def is_stream(self) -> bool:
        """True for an answer in events, and not in one piece."""
        return self._parser.is_whole is False

    @property
    def is_whole(self) -> bool:
        """
        True for an answer in one piece, and not in events. Neither holds before its first bytes.
        """
        return self._parser.is_whole is True

    def error_event(self, message: str) -> bytes:
        """Event that ends the stream here, after those that have come. See `error_event`."""
        follows = {"id": self.response_id, "sequence_number": self._parser.sequence_number + 1}
        return error_event(self._mode, message, follows)

    def feed(self, data: bytes) -> bool:
        """
        Read a piece; check whether its provider said something: comments and pings do not count
        once it has.
        """
        self._kept_bytes += len(data)
        if self._kept_bytes > MAX_READ_BYTES:
            self._parser.forget()
            self._kept_bytes = len(data)
        return bool(self._parser.feed(Chunk("http", data, 0.0)))

    def finish(self, exit: Exit, *, is_side: bool = False) -> Evidence | None:
        """Judge the end: why it is no whole answer; None: it is one."""
        outcome = self._parser.finish(exit)
        if isinstance(outcome, Reply):
            return None
        if self.has_failed:
            return outcome
        is_answered = isinstance(exit, HttpResponse) and exit.status < 300 and not exit.truncated
        if is_side and is_answered and self._parser.is_object:
            return None
        is_other = outcome.empty and self._parser.has_other
        if self._parser.has_ended and (is_other or outcome.code in _STILL_COMPLETE):
            return None
        return outcome
