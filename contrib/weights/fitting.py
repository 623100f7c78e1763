"""Rows to linear machines, pruned and rounded like the shipped file; the cross-validation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from contrib.weights.hashed_rows import Row, sizes_of
from scipy import sparse
from sklearn.svm import LinearSVC

from fallbackd.classify.features import BUCKETS
from fallbackd.classify.model import CLEAR_REASON
from fallbackd.core.reasons import Reason

SEED, ROUNDS = 7, 5
NORMS = {"whole": 3.0, "last": 2.0, "shape": 0.0, "cause": 3.0}
"""What a text's features of a part amount to together; 0: every one counts SHAPE_WEIGHT."""
OF_FAILURE, OF_REASON = ("whole", "last", "shape"), "cause"
SHAPE_WEIGHT = 0.35
FAILURE_FEATURES, REASON_FEATURES = 45_000, 12_000
ALARM_SHARE = 0.031
FAILURE_C, REASON_C = 0.6, 0.3
WEIGHT_OF_KIND = {"test": 0.5, "docs": 0.5, "own": 0.8, "around": 0.2, "shown": 0.25}
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

    def __init__(self, rows: list[Row], sizes: list[dict[str, int]], first_own: int) -> None:
        self.rows, self.first_own = rows, first_own
        self.reasons = np.array([row.label.reason for row in rows])
        self.fails = self.reasons != BENIGN
        self.numbers = np.array(
            [REASONS.index(Reason(r)) if r != BENIGN else -1 for r in self.reasons]
        )
        self.groups = np.array([row.label.group for row in rows])
        self.weights = np.array([WEIGHT_OF_KIND.get(row.label.kind, 1.0) for row in rows])
        self.parts = {part: self._matrix(part, norm, sizes) for part, norm in NORMS.items()}
        self.failure = sparse.hstack([self.parts[part] for part in OF_FAILURE]).tocsr()
        self.reason = self.parts[OF_REASON]

    @classmethod
    def with_own(cls, rows: list[Row], sizes: list[dict[str, int]], own: list[Row]) -> "Rows":
        """Our own cases stand behind the others: they are always learned from, never scored."""
        return cls(rows + own, sizes + sizes_of(own), len(rows))

    def with_ours(self, chosen: Any) -> Any:
        return np.concatenate([chosen, np.arange(self.first_own, len(self.rows))])

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
    occurs = often[0] + often[1] > 2
    among_failures, among_others = (count / count[occurs].sum() for count in often)
    ratio = np.abs(np.log(among_failures / among_others))
    return 0.5 + 0.5 * ratio / ratio[occurs].mean()


class Fitted:
    """One linear machine, pruned and rounded: columns of the matrix, weights per class."""

    def __init__(self, kept: Any, rounded: Any, scales: Any, biases: Any) -> None:
        self.kept, self.rounded, self.scales, self.biases = kept, rounded, scales, biases

    def margins(self, matrix: sparse.csr_matrix) -> Any:
        return matrix[:, self.kept] @ (self.rounded * self.scales[:, None]).T + self.biases


def fit(
    matrix: sparse.csr_matrix, wanted: Any, weights: Any, *, c: float, rare: Any, features: int
) -> Fitted:
    used = np.flatnonzero(np.bincount(matrix.indices, minlength=matrix.shape[1]) * rare)
    machine = LinearSVC(C=c, class_weight="balanced", random_state=SEED)
    machine.fit(_scaled(matrix, used, rare), wanted, sample_weight=weights)
    strength = np.linalg.norm(machine.coef_, axis=0)
    kept = np.sort(used[np.argsort(-strength, kind="stable")[:features]])
    machine.fit(_scaled(matrix, kept, rare), wanted, sample_weight=weights)
    exact = machine.coef_ * rare[kept]
    scales = np.abs(exact).max(axis=1) / 127
    return Fitted(kept, np.round(exact / scales[:, None]), scales, machine.intercept_)


def _scaled(matrix: sparse.csr_matrix, columns: Any, rare: Any) -> sparse.csr_matrix:
    return (matrix[:, columns] @ sparse.diags(rare[columns])).tocsr()


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
        rare=rarity(data.reason[rows]),
        features=REASON_FEATURES,
    )
    return failure, reason


def margins_of(
    data: Rows, seen: Sequence[Any], machines: Sequence[tuple[Fitted, Fitted]]
) -> tuple[Any, Any, Any]:
    """The rows that some machine has not learned from, and what it says of each."""
    margins = np.full(len(data.rows), np.nan)
    by_reason = np.full((len(data.rows), len(REASONS)), np.nan)
    for some, (failure, reason) in zip(seen, machines, strict=True):
        unseen = np.setdiff1d(np.arange(data.first_own), some)
        by_reason[unseen] = reason.margins(data.reason[unseen])
        clear = CLEAR_REASON * by_reason[unseen].max(1)
        margins[unseen] = failure.margins(data.failure[unseen]).ravel() + clear
    return np.flatnonzero(~np.isnan(margins)), margins, by_reason
