"""
What a machine's own samples teach: weights of n-grams that are added to those of the shipped file.

Each sample moves the weights of its n-grams, and no others, until the model says what is right by a
margin (passive-aggressive steps, bounded). The shape of the lines is left alone: it says little
about one machine's programs, and much about all others.
"""

from collections.abc import Collection, Sequence
from math import sqrt

from msgspec import Struct

from fallbackd.classify.features import Features, features_of
from fallbackd.classify.model import Additions, Model, usable, weights
from fallbackd.classify.weighing import coarse
from fallbackd.core.failures import Reason

ROUNDS, MAX_STEP = 10, 0.05
_ALARM_BY, _REASON_BY = 0.1, 1.0
"""By how much a sample is to be above the threshold, and its reason above every other."""


class Lesson(Struct, frozen=True, kw_only=True):
    text: str
    reason: Reason
    """What was right."""
    kind: str = "generic"


def learn(lessons: Sequence[Lesson]) -> Model:
    """The shipped model with what these lessons add."""
    content = weights()
    added = Additions.to(content)
    model = Model(content, added)
    read = [
        (features_of(one.text, None, one.kind), coarse(one.reason), model.threshold(one.text))
        for one in lessons
    ]
    for _ in range(ROUNDS):
        moved = sum(_learn_one(model, added, *one) for one in read)
        if not moved:
            break
    return model


def can_learn(reason: Reason) -> bool:
    """The model tells fewer reasons apart than there are."""
    model = usable()
    return model is not None and coarse(reason) in model.head.reasons


def _learn_one(
    model: Model, added: Additions, features: Features, right: Reason, threshold: float
) -> bool:
    """Whether anything was moved."""
    head, guess = model.head, model.guess_of(features)
    missing = threshold + _ALARM_BY - guess.margin
    if missing > 0:
        tables = [one for one in head.failure if one.norm]
        step = min(MAX_STEP, missing / sum(one.norm**2 for one in tables))
        for one in tables:
            _move(added.failure, one.part, getattr(features, one.part), one.norm * step)
    margins = dict(guess.reasons)
    other = max((r for r in margins if r is not right), key=lambda reason: margins[reason])
    short = margins[other] + _REASON_BY - margins[right]
    if short > 0:
        step = min(MAX_STEP, short / (2 * sum(one.norm**2 for one in head.reason)))
        for one in head.reason:
            buckets = getattr(features, one.part)
            _move(added.reasons, f"{right.value} {one.part}", buckets, one.norm * step)
            _move(added.reasons, f"{other.value} {one.part}", buckets, -one.norm * step)
    return max(missing, short) > 0


def _move(
    tables: dict[str, dict[int, float]], name: str, buckets: Collection[int], by: float
) -> None:
    table = tables.setdefault(name, {})
    each = by / sqrt(max(1, len(buckets)))
    for bucket in buckets:
        table[bucket] = table.get(bucket, 0.0) + each
