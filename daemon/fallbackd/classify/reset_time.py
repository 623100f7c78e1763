"""
Every way in which a provider states when a limit ends, read to seconds from now.

Headers and JSON fields first, then sentences. What a program says about its own back-off
(`Retrying after 14877231ms`) is not the end of a limit.

Sentences of other languages are put into the English that is read: only the words that announce a
time, units and months. English itself passes there only where a number has other digits.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

from fallbackd.classify.languages import phrases_in, plain, words_of
from fallbackd.classify.reset_fields import (
    PATTERN,
    SPAN,
    Stated,
    hour_minute,
    http_date,
    iso_instant,
    moment_or_span,
    number_in,
    read_headers,
    read_json,
    span_seconds,
    zone_of,
)

MAX_BELIEVABLE_S = 400 * 86400.0
"""A stated time further away than a year is a misread number."""
MAX_PAST_S = 10 * 365 * 86400.0
"""An old output may be read much later."""


MAX_SENTENCE_CHARS, MAX_BROKEN_CHARS = 1_500, 600
"""Of a longer message the beginning and the end are read."""


def seconds_until_reset(
    *,
    texts: Iterable[str] = (),
    headers: Mapping[str, str] | None = None,
    bodies: Iterable[Any] = (),
    now: float,
    timezone: str | None = None,
) -> float | None:
    """
    Find when the limit ends.

    Args:
        texts: Messages of the provider.
        headers: Names in any case.
        bodies: Parsed JSON values.
        timezone: IANA name for clock times without a zone; None: the machine's.

    Returns:
        Seconds from `now`, negative for a time that has passed; None where nothing is stated.
    """
    found = list(read_headers(headers or {}, now=now))
    for body in bodies:
        found.extend(read_json(body, now=now, timezone=timezone))
    for text in texts:
        if _choose(found) is not None:
            break
        seconds = read_sentence(text, now=now, timezone=timezone)
        if seconds is not None:
            found.append(Stated(seconds))
    return _choose(found)


def seconds_until_midnight(zone: str | tzinfo | None, *, now: float) -> float:
    """Seconds from `now` to the end of the day in a zone (one, or an IANA name)."""
    here = _local(now, zone_of(zone) if isinstance(zone, str) else zone)
    then = (here + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return then.timestamp() - now


def _choose(found: list[Stated]) -> float | None:
    """Spent windows go before advice; windows that are not spent are ignored; else the longest."""
    believable = [s for s in found if -MAX_PAST_S < s.seconds < MAX_BELIEVABLE_S]
    # What is over is the last resort: it may be a window that an old answer speaks of.
    believable = [s for s in believable if s.seconds >= -60.0] or believable
    ranked = [(_rank(s), s.seconds) for s in believable if s.spent is not False]
    return max(ranked)[1] if ranked else None


def _rank(stated: Stated) -> int:
    if stated.spent:
        return 2
    return 0 if stated.window else 1


# Sentences.

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?:{'|'.join(_MONTHS)})[a-z]*\.?"
_CLOCK = r"(?P<h>\d{1,2})(?::(?P<m>\d\d))?(?::\d\d)?\s*(?P<ap>[ap]\.?m\.?)?"
_ZONE = PATTERN
# Sentences are read with every run of white space made one space.
_BEFORE = (
    r"(?:resets?|resetting|again|available|regain access|retry(?:ing)?|renews?|refresh(?:es)?"
    r"|ends?|until|expires?|return|continuing|resumes?|using this model|refills?|opens?|restarts?"
    r"|unlocks?|lifts?|lifted|back)"
    r"(?: (?:again|after|at|on|in|about|around|approximately|by|will|be|is|time|limit|window"
    r"|automatically"
    r"|usage|quota|the)){0,6}(?: ?:)? ~?"
)
_OWN_BACKOFF = re.compile(
    r"retrying (?:\d+/\d+ )?(?:again )?(?:after|in)\s+\d+(?:\.\d+)?(?![\d.])\s*"
    r"(?![hd\s])\w+(?:\s+\d+\s*s\b)?"
    r"|waiting (?:for )?\d+(?:\.\d+)? ?(?:s|sec|seconds)\b"
    r"|\bcool(?:ing)?[- ]?down\W{1,3}(?:for )?\d+(?:\.\d+)? ?\w*"
    r"|\battempt \d+/\d+"
    r"|\bdate\W{1,6}\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d(?: GMT)?"
    # In milliseconds; what is longer than two minutes was stated to the program.
    r"|(?:retry_?delay_?ms\W+(?:1[01]\d{4}|\d{1,5})(?!\d)|total_?retry_?delay\W+\d+)",
    re.I,
)
_OWN_BACKOFF_S = 120.0


def _unless_stated(found: re.Match[str]) -> str:
    """A wait longer than any back-off is one that the provider has stated."""
    is_counted = found[0].lower().startswith("retrying") and "ms" not in found[0].lower()
    return found[0] if is_counted and span_seconds(found[0]) >= _OWN_BACKOFF_S else " "


_IN_SPAN = re.compile(
    rf"(?:{_BEFORE}|\b(?:in|after|for|wait)\s+(?:about |approximately |~)?){SPAN.pattern}", re.I
)
_ISO = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?\s*(?:Z|UTC|GMT|[+-]\d\d:?\d\d)?(?![\d:])",
    re.I,
)
_ISO_AT = re.compile(r"(?P<d>\d{4}-\d\d-\d\d) at (?P<t>\d\d:(?:\d\d)?) ?(?P<z>UTC)?", re.I)
_NAMED_DATE = re.compile(
    rf"\b(?P<mon>{_MONTH})\s+(?P<day>\d{{1,2}})(?!\d)(?:st|nd|rd|th)?(?:,?\s+(?P<year>\d{{4}}))?"
    rf"(?:,?\s*(?:at\s+)?{_CLOCK})?{_ZONE}",
    re.I,
)
_DAY_FIRST = re.compile(
    rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?P<mon>{_MONTH})(?:,?\s+(?P<year>\d{{4}}))?"
    rf"(?:,?\s*(?:at\s+)?{_CLOCK})?{_ZONE}",
    re.I,
)
_NUMBERED_DATE = re.compile(
    rf"\b(?P<mon>\d{{1,2}})[/-](?P<day>\d{{1,2}})(?:/(?P<year>\d{{4}}))?(?![\d/-])"
    rf"(?:,?\s*(?:at\s+)?{_CLOCK})?{_ZONE}",
    re.I,
)
"""Month first, as the services print it that print dates like this."""
_ON = re.compile(r"\b(?:on|at|by|until|after|resets?) $", re.I)
_WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_WEEKDAY_AT = re.compile(
    rf"\b(?P<day>(?:{'|'.join(_WEEKDAYS)}))[a-z]{{0,6}}\.?,?\s+(?:at\s+)?{_CLOCK}{_ZONE}", re.I
)
_TOMORROW = re.compile(r"\b(?:return|again|back|available|resets?|until) tomorrow\b(?! at)", re.I)
_TOMORROW_AT = re.compile(rf"\btomorrow,? (?:at )?{_CLOCK}{_ZONE}", re.I)
_MIDNIGHT = re.compile(rf"\b(?:at |until )midnight{_ZONE}", re.I)
_DAY_ONLY = re.compile(r"\b(?:at|on|until|by) (?P<day>\d{4}-\d\d-\d\d)(?![T\d]| \d| at)", re.I)
_HTTP_DATE = re.compile(
    r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d (?:GMT|[+-]\d{4})"
)
_EPOCH = re.compile(r"(?P<bar>\|)?(?<![\d.])(?P<s>1[6-9]\d{8})(?P<ms>\d{3})?(?![\d.])")
_CLOCK_AT = re.compile(rf"{_BEFORE}{_CLOCK}{_ZONE}(?!\s*[\w-]*(?:%|tokens|requests))", re.I)
_KEYED = re.compile(
    r"(?P<key>resets_?in_?seconds|resets_?at|retry_?delay(?:_?ms)?|quota_?reset_?delay"
    r"|retry-after(?:-ms)?|(?:x-)?ratelimit-reset(?:-(?:requests|tokens))?|estimated_time)"
    r"(?:\\?[\"'])?\s*(?:[:=]\s*(?:\\?[\"'])?|\{ seconds: )(?P<value>[\w.:+-]+)",
    re.I,
)
_AT_ONCE = re.compile(
    rf"\bresets?(?: at)? (?P<h>\d{{1,2}})(?::(?P<m>\d\d))? ?(?P<ap>[ap]m)\b{_ZONE}", re.I
)
"""Clock so near to its verb that a span around it (`worked for 5m 20s`) is of something else."""


_WINDOW_CLAUSE = re.compile(
    r"(?:;|\||\n|\.\s|,\s(?=(?:and |but )?(?:the |your )?(?:\d+[- ]?(?:h|day)|daily|weekly"
    r"|monthly|hourly|session|primary|secondary|seven|five|opus|sonnet)))",
    re.I,
)
_SHARE = re.compile(
    r"(?<![\d.])(?P<share>\d{1,3}(?:\.\d{1,3})?) ?% (?:of \w+ )?"
    r"(?:(?P<used>used|utili[sz]ed|consumed|spent)|left|remaining|available)\b",
    re.I,
)


def _without_unspent(text: str) -> str:
    """Leave out what a message says of windows that are not used up, of several that it lists."""
    if not _SHARE.search(text):
        return text
    kept = []
    for clause in _WINDOW_CLAUSE.split(text):
        found = _SHARE.search(clause)
        if found is not None:
            share = float(found["share"])
            if (share < 100.0) if found["used"] else (share > 0.0):
                continue
        kept.append(clause)
    return "\n".join(kept)


_LOG_STAMP = re.compile(
    r"[ \t]*(?:(?:trace|debug|info|notice|warn(?:ing)?|err(?:or)?|fatal|critical)[: \t]{1,8})?"
    rf"[\[(]?(?:[IWEF]\d{{4}} |\d{{4}}[-/]\d\d[-/]\d\d[T ]|{_MONTH} {{1,2}}\d{{1,2}} )?"
    r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})? ?(?:Z|UTC|[+-]\d\d:?\d\d)?[\])]?"
    r"(?=[ \t:|]+\S)",
    re.I,
)
_RUNS_ON = re.compile(r"\b(?:at|on|in|by|until|after|from|is|resets?)[:\s]*$", re.I)


def _without_log_stamps(text: str) -> str:
    """Leave out when each line was written; a sentence that was wrapped keeps its time."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        stamp = _LOG_STAMP.match(line)
        if stamp and not (at and _RUNS_ON.search(lines[at - 1][-20:])):
            lines[at] = line[stamp.end() :]
    return "\n".join(lines)


