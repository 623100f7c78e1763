"""
A Hermes agent behind its API on loopback.

It speaks chat completions, with events of its own about the tools that it runs; older versions
know only `/api/chat`: one message in, one whole answer out, the key inside of the body. That
shape is used for a `base_url` that ends so, or with `api_mode = "hermes_chat"`.
"""

from typing import Any

import msgspec

from fallbackd.backends import http_calls
from fallbackd.backends.http_answers import RULES, HttpParser
from fallbackd.backends.http_calls import Endpoint
from fallbackd.backends.spec import BackendKind, Options, Parser
from fallbackd.core.protocol import (
    CREDENTIAL,
    HttpRequest,
    Observation,
    Work,
)

KEYS = ("HERMES_API_KEY", "API_SERVER_KEY")
ENDPOINT = Endpoint(
    base_url="http://127.0.0.1:8088", model="hermes", keys=KEYS, vendors=("hermes",)
)

SOURCE = "fallbackd"
"""Who asks, for the agent's own log."""

_ANSWER_KEYS = ("response", "reply", "answer", "message", "text", "content", "output", "result")


def start(work: Work, options: Options) -> HttpRequest:
    request = _own(http_calls.ask(ENDPOINT, work, options))
    if http_calls.mode_of(ENDPOINT, options) != "hermes_chat":
        return request
    has_key = request.credential is not None
    return msgspec.structs.replace(
        request,
        body=msgspec.json.encode({"message": work.prompt, "source": SOURCE}),
        secret_fields={"key": CREDENTIAL} if has_key else {},
        secret_headers={},
    )


def models(work: Work, options: Options) -> HttpRequest:
    return _own(http_calls.ask_models(ENDPOINT, work, options))


def _own(request: HttpRequest) -> HttpRequest:
    """The port is well known, and any user of the machine may be the first to take it."""
    return msgspec.structs.replace(request, own_listener=True)


def parser(options: Options) -> Parser:
    mode = http_calls.mode_of(ENDPOINT, options)
    return OldParser() if mode == "hermes_chat" else http_calls.parser_of(mode)


class OldParser(HttpParser):
    """`/api/chat`: a text, or JSON with a text in one of a few fields."""

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


KIND = BackendKind(
    name="hermes-api",
    start=start,
    parser=parser,
    models=models,
    rules=RULES,
    reads_env=KEYS,
    structured=True,
)
