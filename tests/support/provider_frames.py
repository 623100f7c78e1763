"""
Complete answers of four model APIs, as one body and as server-sent events.

A frame is (is it a piece of the text?, the event as it goes out).
"""

import hashlib
import itertools
import json
import uuid
from typing import Any, Literal

from msgspec import Struct

TEXT = "PONG-OK from the scripted provider."
INPUT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS = 120, 20, 9


class ToolCall(Struct, frozen=True, kw_only=True):
    name: str
    arguments: dict[str, Any]
    namespace: str | None = None
    """Of the Responses API, where codex puts the tools of each MCP server."""


class Answer(Struct, frozen=True, kw_only=True):
    model: str
    text: str = TEXT
    tool: ToolCall | None = None
    """In place of the text."""
    ending: Literal["stop", "length", "filter"] = "stop"
    """Why it ends, where it is not for a tool."""
    thought: str = ""
    """What the model thinks before it; of the chat and the messages API."""

    @property
    def signature(self) -> str:
        """By which the provider of the messages API knows a thought as its own."""
        return "signed:" + hashlib.sha256(self.thought.encode()).hexdigest()


_FINISH = {"stop": "stop", "length": "length", "filter": "content_filter"}
_STOP_REASON = {"stop": "end_turn", "length": "max_tokens", "filter": "refusal"}
_GOOGLE_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}
_INCOMPLETE = {"length": "max_output_tokens", "filter": "content_filter"}

Frames = list[tuple[bool, str]]


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + words[-1:]


def _thoughts(answer: Answer) -> list[str]:
    return _words(answer.thought) if answer.thought else []


def data(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def event(kind: str, fields: dict[str, Any]) -> str:
    return f"event: {kind}\n" + data({"type": kind, **fields})


def _id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:24]


_CHAT_USAGE = {
    "prompt_tokens": INPUT_TOKENS,
    "completion_tokens": OUTPUT_TOKENS,
    "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
}


def _chat_tool(tool: ToolCall) -> dict[str, Any]:
    function = {"name": tool.name, "arguments": json.dumps(tool.arguments)}
    return {"index": 0, "id": "call_1", "type": "function", "function": function}