def read_sentence(text: str, *, now: float, timezone: str | None = None) -> float | None:
    """Seconds from now that a message states, or None."""
    if len(text) > MAX_SENTENCE_CHARS:
        text = f"{text[: MAX_SENTENCE_CHARS // 2]}\n{text[-MAX_SENTENCE_CHARS // 2 :]}"
    text = _without_log_stamps(plain_digits(text))
    text = _without_unspent(_OWN_BACKOFF.sub(_unless_stated, text))
    seconds = _read_flat(" ".join(text.split()), now=now, timezone=timezone)
    if seconds is None and "\n" in text and len(text) <= MAX_BROKEN_CHARS:
        # Some terminals break lines inside words ("try a\ngain at").
        joined = " ".join(text.replace("\n", "").split())
        seconds = _read_flat(joined, now=now, timezone=timezone)
    if seconds is None and (english := to_english(" ".join(text.split()))) is not None:
        seconds = _read_flat(english, now=now, timezone=timezone)
    return seconds


def _read_flat(flat: str, *, now: float, timezone: str | None) -> float | None:
    zone = zone_of(timezone)
    for read in _READERS:
        if (seconds := read(flat, now, zone)) is not None:
            return seconds
    return None


def _stated_instant(flat: str, now: float, zone: tzinfo | None) -> float | None:
    moment = _instant(flat, now=now, zone=zone)
    return None if moment is None else moment - now


