"""A whole answer of one API as one of the other."""

from typing import Any

import msgspec

from fallbackd.backends.http_answers import first_choice, is_broken_off
from fallbackd.backends.lines import fields, words
from fallbackd.fronts.gateway.translate import tables
from fallbackd.lib import foreign_json


class Untranslatable(ValueError):
    """It is no answer of the API that it should be of."""


def chat_answer(found: dict[str, Any], *, at: int) -> dict[str, Any]:
    """
    Out of an answer of messages.

    Args:
        at: When it was made, which this API says and that one does not.
    """
    content = found.get("content")
    if not isinstance(content, list):
        raise Untranslatable
    text, thought, calls = "", "", []
    for block in map(fields, content):
        match block.get("type"):
            case "text":
                text += words(block.get("text"))
            case "thinking":
                thought += words(block.get("thinking"))
            case "tool_use":
                arguments = msgspec.json.encode(fields(block.get("input"))).decode()
                function = {"name": words(block.get("name")), "arguments": arguments}
                id = words(block.get("id"))
                calls.append({"id": id, "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    reason = words(found.get("stop_reason"))
    if is_broken_off(reason):
        raise Untranslatable
    return {
        "id": words(found.get("id")),
        "object": "chat.completion",
        "created": at,
        "model": words(found.get("model")),
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": tables.FINISH_REASONS.get(reason, "stop") if reason else None,
            }
        ],
        "usage": tables.chat_usage(fields(found.get("usage"))),
    }


def messages_answer(found: dict[str, Any]) -> dict[str, Any]:
    """Out of an answer of chat completions. What it thought has no signature, and is left out."""
    choice = first_choice(found)
    message = fields(choice.get("message"))
    finish = words(choice.get("finish_reason"))
    if not message or is_broken_off(finish):
        raise Untranslatable
    content: list[dict[str, Any]] = []
    refusal = words(message.get("refusal"))
    if text := text_of(message.get("content")) + refusal:
        content.append({"type": "text", "text": text})
    calls = message.get("tool_calls")
    for call in map(fields, calls if isinstance(calls, list) else []):
        block = _tool_use(call)
        if block is not None:
            content.append(block)
        elif finish != "length":
            raise Untranslatable
    has_calls = any(block["type"] == "tool_use" for block in content)
    return {
        "id": words(found.get("id")),
        "type": "message",
        "role": "assistant",
        "model": words(found.get("model")),
        "content": content,
        "stop_reason": stop_reason(finish, has_calls=has_calls, is_refused=bool(refusal)),
        "stop_sequence": None,
        "usage": tables.messages_usage(fields(found.get("usage"))),
    }


def _tool_use(call: dict[str, Any]) -> dict[str, Any] | None:
    """None: its arguments cannot be read."""
    function = fields(call.get("function"))
    try:
        given = foreign_json.decode(words(function.get("arguments")) or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    id, name = tables.tool_id(call.get("id")), words(function.get("name"))
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def stop_reason(finish: str, *, has_calls: bool, is_refused: bool = False) -> str | None:
    """Some servers end a call of a tool with `stop`. None: it has not ended."""
    if not finish:
        return None
    if is_refused:
        return "refusal"
    if has_calls and finish == "stop":
        return "tool_use"
    return tables.STOP_REASONS.get(finish, "end_turn")


def text_of(content: object) -> str:
    """A text, or a list of parts of which some are texts."""
    if isinstance(content, list):
        return "".join(words(fields(part).get("text")) for part in content)
    return words(content)
