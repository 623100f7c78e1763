"""A stream of the messages API as one of chat completions."""

from typing import Any

import msgspec

from fallbackd.backends.http_answers import is_broken_off, states_error
from fallbackd.backends.lines import fields, words
from fallbackd.fronts.gateway.translate import tables
from fallbackd.fronts.gateway.translate.streams import BROKEN_OFF, StreamTranslator, data


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
        """Of calls whose arguments have not come in pieces: what they began with."""

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
        """Those that came in one piece with the head of their call, or not at all."""
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
