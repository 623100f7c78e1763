"""A request of chat completions as one of the messages API."""

import re
from typing import Any

import msgspec

from fallbackd.backends.lines import fields, words
from fallbackd.backends.passage import Unreadable
from fallbackd.fronts.gateway.translate.tables import Losses, tool_id
from fallbackd.lib import foreign_json

_CARRIED = frozenset(
    {
        *("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
        *("stop", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls"),
        "response_format",
    }
)
_OF_A_MESSAGE = frozenset({"role", "content", "tool_calls", "tool_call_id", "refusal"})
_CACHE = {"type": "ephemeral"}
_DATA_URL = re.compile(r"data:([\w.+/-]+)(?:;[\w=.-]+)*;base64,(.*)", re.S)


def _merged(turns: list[tuple[str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Results of parallel calls stand in one message."""
    made: list[dict[str, Any]] = []
    for role, blocks in turns:
        if made and made[-1]["role"] == role:
            made[-1]["content"] += blocks
        elif blocks:
            made.append({"role": role, "content": blocks})
    return made


def messages_request(asked: dict[str, Any], lost: Losses) -> dict[str, Any]:
    """
    Translate a request, without `model` and `max_tokens`.

    Raises:
        Unreadable: It has no list of messages.
    """
    lost.note_unknown(asked, known=_CARRIED)
    turns = asked.get("messages")
    if not isinstance(turns, list):
        raise Unreadable("`messages` must be a list")
    said = [fields(one) for one in turns]
    head = 0
    while head < len(said) and _is_system(said[head]):
        head += 1
    system = [block for turn in said[:head] for block in _blocks(turn.get("content"), lost)]
    made = _merged([_turn(turn, lost) for turn in said[head:]])
    _mark_cached(system, made)
    request: dict[str, Any] = {"messages": made}
    if system:
        request["system"] = system
    request |= _settings(asked, lost)
    tools = [tool for one in _list(asked.get("tools")) if (tool := _tool(fields(one), lost))]
    if tools:
        request["tools"] = tools
        request |= _choice(asked)
    return request


def _is_system(turn: dict[str, Any]) -> bool:
    return turn.get("role") in ("system", "developer")


def _settings(asked: dict[str, Any], lost: Losses) -> dict[str, Any]:
    request = {name: asked[name] for name in ("top_p", "stream") if asked.get(name) is not None}
    warmth = asked.get("temperature")
    if isinstance(warmth, int | float):
        request["temperature"] = min(1, warmth)
        if warmth > 1:
            lost.note("temperature above 1")
    stop = asked.get("stop")
    stops = [stop] if isinstance(stop, str) else _list(stop)
    kept = [one for one in stops if words(one).strip()]
    if len(kept) < len(stops):
        lost.note("stop")  # white space alone is refused
    if kept:
        request["stop_sequences"] = kept
    wanted = fields(asked.get("response_format"))
    if wanted.get("type") == "json_schema":
        schema = fields(fields(wanted.get("json_schema")).get("schema"))
        request["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    elif wanted.get("type") not in (None, "text"):
        lost.note("response_format")
    return request


def _turn(turn: dict[str, Any], lost: Losses) -> tuple[str, list[dict[str, Any]]]:
    lost.note_unknown(turn, known=_OF_A_MESSAGE)
    match turn.get("role"):
        case "assistant":
            blocks = _blocks(turn.get("content"), lost)
            blocks += _blocks(turn.get("refusal"), lost)
            calls = (fields(one) for one in _list(turn.get("tool_calls")))
            return "assistant", blocks + [_call(one, lost) for one in calls]
        case "tool":
            result = {
                "type": "tool_result",
                "tool_use_id": tool_id(turn.get("tool_call_id")),
                "content": _blocks(turn.get("content"), lost),
            }
            return "user", [result]
        case "user":
            return "user", _blocks(turn.get("content"), lost)
        case "system" | "developer":
            lost.note("place of a later system message")
            return "user", _blocks(turn.get("content"), lost)
        case role:
            raise Unreadable(f"a message has no role that can be translated: {words(role)[:40]}")


def _call(call: dict[str, Any], lost: Losses) -> dict[str, Any]:
    function = fields(call.get("function"))
    return {
        "type": "tool_use",
        "id": tool_id(call.get("id")),
        "name": words(function.get("name")),
        "input": _input(words(function.get("arguments")), lost),
    }


def _input(arguments: str, lost: Losses) -> dict[str, Any]:
    """Arguments are a text there, which a model may have got wrong."""
    try:
        found = foreign_json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    lost.note("arguments that are not a JSON object")
    return {"arguments": arguments}


def _blocks(content: object, lost: Losses) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return [made for one in _list(content) if (made := _block(fields(one), lost))]


def _block(part: dict[str, Any], lost: Losses) -> dict[str, Any] | None:
    match part.get("type"):
        case "text" | "refusal" as kind:
            text = words(part.get("text")) or words(part.get(kind))
            return {"type": "text", "text": text} if text.strip() else None
        case "image_url":
            url = words(fields(part.get("image_url")).get("url"))
            source = {"type": "url", "url": url}
            if (held := _DATA_URL.fullmatch(url)) is not None:
                source = {"type": "base64", "media_type": held[1], "data": held[2]}
            return {"type": "image", "source": source}
        case kind:
            lost.note(words(kind) or "content")
            return None


def _tool(tool: dict[str, Any], lost: Losses) -> dict[str, Any] | None:
    function = fields(tool.get("function"))
    if tool.get("type") != "function" or not function:
        lost.note(f"tool {words(tool.get('type'))}")
        return None
    lost.note_unknown(function, known=frozenset({"name", "description", "parameters"}))
    made: dict[str, Any] = {
        "name": words(function.get("name")),
        "input_schema": {"type": "object", **fields(function.get("parameters"))},
    }
    if (description := function.get("description")) is not None:
        made["description"] = description
    return made


def _choice(asked: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {}
    match asked.get("tool_choice"):
        case "auto" | "none" as word:
            choice = {"type": word}
        case "required":
            choice = {"type": "any"}
        case {"function": {"name": str(name)}}:
            choice = {"type": "tool", "name": name}
    if asked.get("parallel_tool_calls") is False and choice.get("type") != "none":
        choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
    return {"tool_choice": choice} if choice else {}


def _mark_cached(system: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """Only what is marked is cached there: all before it, and the conversation so far."""
    last = next((turn for turn in reversed(turns) if turn["role"] == "user"), None)
    for blocks in (system, [] if last is None else last["content"]):
        if blocks:
            blocks[-1]["cache_control"] = _CACHE


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
