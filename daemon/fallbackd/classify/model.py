"""
The learned part: how likely a text is a failure's, and which reason it gives.

Linear, over hashed n-grams. The weights are a file of the package, written by `make weights`, one
byte per weight; they are read when the first text needs them. No rule is known here.
"""

import zlib
from array import array
from collections.abc import Collection
from functools import lru_cache
from math import exp, sqrt

import msgspec
from msgspec import Struct

from fallbackd.classify.features import (
    Features,
    Manner,
    features_of,
    manner_of,
    named_features,
)
from fallbackd.core.reasons import Reason

MAGIC = b"fallbackd-weights-1\n"


CLEAR_REASON = 0.3
"""Weight of the margin of the best reason in that of a failure."""


class TableHead(Struct, frozen=True, kw_only=True):
    """Describes one table of weights: `buckets` rows of `columns` bytes, column after column."""

    part: str
    """Part of the features: whole, last or shape."""
    buckets: int
    norm: float
    """Total of a text's features; 0: every one counts 1."""
    scales: list[float]
    """Meaning of a weight of 1, by column."""


class Head(Struct, frozen=True, kw_only=True):
    failure: list[TableHead]
    failure_bias: float
    failure_slope: float
    failure_offset: float
    """Calibration from a margin to a probability: 1 / (1 + exp(-(slope·margin + offset)))."""
    reasons: list[Reason]
    reason: list[TableHead]
    reason_biases: list[float]
    reason_slope: float
    margins: dict[Manner, float]
    """Above it a text is a failure, where nothing else is known of the program."""
    ruled_margins: dict[Manner, float]
    """Margins where a rule fits a line of the text."""


class Guess(Struct, frozen=True):
    margin: float
    """Above 0: rather a failure. The threshold is that of the caller."""
    failure: float
    """Probability."""
    reasons: tuple[tuple[Reason, float], ...]
    """Margins by reason, the best first, given that it is a failure."""
    known: int = 0
    """N-grams for which the model has weights of a reason."""


class _Table:
    def __init__(self, head: TableHead, data: memoryview) -> None:
        self.head = head
        gaps = array("H")
        gaps.frombytes(data[: 2 * head.buckets])
        bucket = 0
        self.places: dict[int, int] = {}
        for place, gap in enumerate(gaps):
            bucket += gap
            self.places[bucket] = place
        weights = array("b")
        weights.frombytes(data[2 * head.buckets :])
        self.columns = [
            weights[at : at + head.buckets] for at in range(0, len(weights), head.buckets)
        ]
        self._rows = dict(zip(self.places, _rows(self.columns), strict=True))

    def sums(self, buckets: Collection[int]) -> tuple[list[float], int]:
        """Sum the weights of the known ones among these, by column; count the known ones."""
        known = list(filter(None, map(self._rows.get, buckets)))
        factor = self.head.norm / sqrt(max(1, len(buckets))) if self.head.norm else 1.0
        whole = sum(known)
        sums = [
            (whole >> at & _LANE_MASK) - 128 * len(known)
            for at in range(0, _LANE_BITS * len(self.columns), _LANE_BITS)
        ]
        scaled = [one * scale * factor for one, scale in zip(sums, self.head.scales, strict=True)]
        return scaled, len(known)


_LANE_BITS = 24
_LANE_MASK = (1 << _LANE_BITS) - 1


def _rows(columns: "list[array[int]]") -> list[int]:
    """
    Pack the weights of a bucket, all columns side by side in one number, each 128 higher.

    A sum of these numbers is the sums of all columns: one addition takes the place of fifteen.
    """
    lane = _LANE_BITS // 8
    width = lane * len(columns)
    raised = bytes((value + 128) % 256 for value in range(256))
    packed = bytearray(width * len(columns[0]))
    for at, column in enumerate(columns):
        packed[lane * at :: width] = column.tobytes().translate(raised)
    return [
        int.from_bytes(packed[at : at + width], "little") for at in range(0, len(packed), width)
    ]


class Deciding(Struct, frozen=True):
    """A feature of a text, and what it adds to a margin."""

    feature: str
    weight: float


class Additions(Struct, kw_only=True):
    """Weights by bucket that are added to those of a file."""

    base: int
    """Checksum of that file: for another one they mean nothing."""
    failure: dict[str, dict[int, float]] = {}
    """Weights by part."""
    reasons: dict[str, dict[int, float]] = {}
    """Weights by reason and part, with a blank between them."""

    @classmethod
    def to(cls, content: bytes) -> "Additions":
        return cls(base=zlib.crc32(content))


def _added(tables: dict[str, dict[int, float]], name: str, buckets: Collection[int]) -> float:
    table = tables.get(name)
    return 0.0 if table is None else sum(table.get(one, 0.0) for one in buckets)


