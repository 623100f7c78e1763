"""A request of the messages API as one of chat completions."""

from typing import Any

import msgspec

from fallbackd.backends.lines import fields, words
from fallbackd.backends.passage import Unreadable
from fallbackd.fronts.gateway.translate.tables import Losses, tool_id

_BILLING = "x-anthropic-billing-header:"
"""Begins a block by which Claude Code says something to Anthropic alone; it differs each time."""
_SAME = ("temperature", "top_p", "stream")
_CARRIED = frozenset(
    {
        *("model", "messages", "system", "max_tokens", "stop_sequences"),
        *("tools", "tool_choice", "output_config", *_SAME),
    }
)
_MAX_STOPS = 4


def chat_request(asked: dict[str, Any], lost: Losses) -> dict[str, Any]:
    """
    Translate a request, without `model` and without a limit of its tokens: their names and values
    are the backend's.

    Raises:
        Unreadable: It has no list of messages.
    """
    lost.note_unknown(asked, known=_CARRIED)
    turns = asked.get("messages")
    if not isinstance(turns, list):
        raise Unreadable("`messages` must be a list")
    made = _system(_blocks(asked.get("system")), lost)
    for turn in turns:
        made += _turn(fields(turn), lost)
    request: dict[str, Any] = {"messages": made}
    request |= {name: asked[name] for name in _SAME if asked.get(name) is not None}
    if stops := _list(asked.get("stop_sequences")):
        request["stop"] = stops[:_MAX_STOPS]
        if len(stops) > _MAX_STOPS:
            lost.note("stop_sequences")
    tools = [tool for one in _list(asked.get("tools")) if (tool := _tool(fields(one), lost))]
    if tools:
        request["tools"] = tools
        request |= _choice(fields(asked.get("tool_choice")))
    request |= _format(fields(asked.get("output_config")), lost)
    return request


def _system(blocks: list[dict[str, Any]], lost: Losses) -> list[dict[str, Any]]:
    said = [one for one in blocks if not words(one.get("text")).startswith(_BILLING)]
    text = "\n\n".join(_texts(said, lost))
    return [{"role": "system", "content": text}] if text else []


def _turn(turn: dict[str, Any], lost: Losses) -> list[dict[str, Any]]:
    blocks = _blocks(turn.get("content"))
    match turn.get("role"):
        case "system":
            return _system(blocks, lost)
        case "assistant":
            return _assistant(blocks, lost)
        case "user":
            return _user(blocks, lost)
        case role:
            raise Unreadable(f"a message has no role of this API: {words(role)[:40]}")


def _assistant(blocks: list[dict[str, Any]], lost: Losses) -> list[dict[str, Any]]:
    text, calls = "", []
    for block in blocks:
        _without_cache(block, lost)
        match block.get("type"):
            case "text":
                text += words(block.get("text"))
            case "tool_use":
                function = {
                    "name": words(block.get("name")),
                    "arguments": _compact(fields(block.get("input"))),
                }
                id = tool_id(block.get("id"))
                calls.append({"id": id, "type": "function", "function": function})
            case kind:
                lost.note(words(kind) or "content")
    if not text and not calls:
        return []
    made: dict[str, Any] = {"role": "assistant", "content": text or None}
    return [made | {"tool_calls": calls} if calls else made]


def _result(block: dict[str, Any], lost: Losses) -> tuple[str, list[dict[str, Any]]]:
    """The text of a tool's result, and its pictures."""
    if block.get("is_error"):
        lost.note("is_error")
    inside = [part for one in _blocks(block.get("content")) for part in _part(one, lost)]
    text = "\n".join(part["text"] for part in inside if part["type"] == "text")
    pictures = [part for part in inside if part["type"] != "text"]
    return text or ("(an image, which follows)" if pictures else ""), pictures


def _user(blocks: list[dict[str, Any]], lost: Losses) -> list[dict[str, Any]]:
    """Results of tools first, which must follow their calls; pictures in them go behind."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block in blocks:
        _without_cache(block, lost)
        if block.get("type") != "tool_result":
            parts += _part(block, lost)
            continue
        text, pictures = _result(block, lost)
        id = tool_id(block.get("tool_use_id"))
        results.append({"role": "tool", "tool_call_id": id, "content": text})
        parts += pictures
    if not parts:
        return results
    is_plain = len(parts) == 1 and parts[0]["type"] == "text"
    return [*results, {"role": "user", "content": parts[0]["text"] if is_plain else parts}]


def _part(block: dict[str, Any], lost: Losses) -> list[dict[str, Any]]:
    kind = words(block.get("type"))
    if kind == "text":
        return [{"type": "text", "text": words(block.get("text"))}]
    source = fields(block.get("source"))
    if kind == "image" and (url := _url(source)):
        return [{"type": "image_url", "image_url": {"url": url}}]
    if kind == "document" and source.get("type") == "text":
        return [{"type": "text", "text": words(source.get("data"))}]
    lost.note(kind or "content")
    return []


def _url(source: dict[str, Any]) -> str:
    """Empty: a file at the provider, which no other one has."""
    if source.get("type") == "base64":
        return f"data:{words(source.get('media_type'))};base64,{words(source.get('data'))}"
    return words(source.get("url"))


def _tool(tool: dict[str, Any], lost: Losses) -> dict[str, Any] | None:
    _without_cache(tool, lost)
    if tool.get("type") not in (None, "custom"):
        lost.note(f"tool {words(tool.get('name')) or words(tool.get('type'))}")  # the provider's
        return None
    known = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})
    lost.note_unknown(tool, known=known)
    function = {
        "name": words(tool.get("name")),
        "description": tool.get("description"),
        "parameters": fields(tool.get("input_schema")),
        "strict": tool.get("strict"),
    }
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    match choice.get("type"):
        case "auto" | "none" as word:
            made["tool_choice"] = word
        case "any":
            made["tool_choice"] = "required"
        case "tool":
            named = {"name": words(choice.get("name"))}
            made["tool_choice"] = {"type": "function", "function": named}
    if choice.get("disable_parallel_tool_use"):
        made["parallel_tool_calls"] = False
    return made


def _format(config: dict[str, Any], lost: Losses) -> dict[str, Any]:
    lost.note_unknown(config, known=frozenset({"format"}))
    wanted = fields(config.get("format"))
    if wanted.get("type") != "json_schema":
        return {}
    schema = {"name": "answer", "schema": fields(wanted.get("schema")), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _texts(blocks: list[dict[str, Any]], lost: Losses) -> list[str]:
    found = []
    for block in blocks:
        _without_cache(block, lost)
        if block.get("type") == "text":
            found.append(words(block.get("text")))
        else:
            lost.note(words(block.get("type")) or "content")
    return found


def _without_cache(block: dict[str, Any], lost: Losses) -> None:
    if block.get("cache_control"):
        lost.note("cache_control")  # these servers find by themselves what they have cached


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [fields(one) for one in _list(content)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()
