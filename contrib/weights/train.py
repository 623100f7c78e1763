"""
Train the weights of the classifier: `make weights`, or `make weights LABELLED="FILE …"`.

From the rows in this directory, the messages of the tests and any labelled files given by path.
Written are the weights and the figures of a cross-validation in five folds by group, in which
each fold is pruned and rounded like the shipped file. The same rows give the same bytes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from contrib.weights.figures import Verdicts, WholeVerdicts, figures, intervals, shares_at
from contrib.weights.fitting import FOLDS, PLATFORM_FOLDS, SEED, Rows, cross_validate, train
from contrib.weights.hashed_rows import ROWS, read_labelled, read_rows, sizes_of, write_rows
from contrib.weights.own_cases import own_cases
from contrib.weights.weight_file import make_head, models_of, write_weights
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

from fallbackd.classify.model import Model

FIGURES = Path(__file__).parent / "figures.json"
WEIGHTS = Path(__file__).parents[2] / "daemon/fallbackd/classify/weights.bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("labelled", type=Path, nargs="*")
    parser.add_argument(
        "--keep", action="store_true", help="write the rows with those of the files"
    )
    parser.add_argument("--fast", action="store_true", help="without holding out platforms")
    parser.add_argument("--folds", type=Path, help="a directory for the weights of each fold")
    parser.add_argument(
        "--texts", type=Path, help="the messages of the rows, in their order: judge them as a whole"
    )
    args = parser.parse_args()
    rows, sizes = read_rows(ROWS) if ROWS.exists() else ([], [])
    for path in args.labelled:
        more = list(read_labelled(path))
        rows, sizes = rows + more, sizes + sizes_of(more)
    if args.keep:
        write_rows(rows, ROWS)
        rows, sizes = read_rows(ROWS)
    own = own_cases()
    data = Rows(rows + own, sizes + sizes_of(own))
    scored = np.arange(len(rows))
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=SEED)
    split = list(folds.split(scored, data.reasons[scored], data.groups[scored]))
    margins, by_reason, fold, machines = cross_validate(data, len(own), split)
    head = make_head(data, scored, margins, by_reason)
    # A fold is judged by thresholds of the four others.
    heads = [make_head(data, scored[fold[scored] != n], margins, by_reason) for n in range(FOLDS)]
    models = models_of(machines, heads)
    write_weights(*train(data, np.arange(len(data.rows))), head, WEIGHTS)
    if args.folds:
        for number, (failure, reason) in enumerate(machines):
            write_weights(failure, reason, heads[number], args.folds / f"fold{number}.bin")
    # The last rows are our own cases: nobody judges them.
    said = Verdicts(data, [models[n] for n in fold], margins, by_reason)
    found = {"model": figures(data, scored, said, fold)}
    if not args.fast:
        found["model"]["platform_held_out"] = held_out_platforms(data, len(own))
    if args.texts:
        whole = WholeVerdicts(data, args.texts, fold, models)
        found["product"] = {
            **figures(data, scored, whole, fold),
            "resets": whole.resets,
            "alarms_with_status_0": whole.alarms_with_status_0,
        }
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{WEIGHTS.stat().st_size:,} bytes of weights from {len(data.rows)} rows; {head}")
    for part, one in found.items():
        for name in ("whole", "platform_held_out", "resets", "alarms_with_status_0"):
            if one.get(name) is not None:
                print(part, name, one[name])


def held_out_platforms(data: Rows, own: int) -> dict[str, Any]:
    """In groups of platforms: each is judged by a machine that has not seen it at all."""
    scored = np.arange(len(data.rows) - own)
    platforms = np.array([data.rows[at].label.platform for at in scored])
    split = list(GroupKFold(PLATFORM_FOLDS).split(scored, groups=platforms))
    margins, by_reason, _, _ = cross_validate(data, own, split)
    models = [Model(WEIGHTS.read_bytes())] * len(data.rows)
    said = Verdicts(data, models, margins, by_reason)
    return {**shares_at(data, scored, said), "interval_95": intervals(data, scored, said)}


if __name__ == "__main__":
    main()