def _dated(flat: str, now: float, zone: tzinfo | None) -> float | None:
    dates = (_NAMED_DATE, _DAY_FIRST, _NUMBERED_DATE)
    for match in (one for pattern in dates for one in pattern.finditer(flat)):
        before = flat[: match.start()]
        if match.re is _NUMBERED_DATE and not match["year"] and not _ON.search(before):
            continue  # `8/10 completed`
        if _speaks_of_reset(before):
            seconds = _named_date(match, now=now, zone=zone)
            if seconds is not None:
                return seconds
    return None


def _at_once(flat: str, now: float, zone: tzinfo | None) -> float | None:
    found = [s for m in _AT_ONCE.finditer(flat) if (s := _clock(m, now=now, zone=zone))]
    return found[-1] if found else None


def _span(flat: str, now: float, zone: tzinfo | None) -> float | None:
    spans = [m for m in _IN_SPAN.finditer(flat) if _speaks_of_reset(flat[: m.end()])]
    return max((span_seconds(m[0]) for m in spans), default=None)


def _tomorrow(flat: str, now: float, zone: tzinfo | None) -> float | None:
    for match in _TOMORROW_AT.finditer(flat):
        if (found := hour_minute(match)) is not None:
            return _on_day(found, match, days=1, now=now, zone=zone)
    return seconds_until_midnight(zone, now=now) if _TOMORROW.search(flat) else None


