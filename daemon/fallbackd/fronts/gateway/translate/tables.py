"""
Words that mean the same in both APIs. Source: the public references of OpenAI and of Anthropic.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from fallbackd.backends.http_answers import DONE
from fallbackd.backends.lines import count, fields, read_object, words
from fallbackd.lib.sse import EventReader, ServerSentEvent

# --- losses --------------------------------------------------------------------------------------
# What of a request cannot be said in the other API.


class Losses:
    """Names of what was left out, and how often."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def note(self, name: str) -> None:
        self._counted[name] += 1

    def note_unknown(self, value: dict[str, object], *, known: frozenset[str]) -> None:
        """Every field of it that this translation has no place for."""
        for name, given in value.items():
            if name not in known and given is not None:
                self.note(name)

    @property
    def words(self) -> tuple[str, ...]:
        """`thinking`, `cache_control (3)`."""
        return tuple(
            name[:80] if count == 1 else f"{name[:80]} ({count})"
            for name, count in sorted(self._counted.items())
        )


# --- tables --------------------------------------------------------------------------------------

STOP_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""Stop reasons of chat completions, in the words of messages."""
FINISH_REASONS: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Stop reasons of messages, in the words of chat completions."""


_TOOL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tool_id(given: object) -> str:
    """
    An id that both APIs take: the same one where it is of that form, else always the same other.

    Some servers number their calls `functions.read:0`, which messages refuses; and the id of a
    call must be the same one in each later request of the conversation.
    """
    name = words(given)
    if _TOOL_ID.fullmatch(name):
        return name
    return "call_" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def messages_usage(used: dict[str, Any]) -> dict[str, int]:
    """
    Translate the usage of chat completions, where what was cached is a part of the prompt; here it
    stands beside.
    """
    cached = count(fields(used.get("prompt_tokens_details")).get("cached_tokens")) or 0
    prompt = count(used.get("prompt_tokens")) or 0
    return {
        "input_tokens": max(0, prompt - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": count(used.get("completion_tokens")) or 0,
    }


def chat_usage(used: dict[str, Any]) -> dict[str, Any]:
    cached = count(used.get("cache_read_input_tokens")) or 0
    made = count(used.get("cache_creation_input_tokens")) or 0
    prompt = (count(used.get("input_tokens")) or 0) + cached + made
    wrote = count(used.get("output_tokens")) or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": wrote,
        "total_tokens": prompt + wrote,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


_BY_STATUS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def said_error(value: object) -> tuple[str, str]:
    """Message and word of an error, in whichever of the shapes that servers use."""
    found = fields(value)
    stated = found.get("error")
    if isinstance(stated, dict):
        found = stated
    elif isinstance(stated, str):
        return stated, ""
    message = words(found.get("message")) or words(found.get("detail"))
    word = words(found.get("code")) or words(found.get("type"))
    return message or "the provider sent an error without a message", word


def messages_error(value: object, *, status: int | None = None) -> dict[str, Any]:
    message, word = said_error(value)
    kind = _BY_STATUS.get(status or 0) or (word if word in _BY_STATUS.values() else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def chat_error(value: object) -> dict[str, Any]:
    message, word = said_error(value)
    stated = fields(fields(value).get("error"))
    kind = words(stated.get("type")) or "api_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": word or None}}


# --- streams -------------------------------------------------------------------------------------
# What the translators of a stream have in common: events of one API in, bytes of the other out.
#
# An end is written only when the end of the other API has been read: `has_ended`. A stream that
# breaks off before is broken off here too, and who reads it sees no end.

MAX_EVENT_BYTES = 32 * 1024 * 1024
MAX_PARTS = 1000
"""Texts and calls of one answer: what is known of each is kept to its end."""
_DAMAGED = "the answer is damaged: an event of its stream cannot be read"
DAMAGED = {"error": {"type": "api_error", "message": _DAMAGED}}
_TOO_MUCH = f"the answer has more than {MAX_PARTS} parts, or calls too large to be put in order"
TOO_MUCH = {"error": {"type": "api_error", "message": _TOO_MUCH}}
BROKEN_OFF = {"error": {"type": "api_error", "message": "the provider broke off its answer"}}


class StreamTranslator:
    def __init__(self) -> None:
        self.has_ended = False
        """The provider has said why its answer ends; what it used may still come."""
        self.is_over = False
        """The last event has been written."""
        self.error: dict[str, Any] | None = None
        """Error that the provider stated instead of an end, in its own words."""
        self._events = EventReader(max_bytes=MAX_EVENT_BYTES)

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._one, self._events.feed(data)))

    def end(self) -> bytes:
        """Return what is left to say when nothing more comes; nothing of an unended answer."""
        last = [one for one in self._events.end() if one.data.strip() == DONE or _is_whole(one)]
        rest = b"".join(map(self._one, last))
        return rest + self.close() if self.has_ended and not self.is_over else rest

    def close(self) -> bytes:
        """The end of the answer, as far as it has not been written."""
        self.is_over = True
        return self.write_end()

    def read_event(self, name: str, event: dict[str, Any]) -> bytes:
        """Translate one event of the one API into the other."""
        raise NotImplementedError

    def write_end(self) -> bytes:
        raise NotImplementedError

    def write_error(self, value: dict[str, Any]) -> bytes:
        raise NotImplementedError

    def fail(self, value: dict[str, Any]) -> bytes:
        """Its error in the words of the caller's API; nothing follows."""
        self.is_over = True
        self.error = value
        return self.write_error(value)

    def _one(self, event: ServerSentEvent) -> bytes:
        if self.is_over:
            return b""
        data = event.data.strip()
        if data == DONE:
            return self.close() if self.has_ended else b""
        value = read_object(data)
        if event.problem or (value is None and (data or event.name == "error")):
            return self.fail(DAMAGED)
        if value is None:
            return b""
        return self.read_event(event.name, value)


def _is_whole(event: ServerSentEvent) -> bool:
    return not event.problem and read_object(event.data) is not None


def data(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + data({"type": kind, **fields})
