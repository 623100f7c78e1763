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
from contrib.weights.figures import Tally, learned_from, read_items, tally
from contrib.weights.fitting import FOLDS, ROUNDS, SEED, Rows, cross_validate, train
from contrib.weights.hashed_rows import ROWS, read_rows, row_of, write_rows
from contrib.weights.own_cases import own_cases
from contrib.weights.weight_file import make_head, model_of, thresholds_of, write_weights
from sklearn.model_selection import StratifiedGroupKFold

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
    if not args.figures_only:
        head = _calibrated(data, np.arange(len(rows)))
        write_weights(*train(data, np.arange(len(data.rows))), head, WEIGHTS)
        print(f"{WEIGHTS.stat().st_size:,} bytes of weights from {len(data.rows)} rows; {head}")
    if items and not args.fast:
        FIGURES.write_text(json.dumps(_figures(data, items), indent=1) + "\n")


def _calibrated(data: Rows, seen: Any) -> dict[str, float]:
    """Thresholds and slopes, by margins of rows that the machines had not seen."""
    splitting = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=SEED)
    split = [
        (seen[some], seen[others])
        for some, others in splitting.split(seen, data.reasons[seen], data.groups[seen])
    ]
    margins, by_reason = cross_validate(data, split)
    return make_head(data, seen, margins, by_reason)


def _figures(data: Rows, items: list[dict[str, Any]]) -> dict[str, Any]:
    found = Tally()
    labels = [row.label for row in data.rows[: data.first_own]]
    # Thresholds are those of the shipped file: a few numbers, from margins of unseen rows.
    head = thresholds_of(Model(WEIGHTS.read_bytes()))
    if len(labels) != len(items):
        raise SystemExit(f"{ROWS} holds other messages than the files")
    for number in range(ROUNDS):
        seen = learned_from(labels, number)
        tally(items, number, model_of(train(data, data.with_ours(seen)), head), found)
        print(number, json.dumps(found.shares()["all"]), flush=True)
    return found.shares()


if __name__ == "__main__":
    main()