def _weekday(flat: str, now: float, zone: tzinfo | None) -> float | None:
    for match in _WEEKDAY_AT.finditer(flat):
        if _speaks_of_reset(flat[: match.start()]) and (found := hour_minute(match)) is not None:
            today = _local(now, zone_of(match["zone"]) or zone).weekday()
            days = (_WEEKDAYS.index(match["day"].lower()) - today) % 7
            seconds = _on_day(found, match, days=days, now=now, zone=zone)
            return seconds if seconds > -60.0 else seconds + 7 * 86400.0
    return None


def _midnight(flat: str, now: float, zone: tzinfo | None) -> float | None:
    found = _MIDNIGHT.search(flat)
    if found is None or not _speaks_of_reset(flat[: found.end()]):
        return None
    return _on_day((0, 0), found, days=1, now=now, zone=zone)


def _clock_time(flat: str, now: float, zone: tzinfo | None) -> float | None:
    clocks = (_clock(match, now=now, zone=zone) for match in _CLOCK_AT.finditer(flat))
    return next((s for s in reversed(list(clocks)) if s is not None), None)


def _iso_in(flat: str, *, now: float, zone: tzinfo | None) -> float | None:
    for match in _ISO.finditer(flat):
        moment = iso_instant(match[0], zone)
        is_near = moment is not None and moment - now > -MAX_BELIEVABLE_S
        if is_near and _speaks_of_reset(flat[: match.start()]):
            return moment
    return None


def _instant(flat: str, *, now: float, zone: tzinfo | None) -> float | None:
    """A date and time in the forms that machines print."""
    if match := _HTTP_DATE.search(flat):
        return http_date(match[0])
    for match in _EPOCH.finditer(flat):
        if match["bar"] or _speaks_of_reset(flat[: match.start()]):
            return float(match["s"])
    if match := _ISO_AT.search(flat):
        hour, minute = match["t"][:2], match["t"][3:] or "00"
        stated = f"{match['d']}T{hour}:{minute}:00{'Z' if match['z'] else ''}"
        if (moment := iso_instant(stated, zone)) is not None:
            return moment
    if (moment := _iso_in(flat, now=now, zone=zone)) is not None:
        return moment
    day = _DAY_ONLY.search(flat)
    if day and _speaks_of_reset(flat[: day.start()]):
        return iso_instant(f"{day['day']}T00:00:00", zone)
    return None


def _keyed(flat: str, now: float, zone: tzinfo | None) -> float | None:
    """Fields of JSON that is quoted inside a message."""
    best: float | None = None
    for match in _KEYED.finditer(flat):
        key = match["key"].lower()
        value: float | None = None
        if key.endswith("ms"):
            number = number_in(match["value"])
            value = None if number is None else number / 1000.0
        else:
            number = number_in(match["value"])
            if not (key.endswith("at") and number is not None and number < 1e9):
                value = moment_or_span(match["value"], now=now)
        if value is not None and value < MAX_BELIEVABLE_S:
            best = value if best is None else max(best, value)
    return best


def _speaks_of_reset(before: str) -> bool:
    return bool(
        re.search(
            r"reset|again|retry|wait|resume|\bnext ?[=:]|available|regain|renew|refresh|refill"
            r"|\bopens?\b|restart|unlock|\blift|\bback\b"
            r"|until|expire|return|重置|将在|恢复|reinicia|will end",
            before[-160:],
            re.I,
        )
    )


def _local(now: float, zone: tzinfo | None) -> datetime:
    utc = datetime.fromtimestamp(now, UTC)
    return utc.astimezone(zone)  # astimezone(None) is the machine's zone


def _clock(match: re.Match[str], *, now: float, zone: tzinfo | None) -> float | None:
    """The next time at which a clock in that zone shows this."""
    found = hour_minute(match)
    if found is None:
        return None
    here = _local(now, zone_of(match["zone"]) or zone)
    then = here.replace(hour=found[0], minute=found[1], second=0, microsecond=0)
    seconds = then.timestamp() - now
    # A minute ago is now: messages state whole minutes.
    return max(0.0, seconds) if seconds > -60.0 else (then + timedelta(days=1)).timestamp() - now