class Model:
    """
    A file of weights that has been read.

    Args:
        added: What a machine's own samples have taught.

    Raises:
        ValueError: It is no file of weights.
    """

    def __init__(self, content: bytes, added: Additions | None = None) -> None:
        self.added = added
        if not content.startswith(MAGIC):
            raise ValueError("no file of weights")
        head, _, packed = content[len(MAGIC) :].partition(b"\n")
        self.head = msgspec.json.decode(head, type=Head)
        data = memoryview(zlib.decompress(packed))
        self._failure, data = _tables(self.head.failure, data)
        self._reason, data = _tables(self.head.reason, data)

    def guess(self, text: str, http_status: int | None = None, kind: str | None = None) -> Guess:
        return self.guess_of(features_of(text, http_status, kind))

    def guess_of(self, features: Features) -> Guess:
        head = self.head
        margin = head.failure_bias
        for table in self._failure:
            buckets = getattr(features, table.head.part)
            (weight,), _ = table.sums(buckets)
            margin += weight + self._more(table, buckets)
        margins = list(head.reason_biases)
        known = 0
        for table in self._reason:
            buckets = getattr(features, table.head.part)
            sums, count = table.sums(buckets)
            known += count
            for at, one in enumerate(sums):
                margins[at] += one + self._more(table, buckets, head.reasons[at])
        ranked = sorted(zip(head.reasons, margins, strict=True), key=lambda one: -one[1])
        margin += CLEAR_REASON * ranked[0][1]
        return Guess(margin, self.failure_share(margin), tuple(ranked), known)

    def deciding(
        self,
        text: str,
        http_status: int | None = None,
        kind: str | None = None,
        *,
        reason: Reason | None = None,
        count: int,
    ) -> list[Deciding]:
        """The features that weigh most for or against a failure, or for one reason of it."""
        tables = self._failure if reason is None else self._reason
        column = 0 if reason is None else self.head.reasons.index(reason)
        found: list[Deciding] = []
        for table in tables:
            names = named_features(text, http_status, kind)[table.head.part]
            one = table.head.norm / sqrt(max(1, len(names))) if table.head.norm else 1.0
            scale = table.head.scales[column] * one
            for bucket, name in names.items():
                place = table.places.get(bucket)
                weight = 0.0 if place is None else table.columns[column][place] * scale
                weight += self._more(table, (bucket,), reason, whole=len(names))
                if weight:
                    found.append(Deciding(f"{table.head.part} {name!r}", round(weight, 4)))
        if reason is None:
            best, margin = self.guess(text, http_status, kind).reasons[0]
            found.append(Deciding(f"reason {best.value}", round(CLEAR_REASON * margin, 4)))
        found.sort(key=lambda one: (-abs(one.weight), one.feature))
        return found[:count]

    def _more(
        self,
        table: _Table,
        buckets: Collection[int],
        reason: Reason | None = None,
        *,
        whole: int | None = None,
    ) -> float:
        """
        Addition of own samples to a margin; `whole`: the number of features that these are some of.
        """
        if self.added is None:
            return 0.0
        part, norm = table.head.part, table.head.norm
        tables = self.added.failure if reason is None else self.added.reasons
        name = part if reason is None else f"{reason.value} {part}"
        count = len(buckets) if whole is None else whole
        return _added(tables, name, buckets) * (norm / sqrt(max(1, count)) if norm else 1.0)

    def threshold(self, text: str, *, is_ruled: bool = False) -> float:
        margins = self.head.ruled_margins if is_ruled else self.head.margins
        return margins[manner_of(text)]

    def failure_share(self, margin: float) -> float:
        head = self.head
        return 1.0 / (1.0 + exp(-_within(head.failure_slope * margin + head.failure_offset)))

    def shares(self, margins: tuple[tuple[Reason, float], ...]) -> dict[Reason, float]:
        """Probabilities of the reasons, given that it is a failure."""
        slope = self.head.reason_slope
        powers = {reason: exp(_within(slope * margin)) for reason, margin in margins}
        whole = sum(powers.values())
        return {reason: power / whole for reason, power in powers.items()}


def _tables(heads: list[TableHead], data: memoryview) -> tuple[list[_Table], memoryview]:
    found = []
    for head in heads:
        size = head.buckets * (2 + len(head.scales))
        found.append(_Table(head, data[:size]))
        data = data[size:]
    return found, data


def _within(power: float) -> float:
    return max(-30.0, min(30.0, power))


def weights() -> bytes:
    """The shipped file."""
    from pkgutil import get_data  # slow to load

    return get_data("fallbackd.classify", "weights.bin") or b""


@lru_cache(maxsize=1)
def shipped() -> Model:
    """
    Raises:
        OSError, *DAMAGED: The file cannot be read, or is damaged.
    """
    return Model(weights())


DAMAGED = (ValueError, zlib.error, msgspec.MsgspecError, FileNotFoundError)


@lru_cache(maxsize=1)
def usable() -> Model | None:
    """The shipped one; None where its file is damaged: then the rules alone decide."""
    try:
        return shipped()
    except DAMAGED:
        return None
