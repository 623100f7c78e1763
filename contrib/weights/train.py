"""
Train the weights of the classifier: `make weights`, or `make weights LABELLED="FILE …"`.

From the rows in this directory, the messages of the tests and any labelled files given by path.
Written are the weights and the figures of a cross-validation in five folds by group, in which
each fold is pruned and rounded like the shipped file. The same rows give the same bytes.
"""

import argparse
import json
import random
import tempfile
import time
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from contrib.weights.hashed_rows import (
    Row,
    kind_of,
    read_labelled,
    read_rows,
    row_of,
    sizes_of,
    weighing_less,
    write_rows,
)
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold
from sklearn.svm import LinearSVC
from tests.benchmarks.stated_times import is_reset

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.classify.features import BUCKETS
from fallbackd.classify.model import MAGIC, Guess, Head, Model, TableHead
from fallbackd.classify.weighing import RULE_ALARM, coarse, weigh
from fallbackd.core.failures import Failure, Reason
from fallbackd.core.protocol import Evidence

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ROWS, FIGURES = HERE / "rows.xz", HERE / "figures.json"
WEIGHTS = ROOT / "daemon/fallbackd/classify/weights.bin"
OWN = ROOT / "tests/classify/data/messages"

SEED, FOLDS, PLATFORM_FOLDS = 7, 5, 6
NORMS = {"whole": 3.0, "last": 2.0, "shape": 0.0}
SHAPE_WEIGHT = 0.25
FAILURE_FEATURES, REASON_FEATURES = 45_000, 12_000
ALARM_SHARE = 0.037
FAILURE_C, REASON_C = 0.6, 0.3
WEIGHT_OF_KIND = {"test": 0.5, "docs": 0.5, "own": 0.8, "around": 0.2, "shown": 0.1}
REASONS = tuple(
    Reason(one)
    for one in [
        "auth",
        "billing",
        "rate_limit",
        "usage_limit",
        "overloaded",
        "server_error",
        "timeout",
        "network",
        "context_overflow",
        "payload_too_large",
        "model_not_found",
        "format_error",
        "content_policy",
        "not_installed",
        "crash",
    ]
)
BENIGN = "benign"


class Rows:
    """All rows as matrices: one line per row, one column per bucket of a part."""

    def __init__(self, rows: list[Row], sizes: list[dict[str, int]]) -> None:
        self.rows = rows
        self.reasons = np.array([row.label.reason for row in rows])
        self.fails = self.reasons != BENIGN
        self.numbers = np.array(
            [REASONS.index(Reason(r)) if r != BENIGN else -1 for r in self.reasons]
        )
        self.groups = np.array([row.label.group for row in rows])
        self.weights = np.array([WEIGHT_OF_KIND.get(row.label.kind, 1.0) for row in rows])
        self.parts = {part: self._matrix(part, norm, sizes) for part, norm in NORMS.items()}
        self.failure = sparse.hstack([self.parts[part] for part in NORMS]).tocsr()
        self.reason = self.parts["whole"]

    def _matrix(self, part: str, norm: float, sizes: list[dict[str, int]]) -> sparse.csr_matrix:
        starts, columns, values = [0], [], []
        for row, size in zip(self.rows, sizes, strict=True):
            buckets = getattr(row.features, part)
            value = norm / np.sqrt(max(1, size[part])) if norm else SHAPE_WEIGHT
            columns += buckets
            values += [value] * len(buckets)
            starts.append(len(columns))
        shape = (len(self.rows), BUCKETS)
        return sparse.csr_matrix((np.array(values), np.array(columns), np.array(starts)), shape)


def rarity(matrix: sparse.csr_matrix) -> Any:
    """What occurs in few rows tells more; what occurs in one tells nothing."""
    count = np.asarray((matrix > 0).sum(0)).ravel()
    rare = np.log((1 + matrix.shape[0]) / (1 + count)) + 1
    return np.where(count > 1, rare / rare[count > 0].mean(), 0.0)


def one_sidedness(matrix: sparse.csr_matrix, fails: Any) -> Any:
    """What occurs among failures about as often as among harmless texts tells half as much."""
    often = [np.asarray((matrix[side] > 0).sum(0)).ravel() + 1.0 for side in (fails, ~fails)]
    ratio = np.abs(np.log((often[0] / often[0].sum()) / (often[1] / often[1].sum())))
    return 0.5 + 0.5 * ratio / ratio[often[0] + often[1] > 2].mean()


