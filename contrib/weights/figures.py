"""What would be said of messages that the machines have not seen, and how often it is right."""

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from contrib.weights.fitting import BENIGN, FOLDS, REASONS, SEED, Rows
from contrib.weights.hashed_rows import ROWS, Row, kind_of
from tests.benchmarks.stated_times import is_reset

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.classify.model import Guess, Model
from fallbackd.classify.weighing import RULE_ALARM, coarse, weigh
from fallbackd.core.failures import Failure, Reason
from fallbackd.core.protocol import Evidence


class Verdicts:
    """What the product would say of every row, by margins of machines that have not seen it."""

    def __init__(self, data: Rows, models: Sequence[Model], margins: Any, by_reason: Any) -> None:
        """`models`: for each row the one whose thresholds count."""
        self.unknown: list[str] = []
        self.known: list[str] = []
        of_rows = zip(data.rows, models, margins, by_reason, strict=True)
        for row, model, margin, reasons in of_rows:
            label = row.label
            rule = None if label.rule is None else Reason(label.rule)
            ranked = tuple(zip(REASONS, (float(one) for one in reasons), strict=True))
            best, _ = weigh(model, Guess(margin, 0.0, ranked), rule)
            if rule is not None and label.trust == "structured":
                best = coarse(rule)
            certain = label.trust == "structured" or (label.http_status or 0) >= 400
            threshold = model.head.alarm_margin - (RULE_ALARM if rule else 0.0)
            self.known.append(best.value)
            self.unknown.append(best.value if certain or margin > threshold else BENIGN)


class WholeVerdicts(Verdicts):
    """What `classify` says of the texts themselves, with the weights of the fold of each."""

    def __init__(self, data: Rows, texts: Path, fold: Any, models: list[Model]) -> None:
        self.unknown, self.known = [], []
        asked = right = 0
        self.alarms_with_status_0 = 0
        now = time.time()
        with texts.open(encoding="utf-8") as lines:
            items = [json.loads(line) for line in lines]
        for item, row, number in zip(items, data.rows, fold, strict=False):
            if (row.label.reason, row.label.http_status) != (item["reason"], item["http_status"]):
                raise SystemExit(f"{texts} holds other messages than {ROWS}")
            judge = partial(judged, item, models[number], now=now)
            found = judge(exit_code=None)
            self.unknown.append(_word(found))
            self.known.append(_word(judge(exit_code=1)))
            if item["reset_s"] is not None or item["reset_at"] is not None:
                asked += 1
                stated = None if found is None else found.stated_reset_at
                right += stated is not None and is_reset(item, stated, now=now)
            if row.label.reason == BENIGN and (item["http_status"] or 0) < 400:
                self.alarms_with_status_0 += judge(exit_code=0) is not None
        self.resets = {"stated": asked, "right": right, "share": round(right / asked, 4)}


def judged(
    item: dict[str, Any], model: Model, *, now: float, exit_code: int | None
) -> Failure | None:
    evidence = Evidence(
        text=item["text"],
        stream="unknown",
        http_status=item["http_status"],
        headers=item["headers"] or {},
        exit_code=exit_code,
    )
    kind = kind_of(item)
    return classify(evidence, SIGNATURES[kind], now=now, kind=kind, model=model)


def _word(failure: Failure | None) -> str:
    return BENIGN if failure is None else coarse(failure.reason).value


def shares(rows: Sequence[Row], unknown: Sequence[str], known: Sequence[str]) -> dict[str, float]:
    def share(found: Sequence[bool]) -> float:
        return round(sum(found) / len(found), 4) if found else float("nan")

    def fair(row: Row, said: str) -> bool:
        return said == row.label.reason or said in row.label.also_ok

    three = list(zip(rows, unknown, known, strict=True))
    failing = [one for one in three if one[0].label.reason != BENIGN]
    return {
        "rows": len(three),
        "failures": len(failing),
        "strict": share([u == row.label.reason for row, u, _ in three]),
        "lenient": share([fair(row, u) for row, u, _ in three]),
        "false_alarms": share([u != BENIGN for row, u, _ in three if row.label.reason == BENIGN]),
        "named_strict": share([k == row.label.reason for row, _, k in failing]),
        "named_lenient": share([fair(row, k) for row, _, k in failing]),
    }


def intervals(data: Rows, scored: Any, said: Verdicts) -> dict[str, list[float]]:
    """95 %, by drawing groups again and again."""
    by_group: dict[str, list[int]] = defaultdict(list)
    for i in scored:
        by_group[data.rows[i].label.group].append(i)
    groups, luck = sorted(by_group), random.Random(SEED)
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(200):
        drawn = [i for g in luck.choices(groups, k=len(groups)) for i in by_group[g]]
        for name, value in shares_at(data, drawn, said).items():
            found[name].append(value)
    return {
        name: [round(float(np.nanquantile(values, q)), 4) for q in (0.025, 0.975)]
        for name, values in found.items()
        if name not in ("rows", "failures")
    }


def shares_at(data: Rows, chosen: Any, said: Verdicts) -> dict[str, float]:
    return shares(
        [data.rows[i] for i in chosen],
        [said.unknown[i] for i in chosen],
        [said.known[i] for i in chosen],
    )


def figures(data: Rows, scored: Any, said: Verdicts, fold: Any) -> dict[str, Any]:
    def split_by(name: Callable[[Row], str], least: int) -> dict[str, dict[str, float]]:
        chosen: dict[str, list[int]] = defaultdict(list)
        for i in scored:
            chosen[name(data.rows[i])].append(i)
        return {
            key: {**shares_at(data, rows, said), "interval_95": intervals(data, rows, said)}
            for key, rows in sorted(chosen.items(), key=lambda one: -len(one[1]))
            if len(rows) >= least
        }

    return {
        "whole": {
            **shares_at(data, scored, said),
            "interval_95": intervals(data, scored, said),
        },
        "by_fold": [shares_at(data, scored[fold[scored] == n], said) for n in range(FOLDS)],
        "by_language": split_by(lambda row: row.label.lang, 20),
        "by_platform": split_by(lambda row: row.label.platform, 20),
        "by_reason": split_by(lambda row: row.label.reason, 20),
    }
