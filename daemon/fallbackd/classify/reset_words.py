"""
Sentences of other languages about the end of a limit, put into the English that is read.

Only what is needed for a time: the words that announce it, units, months. English itself passes
through here only where a number has other digits.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from fallbackd.classify.languages import phrases_in, plain, words_of

_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹0123456789", "0123456789" * 3)
_HAN_NUMBERS = {"一": 1, "两": 2, "兩": 2, "二": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7}
_HAN_NUMBERS |= {"八": 8, "九": 9, "十": 10}

_ANNOUNCING = frozenset({"resets", "try again later"})
_UNITS = ("ms", "seconds", "minutes", "hours", "days", "weeks")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_INFLECTED = r"[^\W\d_\u3040-\u30ff\u4e00-\ud7af]{0,4}"
"""Of a word whose beginning is known; scripts that divide no words have none."""
_AMOUNT = r"\d{1,9}(?:[.,]\d{1,3})? (?:ms|seconds|minutes|hours|days|weeks)"
_AND = r"\s{0,3}(?:und|et|y|e|i|и|و|和|,)?\s{0,3}"
_SPAN = re.compile(rf"{_AMOUNT}(?:{_AND}{_AMOUNT}){{0,4}}")
_CLOCK = re.compile(
    r"(?<![\d:])(?P<h>[01]?\d|2[0-3])\s?(?:[:h]\s?(?P<m>[0-5]\d)(?!\d|\.\d)|\.(?P<p>[0-5]\d)(?![\d.])"
    r"|[時时点點](?:\s?(?P<n>[0-5]?\d)\s?分)?|시(?!간)(?:\s?(?P<o>[0-5]?\d)\s?분)?)"
)
_HAN_DATE = re.compile(r"(?:(\d{4})[年년]\s?)?(\d{1,2})[月월]\s?(\d{1,2})[日일]")
_NUMBERED_DATE = re.compile(
    r"(?<![\d/.])(?P<a>\d{1,2})"
    r"(?:\.(?P<b>\d{1,2})\.(?!\d)|/(?P<c>\d{1,2})(?=,? \d{1,2}:\d\d))"
)
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?", re.I)
MAX_DISTANCE = 60
"""Between the words that announce a time and the time, in characters."""


def plain_digits(text: str) -> str:
    return text if text.isascii() else text.translate(_DIGITS)


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[tuple[re.Pattern[str], str], ...], re.Pattern[str], re.Pattern[str]]:
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


def _with_english_units(text: str) -> str:
    text = re.sub(
        r"[一两兩二三四五六七八九十](?=\s?[个個]?(?:秒|分|小|時|天|日|周|週|星))",
        lambda found: str(_HAN_NUMBERS[found[0]]),
        text,
    )
    units, one, _ = _patterns()
    text = one.sub("1 ", text)
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


def _at(clock: re.Match[str] | None, text: str) -> str:
    if clock is None:
        return ""
    hour, minute = int(clock["h"]), next(filter(None, clock.groups()[1:]), "00")
    is_afternoon = re.search(rf"(?:{words_of('pm')})\s?$", text[: clock.start()]) is not None
    return f" at {hour + 12 if is_afternoon and hour < 12 else hour}:{minute:0>2}"


def _day(text: str, cues: Sequence[int]) -> tuple[str, str] | None:
    """Month and day in English, and the year with a comma before it."""
    found = _near(_HAN_DATE, text, cues)
    if found and 1 <= int(found[2]) <= 12:
        return f"{_MONTHS[int(found[2]) - 1]} {found[3]}", f", {found[1]}" if found[1] else ""
    if found := _near(_patterns()[2], text, cues):
        month = next(one for one in _MONTHS if found[one])
        return f"{month} {found['day']}", f", {found['year']}" if found["year"] else ""
    if found := _near(_NUMBERED_DATE, text, cues):
        first, second = int(found["a"]), int(found["b"] or found["c"])
        # With a point the day stands first, with a stroke the month, unless it cannot be one.
        number, of = (second, first) if found["c"] and first <= 12 else (first, second)
        if 1 <= of <= 12 and 1 <= number <= 31:
            return f"{_MONTHS[of - 1]} {number}", ""
    return None


def to_english(text: str) -> str | None:
    """`resets in 3 hours`, `resets at 15:00`, …; None where no other language states a time."""
    text = plain(text)
    cues = _announced(text)
    if not cues:
        return None
    if found := _near(_ISO, text, cues):
        return f"resets at {found[0]}"
    at = _at(_near(_CLOCK, text, cues), text)
    if (day := _day(text, cues)) is not None:
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