class Fitted:
    """One linear machine, pruned and rounded: columns of the matrix, weights per class."""

    def __init__(self, kept: Any, rounded: Any, scales: Any, biases: Any) -> None:
        self.kept, self.rounded, self.scales, self.biases = kept, rounded, scales, biases

    def margins(self, matrix: sparse.csr_matrix) -> Any:
        return matrix[:, self.kept] @ (self.rounded * self.scales[:, None]).T + self.biases


def fit(
    matrix: sparse.csr_matrix, wanted: Any, weights: Any, *, c: float, rare: Any, features: int
) -> Fitted:
    scaled = (matrix @ sparse.diags(rare)).tocsr()
    machine = LinearSVC(C=c, class_weight="balanced", random_state=SEED)
    machine.fit(scaled, wanted, sample_weight=weights)
    kept = np.sort(np.argsort(-np.linalg.norm(machine.coef_, axis=0), kind="stable")[:features])
    few = scaled[:, kept].tocsr()
    machine.fit(few, wanted, sample_weight=weights)
    exact = machine.coef_ * rare[kept]
    scales = np.abs(exact).max(axis=1) / 127
    return Fitted(kept, np.round(exact / scales[:, None]), scales, machine.intercept_)


def train(data: Rows, rows: Any) -> tuple[Fitted, Fitted]:
    rare = np.concatenate(
        [
            rarity(data.parts["whole"][rows]),
            rarity(data.parts["last"][rows]),
            np.ones(BUCKETS),
        ]
    )
    failure = fit(
        data.failure[rows],
        data.fails[rows],
        data.weights[rows],
        c=FAILURE_C,
        rare=rare * one_sidedness(data.failure[rows], data.fails[rows]),
        features=FAILURE_FEATURES,
    )
    failing = rows[data.fails[rows]]
    reason = fit(
        data.reason[failing],
        data.numbers[failing],
        data.weights[failing],
        c=REASON_C,
        rare=rare[:BUCKETS],
        features=REASON_FEATURES,
    )
    return failure, reason


def cross_validate(
    data: Rows, own: int, split: Sequence[tuple[Any, Any]]
) -> tuple[Any, Any, Any, list[tuple[Fitted, Fitted]]]:
    """Margins of every row by machines that have not seen its group; NaN for our own cases."""
    margins = np.full(len(data.rows), np.nan)
    machines: list[tuple[Fitted, Fitted]] = []
    by_reason = np.full((len(data.rows), len(REASONS)), np.nan)
    fold = np.full(len(data.rows), -1)
    first_own = len(data.rows) - own
    for number, (seen, unseen) in enumerate(split):
        rows = np.concatenate([seen, np.arange(first_own, len(data.rows))])
        failure, reason = train(data, rows)
        machines.append((failure, reason))
        margins[unseen] = failure.margins(data.failure[unseen]).ravel()
        by_reason[unseen] = reason.margins(data.reason[unseen])
        fold[unseen] = number
    return margins, by_reason, fold, machines


# --- from margins to probabilities -----------------------------------------------------------


def reason_slope(by_reason: Any, numbers: Any) -> float:
    """The one factor that makes the shares of the right reasons largest."""

    def loss(slope: float) -> float:
        powers = slope * by_reason
        whole = np.log(np.exp(powers).sum(1))
        return float((whole - powers[np.arange(len(numbers)), numbers]).mean())

    return min((step / 4 for step in range(4, 60)), key=loss)


def make_head(data: Rows, scored: Any, margins: Any, by_reason: Any) -> dict[str, float]:
    logistic = LogisticRegression(C=100.0).fit(margins[scored, None], data.fails[scored])
    failing = scored[data.fails[scored]]
    rule = np.array([RULE_ALARM if data.rows[i].label.rule else 0.0 for i in scored])
    benign = ~data.fails[scored]
    return {
        "failure_slope": round(float(logistic.coef_[0, 0]), 4),
        "failure_offset": round(float(logistic.intercept_[0]), 4),
        "reason_slope": reason_slope(by_reason[failing], data.numbers[failing]),
        "alarm_margin": round(
            float(np.quantile((margins[scored] + rule)[benign], 1 - ALARM_SHARE)), 4
        ),
    }