def _on_day(
    clock: tuple[int, int],
    match: re.Match[str],
    *,
    days: int,
    now: float,
    zone: tzinfo | None,
) -> float:
    """Seconds until that time of day, some days from today as the zone counts them."""
    here = _local(now, zone_of(match["zone"]) or zone) + timedelta(days=days)
    then = here.replace(hour=clock[0], minute=clock[1], second=0, microsecond=0)
    return then.timestamp() - now


def _named_date(match: re.Match[str], *, now: float, zone: tzinfo | None) -> float | None:
    name, number = match["mon"], int(match["day"])
    month = int(name) if name.isdigit() else _MONTHS.index(name[:3].lower()) + 1
    if month > 12 >= number:
        month, number = number, month  # the day stands first
    used = zone_of(match["zone"]) or zone
    here = _local(now, used)
    hour, minute = hour_minute(match) or (0, 0)
    year = int(match["year"]) if match["year"] else here.year
    try:
        day = date(year, month, number)
    except ValueError:
        return None
    then = here.replace(
        year=day.year,
        month=day.month,
        day=day.day,
        hour=hour,
        minute=minute,
        second=0,
        microsecond=0,
    )
    if not match["year"] and then.timestamp() < now - 86400.0:
        then = then.replace(year=year + 1)
    return then.timestamp() - now


_READERS = (
    _keyed,
    _stated_instant,
    _dated,
    _at_once,
    _span,
    _tomorrow,
    _weekday,
    _midnight,
    _clock_time,
)
"""Readers, the most exact statement first."""


_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹0123456789", "0123456789" * 3)
_HAN_NUMBERS = {"一": 1, "两": 2, "兩": 2, "二": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7}
_HAN_NUMBERS |= {"八": 8, "九": 9, "十": 10}

_ANNOUNCING = frozenset({"resets", "try again later"})
_UNITS = ("ms", "seconds", "minutes", "hours", "days", "weeks")
_INFLECTED = r"[^\W\d_\u3040-\u30ff\u4e00-\ud7af]{0,4}"
"""Rest of a word whose beginning is known; scripts that divide no words have none."""
_AMOUNT = r"\d{1,9}(?:[.,]\d{1,3})? (?:ms|seconds|minutes|hours|days|weeks)"
_AND = r"\s{0,3}(?:und|et|y|e|i|и|و|和|,)?\s{0,3}"
_SPAN = re.compile(rf"{_AMOUNT}(?:{_AND}{_AMOUNT}){{0,4}}")
_FOREIGN_CLOCK = re.compile(
    r"(?<![\d:])(?P<h>[01]?\d|2[0-3])\s?(?:[:h]\s?(?P<m>[0-5]\d)(?!\d|\.\d)|\.(?P<p>[0-5]\d)(?![\d.])"
    r"|[時时点點](?:\s?(?P<n>[0-5]?\d)\s?分)?|시(?!간)(?:\s?(?P<o>[0-5]?\d)\s?분)?)"
)
_HAN_DATE = re.compile(r"(?:(\d{4})[年년]\s?)?(\d{1,2})[月월]\s?(\d{1,2})[日일]")
_FOREIGN_DATE = re.compile(
    r"(?<![\d/.])(?P<a>\d{1,2})"
    r"(?:\.(?P<b>\d{1,2})\.(?!\d)|/(?P<c>\d{1,2})(?=,? \d{1,2}:\d\d))"
)
_FOREIGN_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?", re.I)
MAX_DISTANCE = 60
"""Largest distance between the words that announce a time and the time, in characters."""


def plain_digits(text: str) -> str:
    return text if text.isascii() else text.translate(_DIGITS)


@lru_cache(maxsize=1)
def _foreign_patterns() -> tuple[
    tuple[tuple[re.Pattern[str], str], ...], re.Pattern[str], re.Pattern[str]
]:
    """Units behind a number, a unit without one, and dates with the name of a month."""
    units = tuple(
        (re.compile(rf"(?<=\d)\s*(?:{words_of(unit)}){_INFLECTED}"), f" {unit} ") for unit in _UNITS
    )
    every = "|".join(map(words_of, _UNITS[1:]))
    one = re.compile(rf"(?<!\w)(?:{words_of('one')}) (?=(?:{every}))")
    months = "|".join(f"(?P<{month}>{words_of(month)})" for month in _MONTHS)
    date = re.compile(
        rf"\b(?P<day>\d{{1,2}})(?:\.|º|er)? (?:de )?(?:{months}){_INFLECTED}"
        r"\.?(?: (?:de )?(?P<year>\d{4}))?"
    )
    return units, one, date


