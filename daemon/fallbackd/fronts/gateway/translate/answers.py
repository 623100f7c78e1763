"""Answers of one API as answers of the other: whole ones and streams."""

from typing import Any

import msgspec
from msgspec import Struct

from fallbackd.backends.http_answers import first_choice, is_broken_off, states_error
from fallbackd.backends.lines import fields, words
from fallbackd.fronts.gateway.translate import tables
from fallbackd.fronts.gateway.translate.tables import BROKEN_OFF, StreamTranslator, data, event
from fallbackd.lib import foreign_json


class Untranslatable(ValueError):
    """The text is no answer of the API that it should be of."""


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
    """Translate one call of a tool. None: its arguments cannot be read."""
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


# --- a stream of the messages API as one of chat completions -------------------------------------
# A stream of the messages API as one of chat completions.


class ChatStream(StreamTranslator):
    """
    Args:
        at: When the answer was made, in Unix seconds.
        includes_usage: The caller wants a chunk of its own for what was used.
    """

    def __init__(self, *, at: int, includes_usage: bool) -> None:
        super().__init__()
        self._base: dict[str, Any] = {
            "id": "",
            "object": "chat.completion.chunk",
            "created": at,
            "model": "",
        }
        self._includes_usage = includes_usage
        self._used: dict[str, Any] = {}
        self._finish = "stop"
        self._calls: dict[object, int] = {}
        """Index of a block to that of its call."""
        self._unsaid: dict[object, dict[str, Any]] = {}
        """Calls whose arguments have not come in pieces: what they began with."""

    def read_event(self, name: str, event: dict[str, Any]) -> bytes:
        kind = words(event.get("type")) or name
        if kind == "error" or states_error(event):
            return self.fail(event)
        match kind:
            case "message_start":
                message = fields(event.get("message"))
                self._base["id"] = words(message.get("id"))
                self._base["model"] = words(message.get("model"))
                self._used |= _stated(fields(message.get("usage")))
                return self._chunk({"role": "assistant", "content": ""})
            case "content_block_start":
                return self._begins(event.get("index"), fields(event.get("content_block")))
            case "content_block_delta":
                return self._piece(event.get("index"), fields(event.get("delta")))
            case "content_block_stop":
                return self._arguments(event.get("index"))
            case "message_delta":
                self._used |= _stated(fields(event.get("usage")))
                if reason := words(fields(event.get("delta")).get("stop_reason")):
                    if is_broken_off(reason):
                        return self.fail(BROKEN_OFF)
                    self._finish = tables.FINISH_REASONS.get(reason, "stop")
                    self.has_ended = True
            case "message_stop" if self.has_ended:
                return self.close()
        return b""

    def _begins(self, index: object, block: dict[str, Any]) -> bytes:
        match block.get("type"):
            case "text" if text := words(block.get("text")):
                return self._chunk({"content": text})
            case "tool_use" if len(self._calls) >= tables.MAX_PARTS:
                return self.fail(tables.TOO_MUCH)
            case "tool_use":
                number = self._calls.setdefault(_key(index), len(self._calls))
                self._unsaid[_key(index)] = fields(block.get("input"))
                function = {"name": words(block.get("name")), "arguments": ""}
                head = {"index": number, "id": words(block.get("id")), "type": "function"}
                return self._chunk({"tool_calls": [head | {"function": function}]})
        return b""

    def _piece(self, index: object, delta: dict[str, Any]) -> bytes:
        match delta.get("type"):
            case "text_delta":
                return self._chunk({"content": words(delta.get("text"))})
            case "thinking_delta":
                return self._chunk({"reasoning_content": words(delta.get("thinking"))})
            case "input_json_delta" if _key(index) in self._calls:
                text = words(delta.get("partial_json"))
                if text:
                    self._unsaid.pop(_key(index), None)
                return self._argument(index, text)
        return b""

    def _arguments(self, index: object) -> bytes:
        """Return the arguments that came whole with the head of their call, or not at all."""
        given = self._unsaid.pop(_key(index), None)
        return b"" if given is None else self._argument(index, msgspec.json.encode(given).decode())

    def _argument(self, index: object, text: str) -> bytes:
        call = {"index": self._calls[_key(index)], "function": {"arguments": text}}
        return self._chunk({"tool_calls": [call]})

    def write_end(self) -> bytes:
        rest = b"".join(self._arguments(index) for index in list(self._unsaid))
        used = tables.chat_usage(self._used)
        if self._includes_usage:
            end = self._chunk({}, self._finish) + data({**self._base, "choices": [], "usage": used})
        else:
            end = self._chunk({}, self._finish, usage=used)
        return rest + end + b"data: [DONE]\n\n"

    def write_error(self, value: dict[str, Any]) -> bytes:
        return data(tables.chat_error(value))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return data({**self._base, "choices": [choice], **more})


def _stated(used: dict[str, Any]) -> dict[str, Any]:
    """The start states the input, the end the output; some servers repeat it there as nothing."""
    return {name: value for name, value in used.items() if value}


def _key(index: object) -> object:
    return index if isinstance(index, int) else -1


# --- a stream of chat completions as one of the messages API -------------------------------------
# A stream of chat completions as one of the messages API.


class _Block(Struct):
    """A piece of the answer that has an index of its own."""

    kind: str
    number: object = None
    """Index of a call there."""
    id: str = ""
    name: str = ""
    unsaid: str = ""
    """Text that has come and was not written yet."""
    is_open: bool = False


