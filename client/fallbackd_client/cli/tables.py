"""Tables that fit the terminal, wide characters included."""

from __future__ import annotations

from fallbackd_client.cli.render import Style, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal; it holds no control characters."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # not needed for most texts

    return sum(
        0 if combining(one) else 2 if east_asian_width(one) in ("W", "F") else 1 for one in text
    )


def shorten(text: str, width: int) -> str:
    """At most so many columns; what is left out is an ellipsis."""
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
    cells = [[one_line("" if cell is None else cell) for cell in row] for row in rows]
    if style.width is not None:  # a column that says nothing takes no room
        kept = [n for n in range(len(headers)) if n == 0 or any(row[n] for row in cells)]
        coloured = kept.index(coloured) if coloured in kept else len(kept)
        headers = [headers[n] for n in kept]
        cells = [[row[n] for n in kept] for row in cells]
    widths = [
        max([len(header), *(display_width(row[column]) for row in cells)])
        for column, header in enumerate(headers)
    ]
    if style.width is not None:
        widths = _fitted(widths, style.width - len(indent) - _GAP * (len(widths) - 1))
    heading = _line([shorten(h, w) for h, w in zip(headers, widths, strict=True)], widths)
    lines = [indent + style.paint(heading, "bold")]
    for row in cells:
        shown = [shorten(cell, width) for cell, width in zip(row, widths, strict=True)]
        word = row[coloured].partition(" ")[0] if coloured < len(row) else ""
        lines.append(indent + _line(shown, widths, style, coloured, STATE_COLOURS.get(word)))
    return "\n".join(lines)


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
