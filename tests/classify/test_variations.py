"""The same message in other clothes is the same failure."""

import json
import textwrap
from collections.abc import Callable

import pytest

from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

NOW = 1785578400.0
MESSAGES = [
    "Error: 429 Too Many Requests, please slow down",
    "Error: You have exceeded your weekly usage limit, it resets in 3 days",
    "Error: insufficient balance, please add credits to your account",
    "Error: Incorrect API key provided",
    "Error: 401 Unauthorized, please log in again",
    "Error: the model is overloaded, please try again later",
    "Error: 503 Service Unavailable",
    "Error: 500 Internal Server Error",
    "Error: the request timed out after 600 seconds",
    "Error: connect ECONNREFUSED 127.0.0.1:8080",
    "Error: getaddrinfo ENOTFOUND api.provider.invalid",
    "Error: prompt is too long: 214000 tokens > 200000 maximum",
    "Error: 413 Request Entity Too Large",
    "Error: model does-not-exist-4 does not exist or you do not have access to it",
    "Error: 400 invalid_request_error: unexpected parameter temperature",
    "Error: the response was blocked by the content filter",
    "Error: Quota exceeded for requests per minute, retry in 12 seconds",
    "Error: stream disconnected before completion: connection reset by peer",
    "Fehler: Zu viele Anfragen, bitte später erneut versuchen",
    "错误：余额不足，请充值后重试",
]


def boxed(text: str) -> str:
    lines = textwrap.wrap(text, 60)
    width = max(map(len, lines))
    inner = "\n".join(f"│ {line.ljust(width)} │" for line in lines)
    return f"╭{'─' * (width + 2)}╮\n{inner}\n╰{'─' * (width + 2)}╯"


VARIATIONS: dict[str, Callable[[str], str]] = {
    "upper case": str.upper,
    "lower case": str.lower,
    "wrapped": lambda text: "\n".join(textwrap.wrap(text, 32)),
    "coloured": lambda text: f"\x1b[31m{text[:8]}\x1b[0m{text[8:]}\x1b[K",
    "a JSON string": json.dumps,
    "escaped": lambda text: json.dumps(f'{{"error": "{text}"}}')[1:-1],
    "in a log": lambda text: f"2026-08-01T10:00:00.123Z ERROR agent.core: {text}",
    "below other lines": lambda text: f"loading tools\nready\n{text}\n",
    "boxed": boxed,
    "in quotes": lambda text: f"«{text}»",
    "in backticks": lambda text: f"`{text}`",
    "without its end": lambda text: text[: int(len(text) * 0.92)],
    "with carriage returns": lambda text: f"ready\r\n{text}\r\n",
    "in a bullet": lambda text: f"✖ {text}",
}


def reason_of(text: str) -> Reason | None:
    failure = classify(Evidence(text=text, stream="unknown", exit_code=1), now=NOW)
    return None if failure is None else failure.reason


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_message_in_other_clothes_is_the_same_failure(name: str) -> None:
    vary = VARIATIONS[name]
    other = {
        text: (reason_of(text), said)
        for text in MESSAGES
        if (said := reason_of(vary(text))) is not reason_of(text)
    }
    assert other == {}


def test_every_message_is_named() -> None:
    assert [text for text in MESSAGES if reason_of(text) in (None, Reason.UNKNOWN)] == []
