"""
How well the shipped way of learning judges what it has not seen: other families, tools, languages.

Measured by `make weights LABELLED="FILE …"`, which has what trains the weights, and printed from
its figures. In each of five rounds a fifth of the families and of the tools and two languages were
held out together.
"""

import json
from pathlib import Path
from typing import Any

from tests.benchmarks.table import Row

FIGURES = Path(__file__).parents[2] / "contrib/weights/figures.json"
SHOWN = ("strict", "lenient", "action", "false_alarms", "named", "action_known", "resets")


async def measure(_place: Path) -> list[Row]:
    return rows_of(json.loads(FIGURES.read_bytes()))


def rows_of(figures: dict[str, Any]) -> list[Row]:
    """`named` and `action_known`: where it is known that the program failed."""
    return [
        Row(
            what=f"unseen: {name}, {one['rows']} messages",
            measured=" / ".join(_percent(one[share]) for share in SHOWN) + " %",
            beside=f"alarms with exit status 0: {one['alarms_with_status_0']}",
        )
        for name, one in figures.items()
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
