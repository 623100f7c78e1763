"""Machines and what makes probabilities of their margins, as one file."""

import tempfile
import zlib
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from contrib.weights.fitting import (
    ALARM_SHARE,
    BENIGN,
    NORMS,
    OF_FAILURE,
    OF_REASON,
    REASONS,
    SHAPE_WEIGHT,
    Fitted,
    Rows,
)
from sklearn.linear_model import LogisticRegression

from fallbackd.classify.features import BUCKETS
from fallbackd.classify.model import MAGIC, Head, Model, TableHead
from fallbackd.classify.weighing import RULE_ALARM


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
    long, short = alarm_margins(data, scored, margins)
    return {
        "failure_slope": round(float(logistic.coef_[0, 0]), 4),
        "failure_offset": round(float(logistic.intercept_[0]), 4),
        "reason_slope": reason_slope(by_reason[failing], data.numbers[failing]),
        "alarm_margin": round(long, 4),
        "short_margin": round(short, 4),
    }


def alarm_margins(data: Rows, scored: Any, margins: Any) -> tuple[float, float]:
    """Of transcripts and of short statements: those that together miss the fewest failures."""
    labels = [data.rows[i].label for i in scored]
    alarms = margins[scored] + np.array([RULE_ALARM if one.rule else 0.0 for one in labels])
    short = np.array([one.is_short for one in labels])
    # A harmless text that may well be called a failure tells nothing of where failures begin.
    harmless = np.array([one.reason == BENIGN and not one.also_ok for one in labels])
    allowed = ALARM_SHARE * harmless.sum()

    def tried(of_short: int) -> tuple[int, float, float]:
        found = []
        for among, count in ((~short, allowed - of_short), (short, of_short)):
            share = count / max(1, (harmless & among).sum())
            found.append(float(np.quantile(alarms[harmless & among], 1 - share)))
        above = np.where(short, alarms > found[1], alarms > found[0])
        return int((above & data.fails[scored]).sum()), found[0], found[1]

    _, long_margin, short_margin = max(tried(count) for count in range(int(allowed)))
    return long_margin, short_margin


def write_weights(failure: Fitted, reason: Fitted, head: dict[str, float], path: Path) -> None:
    packed = bytearray()
    tables: dict[str, list[TableHead]] = {"failure": [], "reason": []}
    for at, part in enumerate(OF_FAILURE):
        norm = NORMS[part]
        inside = (failure.kept >= at * BUCKETS) & (failure.kept < (at + 1) * BUCKETS)
        buckets = failure.kept[inside] - at * BUCKETS
        factor = 1.0 if norm else SHAPE_WEIGHT
        tables["failure"].append(
            _table(packed, part, norm, buckets, failure.rounded[:, inside], failure.scales * factor)
        )
    tables["reason"].append(
        _table(packed, OF_REASON, NORMS[OF_REASON], reason.kept, reason.rounded, reason.scales)
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


def model_of(machines: tuple[Fitted, Fitted], head: dict[str, float]) -> Model:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "weights.bin"
        write_weights(*machines, head, path)
        return Model(path.read_bytes())


def thresholds_of(model: Model) -> dict[str, float]:
    """What `make_head` has made."""
    head = model.head
    return {
        "failure_slope": head.failure_slope,
        "failure_offset": head.failure_offset,
        "reason_slope": head.reason_slope,
        "alarm_margin": head.alarm_margin,
        "short_margin": head.short_margin,
    }
