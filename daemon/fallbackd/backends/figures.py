"""
Figures of plans and keys, as providers and agents write them.

| where | share |
| --- | --- |
| `anthropic-ratelimit-unified-5h-utilization` | 0 to 1; a word behind the window names a model |
| `x-codex-primary-used-percent` | 0 to 100; `-window-minutes` says which window it is |
| `x-ratelimit-limit-tokens` and `-remaining-tokens`; `anthropic-ratelimit-tokens-limit` | what is
left of the whole |
| claude's `rate_limit_event` | `utilization` 0 to 1, missing in some builds |
| claude's status line, codex's rollouts, and what either answers when asked | 0 to 100 |

What is missing or of another shape gives no figure: it is never 0 percent.
"""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from fallbackd.backends.lines import fields, words
from fallbackd.classify.reset_fields import moment_or_span, number_in
from fallbackd.core.figures import Figure, Figures, Unit

_WINDOWS = {"5h": 18_000.0, "7d": 604_800.0}
_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(5h|7d)(?:_(\w{1,40}))?-utilization")
_CLAIM = re.compile(r"(five_hour|seven_day)(?:_(\w{1,40}))?")
_CLAIMS = {"five_hour": "5h", "seven_day": "7d"}
_LEFT = re.compile(
    r"(?P<before>anthropic-ratelimit-(?:input-|output-)?(?:requests|tokens)-|x-ratelimit-)remaining"
    r"(?P<behind>(?:-(?:requests|tokens)(?:-(?:day|hour|minute))?)?)"
)
_LENGTHS = {"day": 86_400.0, "hour": 3600.0, "minute": 60.0}


def in_headers(
    headers: Mapping[str, str], *, now: float, model: str | None, credential: str | None
) -> Figures:
    """
    Args:
        model: That was asked: limits of requests and tokens are those of one model.
        credential: Label of the key that made the call.
    """
    if not any("ratelimit" in name or "x-codex" in name for name in headers):
        return ()
    lower = {str(name).lower(): str(text).strip() for name, text in headers.items()}
    found = [
        *_unified(lower, now=now),
        *_codex(lower, now=now),
        *(structs.replace(one, model=model) for one in _counted(lower, now=now)),
    ]
    return tuple(
        structs.replace(one, credential=credential, source="headers", at=now) for one in found
    )


def _unified(headers: Mapping[str, str], *, now: float) -> list[Figure]:
    found = []
    for name, text in headers.items():
        shape = _UNIFIED.fullmatch(name)
        used = number_in(text)
        if shape is not None and used is not None:
            reset = headers.get(name.replace("-utilization", "-reset"))
            found.append(
                Figure(
                    window_s=_WINDOWS[shape[1]],
                    used_percent=used * 100.0,
                    resets_at=_instant(reset, now=now),
                    model=shape[2],
                )
            )
    return found


def _codex(headers: Mapping[str, str], *, now: float) -> list[Figure]:
    found = []
    for name in ("primary", "secondary"):
        used = number_in(headers.get(f"x-codex-{name}-used-percent", ""))
        minutes = number_in(headers.get(f"x-codex-{name}-window-minutes", ""))
        if used is None or not minutes:
            continue
        at = headers.get(f"x-codex-{name}-reset-at")
        after = headers.get(f"x-codex-{name}-reset-after-seconds")
        resets_at = _instant(at or after, now=now)
        found.append(Figure(window_s=minutes * 60.0, used_percent=used, resets_at=resets_at))
    return found


def _counted(headers: Mapping[str, str], *, now: float) -> list[Figure]:
    found = []
    for name, text in headers.items():
        shape = _LEFT.fullmatch(name)
        if shape is None:
            continue
        before, behind = shape["before"], shape["behind"]
        left, limit = number_in(text), number_in(headers.get(f"{before}limit{behind}", ""))
        if left is None or limit is None or limit <= 0 or not 0 <= left <= limit:
            continue
        unit: Unit = "tokens" if "tokens" in name else "requests"
        found.append(
            Figure(
                unit=unit,
                limit=limit,
                left=left,
                used_percent=(limit - left) / limit * 100.0,
                window_s=_LENGTHS.get(behind.rpartition("-")[2]),
                resets_at=_instant(headers.get(f"{before}reset{behind}"), now=now),
            )
        )
    return found


def _instant(text: str | None, *, now: float) -> float | None:
    seconds = None if not text else moment_or_span(text, now=now)
    return None if seconds is None else now + seconds


def in_claude_usage(said: Mapping[str, Any], at: float) -> Figures:
    """Return the figures of the answer to `get_usage`; it is null without a plan or a network."""
    answer = fields(fields(said.get("response")).get("response"))
    limits = fields(answer.get("rate_limits"))
    listed = [(_CLAIM.fullmatch(str(name)), fields(one)) for name, one in limits.items()]
    found = [(_CLAIMS[shape[1]], shape[2], one) for shape, one in listed if shape is not None]
    models = limits.get("model_scoped")
    scoped = map(fields, models if isinstance(models, list) else ())
    found += [("7d", words(one.get("display_name")).lower(), one) for one in scoped]
    return tuple(
        Figure(
            window_s=_WINDOWS[window],
            used_percent=used,
            resets_at=_instant(words(one.get("resets_at")), now=at),
            model=model,
            source="asked",
            at=at,
        )
        for window, model, one in found
        if model != "" and (used := number_in(one.get("utilization"))) is not None
    )


def in_claude_event(info: Mapping[str, Any], *, at: float) -> Figures:
    """
    Return the figures of `rate_limit_info`: of the window that it is about, and all others listed.
    """
    listed = [(words(info.get("rateLimitType")), info)]
    listed += [(str(name), fields(one)) for name, one in fields(info.get("unifiedWindows")).items()]
    found: dict[str, Figure] = {}
    for name, one in listed:
        shape, used = _CLAIM.fullmatch(name), number_in(one.get("utilization"))
        if shape is None or used is None:
            continue
        resets_at = number_in(one.get("resetsAt"))
        found[name] = Figure(
            window_s=_WINDOWS[_CLAIMS[shape[1]]],
            used_percent=used * 100.0,
            resets_at=resets_at if resets_at and resets_at > 1e9 else None,
            model=shape[2],
            source="event",
            at=at,
        )
    return tuple(found.values())
