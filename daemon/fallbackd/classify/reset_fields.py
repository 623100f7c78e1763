"""Headers and fields of JSON that state when a limit ends."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import timezone as fixed_zone
from typing import Any, NamedTuple

# Those that follow daylight saving by themselves are places; the others are what they say.
_PLACES = {"PT": "America/Los_Angeles", "MT": "America/Denver", "CT": "America/Chicago"}
_PLACES |= {"ET": "America/New_York"}
_HOURS = {
    "PST": -8, "PDT": -7, "MST": -7, "MDT": -6, "CST": -6, "CDT": -5, "EST": -5, "EDT": -4,
    "WET": 0, "WEST": 1, "BST": 1, "CET": 1, "CEST": 2, "MEZ": 1, "MESZ": 2, "EET": 2, "EEST": 3,
    "MSK": 3, "IST": 5.5, "SGT": 8, "HKT": 8, "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11,
}  # fmt: skip
ABBREVIATIONS = "|".join(sorted((*_PLACES, *_HOURS), key=len, reverse=True))

PATTERN = (
    r"(?:\s*\(?(?P<zone>(?:UTC|GMT)\s?[+-]\d{1,2}(?::?\d\d)?|UTC|GMT|Z"
    rf"|(?-i:{ABBREVIATIONS})"
    r"|[A-Z][A-Za-z]+(?:/[A-Z][A-Za-z_+-]+\d{0,2}){1,2}|[+-]\d\d:?\d\d)(?![A-Za-z\d])\)?)?"
)
"""A group `zone` behind a clock time, if there is one."""


def zone_of(name: str | None) -> tzinfo | None:
    """Return a zone by name; None: the machine's. An unknown name counts as none."""
    if not name:
        return None
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if match := re.fullmatch(r"(?:UTC|GMT)?\s?([+-])(\d{1,2})(?::?(\d\d))?", name, re.I):
        sign = -1 if match[1] == "-" else 1
        from_utc = timedelta(hours=int(match[2]), minutes=int(match[3] or 0)) * sign
        return fixed_zone(from_utc) if abs(from_utc) < timedelta(hours=24) else None
    if name in _HOURS:
        return fixed_zone(timedelta(hours=_HOURS[name]))
    from zoneinfo import ZoneInfo  # slow to load, and rarely needed

    try:
        return ZoneInfo(_PLACES.get(name, name))
    except (KeyError, ValueError, OSError):
        return None


_UNITS = (
    (r"w(?:ee)?ks?|w", 604800.0),
    (r"days?|d", 86400.0),
    (r"hours?|hrs?|h", 3600.0),
    (r"min(?:ute)?s?|m(?!s)", 60.0),
    (r"ms|milliseconds?", 0.001),
    (r"sec(?:ond)?s?|s", 1.0),
)
_UNIT = "|".join(unit for unit, _ in _UNITS)
_AMOUNT = rf"(?<![\d.])(\d{{1,9}}(?:\.\d{{1,9}})?)\s*-?({_UNIT})(?![a-z])"
SPAN = re.compile(rf"{_AMOUNT}(?:\s*(?:,|and)?\s*{_AMOUNT}){{0,5}}", re.I)
_ONE = re.compile(_AMOUNT, re.I)


def read_span(text: str) -> float | None:
    """`18h7m24s`, `2 days 17 hours`, `in 20 seconds` (only the span itself) to seconds."""
    text = text.strip()
    return span_seconds(text) if SPAN.fullmatch(text) else None


def span_seconds(text: str) -> float:
    total = 0.0
    for amount, unit in _ONE.findall(text):
        for pattern, seconds in _UNITS:
            if re.fullmatch(pattern, unit, re.I):
                total += float(amount) * seconds
                break
    return total


def retry_after(value: str, now: float) -> float | None:
    if (number := number_in(value)) is not None:
        return number
    try:
        return http_date(value) - now
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def http_date(text: str) -> float:
    """Raises TypeError, ValueError, IndexError or OverflowError for what is no date."""
    from email.utils import parsedate_to_datetime  # slow to load, and rarely needed

    return parsedate_to_datetime(text).timestamp()


def number_in(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    text = str(value).strip()
    return float(text) if re.fullmatch(r"-?\d{1,15}(?:\.\d{1,9})?", text) else None


def moment_or_span(value: Any, *, now: float, zone: tzinfo | None = None) -> float | None:
    """Seconds from now out of an epoch (s or ms), ISO 8601, HTTP date, `1m30s` or plain seconds."""
    number = number_in(value)
    if number is not None:
        if number > 1e11:
            return number / 1000.0 - now
        return number - now if number > 1e9 else number
    text = str(value).strip()
    if (span := read_span(text)) is not None:
        return span
    if (moment := iso_instant(text, zone)) is not None:
        return moment - now
    return retry_after(text, now)


def iso_instant(text: str, zone: tzinfo | None) -> float | None:
    text = re.sub(r"\s*(?:UTC|GMT|Z)$", "+00:00", text.strip(), flags=re.I).replace(" ", "T", 1)
    text = re.sub(r"(\.\d{6})\d+", r"\1", text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone) if zone is not None else moment.astimezone()
    return moment.timestamp()


def hour_minute(match: re.Match[str]) -> tuple[int, int] | None:
    """
    Read a clock time; None for anything else: a bare number without minutes and without am/pm.
    """
    if match["h"] is None or (match["m"] is None and match["ap"] is None):
        return None
    hour, minute = int(match["h"]), int(match["m"] or 0)
    if match["ap"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["ap"][0] in "pP" else 0)
    return (hour, minute) if hour < 24 and minute < 60 else None


class Stated(NamedTuple):
    """`spent` says that the window is known to be used up; False: known not to be; None: unsaid."""

    seconds: float
    spent: bool | None = None
    window: bool = False
    """The end of a quota window, not just advice when to come again."""


# Headers.


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


# JSON.

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
    Check whether Claude Code's `rate_limit_info` says that a window of the plan is used up.

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
    """
    Check whether a JSON object calls the window spent whose end it states; None: it does not say.
    """
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
    """The time that a field of this name states; None: nothing, or it is none of those that do."""
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
