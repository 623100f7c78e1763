"""A rule's finding and the model's guess made one: whether it is a failure, and of what reason."""

from msgspec import structs

from fallbackd.classify.lines import SIGNAL_EXITS, Hit, lines_of
from fallbackd.classify.model import Guess, Model, shipped
from fallbackd.classify.redact import strip_escapes
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import Reason
from fallbackd.core.protocol import Evidence

RULE_ALARM = 0.4
"""What a rule that fits adds to the margin of a failure. Both found by cross-validation."""
RULE_REASON = 0.7
"""What it adds to the margin of its reason."""

LIKELY = 0.35
"""A reason that is less likely is not named, for a program that is known to have failed."""
_LIKELY_OF_LITTLE, _LITTLE = 0.75, 70
"""So many n-grams that the model knows are too few for a guess, unless it is a clear one."""
_STATED, _HARMLESS, _BEYOND_DOUBT = 0.37, -1.0, 0.65
"""Margins of what is said outside of tools and quotations, and of one line against the whole."""
_LIKELY_CAUSE = 0.6
"""For an error whose structure names no cause: most of those that do not are rare ones."""

_COARSE: dict[Reason, Reason] = {
    Reason.TLS: Reason.NETWORK,
    Reason.LOCAL_NETWORK: Reason.NETWORK,
    Reason.PROVIDER_POLICY: Reason.CONTENT_POLICY,
    Reason.STALLED: Reason.TIMEOUT,
    Reason.PERMISSION: Reason.AUTH,
    Reason.NOT_CONFIGURED: Reason.AUTH,
}


def coarse(reason: Reason) -> Reason:
    """As the model counts it: it has not learned to tell every reason apart."""
    return _COARSE.get(reason, reason)


def is_alarm(margin: float, *, threshold: float, has_rule: bool) -> bool:
    return margin + (RULE_ALARM if has_rule else 0.0) > threshold


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


def weighed(hit: Hit | None, evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    """
    What the rules have found, after the model was asked.

    A structure, an exit status with a meaning and a signature of the user or the vendor stand.
    A program that ended well is never a failure by its words alone.
    """
    if hit is not None and (hit.rule in rules or not _is_open(hit)):
        return hit
    if not evidence.text.strip() or not _is_asked(hit, evidence):
        return hit
    model = shipped()
    guess = model.guess(evidence.text, evidence.http_status)
    named = None if hit is None or hit.rule.reason is Reason.UNKNOWN else hit.rule.reason
    best, likely = weigh(model, guess, named)
    if _has_failed(hit, evidence):
        if named is None and likely < _least(hit, guess):
            return hit
        score = likely
    else:
        if not _raises_alarm(model, guess, hit, evidence):
            return None
        bonus = 0.0 if hit is None else RULE_ALARM
        score = likely * model.failure_share(guess.margin + bonus)
    score = round(score, 3)
    if hit is not None and named is not None and coarse(named) is best:
        return structs.replace(hit, score=score)
    text = _end_of(evidence.text) if hit is None else hit.text
    said = None if hit is None else hit.said
    trust = "text" if hit is None else hit.confidence
    return Hit(rule=_RULES[best], text=text, confidence=trust, said=said, score=score)


def _raises_alarm(model: Model, guess: Guess, hit: Hit | None, evidence: Evidence) -> bool:
    threshold = model.head.alarm_margin
    if hit is None:
        # What is only shown (a tool's output, a quotation, a diff) may not be all there is.
        stated = "\n".join(
            line.text for line in lines_of(evidence.text, evidence.stream) if not line.is_deep
        )
        return (
            guess.margin > threshold
            and bool(stated)
            and model.guess(stated, evidence.http_status).margin > _STATED
        )
    if guess.margin + RULE_ALARM > threshold:
        return True
    # A line that is an error beyond doubt, among sentences about something else.
    return guess.margin > _HARMLESS and model.guess(hit.text).margin > _BEYOND_DOUBT


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
