"""Tables that fit the terminal, wide characters included."""

from __future__ import annotations

from fallbackd_client.cli.render import Style, display_width, one_line

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
    """Which columns are shown, and how wide each is."""
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
