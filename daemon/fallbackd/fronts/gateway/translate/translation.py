"""
Translation between APIs: which into which, and all that one exchange needs for it.

    made = begin("messages", "chat_completions", body, target)
    made.body                        goes to the backend
    made.lost                        what could not be said there
    reader = made.stream(at=now)     its answer: feed(data), end()
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from fallbackd.backends import messages
from fallbackd.backends.lines import fields, read_object
from fallbackd.backends.passage import Unreadable
from fallbackd.backends.spec import ApiMode
from fallbackd.fronts.gateway.translate import answers, tables
from fallbackd.fronts.gateway.translate.answers import ChatStream, MessagesStream
from fallbackd.fronts.gateway.translate.tables import Losses, StreamTranslator
from fallbackd.fronts.gateway.translate.to_chat import chat_request
from fallbackd.fronts.gateway.translate.to_messages import messages_request

_PAIRS = frozenset({("messages", "chat_completions"), ("chat_completions", "messages")})
_OWN_NAME = frozenset({"api.openai.com"})
"""Hosts whose newer models refuse `max_tokens`."""
_NO_USAGE = frozenset({"api.mistral.ai"})
"""Hosts that refuse `stream_options`, and count without being asked."""


def can_translate(asked: ApiMode, spoken: ApiMode | None) -> bool:
    return (asked, spoken) in _PAIRS


class Target(Struct, frozen=True, kw_only=True):
    """The backend for which a request is translated."""

    model: str | None
    host: str
    most_tokens: int | None = None
    """Bound of its answers; None: as the caller asks."""


class Translation(Struct, frozen=True, kw_only=True):
    asked: ApiMode
    spoken: ApiMode
    body: bytes
    lost: tuple[str, ...]
    includes_usage: bool = False

    def stream(self, *, at: float) -> StreamTranslator:
        if self.asked == "messages":
            return MessagesStream()
        return ChatStream(at=int(at), includes_usage=self.includes_usage)

    def whole(self, body: bytes, *, at: float) -> bytes:
        """An answer in one piece; what is none stays as it is, for its reader to judge."""
        found = read_object(body)
        if found is None:
            return body
        if found.get("error"):
            return self.error(body)
        try:
            if self.asked == "messages":
                return msgspec.json.encode(answers.messages_answer(found))
            return msgspec.json.encode(answers.chat_answer(found, at=int(at)))
        except answers.Untranslatable:
            return body

    def error(self, body: bytes, *, status: int | None = None) -> bytes:
        """An error in the words of the caller's API."""
        value: dict[str, Any] = read_object(body) or {
            "error": {"message": body.decode("utf-8", "replace")[:500].strip()}
        }
        is_messages = self.asked == "messages"
        made = tables.messages_error(value, status=status) if is_messages else None
        return msgspec.json.encode(tables.chat_error(value) if made is None else made)


def begin(asked: ApiMode, spoken: ApiMode, body: bytes, target: Target) -> Translation:
    """
    Raises:
        Unreadable: The body is no request of this API.
    """
    value = read_object(body)
    if value is None:
        raise Unreadable("the body is not a JSON object")
    lost = Losses()
    write: Callable[[dict[str, Any], dict[str, Any], Target], None]
    if asked == "messages":
        request, write = chat_request(value, lost), _for_chat
    else:
        request, write = messages_request(value, lost), _for_messages
    if target.model is not None:
        request["model"] = target.model
    write(request, value, target)
    return Translation(
        asked=asked,
        spoken=spoken,
        body=msgspec.json.encode(request),
        lost=lost.words,
        includes_usage=bool(fields(value.get("stream_options")).get("include_usage")),
    )


def _for_chat(request: dict[str, Any], asked: dict[str, Any], target: Target) -> None:
    limit = _limit(asked.get("max_tokens"), target)
    if limit is not None:
        name = "max_completion_tokens" if target.host in _OWN_NAME else "max_tokens"
        request[name] = limit
    if request.get("stream") and target.host not in _NO_USAGE:
        request["stream_options"] = {"include_usage": True}


def _for_messages(request: dict[str, Any], asked: dict[str, Any], target: Target) -> None:
    wanted = asked.get("max_completion_tokens") or asked.get("max_tokens")
    request["max_tokens"] = _limit(wanted, target) or messages.MAX_OUTPUT_TOKENS


def _limit(wanted: object, target: Target) -> int | None:
    asked = wanted if isinstance(wanted, int) and wanted > 0 else None
    return min((one for one in (asked, target.most_tokens) if one is not None), default=None)
