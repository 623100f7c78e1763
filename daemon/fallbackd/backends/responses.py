"""The dialect of OpenAI's responses API, which the back end of Codex speaks too."""

from typing import Any

from fallbackd.backends.http_answers import HttpParser, states_error
from fallbackd.backends.lines import count, fields, words
from fallbackd.core.exchange import Observation, Usage

ENDS_WITH = (
    b"\nevent: response.completed",
    b"\nevent: response.incomplete",
    b'\ndata: {"type":"response.completed"',
)

INSTRUCTIONS = "Do what the user asks."
"""The back end of Codex refuses a request without any."""

_FINAL = frozenset({"response.completed", "response.incomplete", "response.done"})


def body(
    *,
    model: str | None,
    prompt: str,
    effort: str | None,
    max_output_tokens: int | None,
    is_codex: bool,
) -> dict[str, Any]:
    """The request as JSON. Nothing of it is kept by the provider (`store`)."""
    message = {"type": "message", "role": "user"}
    request: dict[str, Any] = {
        "input": [{**message, "content": [{"type": "input_text", "text": prompt}]}],
        "store": False,
        "stream": True,
    }
    if model:
        request["model"] = model
    if effort:
        request["reasoning"] = {"effort": effort}
    if is_codex:
        request["instructions"] = INSTRUCTIONS
    elif max_output_tokens:
        request["max_output_tokens"] = max_output_tokens
    return request


class ResponsesParser(HttpParser):
    def __init__(self) -> None:
        super().__init__()
        self._place: object = None
        """Which item of the output the last piece of text belongs to."""

    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        kind = words(event.get("type")) or name
        response = fields(event.get("response"))
        if kind == "response.failed" or response.get("error"):
            return self.fails({"type": "response.failed", "error": response.get("error") or {}})
        if kind in _FINAL:
            self._complete(response)
            return [*self.answers(), self.usage]
        if kind == "error" or states_error(event):
            return self.fails(event)
        piece = words(event.get("delta"))
        match kind:
            case "response.output_text.delta":
                self._add(piece, event.get("output_index"))
                return [*self.answers(), *self.phase("writing")]
            case "response.refusal.delta":
                self.refusals.append(piece)
                return self.answers()
            case _ if kind.startswith("response.reasoning") and piece:
                return [*self.answers(), *self.phase("thinking")]
            case "response.output_item.added":
                return self.answers()
            case _:
                return []

    def read_whole(self, value: dict[str, Any]) -> None:
        if isinstance(value.get("output"), list) or value.get("status"):
            self.answered = True
            self._complete(value)

    def _add(self, text: str, place: object) -> None:
        if self.texts and place != self._place:
            self.texts.append("\n\n")
        self._place = place
        self.texts.append(text)

    def _complete(self, response: dict[str, Any]) -> None:
        self.has_ended = True
        status = words(response.get("status"))
        if status == "incomplete":
            details = fields(response.get("incomplete_details"))
            self.finish_word = words(details.get("reason")) or "error"
        elif status in ("failed", "cancelled", "in_progress", "queued"):
            self.finish_word = "error"
        used = fields(response.get("usage"))
        self.usage = Usage(
            input_tokens=count(used.get("input_tokens")),
            output_tokens=count(used.get("output_tokens")),
        )
        if not self.texts and not self.refusals:
            self._read_items(response.get("output"))

    def _read_items(self, items: object) -> None:
        """The text of a response that came without any deltas."""
        for place, item in enumerate(items if isinstance(items, list) else ()):
            content = fields(item).get("content")
            if fields(item).get("type") != "message" or not isinstance(content, list):
                continue
            for part in map(fields, content):
                if part.get("type") == "output_text":
                    self._add(words(part.get("text")), place)
                elif part.get("type") == "refusal":
                    self.refusals.append(words(part.get("refusal")))
