"""Single values that state when a limit ends: numbers, spans, instants."""

import re
from datetime import datetime, tzinfo
from typing import Any

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
    """None for what is no clock time: a bare number without minutes and without am/pm."""
    if match["h"] is None or (match["m"] is None and match["ap"] is None):
        return None
    hour, minute = int(match["h"]), int(match["m"] or 0)
    if match["ap"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["ap"][0] in "pP" else 0)
    return (hour, minute) if hour < 24 and minute < 60 else None
