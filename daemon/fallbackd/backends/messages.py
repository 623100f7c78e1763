"""The dialect of Anthropic's messages API, which many other vendors offer under `/anthropic`."""

from collections.abc import Sequence
from typing import Any

from fallbackd.backends.http_answers import HttpParser, as_messages, states_error
from fallbackd.backends.lines import cost, count, fields, words
from fallbackd.core.protocol import Observation, Usage
from fallbackd_conversations.turns import Utterance

VERSION = "2023-06-01"
"""`anthropic-version`: the only one that there is, since 2023."""

ENDS_WITH = (b"\nevent: message_stop",)

MAX_OUTPUT_TOKENS = 8192
"""The API demands a number; every model since Claude 3.5 may write this much."""


def body(
    *,
    model: str | None,
    prompt: str,
    earlier: Sequence[Utterance] = (),
    max_output_tokens: int | None,
) -> dict[str, Any]:
    """The request as JSON."""
    request: dict[str, Any] = {
        "max_tokens": max_output_tokens or MAX_OUTPUT_TOKENS,
        "messages": as_messages(earlier, prompt),
        "stream": True,
    }
    if model:
        request["model"] = model
    return request


_THOUGHTS = frozenset({"thinking", "redacted_thinking", "thinking_delta", "signature_delta"})
_SAYS_NOTHING = _THOUGHTS | {"", "citations_delta"}
"""Blocks and pieces that are no answer by themselves."""


class MessagesParser(HttpParser):
    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        kind = words(event.get("type")) or name
        if kind == "error" or states_error(event):
            return self.fails(event)
        match kind:
            case "message_start":
                self._used(fields(fields(event.get("message")).get("usage")))
                return []
            case "content_block_start":
                block = fields(event.get("content_block"))
                kind = words(block.get("type"))
                opens = block.get(kind) == ""  # an empty text or thought
                seen = self.answers(opens=opens, thinks=kind in _THOUGHTS)
                return [*seen, *self._piece(block)]
            case "content_block_delta":
                delta = fields(event.get("delta"))
                seen = self.answers(thinks=words(delta.get("type")) in _THOUGHTS)
                return [*seen, *self._piece(delta)]
            case "message_delta":
                self._stopped(fields(event.get("delta")).get("stop_reason"))
                self._used(fields(event.get("usage")))
                return [*self.answers(opens=True), self.usage]
            case "message_stop":
                self.is_over = True
                return []
            case _:
                return []

    def read_whole(self, value: dict[str, Any]) -> None:
        content = value.get("content")
        if not isinstance(content, list):
            return
        self.answered = True
        for block in content:
            self._piece(fields(block))
        self._stopped(value.get("stop_reason"))
        self._used(fields(value.get("usage")))

    def _piece(self, piece: dict[str, Any]) -> list[Observation]:
        match words(piece.get("type")):
            case "text" | "text_delta":
                return self.says(words(piece.get("text")))
            case "thinking" | "thinking_delta":
                return self.phase("thinking")
            case kind:
                self.has_other = self.has_other or kind not in _SAYS_NOTHING
                return []

    def _stopped(self, reason: object) -> None:
        if isinstance(reason, str) and reason:
            self.finish_word = reason
            self.has_ended = True

    def _used(self, used: dict[str, Any]) -> None:
        """The start tells the input, the end the output; cached input is input."""
        parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        self.usage = Usage(
            input_tokens=sum(count(used.get(part)) for part in parts) or self.usage.input_tokens,
            output_tokens=count(used.get("output_tokens")) or self.usage.output_tokens,
            cost_usd=self.usage.cost_usd if (stated := cost(used)) is None else stated,
        )
