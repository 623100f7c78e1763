"""Output for people: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import TextIO

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
    """Drop control, escape, invisible and bidi characters; line feeds and tabs stay."""
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
    """Turn line ends and tabs into one space, for a cell."""
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


def percent(share: float | None) -> str:
    """Never 100 % where there was an outage."""
    if share is None:
        return "?"
    return f"{share:.0%}" if share in (0.0, 1.0) else f"{min(share, 0.999):.1%}"


def usd(cost: float | None) -> str:
    return "" if cost is None else f"${cost:.2f}" if cost >= 0.01 or cost == 0 else "<$0.01"


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
        """Return the style for text with an indentation before it."""
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


STATE_COLOURS = {
    "healthy": "green",
    "rate_limited": "yellow",
    "recovering": "cyan",
    "cooldown": "cyan",
    "broken": "red",
    "paused": "magenta",
    "succeeded": "green",
    "failed": "red",
    "refused": "yellow",
    "cancelled": "magenta",
    "running": "blue",
    "chosen": "green",
}
_GAP = 2
_SHORT = 4
NARROW = 60
"""Columns below which a screen shows less."""
_LEAST = 8
"""A column is not made narrower than this as long as another one is wider."""


def shorten(text: str, width: int) -> str:
    """Cut to so many columns; an ellipsis stands for the rest."""
    if display_width(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    while kept and display_width(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept.rstrip()}…" if width > 0 else ""


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    style: Style,
    *,
    indent: str = "",
    coloured: int = 1,
) -> str:
    """
    Columns of text. Where the style has a width no line is wider: first the last column is cut,
    then the widest one.

    Args:
        coloured: Index of the column whose first word picks its colour.
    """
    cells = [[_cell(one) for one in row] for row in rows]
    space = None if style.width is None else style.width - len(indent)
    kept, widths = _layout(headers, cells, space)
    place = kept.index(coloured) if coloured in kept else -1
    lines = [style.paint(_line(_cut([headers[n] for n in kept], widths), widths), "bold")]
    for row in cells:
        shown = [row[n] for n in kept]
        colour = STATE_COLOURS.get(shown[place].partition(" ")[0]) if place >= 0 else None
        lines.append(_line(_cut(shown, widths), widths, style, place, colour))
    return "\n".join(indent + line for line in lines)


def _layout(
    headers: Sequence[str], cells: Sequence[Sequence[str]], space: int | None
) -> tuple[list[int], list[int]]:
    """Choose the columns that are shown, and the width of each."""
    kept = list(range(len(headers)))
    if space is not None:  # a column that says nothing takes no room
        kept = [n for n in kept if n == 0 or any(row[n] for row in cells)]
    widths = [max(display_width(row[n]) for row in (headers, *cells)) for n in kept]
    if space is not None:
        widths = _fitted(widths, space - _GAP * (len(widths) - 1))
    return kept, widths


def _cell(value: object) -> str:
    return "" if value is None else one_line(value)


def _cut(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [shorten(cell, width) for cell, width in zip(row, widths, strict=True)]


def _fitted(widths: list[int], space: int) -> list[int]:
    over = sum(widths) - space
    if over <= 0:
        return widths
    cut = min(over, max(0, widths[-1] - _LEAST))
    fitted = [*widths[:-1], widths[-1] - cut]
    over -= cut
    while over > 0 and max(fitted) > 1:
        # The name of a row is cut last.
        cuttable = [n for n in range(1, len(fitted)) if fitted[n] > _SHORT] or range(len(fitted))
        widest = max(cuttable, key=lambda n: fitted[n])
        others = max((w for n, w in enumerate(fitted) if n != widest), default=1)
        cut = min(over, max(1, fitted[widest] - max(others, _LEAST)))
        fitted[widest] -= cut
        over -= cut
    return fitted


def _line(
    cells: list[str],
    widths: list[int],
    style: Style | None = None,
    coloured: int = -1,
    colour: str | None = None,
) -> str:
    last = max((place for place, cell in enumerate(cells) if cell), default=0)
    shown = []
    for place, cell in enumerate(cells[: last + 1]):
        pad = "" if place == last else " " * (widths[place] - display_width(cell))
        if style is not None and place == coloured:
            cell = style.paint(cell, colour)
        shown.append(cell + pad)
    return (" " * _GAP).join(shown)


class UsageError(Exception):
    """The command line asks for something that cannot be; exit code 2."""


def is_terminal(stream: TextIO) -> bool:
    """A terminal that can move its cursor and show colours."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def style_of(stream: TextIO, *, wide: bool = False) -> Style:
    """
    Colours only on a terminal, and not with `NO_COLOR` (any value but the empty one).

    Args:
        wide: Lines may be longer than the terminal.
    """
    is_shown = is_terminal(stream)
    return Style(
        enabled=is_shown and not os.environ.get("NO_COLOR"),
        width=size_of(stream)[0] if is_shown and not wide else None,
    )


def size_of(stream: TextIO) -> tuple[int, int]:
    """Columns and lines of a terminal; 80 and 24 where it does not say."""
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return found.columns or 80, found.lines or 24


def emit_json(document: Json) -> None:
    """One document on one line; indented on a terminal. Everything beyond ASCII is escaped."""
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(document, ensure_ascii=True, indent=indent)
    print(text.replace("\x7f", "\\u007f"), flush=True)


def show(args: argparse.Namespace, document: Json, view: Callable[[Json, Style], str]) -> None:
    """A result as JSON where asked so, else as the view of its cleaned copy."""
    if args.json:
        emit_json(document)
        return
    text = view(clean(document), style_of(sys.stdout, wide=getattr(args, "wide", False)))
    if text:
        print(text, flush=True)
    if isinstance(document, dict):
        for warning in warnings_of(document):
            note(f"warning: {warning}")


def warnings_of(document: dict[str, Json]) -> list[str]:
    """Return the daemon's warnings beside the result."""
    found = document.get("warnings") or []
    if isinstance(found, str):
        found = [found]
    single = document.get("warning")
    words = [*found, *([single] if single else [])]
    return [word if isinstance(word, str) else _problem(word) for word in words]


def _problem(word: Json) -> str:
    if isinstance(word, dict):
        return f"{word.get('path') or 'configuration'}: {word.get('message', '')}"
    return str(word)


def note(text: str) -> None:
    """A line about the work, cleaned."""
    print(safe(text), file=sys.stderr, flush=True)
