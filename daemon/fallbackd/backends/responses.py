"""The dialect of OpenAI's responses API, which the back end of Codex speaks too."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from fallbackd.backends.http_answers import (
    IN_BACKGROUND,
    MAX_PARTS,
    MISMATCH,
    HttpParser,
    place_of,
    states_error,
    turns,
)
from fallbackd.backends.lines import cost, count, fields, words
from fallbackd.core.protocol import Observation, Usage
from fallbackd_conversations.turns import Utterance

ENDS_WITH = (
    b"\nevent: response.completed",
    b"\nevent: response.incomplete",
    b'\ndata: {"type":"response.completed"',
)

INSTRUCTIONS = "Do what the user asks."
"""The back end of Codex refuses a request without any."""

_BROKE_OFF = {"code": "broken_generation", "message": "the answer broke off: failed"}
"""Error of an answer that failed and does not say why."""
_FINAL = frozenset({"response.completed", "response.incomplete", "response.done"})
_WAITING = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Repeated while nothing happens."""
_LATER = frozenset({"queued", "in_progress", "cancelled"})
"""States of a whole body whose maker is asked for the answer later, by its id."""
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call", "computer_call"})
"""Items that wait for the caller. What the provider runs by itself (a search) does not."""
_TEXTS = frozenset({"", "message", "reasoning"})
"""Items that are text, or say nothing by themselves."""


def body(
    *,
    model: str | None,
    prompt: str,
    earlier: Sequence[Utterance] = (),
    effort: str | None,
    max_output_tokens: int | None,
    is_codex: bool,
) -> dict[str, Any]:
    """The request as JSON. Nothing of it is kept by the provider (`store`)."""
    request: dict[str, Any] = {
        "input": [
            {
                "type": "message",
                "role": role,
                "content": [
                    {"type": "input_text" if role == "user" else "output_text", "text": text}
                ],
            }
            for role, text in turns(earlier, prompt)
        ],
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


class _Text(Struct):
    """The text of one item."""

    pieces: list[str] = field(default_factory=list)
    chars: int = 0

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.chars += len(piece)

    def forget(self) -> None:
        """Keep its length, and whether it is blank."""
        self.pieces = [one.strip()[:1] for one in self.pieces if one.strip()][:1]


class ResponsesParser(HttpParser):
    def __init__(self) -> None:
        super().__init__()
        self._pieces: dict[int, _Text] = {}
        """Texts of the items of the output, by their place, as they came piece by piece."""
        self._items: dict[int, _Text] = {}
        """Texts as the API repeats them whole when an item, or all, is complete."""

    def forget(self) -> None:
        super().forget()
        for one in (*self._pieces.values(), *self._items.values()):
            one.forget()

    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        kind = words(event.get("type")) or name
        response = fields(event.get("response"))
        if "sequence_number" in event:
            self.sequence_number = count(event["sequence_number"])
        self.response_id = words(response.get("id")) or self.response_id
        if kind == "response.failed" or response.get("error"):
            error = response.get("error") or _BROKE_OFF
            return self.fails({"type": "response.failed", "error": error})
        if kind in _FINAL:
            self.has_ended = self.is_over = True
            self._complete(response)
            return [*self.answers(opens=True), self.usage]
        if kind == "error" or states_error(event):
            return self.fails(event)
        return self._read_piece(kind, event)

    def _read_piece(self, kind: str, event: dict[str, Any]) -> list[Observation]:
        piece = words(event.get("delta"))
        match kind:
            case "response.output_text.delta":
                self._pieces.setdefault(place_of(event.get("output_index")), _Text()).add(piece)
                return [*self.answers(), *self.wrote(piece)]
            case "response.refusal.delta":
                self.refusals.append(piece)
                return self.answers()
            case _ if kind.startswith("response.reasoning") and piece:
                return [*self.answers(thinks=True), *self.phase("thinking")]
            case "response.output_item.added":
                return self.answers(opens=True)
            case "response.output_item.done":
                self._read_item(place_of(event.get("output_index")), event.get("item"))
                return self.answers(thinks=fields(event.get("item")).get("type") == "reasoning")
            case _ if self.answered and kind.startswith("response.") and kind not in _WAITING:
                return self.answers(
                    opens=kind.endswith("_part.added"), thinks=kind.startswith("response.reasoning")
                )
            case _:
                return []

    def read_whole(self, value: dict[str, Any]) -> None:
        if isinstance(value.get("output"), list) or value.get("status"):
            self.answered = True
            self.has_ended = bool(value.get("status"))
            self._complete(value)
            if words(value.get("status")) in _LATER:
                self.finish_word = IN_BACKGROUND

    def _complete(self, response: dict[str, Any]) -> None:
        self.response_id = words(response.get("id")) or self.response_id
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
            cost_usd=cost(used),
        )
        items = response.get("output")
        for place, item in enumerate(items if isinstance(items, list) else ()):
            self._read_item(place_of(place), item)
        self._compare()

    def _read_item(self, place: int, item: object) -> None:
        found = fields(item)
        self.has_open_call = words(found.get("type")) in _CALLS
        self.has_other = self.has_other or words(found.get("type")) not in _TEXTS
        content = found.get("content")
        if found.get("type") != "message" or not isinstance(content, list):
            return
        parts = [fields(part) for part in content]
        text = "".join(words(one.get("text")) for one in parts if one.get("type") == "output_text")
        self._items[place] = _Text([text], len(text))
        if not self.refusals:
            self.refusals += [
                words(one.get("refusal")) for one in parts if one.get("type") == "refusal"
            ]

    def _compare(self) -> None:
        """
        Choose between the text of the pieces and the text that the API repeats at the end.

        The repetition is the whole one: a piece of it may have been lost on the way. A shorter
        repetition contradicts what was received; an absent one says nothing.
        """
        repeated = {place: found for place, found in self._items.items() if found.chars}
        for place, found in self._pieces.items():
            if place < MAX_PARTS and repeated.get(place, found).chars < found.chars:
                self.finish_word = self.finish_word or MISMATCH
        whole = sorted({**self._pieces, **repeated}.items())
        self.texts = ["\n\n".join("".join(one.pieces) for _, one in whole if one.chars)]