def write_weights(failure: Fitted, reason: Fitted, head: dict[str, float], path: Path) -> None:
    packed = bytearray()
    tables: dict[str, list[TableHead]] = {"failure": [], "reason": []}
    for at, (part, norm) in enumerate(NORMS.items()):
        inside = (failure.kept >= at * BUCKETS) & (failure.kept < (at + 1) * BUCKETS)
        buckets = failure.kept[inside] - at * BUCKETS
        factor = 1.0 if norm else SHAPE_WEIGHT
        tables["failure"].append(
            _table(packed, part, norm, buckets, failure.rounded[:, inside], failure.scales * factor)
        )
    tables["reason"].append(
        _table(packed, "whole", NORMS["whole"], reason.kept, reason.rounded, reason.scales)
    )
    made = Head(
        failure=tables["failure"],
        failure_bias=float(failure.biases[0]),
        reasons=list(REASONS),
        reason=tables["reason"],
        reason_biases=[float(one) for one in reason.biases],
        **head,
    )
    path.write_bytes(MAGIC + msgspec.json.encode(made) + b"\n" + zlib.compress(bytes(packed), 9))


def _table(
    packed: bytearray, part: str, norm: float, buckets: Any, rounded: Any, scales: Any
) -> TableHead:
    gaps = np.diff(buckets, prepend=0)
    if len(gaps) and gaps.max() > 65_535:
        raise SystemExit("a gap between two buckets does not fit: keep more features")
    packed += array("H", gaps.tolist()).tobytes()
    for column in rounded:
        packed += array("b", column.astype(int).tolist()).tobytes()
    return TableHead(
        part=part, buckets=len(buckets), norm=norm, scales=[float(one) for one in scales]
    )


# --- figures -------------------------------------------------------------------------------------


class Verdicts:
    """What the product would say of every row, by margins of machines that have not seen it."""

    def __init__(self, data: Rows, model: Model, margins: Any, by_reason: Any) -> None:
        self.unknown: list[str] = []
        self.known: list[str] = []
        for row, margin, reasons in zip(data.rows, margins, by_reason, strict=True):
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


def models_of(machines: list[tuple[Fitted, Fitted]], head: dict[str, float]) -> list[Model]:
    with tempfile.TemporaryDirectory() as place:
        path, found = Path(place) / "weights.bin", []
        for failure, reason in machines:
            write_weights(failure, reason, head, path)
            found.append(Model(path.read_bytes()))
    return found


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
        for name, value in _shares_at(data, drawn, said).items():
            found[name].append(value)
    return {
        name: [round(float(np.nanquantile(values, q)), 4) for q in (0.025, 0.975)]
        for name, values in found.items()
        if name not in ("rows", "failures")
    }


def _shares_at(data: Rows, chosen: Any, said: Verdicts) -> dict[str, float]:
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
            key: {**_shares_at(data, rows, said), "interval_95": intervals(data, rows, said)}
            for key, rows in sorted(chosen.items(), key=lambda one: -len(one[1]))
            if len(rows) >= least
        }

    return {
        "whole": {
            **_shares_at(data, scored, said),
            "interval_95": intervals(data, scored, said),
        },
        "by_fold": [_shares_at(data, scored[fold[scored] == n], said) for n in range(FOLDS)],
        "by_language": split_by(lambda row: row.label.lang, 20),
        "by_platform": split_by(lambda row: row.label.platform, 20),
        "by_reason": split_by(lambda row: row.label.reason, 20),
    }


