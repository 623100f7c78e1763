"""Headers and fields of JSON that state when a limit ends."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fallbackd.classify.reset_values import moment_or_span, number_in, read_span, retry_after
from fallbackd.classify.reset_zones import zone_of


class Stated(NamedTuple):
    """`spent` says that the window is known to be used up; False: known not to be; None: unsaid."""

    seconds: float
    spent: bool | None = None
    window: bool = False
    """The end of a quota window, not just advice when to come again."""


# --- headers -----------------------------------------------------------------------------------


def read_headers(headers: Mapping[str, str], *, now: float) -> list[Stated]:
    lower = {str(k).lower(): str(v).strip() for k, v in headers.items()}
    found = [
        Stated(number / 1000.0)
        for name in ("retry-after-ms", "x-ms-retry-after-ms")
        if (number := number_in(lower.get(name, ""))) is not None
    ]
    if "retry-after" in lower and (seconds := retry_after(lower["retry-after"], now)) is not None:
        found.append(Stated(seconds))
    for name, value in lower.items():
        stem, spent = _window_of(name, lower)
        if stem is None:
            continue
        seconds = moment_or_span(value, now=now)
        if seconds is not None:
            found.append(Stated(seconds, spent, window=True))
    return found


def _window_of(name: str, headers: Mapping[str, str]) -> tuple[str | None, bool | None]:
    """The window that a reset header speaks of, and whether its neighbours say it is used up."""
    if "reset" not in name or not re.search(r"rate-?limit|x-codex|quota", name):
        return None, None
    if name.endswith(("-reset-at", "-reset-after-seconds")) and "codex" in name:
        used = number_in(
            headers.get(re.sub(r"-reset-(?:at|after-seconds)$", "-used-percent", name), "")
        )
        return name, None if used is None else used >= 100.0
    status = headers.get(re.sub(r"-reset(?=-|$)", "-status", name))
    if status is not None:
        return name, status == "rejected"
    used = number_in(headers.get(re.sub(r"-reset(?=-|$)", "-utilization", name), ""))
    if used is not None:
        return name, used >= 1.0
    left = headers.get(re.sub(r"-reset(?=-|$)", "-remaining", name))
    number = number_in(left or "")
    return name, None if number is None else number <= 0


# --- JSON --------------------------------------------------------------------------------------

_SPAN_KEYS = {
    "resets_in_seconds", "reset_in_seconds", "resetsinseconds", "retry_after", "retryafter",
    "retry_after_seconds", "reset_after_seconds", "resets_in", "retryafterseconds",
    "estimated_time",
}  # fmt: skip
_SPAN_MS_KEYS = {"retry_after_ms", "retryafterms", "retrydelayms"}
_DELAY_KEYS = {"retrydelay", "quotaresetdelay"}
_MOMENT_KEYS = {
    "resets_at", "resetsat", "reset_at", "resetat", "quotaresettimestamp", "resettime",
    "reset_time", "resets", "nextresettime",
}  # fmt: skip
_HEADER_KEYS = {"headers", "responseheaders", "response_headers"}


def names_spent_window(info: Mapping[str, Any]) -> bool:
    """
    Whether Claude Code's `rate_limit_info` says that a window of the plan is used up.

    The status alone does not: it is `rejected` for a passing throttle too, without a window.
    """
    if info.get("status") != "rejected":
        return False
    windows = info.get("unifiedWindows")
    named = windows.values() if isinstance(windows, Mapping) else ()
    return (
        info.get("rateLimitType") is not None
        or info.get("resetsAt") is not None
        or any(isinstance(one, Mapping) and is_spent(one) is True for one in named)
    )


def is_spent(window: Mapping[str, Any]) -> bool | None:
    """What a JSON object says of the window whose end it states; None: nothing."""
    match window.get("status"):
        case "rejected" | "exhausted":
            return True
        case "allowed" | "allowed_warning":
            return False
    for name, full in (("utilization", 1.0), ("used_percent", 100.0), ("usedPercent", 100.0)):
        if (used := number_in(window.get(name))) is not None:
            return used >= full
    left = number_in(window.get("remaining"))
    return None if left is None else left <= 0


def read_json(value: Any, *, now: float, timezone: str | None, depth: int = 0) -> list[Stated]:
    found: list[Stated] = []
    if depth > 8:
        return found
    if isinstance(value, list):
        for item in value[:50]:
            found += read_json(item, now=now, timezone=timezone, depth=depth + 1)
    if not isinstance(value, Mapping):
        return found
    spent = is_spent(value)
    for key, item in value.items():
        name = str(key).lower()
        if name in _HEADER_KEYS and isinstance(item, Mapping):
            found += read_headers({str(k): str(v) for k, v in item.items()}, now=now)
        elif (seconds := _seconds_of(name, item, now=now, timezone=timezone)) is not None:
            found.append(Stated(seconds, spent, window=spent is not None))
        elif isinstance(item, Mapping | list):
            found += read_json(item, now=now, timezone=timezone, depth=depth + 1)
    return found


def _seconds_of(name: str, item: Any, *, now: float, timezone: str | None) -> float | None:
    """What a field of this name states; None: nothing, or it is none of those that do."""
    number = number_in(item)
    if name in _SPAN_KEYS:
        return read_span(str(item)) if number is None else number
    if name in _SPAN_MS_KEYS:
        return None if number is None else number / 1000.0
    if name in _DELAY_KEYS:
        return read_span(item) if isinstance(item, str) else number
    # 0 and the like state no moment.
    if name in _MOMENT_KEYS and (number is None or number > 1e9):
        return moment_or_span(item, now=now, zone=zone_of(timezone))
    return None
