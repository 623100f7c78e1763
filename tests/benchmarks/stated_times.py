"""Whether a moment that the classifier read is the one that a label states."""

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

Item = dict[str, Any]


def is_reset(item: Item, stated_at: float, *, now: float) -> bool:
    """Either form of the label will do: a span within 2 %, or a moment within a minute."""
    span = item["reset_s"]
    if span is not None and abs(stated_at - now - span) <= max(2.0, 0.02 * span):
        return True
    return item["reset_at"] is not None and is_moment(item, stated_at)


def is_moment(item: Item, moment: float) -> bool:
    label = item["reset_at"]
    if isinstance(label, str) and (clock := re.fullmatch(r"T(\d+):(\d\d)(?:\[(.+)\])?", label)):
        shown = datetime.fromtimestamp(moment + 30.0, UTC).astimezone(zone(clock[3]))
        return (shown.hour, shown.minute) == (int(clock[1]), int(clock[2]))
    if isinstance(label, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", label):
        days = datetime.fromtimestamp(moment, UTC).date() - date.fromisoformat(label)
        return abs(days) <= timedelta(days=1)
    wanted = instant(label)
    given = datetime.fromtimestamp(moment, UTC)
    if isinstance(label, str) and str(wanted.year) not in item["text"]:
        given = given.replace(year=wanted.year)  # none was printed
    return abs((given - wanted).total_seconds()) <= 60.0


def instant(label: str | float) -> datetime:
    if isinstance(label, str) and not re.fullmatch(r"[\d.]+", label):
        text = re.sub(r"\[.*\]$", "", label).replace("Z", "+00:00")
        read = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
        return read if read.tzinfo else read.astimezone()
    number = float(label)
    return datetime.fromtimestamp(number / 1000 if number > 1e11 else number, UTC)


def zone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    if offset := re.fullmatch(r"([+-])(\d\d):?(\d\d)", name):
        span = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-span if offset[1] == "-" else span)
    return UTC if name in ("GMT", "Z") else ZoneInfo(name)
