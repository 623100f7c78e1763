"""
Train the weights of the classifier: `make weights`, or `make weights LABELLED="FILE …"`.

From the rows in this directory and the messages of the tests; with labelled files given by path the
rows are made anew from these, and the figures are measured. The same rows give the same bytes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from contrib.weights.figures import Tally, learned_from, read_items, tally, tally_parts
from contrib.weights.fitting import ROUNDS, Fitted, Rows, margins_of, train
from contrib.weights.hashed_rows import ROWS, read_rows, row_of, write_rows
from contrib.weights.own_cases import own_cases
from contrib.weights.weight_file import content_of, make_head, write_weights

from fallbackd.classify.model import Model

FIGURES = Path(__file__).parent / "figures.json"
WEIGHTS = Path(__file__).parents[2] / "daemon/fallbackd/classify/weights.bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("labelled", type=Path, nargs="*")
    parser.add_argument("--figures-only", action="store_true", help="leave rows and weights alone")
    parser.add_argument("--fast", action="store_true", help="leave the figures alone")
    args = parser.parse_args()
    items = read_items(args.labelled)
    if items and not args.figures_only:
        write_rows([row_of(item) for item in items], ROWS)
    rows, sizes = read_rows(ROWS)
    data = Rows.with_own(rows, sizes, own_cases())
    labels = [row.label for row in rows]
    seen = [learned_from(labels, number) for number in range(ROUNDS)]
    machines = [train(data, data.with_ours(some)) for some in seen]
    scored, margins, by_reason = margins_of(data, seen, machines)
    head = make_head(data, scored, margins, by_reason)
    if not args.figures_only:
        write_weights(*train(data, np.arange(len(data.rows))), head, WEIGHTS)
        print(f"{WEIGHTS.stat().st_size:,} bytes of weights from {len(data.rows)} rows; {head}")
    if items and not args.fast:
        FIGURES.write_text(json.dumps(_figures(machines, head, items), indent=1) + "\n")


def _figures(
    machines: list[tuple[Fitted, Fitted]], head: dict[str, Any], items: list[dict[str, Any]]
) -> dict[str, Any]:
    found = Tally()
    for number, machine in enumerate(machines):
        content = content_of(machine, head)
        tally(items, number, Model(content), found)
        tally_parts(items, number, content, found)
        print(number, json.dumps(found.shares()["all"]), flush=True)
    return found.shares()


if __name__ == "__main__":
    main()
