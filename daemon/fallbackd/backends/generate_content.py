"""The dialect of Google's own API: `models/NAME:streamGenerateContent` and `:generateContent`."""

import re
from collections.abc import Sequence
from typing import Any

from fallbackd.backends.http_answers import HttpParser, numbered, states_error, turns
from fallbackd.backends.lines import count, fields, words
from fallbackd.core.protocol import Observation, Usage
from fallbackd_conversations.turns import Utterance

_NO_PIECES = frozenset({"text", "thought", "thoughtSignature"})
"""Fields of a part that are read, or say nothing by themselves."""
_BUDGETS = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
"""Tokens of thinking, as Google's chat completions translate an effort for Gemini 2.5."""
_LEVELS = {"minimal": "low", "low": "low", "medium": "high", "high": "high"}
"""Levels of Gemini 3, which knows two."""


def body(
    *,
    model: str,
    prompt: str,
    earlier: Sequence[Utterance] = (),
    effort: str | None,
    max_output_tokens: int | None,
) -> dict[str, Any]:
    """The request as JSON. The model is part of the address."""
    request: dict[str, Any] = {
        "contents": [
            {"role": "user" if role == "user" else "model", "parts": [{"text": text}]}
            for role, text in turns(earlier, prompt)
        ]
    }
    config: dict[str, Any] = {}
    if max_output_tokens:
        config["maxOutputTokens"] = max_output_tokens
    if effort and (thinking := _thinking(model, effort)):
        config["thinkingConfig"] = thinking
    if config:
        request["generationConfig"] = config
    return request


def _thinking(model: str, effort: str) -> dict[str, Any]:
    """Empty for models that refuse the setting."""
    generation = re.search(r"gemini-(\d+)(?:\.(\d+))?", model)
    if generation is None:
        return {}
    if int(generation[1]) >= 3:
        return {"thinkingLevel": _LEVELS.get(effort, "high")}
    if (generation[1], generation[2]) == ("2", "5"):
        return {"thinkingBudget": _BUDGETS.get(effort, _BUDGETS["high"])}
    return {}


class GenerateContentParser(HttpParser):
    may_repeat_end = True

    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        if states_error(event):
            return self.fails(event)
        seen: list[Observation] = []
        for index, candidate in numbered(event.get("candidates")):
            parts = fields(candidate.get("content")).get("parts")
            for part in map(fields, parts if isinstance(parts, list) else ()):
                seen += self._piece(part)
            if finish := words(candidate.get("finishReason")):
                seen += self.answers(opens=True)
            self.chose(index, finish)
        self._blocked(fields(event.get("promptFeedback")))
        before = self.usage
        self._used(fields(event.get("usageMetadata")))
        if self.answered and self.usage != before:
            seen.append(self.usage)
        return seen

    def read_whole(self, value: dict[str, Any]) -> None:
        self.read_event("", value)

    def _piece(self, part: dict[str, Any]) -> list[Observation]:
        text = words(part.get("text"))
        if part.get("functionCall"):
            self.has_open_call = self.has_other = True
            return self.answers()
        if not text:
            # A picture, or code that was run; the signature of a thought alone says nothing.
            is_said = any(value for name, value in part.items() if name not in _NO_PIECES)
            self.has_other = self.has_other or is_said
            return self.answers() if is_said else []
        if part.get("thought") is True:
            return [*self.answers(thinks=True), *self.phase("thinking")]
        self.has_open_call = False
        return [*self.answers(), *self.says(text)]

    def _blocked(self, feedback: dict[str, Any]) -> None:
        """The prompt was refused, and there is no candidate."""
        if reason := words(feedback.get("blockReason")):
            self.refusals.append(words(feedback.get("blockReasonMessage")) or reason)
            self.chose(0, "safety")

    def _used(self, used: dict[str, Any]) -> None:
        """Totals so far. Thinking is output, and billed as such."""
        if not used:
            return
        self.usage = Usage(
            input_tokens=count(used.get("promptTokenCount")),
            output_tokens=count(used.get("candidatesTokenCount"))
            + count(used.get("thoughtsTokenCount")),
        )