_AROUND = ("", "", "Here is the result.", "All of it is built.", "The docs come next.", "Ready.")
_SHORT = (
    ("Error: 429 Too Many Requests", "rate_limit"),
    ("HTTP 429 Too Many Requests", "rate_limit"),
    ("HTTP 503: the model is overloaded", "overloaded"),
    ("Error: Invalid API key", "auth"),
    ("402 Payment Required", "billing"),
    ("Error: connect ECONNREFUSED 127.0.0.1:8080", "network"),
    ("grep: permission denied", BENIGN),
    ("find: permission denied", BENIGN),
)
"""Said by nothing but themselves, or among sentences of an agent."""
_LINES = (
    ("Error: 429 Too Many Requests", "rate_limit"),
    ("You've reached your plan's limit. Come back in 2 hours.", "usage_limit"),
    ("HTTP 503: the server is at capacity", "overloaded"),
    ("Error: Invalid API key", "auth"),
    ("litellm.RateLimitError: RateLimitError: OpenAIException - Error code: 429", "rate_limit"),
    ("Error: connect ECONNREFUSED 127.0.0.1:8080", "network"),
    ("402 Payment Required", "billing"),
)
_SHOWN = (
    "> {}", '"{}"', "`{}`", "- {}", "* {}", "1. {}", "- [ ] {}", "+{}", "-{}", "```\n{}\n```",
    "```text\n{}\n```", "| {} | yes |", "## {}", "// {}", "⏺ Bash(make)\n  ⎿  {}", "$ make\n{}",
    "⏺ The log says: {}", "I think that '{}' comes from the proxy.", "    {}", "\t{}", "        {}",
)  # fmt: skip
"""Ways to show a line instead of saying it."""


def own_cases() -> list[Row]:
    """The messages of the tests: in our own words, not scored."""
    found = []
    luck = random.Random(SEED)
    for path in sorted(OWN.glob("*.json")):
        for one in json.loads(path.read_bytes())["messages"]:
            reason = one["reason"] or BENIGN
            if reason != BENIGN and coarse(Reason(reason)) not in REASONS:
                continue
            reason = reason if reason == BENIGN else coarse(Reason(reason)).value
            item = {
                **one,
                "reason": reason,
                "also_ok": one.get("also", []),
                "platform": path.stem,
            }
            found.append(weighing_less(row_of(item), "own"))
            text = one["text"]
            if reason == BENIGN or "\n" in text or len(text) > 160 or one.get("http_status"):
                continue
            for _ in range(2):
                around = f"{luck.choice(_AROUND)}\n\n{text}\n\n{luck.choice(_AROUND)}"
                found.append(weighing_less(row_of({**item, "text": around}), "around"))
    for text, reason in _SHORT:
        for _ in range(6):
            around = f"{luck.choice(_AROUND)}\n\n{text}\n\n{luck.choice(_AROUND)}"
            item = {"text": around, "reason": reason, "also_ok": []}
            found.append(weighing_less(row_of(item), "own"))
    for (text, reason), shown in product(_LINES, (None, *_SHOWN)):
        shape, said = ("{}", reason) if shown is None else (shown, BENIGN)
        kind, times = ("own", 4) if shown is None else ("shown", 1)
        for _ in range(times):
            around = f"{luck.choice(_AROUND)}\n\n{shape.format(text)}\n\n{luck.choice(_AROUND)}"
            item = {"text": around, "reason": said, "also_ok": []}
            found.append(weighing_less(row_of(item), kind))
    return found


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
    write_weights(*train(data, np.arange(len(data.rows))), head, WEIGHTS)
    if args.folds:
        for number, (failure, reason) in enumerate(machines):
            write_weights(failure, reason, head, args.folds / f"fold{number}.bin")
    model = Model(WEIGHTS.read_bytes())
    said = Verdicts(data, model, margins, by_reason)
    by_platform = {}
    if not args.fast:
        # In groups of platforms: each is judged by a machine that has not seen it at all.
        platforms = np.array([row.label.platform for row in rows])
        held = list(GroupKFold(PLATFORM_FOLDS).split(scored, groups=platforms))
        others = cross_validate(data, len(own), held)
        tried = np.concatenate([unseen for _, unseen in held])
        unseen_platforms = Verdicts(data, model, *others[:2])
        by_platform = {
            **_shares_at(data, tried, unseen_platforms),
            "interval_95": intervals(data, tried, unseen_platforms),
        }
    found = {"model": figures(data, scored, said, fold)}
    if by_platform:
        found["model"]["platform_held_out"] = by_platform
    if args.texts:
        whole = WholeVerdicts(data, args.texts, fold, models_of(machines, head))
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


if __name__ == "__main__":
    main()
