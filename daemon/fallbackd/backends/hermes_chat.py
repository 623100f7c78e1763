"""
`/api/chat` of older Hermes agents: one message in, one whole answer out, the key inside the body.

It is used for a `base_url` that ends so, or with `api_mode = "hermes_chat"`.
"""

from typing import Any

from fallbackd.backends.http_answers import HttpParser
from fallbackd.core.protocol import Observation

SOURCE = "fallbackd"
"""Who asks, for the agent's own log."""

_ANSWER_KEYS = ("response", "reply", "answer", "message", "text", "content", "output", "result")


def body(*, prompt: str) -> dict[str, Any]:
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
