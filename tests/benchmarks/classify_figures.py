"""
How well the shipped weights judge what they have not seen: the cross-validation by thread.

Measured by `make weights`, which has what trains them, and printed from its figures: five folds,
each judged by weights that know no message of its threads. Strict, lenient,
false alarms, and named rightly where the exit status is known, with their 95 % intervals.
"""

import json
from math import isnan
from pathlib import Path
from typing import Any

from tests.benchmarks.table import Row

FIGURES = Path(__file__).parents[2] / "contrib/weights/figures.json"
SHOWN = ("strict", "lenient", "false_alarms", "named_lenient")
SPLITS = ("by_language", "by_platform", "by_reason")


async def measure(_place: Path) -> list[Row]:
    return rows_of(json.loads(FIGURES.read_bytes()))


def rows_of(figures: dict[str, Any]) -> list[Row]:
    """`product` is the whole classifier, `model` the weights and the rules' bonus alone."""
    model = figures["model"]
    whole = figures.get("product", model)
    rows = [
        _row("unseen threads, whole classifier", figures["product"]["whole"])
        if "product" in figures
        else None,
        _row("unseen threads, model", model["whole"]),
        _row("unseen platforms, model", model["platform_held_out"]),
    ]
    if "resets" in whole:
        found = whole["resets"]
        rows.append(
            Row(
                what="unseen threads: stated times",
                measured=f"{found['share']:.1%} ({found['right']} of {found['stated']})",
                beside=f"alarms with exit status 0: {whole['alarms_with_status_0']}",
            )
        )
    for split in SPLITS:
        rows += [
            _row(f"{split.removeprefix('by_')} {key}, {one['rows']} messages", one)
            for key, one in whole[split].items()
        ]
    return [row for row in rows if row is not None]


def _row(what: str, shares: dict[str, Any]) -> Row:
    """Strict / lenient / false alarms / named, where it is known that the program failed."""
    between = shares.get("interval_95", {})
    return Row(
        what=what,
        measured=" / ".join(_percent(shares[name]) for name in SHOWN) + " %",
        beside=", ".join("–".join(map(_percent, between[name])) for name in SHOWN)
        if between
        else "",
    )


def _percent(share: float | None) -> str:
    return "-" if share is None or isnan(share) else f"{100 * share:.1f}"