def chat_whole(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool:
        message |= {"content": None, "tool_calls": [_chat_tool(answer.tool)]}
    if answer.thought:
        message["reasoning_content"] = answer.thought
    finish = "tool_calls" if answer.tool else _FINISH[answer.ending]
    return {
        "id": _id("chatcmpl-"),
        "object": "chat.completion",
        "created": 1,
        "model": answer.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": _CHAT_USAGE,
    }


def chat_frames(answer: Answer) -> Frames:
    base = {"id": _id("chatcmpl-"), "object": "chat.completion.chunk", "created": 1}
    base["model"] = answer.model

    def delta(fields: dict[str, Any], finish: str | None = None) -> str:
        return data({**base, "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})

    frames: Frames = [(False, delta({"role": "assistant", "content": ""}))]
    frames += [(False, delta({"reasoning_content": word})) for word in _thoughts(answer)]
    if answer.tool:
        frames.append((False, delta({"tool_calls": [_chat_tool(answer.tool)]})))
    else:
        frames += [(True, delta({"content": word})) for word in _words(answer.text)]
    frames.append((False, delta({}, "tool_calls" if answer.tool else _FINISH[answer.ending])))
    frames.append((False, data({**base, "choices": [], "usage": _CHAT_USAGE})))
    frames.append((False, "data: [DONE]\n\n"))
    return frames


def _responses_item(answer: Answer) -> dict[str, Any]:
    if answer.tool:
        return {
            "type": "function_call",
            "id": _id("fc_"),
            "call_id": "call_1",
            "name": answer.tool.name,
            "arguments": json.dumps(answer.tool.arguments),
            "status": "completed",
            **({} if answer.tool.namespace is None else {"namespace": answer.tool.namespace}),
        }
    part = {"type": "output_text", "text": answer.text, "annotations": []}
    return {
        "type": "message",
        "id": _id("msg_"),
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def responses_whole(answer: Answer) -> dict[str, Any]:
    reason = _INCOMPLETE.get(answer.ending)
    usage = {
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    return {
        "id": _id("resp_"),
        "object": "response",
        "created_at": 1,
        "model": answer.model,
        "status": "completed" if reason is None else "incomplete",
        "output": [_responses_item(answer)],
        "error": None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "usage": usage,
    }


def responses_frames(answer: Answer) -> Frames:
    done = responses_whole(answer)
    (item,) = done["output"]
    numbers = itertools.count()

    def numbered(kind: str, **fields: Any) -> str:
        return event(kind, {"sequence_number": next(numbers), **fields})

    begun = {**done, "status": "in_progress", "output": [], "usage": None}
    empty: dict[str, Any] = {"arguments": ""} if answer.tool else {"content": []}
    place = {"item_id": item["id"], "output_index": 0}
    frames: Frames = [
        (False, numbered("response.created", response=begun)),
        (
            False,
            numbered(
                "response.output_item.added",
                output_index=0,
                item={**item, **empty, "status": "in_progress"},
            ),
        ),
    ]
    if answer.tool:
        text = item["arguments"]
        frames += [
            (False, numbered("response.function_call_arguments.delta", **place, delta=text)),
            (False, numbered("response.function_call_arguments.done", **place, arguments=text)),
        ]
    else:
        (part,) = item["content"]
        place["content_index"] = 0
        frames.append(
            (False, numbered("response.content_part.added", **place, part={**part, "text": ""}))
        )
        frames += [
            (True, numbered("response.output_text.delta", **place, delta=word))
            for word in _words(answer.text)
        ]
        frames.append((False, numbered("response.output_text.done", **place, text=answer.text)))
        frames.append((False, numbered("response.content_part.done", **place, part=part)))
    frames.append((False, numbered("response.output_item.done", output_index=0, item=item)))
    frames.append((False, numbered(f"response.{done['status']}", response=done)))
    return frames


_ANTHROPIC_USAGE = {
    "input_tokens": INPUT_TOKENS,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": CACHED_TOKENS,
    "output_tokens": OUTPUT_TOKENS,
}


def anthropic_whole(answer: Answer) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": answer.text}
    if answer.tool:
        block = {
            "type": "tool_use",
            "id": _id("toolu_"),
            "name": answer.tool.name,
            "input": answer.tool.arguments,
        }
    return {
        "id": _id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [*_thinking(answer), block],
        "stop_reason": "tool_use" if answer.tool else _STOP_REASON[answer.ending],
        "stop_sequence": None,
        "usage": _ANTHROPIC_USAGE,
    }


def _thinking(answer: Answer) -> list[dict[str, Any]]:
    if not answer.thought:
        return []
    return [{"type": "thinking", "thinking": answer.thought, "signature": answer.signature}]


def anthropic_frames(answer: Answer) -> Frames:
    message = anthropic_whole(answer)
    *thoughts, block = message["content"]
    begun = {**message, "content": [], "stop_reason": None}
    begun["usage"] = {**_ANTHROPIC_USAGE, "output_tokens": 1}
    empty: dict[str, Any] = {"input": {}} if answer.tool else {"text": ""}

    at = len(thoughts)

    def delta(fields: dict[str, Any], index: int = at) -> str:
        return event("content_block_delta", {"index": index, "delta": fields})

    frames: Frames = [(False, event("message_start", {"message": begun}))]
    for place, one in enumerate(thoughts):
        blank = {**one, "thinking": "", "signature": ""}
        head = event("content_block_start", {"index": place, "content_block": blank})
        pieces = [{"type": "thinking_delta", "thinking": word} for word in _thoughts(answer)]
        pieces.append({"type": "signature_delta", "signature": answer.signature})
        foot = event("content_block_stop", {"index": place})
        frames += [(False, line) for line in (head, *(delta(each, place) for each in pieces), foot)]
    frames.append(
        (False, event("content_block_start", {"index": at, "content_block": {**block, **empty}}))
    )
    if answer.tool:
        text = json.dumps(answer.tool.arguments)
        frames.append((False, delta({"type": "input_json_delta", "partial_json": text})))
    else:
        frames += [
            (True, delta({"type": "text_delta", "text": word})) for word in _words(answer.text)
        ]
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": OUTPUT_TOKENS}
    frames.append((False, event("content_block_stop", {"index": at})))
    frames.append((False, event("message_delta", {"delta": end, "usage": usage})))
    frames.append((False, event("message_stop", {})))
    return frames


def _google_parts(answer: Answer) -> list[dict[str, Any]]:
    if answer.tool:
        return [{"functionCall": {"name": answer.tool.name, "args": answer.tool.arguments}}]
    return [{"text": answer.text}]


def _google_chunk(
    answer: Answer, parts: list[dict[str, Any]], *, finish: str | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "modelVersion": answer.model,
        "responseId": _id("resp"),
        "usageMetadata": {
            "promptTokenCount": INPUT_TOKENS,
            "candidatesTokenCount": OUTPUT_TOKENS,
            "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
            "cachedContentTokenCount": CACHED_TOKENS,
        },
    }


def google_whole(answer: Answer) -> dict[str, Any]:
    return _google_chunk(answer, _google_parts(answer), finish=_GOOGLE_FINISH[answer.ending])


def google_frames(answer: Answer) -> Frames:
    if answer.tool:
        return [(False, data(google_whole(answer)))]
    words = _words(answer.text)
    last, end = len(words) - 1, _GOOGLE_FINISH[answer.ending]
    return [
        (True, data(_google_chunk(answer, [{"text": word}], finish=end if i == last else None)))
        for i, word in enumerate(words)
    ]
