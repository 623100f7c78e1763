"""
Sentences of other languages about the end of a limit, put into the English that is read.

Only what is needed for a time: the words that announce it, units, months. English itself passes
through here only where a number has other digits.
"""

import re
from collections.abc import Sequence

_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹0123456789", "0123456789" * 3)
_HAN_NUMBERS = {"一": 1, "两": 2, "兩": 2, "二": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7}
_HAN_NUMBERS |= {"八": 8, "九": 9, "十": 10}

# Words that say: this is when to come again.
_CUES = re.compile(
    r"erneut|zurück(?:gesetzt|setz)|setzt sich|wieder verfügbar|nochmals?"
    r"|r[ée]essay|réinitialis|de nouveau|à nouveau"
    r"|intent|int[ée]ntel|restablec|reinici|vuelv|de nuevo|nuevamente"
    r"|novamente|redefini|tente|renova"
    r"|再試行|もう一度|リセット|再度|回復"
    r"|重试|再试|重置|恢复|刷新|重試|將在|将在|将于"
    r"|حاول|المحاولة|إعادة|يتجدد|повтор|сбро[сш]|снова|попробуйте|riprova",
    re.I,
)
_UNITS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"(?<=\d)\s*(?:{words})", re.I), f" {unit} ")
    for words, unit in (
        (r"毫秒|ミリ秒|millisekunden?|millisecondes?|milisegundos?", "ms"),
        (
            r"秒[钟鐘]?|sekunden?|secondes?|segundos?|secondi|ثواني|ثوان|ثانية|секунд\w{0,2}",
            "seconds",
        ),
        (r"分[钟鐘間间]?|minuten?|minutos?|minuti|دقائق|دقيقة|минут\w{0,2}", "minutes"),
        (r"[个個]?小[时時]|時間|stunden?|heures?|horas?|ore\b|ساعات|ساعة|час\w{0,2}", "hours"),
        (r"天|日間?|tage?n?\b|jours?|d[ií]as?|giorni|أيام|يوما?|дн\w{1,2}|день|дня", "days"),
        (r"[个個]?(?:星期|周|週)間?|wochen?|semaines?|semanas?|أسابيع|أسبوع|недел\w{0,2}", "weeks"),
    )
)
_AMOUNT = r"\d{1,9}(?:[.,]\d{1,3})? (?:ms|seconds|minutes|hours|days|weeks)"
_SPAN = re.compile(rf"{_AMOUNT}(?:\s{{0,3}}(?:und|et|y|e|و|和|,)?\s{{0,3}}{_AMOUNT}){{0,4}}")
_CLOCK = re.compile(r"(?<![\d:])(?P<h>[01]?\d|2[0-3])\s?[:h時时点]\s?(?P<m>[0-5]\d)(?!\d)")
_HAN_DATE = re.compile(r"(?:(\d{4})年)?(\d{1,2})月(\d{1,2})日")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?")

_MONTHS = {
    "jan": "januar|janvier|enero|janeiro|gennaio",
    "feb": "februar|février|fevrier|febrero|fevereiro|febbraio|fev",
    "mar": "märz|mars|marzo|março",
    "apr": "april|avril|abril|aprile|abr",
    "may": "mai|mayo|maio|maggio",
    "jun": "juni|juin|junio|junho|giugno|jun",
    "jul": "juli|juillet|julio|julho|luglio|jul",
    "aug": "august|août|aout|agosto|ago",
    "sep": "september|septembre|septiembre|setembro|settembre",
    "oct": "oktober|octobre|octubre|outubro|ottobre",
    "nov": "november|novembre|noviembre|novembro",
    "dec": "dezember|décembre|diciembre|dezembro|dicembre|dez|dic",
}
_NAMES = {name: short for short, names in _MONTHS.items() for name in names.split("|")}
_DATE = re.compile(
    rf"\b(?P<day>\d{{1,2}})(?:\.|º|er)? (?:de )?(?P<month>{'|'.join(_NAMES)})\b"
    r"\.?(?: (?:de )?(?P<year>\d{4}))?",
    re.I,
)
MAX_DISTANCE = 60
"""Between the words that announce a time and the time, in characters."""


def plain_digits(text: str) -> str:
    return text if text.isascii() else text.translate(_DIGITS)


def _with_english_units(text: str) -> str:
    text = re.sub(
        r"[一两兩二三四五六七八九十](?=\s?[个個]?(?:秒|分|小|時|天|日|周|週|星))",
        lambda found: str(_HAN_NUMBERS[found[0]]),
        text,
    )
    for pattern, unit in _UNITS:
        text = pattern.sub(unit, text)
    return text


def _near(pattern: re.Pattern[str], text: str, cues: Sequence[int]) -> re.Match[str] | None:
    """The first one that stands near the words that announce a time."""
    for found in pattern.finditer(text):
        first, last = found.start() - MAX_DISTANCE, found.end() + MAX_DISTANCE
        if any(first <= cue <= last for cue in cues):
            return found
    return None


def _at(clock: re.Match[str] | None) -> str:
    return "" if clock is None else f" at {clock['h']}:{clock['m']}"


def to_english(text: str) -> str | None:
    """`resets in 3 hours`, `resets at 15:00`, …; None where no other language states a time."""
    cues = [found.start() for found in _CUES.finditer(text)]
    if not cues:
        return None
    text = _with_english_units(text)
    cues = [found.start() for found in _CUES.finditer(text)]
    if found := _near(_ISO, text, cues):
        return f"resets at {found[0]}"
    at = _at(_near(_CLOCK, text, cues))
    found = _near(_HAN_DATE, text, cues)
    if found and 1 <= int(found[2]) <= 12:
        year = f", {found[1]}" if found[1] else ""
        return f"resets {tuple(_MONTHS)[int(found[2]) - 1]} {found[3]}{year}{at}"
    if found := _near(_DATE, text, cues):
        year = f", {found['year']}" if found["year"] else ""
        return f"resets {_NAMES[found['month'].lower()]} {found['day']}{year}{at}"
    if found := _near(_SPAN, text, cues):
        span = re.sub(r"(?<=[a-z])\s{0,3}(?:und|et|y|e|و|和|,)\s{0,3}(?=\d)", " ", found[0])
        return f"resets in {span.replace(',', '.')}"
    return f"resets{at}" if at else None
