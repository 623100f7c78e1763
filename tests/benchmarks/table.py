"""Rows of measurements, and how they are shown."""

import statistics
from collections.abc import Sequence

from msgspec import Struct


class Row(Struct, frozen=True, kw_only=True):
    """
    One figure beside what it is compared with.

    Attributes:
        ratio: Figure over comparison: more is worse. None where nothing is compared.
        at_most: The budget of `ratio`; None: for information only.
    """

    what: str
    measured: str
    beside: str = ""
    ratio: float | None = None
    at_most: float | None = None

    @property
    def is_missed(self) -> bool:
        return self.ratio is not None and self.at_most is not None and self.ratio > self.at_most


def within(
    what: str,
    measured: float | Sequence[float],
    budget: float,
    *,
    show: str = "{:.2f}",
) -> Row:
    """
    A figure with a budget of its own, in the same unit.

    Args:
        measured: Of several the median counts; the quickest is shown beside it, which on a busy
            machine tells what it would be on a quiet one.
    """
    beside = f"budget {show.format(budget)}"
    if isinstance(measured, Sequence):
        beside += f", quickest {show.format(min(measured))}"
        measured = statistics.median(measured)
    return Row(
        what=what,
        measured=show.format(measured),
        beside=beside,
        ratio=measured / budget,
        at_most=1.0,
    )


def ratio_of(ours: Sequence[float], others: Sequence[float]) -> float:
    """Of pairs that were measured one after the other: what slows both cancels out."""
    return statistics.median(a / b for a, b in zip(ours, others, strict=True))


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def render(rows: Sequence[Row]) -> str:
    cells = [("", "measured", "beside", "ratio", "at most", "")]
    for row in rows:
        verdict = "" if row.at_most is None else "MISSED" if row.is_missed else "ok"
        cells.append(
            (
                row.what,
                row.measured,
                row.beside,
                "" if row.ratio is None else f"{row.ratio:.2f}",
                "" if row.at_most is None else f"{row.at_most:g}",
                verdict,
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(6)]
    left = (True, False, True, False, False, True)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in cells
    )