_SHORT_UNITS = {"s": "seconds", "min": "minutes", "h": "hours"}
_SHORT_UNIT = re.compile(r"(?<=\d)\s?(s|min|h)(?![\w:])")


def _with_english_units(text: str) -> str:
    text = re.sub(
        r"[一两兩二三四五六七八九十](?=\s?[个個]?(?:秒|分|小|時|天|日|周|週|星))",
        lambda found: str(_HAN_NUMBERS[found[0]]),
        text,
    )
    units, one, _ = _foreign_patterns()
    text = one.sub("1 ", text)
    text = _SHORT_UNIT.sub(lambda found: f" {_SHORT_UNITS[found[1]]} ", text)
    for pattern, unit in units:
        text = pattern.sub(unit, text)
    return text


def _near(pattern: re.Pattern[str], text: str, cues: Sequence[int]) -> re.Match[str] | None:
    """The first one that stands near the words that announce a time."""
    for found in pattern.finditer(text):
        first, last = found.start() - MAX_DISTANCE, found.end() + MAX_DISTANCE
        if any(first <= cue <= last for cue in cues):
            return found
    return None


def _foreign_clock(clock: re.Match[str] | None, text: str) -> str:
    if clock is None:
        return ""
    hour, minute = int(clock["h"]), next(filter(None, clock.groups()[1:]), "00")
    is_afternoon = re.search(rf"(?:{words_of('pm')})\s?$", text[: clock.start()]) is not None
    return f" at {hour + 12 if is_afternoon and hour < 12 else hour}:{minute:0>2}"


def _foreign_day(text: str, cues: Sequence[int]) -> tuple[str, str] | None:
    """Month and day in English, and the year with a comma before it."""
    found = _near(_HAN_DATE, text, cues)
    if found and 1 <= int(found[2]) <= 12:
        return f"{_MONTHS[int(found[2]) - 1]} {found[3]}", f", {found[1]}" if found[1] else ""
    if found := _near(_foreign_patterns()[2], text, cues):
        month = next(one for one in _MONTHS if found[one])
        return f"{month} {found['day']}", f", {found['year']}" if found["year"] else ""
    found = _near(_FOREIGN_DATE, text, cues)
    return None if found is None else _numbered_day(found)


def _numbered_day(found: re.Match[str]) -> tuple[str, str] | None:
    first, second = int(found["a"]), int(found["b"] or found["c"])
    # With a point the day stands first, with a stroke the month, unless it cannot be one.
    number, of = (second, first) if found["c"] and first <= 12 else (first, second)
    return (f"{_MONTHS[of - 1]} {number}", "") if 1 <= of <= 12 and 1 <= number <= 31 else None


def to_english(text: str) -> str | None:
    """`resets in 3 hours`, `resets at 15:00`, …; None where no other language states a time."""
    text = plain(text)
    cues = _announced(text)
    if not cues:
        return None
    if found := _near(_FOREIGN_ISO, text, cues):
        return f"resets at {found[0]}"
    at = _foreign_clock(_near(_FOREIGN_CLOCK, text, cues), text)
    if (day := _foreign_day(text, cues)) is not None:
        return f"resets {day[0]}{day[1]}{at}"
    text = _with_english_units(text)
    found = _near(_SPAN, text, _announced(text))
    if found and not found[0].endswith("ms"):  # a program's own back-off is counted in these
        span = re.sub(rf"(?<=[a-z]){_AND}(?=\d)", " ", found[0])
        return f"resets in {span.replace(',', '.')}"
    if at:
        return f"resets{at}"
    zone = " UTC" if "utc" in text else ""
    if re.search(words_of("midnight"), text):
        return f"resets at midnight{zone}"
    return (
        "resets again tomorrow" if re.search(rf"(?<!\w)(?:{words_of('tomorrow')})", text) else None
    )


def _announced(text: str) -> list[int]:
    return [at for at, english in phrases_in(text) if english in _ANNOUNCING]
