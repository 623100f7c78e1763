"""
A rule's finding and the model's guess made one: whether it is a failure, and of what reason.

A machine's own samples add weights of n-grams to those of the shipped file. Each sample moves the
weights of its n-grams, and no others, until the model says what is right by a margin
(passive-aggressive steps, bounded). The shape of the lines is left alone: it says little about one
machine's programs, and much about all others.
"""

import re
from collections.abc import Collection, Sequence
from math import sqrt

from msgspec import Struct, structs

from fallbackd.classify.error_lines import is_agents_words, without_marks
from fallbackd.classify.features import Features, features_of
from fallbackd.classify.lines import SIGNAL_EXITS, Hit, has_agents_words, lines_of, text_hit
from fallbackd.classify.model import Additions, Guess, Model, usable, weights
from fallbackd.classify.rules import Rule
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd_conversations.redact import strip_escapes

RULE_REASON = 0.7
"""Addition of a fitting rule to the margin of its reason, found by cross-validation."""

LIKELY = 0.2
"""A reason that is less likely is not named, for a program that is known to have failed."""
_LIKELY_OF_LITTLE, _LITTLE = 0.6, 35
"""Number of known n-grams that is too few for a guess, unless it is a clear one."""
_HARMLESS, _ALONE, _LAST = -0.6, 0.2, 0.8
"""Margins of the whole, of a line apart and of the last line."""
_MARK_CHARS = 3
"""Length of a mark before a line, as `✗ `."""
_LITTLE_CHARS = 200
"""Characters that may stand beside a line apart."""
_LIKELY_CAUSE = 0.6
"""Bound for an error whose structure names no cause: most of these are rare ones."""

_COARSE: dict[Reason, Reason] = {
    Reason.TLS: Reason.NETWORK,
    Reason.LOCAL_NETWORK: Reason.NETWORK,
    Reason.PROVIDER_POLICY: Reason.CONTENT_POLICY,
    Reason.STALLED: Reason.TIMEOUT,
    Reason.PERMISSION: Reason.AUTH,
    Reason.NOT_CONFIGURED: Reason.AUTH,
}


def coarse(reason: Reason) -> Reason:
    """Reason as the model counts it: it has not learned to tell every reason apart."""
    return _COARSE.get(reason, reason)


def weigh(model: Model, guess: Guess, rule: Reason | None) -> tuple[Reason, float]:
    """The best reason and how likely it is, given that it is a failure."""
    known = None if rule is None else coarse(rule)
    margins = tuple(
        (reason, margin + (RULE_REASON if reason is known else 0.0))
        for reason, margin in guess.reasons
    )
    shares = model.shares(margins)
    if known is not None and known not in shares:
        return known, 1.0  # the model does not know this one
    best = max(shares, key=lambda reason: shares[reason])
    return best, shares[best]


def named_reason(hit: Hit | None) -> Reason | None:
    return None if hit is None or hit.rule.reason is Reason.UNKNOWN else hit.rule.reason


def weighed(
    hit: Hit | None,
    evidence: Evidence,
    rules: tuple[Rule, ...],
    kind: str | None = None,
    model: Model | None = None,
) -> Hit | None:
    """
    Combine the finding of the rules with the guess of the model.

    A structure, an exit status with a meaning and a signature of the user or the vendor stand.
    A program that ended well is never a failure by its words alone.
    """
    if _is_settled(hit, rules) or not evidence.text.strip() or not _is_asked(hit, evidence):
        return hit
    model = model or usable()
    if model is None:
        return hit
    guess = model.guess(evidence.text, evidence.http_status, kind)
    named = named_reason(hit)
    best, likely = weigh(model, guess, named)
    if _has_failed(hit, evidence):
        if named is None and likely < _least(hit, guess):
            return hit
        return _renamed(hit, evidence, best, likely)
    if not _raises_alarm(model, guess, hit, evidence, rules):
        return None
    margin = guess.margin + _bonus(model, hit, evidence.text)
    return _renamed(hit, evidence, best, likely * model.failure_share(margin))


def _bonus(model: Model, hit: Hit | None, text: str) -> float:
    """Worth of a fitting rule: how much smaller a margin is enough with it."""
    if hit is None:
        return 0.0
    return model.threshold(text) - model.threshold(text, is_ruled=True)


