"""The messages of the tests as rows: in our own words, learned from and not scored."""

import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from contrib.weights.fitting import BENIGN, REASONS, SEED
from contrib.weights.hashed_rows import Row, row_of, weighing_less

from fallbackd.classify.weighing import coarse
from fallbackd.core.reasons import Reason

OWN = Path(__file__).parents[2] / "tests/classify/data/messages"

_AROUND = ("", "", "Here is the result.", "All of it is built.", "The docs come next.", "Ready.")
_SHORT = (
    ("Error: 429 Too Many Requests", "rate_limit"),
    ("HTTP 429 Too Many Requests", "rate_limit"),
    ("HTTP 503: the model is overloaded", "overloaded"),
    ("Error: Invalid API key", "auth"),
    ("402 Payment Required", "billing"),
    ("Error: connect ECONNREFUSED 127.0.0.1:8080", "network"),
    ("grep: permission denied", BENIGN),
    ("find: permission denied", BENIGN),
)
"""Said by nothing but themselves, or among sentences of an agent."""
_LINES = (
    ("Error: 429 Too Many Requests", "rate_limit"),
    ("You've reached your plan's limit. Come back in 2 hours.", "usage_limit"),
    ("HTTP 503: the server is at capacity", "overloaded"),
    ("Error: Invalid API key", "auth"),
    ("litellm.RateLimitError: RateLimitError: OpenAIException - Error code: 429", "rate_limit"),
    ("Error: connect ECONNREFUSED 127.0.0.1:8080", "network"),
    ("402 Payment Required", "billing"),
)
_SHOWN = (
    "> {}", '"{}"', "`{}`", "- {}", "* {}", "1. {}", "- [ ] {}", "+{}", "-{}", "```\n{}\n```",
    "```text\n{}\n```", "| {} | yes |", "## {}", "// {}", "⏺ Bash(make)\n  ⎿  {}", "$ make\n{}",
    "⏺ The log says: {}", "I think that '{}' comes from the proxy.", "    {}", "\t{}", "        {}",
)  # fmt: skip
"""Ways to show a line instead of saying it."""


def own_cases() -> list[Row]:
    luck = random.Random(SEED)
    return [*_messages(luck), *_short_ones(luck), *_lines_said_and_shown(luck)]


def _messages(luck: random.Random) -> Iterator[Row]:
    for path in sorted(OWN.glob("*.json")):
        for one in json.loads(path.read_bytes())["messages"]:
            reason = BENIGN if one["reason"] is None else coarse(Reason(one["reason"])).value
            if reason != BENIGN and Reason(reason) not in REASONS:
                continue
            also = one.get("also", [])
            item = {**one, "reason": reason, "also_ok": also, "platform": path.stem}
            yield weighing_less(row_of(item), "own")
            text = one["text"]
            if reason == BENIGN or "\n" in text or len(text) > 160 or one.get("http_status"):
                continue
            for _ in range(2):
                yield weighing_less(row_of({**item, "text": _among(luck, text)}), "around")


def _short_ones(luck: random.Random) -> Iterator[Row]:
    for text, reason in _SHORT:
        for _ in range(6):
            item = {"text": _among(luck, text), "reason": reason, "also_ok": []}
            yield weighing_less(row_of(item), "own")


def _lines_said_and_shown(luck: random.Random) -> Iterator[Row]:
    for (text, reason), shown in product(_LINES, (None, *_SHOWN)):
        shape, said = ("{}", reason) if shown is None else (shown, BENIGN)
        kind, times = ("own", 4) if shown is None else ("shown", 1)
        for _ in range(times):
            item = {"text": _among(luck, shape.format(text)), "reason": said, "also_ok": []}
            yield weighing_less(row_of(item), kind)


def _among(luck: random.Random, text: str) -> str:
    return f"{luck.choice(_AROUND)}\n\n{text}\n\n{luck.choice(_AROUND)}"
