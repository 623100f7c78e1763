"""
What a limit names: one model, or one key. A limit that names nothing is that of the plan.

| says so | names |
| --- | --- |
| claude: `Opus limit`, `rateLimitType` or representative claim `seven_day_opus` | the model |
| codex: `usage limit for GPT-5.3-Codex-Spark`, an active limit other than `codex` | the model |
| gemini, Antigravity: `capacity on this model`, `quota limit for this model` | the model |
| Google: a quota id with `PerModel`, `limit: 90, model: …` | the model |
| Google: a quota id with `PerProject` alone | the key |
| OpenAI, Groq: `Rate limit reached for gpt-5 in organization …` | the model |
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fallbackd.classify.reset_fields import is_spent
from fallbackd.core.failures import LimitScope

_IS_OF_MODEL = re.compile(r"(?:five_?hour|seven_?day|5h|7d)_(?!oauth)\w|codex[_-]\w", re.I)
"""A window that counts one model: those of the whole plan have no further word."""
_CLAIM_KEYS = ("rateLimitType", "representativeClaim", "representative_claim", "limit_id")
_CLAIM_HEADER = "anthropic-ratelimit-unified-representative-claim"
_WINDOW = re.compile(r"anthropic-ratelimit-unified-((?:5h|7d)\w*)-status")
_ACTIVE_HEADER = "x-codex-active-limit"
_QUOTA_ID = re.compile(r"\b(\w{0,80}per-?(?:project|model)\w{0,80}(?:-\w{1,40})?)", re.I)
_MODEL = re.compile(
    r"\b(?:opus|sonnet|haiku|fable|mythos)\b[- .\d]{0,8}"
    r"(?:(?:weekly|daily|session|usage|hourly|5-hour)[- ]){0,2}(?:limit|quota)\b"
    r"|\b(?:capacity|quota|limit) (?:on|for|of) this model\b|\bmodel quota (?:is )?reached"
    r"|\busage limit for (?!your |the |this )[a-z]\w*[-.][\w.-]+"
    r"|\blimit: \d+, model: \S"
    r"|\brate limit reached for (?:model )?[`\"']?[\w./:@-]*[-.\d][\w./:@-]*[`\"']? (?:in|on)\b"
    r"|\bUserByModelBy",
    re.I,
)


def named_scope(
    texts: Iterable[str], *, headers: Mapping[str, str], bodies: Iterable[Any]
) -> LimitScope | None:
    """What the statement of a limit names; None: nothing, so it is that of the plan."""
    texts = list(texts)
    spent = [*_of_headers(headers), *(one for body in bodies for one in _of_body(body))]
    if spent:  # one window of the whole plan closes all of it
        return "model" if all(_IS_OF_MODEL.match(one) for one in spent) else None
    ids = {one.lower().replace("-", "") for text in texts for one in _QUOTA_ID.findall(text)}
    if ids:
        return "model" if all("permodel" in one for one in ids) else "credential"
    return "model" if any(_MODEL.search(text) for text in texts) else None


def _of_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """Names of the windows that an answer calls spent."""
    for name, value in headers.items():
        name = name.lower()
        if name == _CLAIM_HEADER or (name == _ACTIVE_HEADER and value):
            yield value
        elif (window := _WINDOW.fullmatch(name)) and value == "rejected":
            yield window[1]


def _of_body(body: Any) -> Iterator[str]:
    if isinstance(body, list):
        for one in body[:20]:
            yield from _of_body(one)
    if not isinstance(body, Mapping):
        return
    yield from (claim for key in _CLAIM_KEYS if isinstance(claim := body.get(key), str))
    windows = body.get("unifiedWindows")
    for name, one in windows.items() if isinstance(windows, Mapping) else ():
        if isinstance(one, Mapping) and is_spent(one):
            yield str(name)
