"""The same message in other clothes is the same failure."""

import json
import textwrap
from collections.abc import Callable
from functools import cache

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


def boxed(text: str, corners: str = "╭╮╰╯─│", width: int = 60) -> str:
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, width) or [""]]
    wide = max(map(len, lines))
    left, right, low, end, ruler, side = corners
    inner = "\n".join(f"{side} {line.ljust(wide)} {side}" for line in lines)
    return f"{left}{ruler * (wide + 2)}{right}\n{inner}\n{low}{ruler * (wide + 2)}{end}"


def wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))


def in_every_line(text: str, before: str) -> str:
    return "\n".join(before + line for line in text.split("\n"))


VARIATIONS: dict[str, Callable[[str], str]] = {
    "upper case": str.upper,
    "lower case": str.lower,
    "without its end": lambda text: text[: int(len(text) * 0.92)],
    "with a full stop": lambda text: f"{text.rstrip('.')}.",
    "wide": lambda text: text.replace(" ", "  "),
    "wrapped": lambda text: wrapped(text, 32),
    "wrapped at 60": lambda text: wrapped(text, 60),
    "partly coloured": lambda text: f"\x1b[31m{text[:8]}\x1b[0m{text[8:]}\x1b[K",
    "coloured": lambda text: f"\x1b[1;31m{text}\x1b[0m",
    "in a bullet": lambda text: f"✖ {text}",
    "behind a mark": lambda text: f"⎿ {text}",
    "behind a level": lambda text: f"[ERROR] {text}",
    "in a log": lambda text: f"2026-08-01T10:00:00.123Z ERROR agent.core: {text}",
    "in the log of a service": lambda text: f"Aug 01 10:00:00 host agent[412]: {text}",
    "indented": lambda text: in_every_line(text, "  "),
    "below other lines": lambda text: f"loading tools\nready\n{text}\n",
    "among empty lines": lambda text: f"\n\n{text}\n\n\n",
    "with carriage returns": lambda text: f"ready\n{text}\n".replace("\n", "\r\n"),
    "boxed": boxed,
    "boxed with corners": lambda text: boxed(text, "┌┐└┘─│", 50),
    "in quotes": lambda text: f"«{text}»",
    "in backticks": lambda text: f"`{text}`",
    "a JSON string": json.dumps,
    "escaped": lambda text: json.dumps(f'{{"error": "{text}"}}')[1:-1],
}


@cache
def reason_of(text: str) -> Reason | None:
    failure = classify(Evidence(text=text, stream="unknown", exit_code=1), now=NOW)
    return None if failure is None else failure.reason


LEAST = 0.98
"""Share of messages that are named alike in two variations, one after the other."""
TWICE = [name for name in VARIATIONS if name != "escaped"]
"""Quoted text is not escaped a second time by any program."""


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_message_in_other_clothes_is_the_same_failure(name: str) -> None:
    vary = VARIATIONS[name]
    other = {
        text: (reason_of(text), said)
        for text in MESSAGES
        if (said := reason_of(vary(text))) is not reason_of(text)
    }
    assert other == {}


@pytest.mark.parametrize("name", TWICE[:-1])
def test_nearly_every_message_in_two_kinds_of_clothes_is_the_same_failure(name: str) -> None:
    varied = [
        (text, reason_of(text), VARIATIONS[other](VARIATIONS[name](text)))
        for text in MESSAGES
        for other in TWICE[TWICE.index(name) + 1 :]
    ]
    others = [(text, said) for _, want, text in varied if (said := reason_of(text)) is not want]
    assert len(others) <= (1 - LEAST) * len(varied), others


def test_every_message_is_named() -> None:
    assert [text for text in MESSAGES if reason_of(text) in (None, Reason.UNKNOWN)] == []
