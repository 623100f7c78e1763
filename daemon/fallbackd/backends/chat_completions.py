"""
OpenAI's chat completions, the dialect of most servers, and `/api/chat` of older Hermes agents.

The latter takes one message, answers with one whole text, and has the key inside the body. It is
used for a `base_url` that ends so, or with `api_mode = "hermes_chat"`.
"""

from collections.abc import Sequence
from typing import Any

from fallbackd.backends.http_answers import (
    HttpParser,
    as_messages,
    native_end,
    numbered,
    states_error,
)
from fallbackd.backends.lines import cost, count, fields, tool_key, words
from fallbackd.backends.outside import started
from fallbackd.core.protocol import Observation, ToolEnded, Usage
from fallbackd_conversations.turns import Utterance

ENDS_WITH = (b"\ndata: [DONE]", b"\ndata:[DONE]")

_TOOLS = "hermes.tool"
"""Begin of the names of events by which an agent behind this API tells of its own tools."""
_READ = frozenset(
    {"role", "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call"}
)
"""Fields of a piece that are read. Objects and lists beside them are of another kind: audio."""
_ENDED = frozenset({"completed", "done", "finished", "failed", "error"})


def body(
    *,
    model: str | None,
    prompt: str,
    earlier: Sequence[Utterance] = (),
    effort: str | None,
    max_output_tokens: int | None,
    host: str,
) -> dict[str, Any]:
    """
    The request as JSON.

    Args:
        host: Of the server: a few refuse fields that others need.
    """
    request: dict[str, Any] = {
        "messages": as_messages(earlier, prompt),
        "stream": True,
    }
    if model:
        request["model"] = model
    # Without it there is no usage in a stream. Mistral answers 422 to it, and sends usage anyway.
    if host != "api.mistral.ai":
        request["stream_options"] = {"include_usage": True}
    if effort:
        request["reasoning_effort"] = effort
    if max_output_tokens:
        # OpenAI's own newer models refuse the old name, other servers do not know the new one.
        name = "max_completion_tokens" if host == "api.openai.com" else "max_tokens"
        request[name] = max_output_tokens
    return request


def _has_unread(delta: dict[str, Any]) -> bool:
    """Check whether a piece carries values under names that no field of the parser is read from."""
    others = (one for name, one in delta.items() if name not in _READ)
    return any(one and isinstance(one, dict | list) for one in others)


class ChatParser(HttpParser):
    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        if name.startswith(_TOOLS):
            return self._tool(name, event)
        choices = numbered(event.get("choices"))
        failed = [one for _, one in choices if one.get("error")]
        if failed or states_error(event):
            return self.fails(event if event.get("error") or not failed else failed[0])
        seen: list[Observation] = []
        for index, choice in choices:
            finish = _end_of(choice)
            piece = fields(choice.get("delta")) or fields(choice.get("message"))
            # A plain text is what the older completions send.
            said = self._piece(piece or {"content": choice.get("text")})
            seen += said or (self.answers(opens=True) if finish else [])
            self.chose(index, finish)
        before = self.usage
        if event.get("usage") and self._used(event) != before:
            seen += [*self.answers(opens=True), self.usage]
        return seen

    def _piece(self, delta: dict[str, Any]) -> list[Observation]:
        """Read one piece of the answer."""
        text = _content(delta.get("content"))
        thought = words(delta.get("reasoning_content")) or words(delta.get("reasoning"))
        refusal = words(delta.get("refusal"))
        called = bool(delta.get("tool_calls") or delta.get("function_call"))
        has_other = called or _has_unread(delta)
        is_said = bool(text or refusal) or has_other
        if not (is_said or thought):
            return []
        seen = self.answers(thinks=not is_said)
        self.has_other |= has_other
        if text or called:
            self.has_open_call = called
        if text:
            seen += self.says(text)
        elif thought:
            seen += self.phase("thinking")
        if refusal:
            self.refusals.append(refusal)
        return seen

    def read_whole(self, value: dict[str, Any]) -> None:
        for index, choice in numbered(value.get("choices")):
            message = fields(choice.get("message"))
            self._piece(message)
            if not self.texts:
                self.texts.append(words(choice.get("text")))
            self.chose(index, _end_of(choice))
            self.answered = True
        self._used(value)

    def _tool(self, name: str, event: dict[str, Any]) -> list[Observation]:
        """Read a tool by its name, which is all that is visible of it."""
        tool = words(event.get("tool")) or words(event.get("name")) or "tool"
        call = words(event.get("toolCallId")) or words(event.get("tool_call_id"))
        if words(event.get("status")) in _ENDED or name.endswith(("completed", "result")):
            return [ToolEnded(call=call)]
        self.answered = True
        key = tool_key(tool, call or event.get("label"))
        return [started(tool, None, call=call, harmless=frozenset(), key=key)]

    def _used(self, value: dict[str, Any]) -> Usage:
        used = fields(value.get("usage"))
        self.usage = Usage(
            input_tokens=count(used.get("prompt_tokens")),
            output_tokens=count(used.get("completion_tokens")),
            cost_usd=cost(used),
        )
        return self.usage


def _end_of(choice: dict[str, Any]) -> str:
    """The vendor's word for its end; empty: more may come."""
    finish = words(choice.get("finish_reason"))
    return finish and native_end(finish, words(choice.get("native_finish_reason")))


def _content(content: object) -> str:
    """A text, or a list of parts of which some are texts."""
    if isinstance(content, list):
        return "".join(words(fields(part).get("text")) for part in content)
    return words(content)


SOURCE = "fallbackd"
"""Name of the caller, for the agent's own log."""

_ANSWER_KEYS = ("response", "reply", "answer", "message", "text", "content", "output", "result")


def hermes_body(*, prompt: str) -> dict[str, Any]:
    return {"message": prompt, "source": SOURCE}


class HermesChatParser(HttpParser):
    """A text, or JSON with a text in one of a few fields."""

    def __init__(self) -> None:
        super().__init__()
        self.is_whole = True

    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        return []

    def read_whole(self, value: dict[str, Any]) -> None:
        if value.get("ok") is False or value.get("success") is False:
            self.fails({"error": value})
            return
        found = (value.get(key) for key in _ANSWER_KEYS)
        self.read_plain(next((one for one in found if isinstance(one, str)), ""))

    def read_plain(self, text: str) -> None:
        self.texts.append(text)
        self.answered = self.has_ended = True