class MessagesStream(StreamTranslator):
    """
    Blocks are written one after the other, as clients of this API know them. Chat completions may
    mix the pieces of several calls: those of a later one are kept until the first is complete,
    which only the end of the answer says.
    """

    def __init__(self) -> None:
        super().__init__()
        self._has_begun = False
        self._blocks: list[_Block] = []
        self._at = 0
        """Index of the block that is being written; those before are closed."""
        self._kept_chars = 0
        """Characters of calls that had to wait for the one before them."""
        self._used: dict[str, Any] = {}
        self._finish = ""
        self._is_refused = False

    def read_event(self, name: str, event: dict[str, Any]) -> bytes:
        choice = first_choice(event)
        if states_error(event) or choice.get("error"):
            return self.fail(event if event.get("error") or not choice else choice)
        if used := fields(event.get("usage")):
            self._used = used
        delta = fields(choice.get("delta")) or fields(choice.get("message"))
        head = b"" if self._has_begun else self._begin(event)
        said = b"".join(self._pieces(delta))
        is_long = self._kept_chars > tables.MAX_EVENT_BYTES
        if is_long or len(self._blocks) > tables.MAX_PARTS:
            return head + said + self.fail(tables.TOO_MUCH)
        if not said and _says(delta):
            said = self._sign_of_life()
        if finish := words(choice.get("finish_reason")):
            if is_broken_off(finish):
                return head + said + self.fail(BROKEN_OFF)
            self._finish = finish
            self.has_ended = True
        return head + said

    def _begin(self, chunk: dict[str, Any]) -> bytes:
        self._has_begun = True
        message: dict[str, Any] = {
            "id": words(chunk.get("id")),
            "type": "message",
            "role": "assistant",
            "model": words(chunk.get("model")),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": tables.messages_usage({}),
        }
        return event("message_start", message=message)

    def _pieces(self, delta: dict[str, Any]) -> list[bytes]:
        found = []
        refusal = words(delta.get("refusal"))
        self._is_refused = self._is_refused or bool(refusal)
        if text := text_of(delta.get("content")) + refusal:
            if not self._blocks or self._blocks[-1].kind != "text":
                found.append(self._add(_Block(kind="text")))
            found.append(self._write(self._blocks[-1], text))
        calls = delta.get("tool_calls")
        for call in map(fields, calls if isinstance(calls, list) else []):
            function = fields(call.get("function"))
            block = self._call_of(call)
            if block is None:
                block = _Block(kind="tool_use", number=call.get("index"))
                found.append(self._add(block))
            block.id = block.id or words(call.get("id"))
            block.name = block.name or words(function.get("name"))
            found.append(self._write(block, words(function.get("arguments"))))
        return found

    def _call_of(self, call: dict[str, Any]) -> _Block | None:
        """The call that a piece belongs to. Another id is another call, whatever its index."""
        id = words(call.get("id"))
        for block in reversed(self._blocks):
            if block.kind == "tool_use" and block.number == call.get("index"):
                return None if id and block.id and id != block.id else block
        return None

    def _add(self, block: _Block) -> bytes:
        """A text ends where something else begins; a call may still go on."""
        self._blocks.append(block)
        front = self._blocks[self._at]
        if front is block or front.kind != "text":
            return b""
        return self._close_front()

    def _write(self, block: _Block, text: str) -> bytes:
        block.unsaid += text
        if block is self._blocks[self._at]:
            return self._flush(block)
        self._kept_chars += len(text)
        return b""

    def _flush(self, block: _Block, *, at_end: bool = False) -> bytes:
        """Write what is known of the block in front: its head, as soon as the call has a name."""
        if not block.is_open and block.kind == "tool_use" and not block.name and not at_end:
            return b""
        head = b"" if block.is_open else self._open(block)
        text, block.unsaid = block.unsaid, ""
        if not text:
            return head
        delta = {"type": "text_delta", "text": text}
        if block.kind == "tool_use":
            delta = {"type": "input_json_delta", "partial_json": text}
        return head + event("content_block_delta", index=self._at, delta=delta)

    def _open(self, block: _Block) -> bytes:
        block.is_open = True
        begun: dict[str, Any] = {"type": "text", "text": ""}
        if block.kind == "tool_use":
            id = tables.tool_id(block.id or f"call {self._at}")
            begun = {"type": "tool_use", "id": id, "name": block.name, "input": {}}
        return event("content_block_start", index=self._at, content_block=begun)

    def _close_front(self) -> bytes:
        said = self._flush(self._blocks[self._at], at_end=True)
        said += event("content_block_stop", index=self._at)
        self._at += 1
        if self._at < len(self._blocks):
            said += self._flush(self._blocks[self._at])
        return said

    def _sign_of_life(self) -> bytes:
        """Write an empty piece for what a model thinks, which only Anthropic can sign."""
        return self._delta(None, {"output_tokens": 0})

    def write_end(self) -> bytes:
        said = b""
        while self._at < len(self._blocks):
            said += self._close_front()
        has_calls = any(one.kind == "tool_use" for one in self._blocks)
        reason = stop_reason(self._finish, has_calls=has_calls, is_refused=self._is_refused)
        used = tables.messages_usage(self._used)
        return said + self._delta(reason, used) + event("message_stop")

    def _delta(self, reason: str | None, used: dict[str, int]) -> bytes:
        delta = {"stop_reason": reason, "stop_sequence": None}
        return event("message_delta", delta=delta, usage=used)

    def write_error(self, value: dict[str, Any]) -> bytes:
        return event("error", **_without_type(tables.messages_error(value)))


def _says(delta: dict[str, Any]) -> bool:
    thought = words(delta.get("reasoning_content")) or words(delta.get("reasoning"))
    return bool(thought or delta.get("content") or delta.get("tool_calls"))


def _without_type(value: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if name != "type"}