def _is_settled(hit: Hit | None, rules: tuple[Rule, ...]) -> bool:
    return hit is not None and (hit.rule in rules or hit.rule.stands or not _is_open(hit))


def _renamed(hit: Hit | None, evidence: Evidence, best: Reason, likely: float) -> Hit:
    """Give a finding the reason that is best; a rule that says the same keeps its name."""
    score = round(likely, 3)
    if hit is None:
        text = _end_of(evidence.text)
        return Hit(rule=_RULES[best], text=text, confidence="text", score=score)
    is_named = hit.rule.reason is not Reason.UNKNOWN and coarse(hit.rule.reason) is best
    return structs.replace(hit, rule=hit.rule if is_named else _RULES[best], score=score)


def _raises_alarm(
    model: Model, guess: Guess, hit: Hit | None, evidence: Evidence, rules: tuple[Rule, ...]
) -> bool:
    margin = guess.margin
    is_above = margin > model.threshold(evidence.text, is_ruled=hit is not None)
    if hit is None:
        return is_above and not _is_quoted(model, evidence, rules)
    if is_above:
        return True
    # A line that is an error by itself: apart beside a few sentences, or the last word.
    least = _least_of_line(hit.text, evidence)
    return least is not None and margin > _HARMLESS and model.guess(hit.text).margin > least


def _least_of_line(line: str, evidence: Evidence) -> float | None:
    if len(evidence.text) <= len(line) + _LITTLE_CHARS:
        plain = strip_escapes(evidence.text).replace("’", "'")
        parts = (part.strip() for part in _EMPTY_LINE.split(plain))
        if any(one.endswith(line) and len(one) - len(line) <= _MARK_CHARS for one in parts):
            return _ALONE
    lines = lines_of(evidence.text, evidence.stream)
    return _LAST if lines and lines[-1].text in line else None


_EMPTY_LINE = re.compile(r"\n[ \t\r]*\n")


def _is_quoted(model: Model, evidence: Evidence, rules: tuple[Rule, ...]) -> bool:
    """
    An agent alone speaks, or a known error is shown in a quotation, a list or a diff and what is
    said beside is harmless.
    """
    stated = "\n".join(
        line.text
        for line in lines_of(evidence.text, evidence.stream)
        if not (line.is_deep or is_agents_words(line.text))
    )
    if stated and model.guess(stated, evidence.http_status).margin > model.threshold(stated):
        return False
    if has_agents_words(evidence.text):
        return True
    bare = structs.replace(evidence, text=without_marks(evidence.text))
    return text_hit(bare, rules) is not None


def _least(hit: Hit | None, guess: Guess) -> float:
    if guess.known < _LITTLE:
        return _LIKELY_OF_LITTLE
    return LIKELY if hit is None else _LIKELY_CAUSE


def _is_open(hit: Hit) -> bool:
    """Found in text, or an error whose structure says nothing of its cause."""
    return hit.confidence == "text" or (
        hit.confidence == "structured" and hit.rule.reason is Reason.UNKNOWN
    )


def _is_asked(hit: Hit | None, evidence: Evidence) -> bool:
    code, status = evidence.exit_code, evidence.http_status
    if status is not None and status < 400:
        return False
    if code == 0 or evidence.signal is not None or code in SIGNAL_EXITS:
        return False
    if hit is not None and hit.rule.id == "version":
        return False
    if code is None:
        # A program that still runs: what it prints beside its answer decides by rules alone.
        return hit is not None or evidence.stream == "unknown"
    return hit is not None or not evidence.answered


def _has_failed(hit: Hit | None, evidence: Evidence) -> bool:
    if hit is not None and (hit.confidence == "structured" or evidence.stream != "unknown"):
        return True
    return bool(evidence.exit_code) and not evidence.answered


_RULES = {reason: Rule(id=f"model/{reason.value}", reason=reason) for reason in Reason}
_END_CHARS = 1_800


def _end_of(text: str) -> str:
    return strip_escapes(text[-2 * _END_CHARS :])[-_END_CHARS:].strip()


ROUNDS, MAX_STEP = 10, 0.05
_ALARM_BY, _REASON_BY = 0.1, 1.0
"""Margins by which a sample is to be above the threshold, and its reason above every other."""


class Lesson(Struct, frozen=True, kw_only=True):
    text: str
    reason: Reason
    """Reason that was right."""
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
    """Learn one sample; check whether anything was moved."""
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
