"""A stream of chat completions as one of the messages API."""

from typing import Any

from msgspec import Struct

from fallbackd.backends.http_answers import first_choice, is_broken_off, states_error
from fallbackd.backends.lines import fields, words
from fallbackd.fronts.gateway.translate import tables
from fallbackd.fronts.gateway.translate.answers import stop_reason, text_of
from fallbackd.fronts.gateway.translate.streams import BROKEN_OFF, StreamTranslator, event


class _Block(Struct):
    """A piece of the answer that has an index of its own."""

    kind: str
    number: object = None
    """Of a call: its index there."""
    id: str = ""
    name: str = ""
    unsaid: str = ""
    """What has come and was not written yet."""
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
        return self._flush(block) if block is self._blocks[self._at] else b""

    def _flush(self, block: _Block, *, at_end: bool = False) -> bytes:
        """What is known of the block in front: its head, as soon as the call has a name."""
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
        """What a model thinks cannot be shown here, since only Anthropic can sign it."""
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
