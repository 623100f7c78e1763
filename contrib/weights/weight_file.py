"""Machines and what makes probabilities of their margins, as one file."""

import tempfile
import zlib
from array import array
from pathlib import Path
from typing import Any, get_args

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

from fallbackd.classify.features import BUCKETS, Manner
from fallbackd.classify.model import MAGIC, Head, TableHead


def reason_slope(by_reason: Any, numbers: Any) -> float:
    """The one factor that makes the shares of the right reasons largest."""

    def loss(slope: float) -> float:
        powers = slope * by_reason
        whole = np.log(np.exp(powers).sum(1))
        return float((whole - powers[np.arange(len(numbers)), numbers]).mean())

    return min((step / 4 for step in range(4, 60)), key=loss)


def make_head(data: Rows, scored: Any, margins: Any, by_reason: Any) -> dict[str, Any]:
    logistic = LogisticRegression(C=100.0).fit(margins[scored, None], data.fails[scored])
    failing = scored[data.fails[scored]]
    alone, ruled = alarm_margins(data, scored, margins)
    return {
        "failure_slope": round(float(logistic.coef_[0, 0]), 4),
        "failure_offset": round(float(logistic.intercept_[0]), 4),
        "reason_slope": reason_slope(by_reason[failing], data.numbers[failing]),
        "margins": alone,
        "ruled_margins": ruled,
    }


def alarm_margins(
    data: Rows, scored: Any, margins: Any
) -> tuple[dict[Manner, float], dict[Manner, float]]:
    """
    Without and with a rule that fits: those that together find the most failures.

    A false alarm is worth the same number of failures in every manner of text.
    """
    labels = [data.rows[i].label for i in scored]
    # A harmless text that may well be called a failure tells nothing of where failures begin.
    harmless = np.array([one.reason == BENIGN and not one.also_ok for one in labels])
    allowed = ALARM_SHARE * harmless.sum()
    # A structure and a bad status are failures whatever the margin is.
    open_ = np.array([one.trust != "structured" and (one.http_status or 0) < 400 for one in labels])
    fails = data.fails[scored] & open_
    harmless &= open_
    manners: list[tuple[Manner, bool]] = [
        (manner, ruled) for ruled in (False, True) for manner in get_args(Manner)
    ]
    parts = [
        np.array([one.manner == manner and (one.rule is not None) == ruled for one in labels])
        for manner, ruled in manners
    ]
    for worth in np.geomspace(0.3, 30, 80):
        found = [
            _margin(margins[scored[part & fails]], margins[scored[part & harmless]], worth)
            for part in parts
        ]
        if sum(alarms for _, alarms in found) <= allowed:
            break
    alone, ruled = found[: len(found) // 2], found[len(found) // 2 :]
    names = get_args(Manner)
    return (
        {name: margin for name, (margin, _) in zip(names, alone, strict=True)},
        {name: margin for name, (margin, _) in zip(names, ruled, strict=True)},
    )


def _margin(failing: Any, harmless: Any, worth: float) -> tuple[float, int]:
    """The margin that finds most failures, less the alarms at what each is worth; the alarms."""
    tried = np.arange(LEAST_MARGIN, 1.0, 0.02)
    above = [np.count_nonzero(side[:, None] > tried, axis=0) for side in (failing, harmless)]
    best = int(np.argmax(above[0] - worth * above[1]))
    return round(float(tried[best]), 4), int(above[1][best])


LEAST_MARGIN = -0.2
"""Bound for a margin that few harmless texts speak for."""


def write_weights(failure: Fitted, reason: Fitted, head: dict[str, Any], path: Path) -> None:
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


def content_of(machines: tuple[Fitted, Fitted], head: dict[str, Any]) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "weights.bin"
        write_weights(*machines, head, path)
        return path.read_bytes()
