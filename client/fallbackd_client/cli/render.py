"""
Text for people: what may reach a terminal, durations, times, colours, tables.

Nothing that came from a daemon or an agent is printed before `clean` went over it.
"""

from __future__ import annotations

import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

# Kept as texts: compiling them takes 2 ms, and most output never needs them.
_SEQUENCES = r"""(?x)
      (?:\x1b\[|\x9b) [0-?]* [\ -/]* [@-~]                 # CSI
    | (?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]) [^\x07\x1b\x9c]* (?:\x07|\x1b\\|\x9c)?  # OSC, DCS, …
    | \x1b [\ -/]* [0-~]?                                   # the rest of ESC
    """
_UNSAFE = (
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # invisible
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, bidi, line separators
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # invisible, tags
    "]"
)
_SURROGATES = "[\ud800-\udfff]"


def safe(text: str) -> str:
    """Without control, escape, invisible and bidi characters; line feeds and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    text = re.sub(_UNSAFE, "", re.sub(_SEQUENCES, "", text))
    return re.sub(_SURROGATES, "\ufffd", text)


def clean(value: Json) -> Json:
    """A JSON value in which every string, keys included, is `safe`."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, dict):
        return {safe(str(key)): clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [clean(inner) for inner in value]
    return value


def one_line(text: object) -> str:
    """For a cell: line ends and tabs become one space."""
    return " ".join(safe(str(text)).split())


_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def duration(seconds: float) -> str:
    """
    `0s 59s 1m 2m 5s 1h 2h 3m`: the two largest units, zero units left out.

    Rounded to whole seconds; negative ones count as none.
    """
    left = max(0, int(seconds + 0.5))
    for place, (size, _) in enumerate(_UNITS):
        if left >= size:
            shown = []
            for size_of_unit, unit in _UNITS[place : place + 2]:
                count, left = divmod(left, size_of_unit)
                if count:
                    shown.append(f"{count}{unit}")
            return " ".join(shown)
    return "0s"


def clock(at: float, now: float) -> str:
    """Local time of day, with the date where it is another day."""
    then = time.localtime(at)
    if then[:3] == time.localtime(now)[:3]:
        return time.strftime("%H:%M:%S", then)
    return time.strftime("%Y-%m-%d %H:%M:%S", then)


def when(at: float, now: float) -> str:
    """`14:05:09 (in 4m 10s)`."""
    if at >= now:
        return f"{clock(at, now)} (in {duration(at - now)})"
    return f"{clock(at, now)} ({duration(now - at)} ago)"


_COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class Style:
    """
    Args:
        enabled: Colours, or none at all.
        width: Columns of the terminal, which a table is made to fit; None: as wide as it is.
    """

    def __init__(self, *, enabled: bool, width: int | None = None) -> None:
        self.enabled = enabled
        self.width = width

    def narrower(self, columns: int) -> Style:
        """For what stands behind an indentation."""
        width = None if self.width is None else max(20, self.width - columns)
        return Style(enabled=self.enabled, width=width)

    def paint(self, text: str, colour: str | None) -> str:
        if not self.enabled or colour is None or not text:
            return text
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal; it holds no control characters."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # not needed for most texts

    return sum(
        0 if combining(one) else 2 if east_asian_width(one) in ("W", "F") else 1 for one in text
    )


def wrapped(line: str, style: Style) -> list[str]:
    """A sentence in lines that fit the terminal, broken between words."""
    if style.width is None or display_width(line) <= style.width:
        return [line]
    lines = [""]
    for word in line.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and display_width(longer) > style.width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
