"""
Words that mean the same in both APIs. Source: the public references of OpenAI and of Anthropic.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from fallbackd.backends.lines import count, fields, words

STOP_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""Of chat completions, in the words of messages."""
FINISH_REASONS: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Of messages, in the words of chat completions."""


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
    """Of chat completions, where what was cached is a part of the prompt; here it stands beside."""
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
