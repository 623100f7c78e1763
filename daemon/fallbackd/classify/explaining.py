"""Reasons for a verdict about a text: statements, rules, the model's figures, what decided."""

from msgspec import Struct, structs

from fallbackd.classify.classifier import rule_of
from fallbackd.classify.lines import lines_of
from fallbackd.classify.model import Deciding, Model, usable
from fallbackd.classify.rules import Rule
from fallbackd.classify.weighing import LIKELY, named_reason, weigh
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

MAX_STATEMENTS, MAX_REASONS, MAX_FEATURES = 20, 4, 8
WITHOUT_MODEL = "the learned model is damaged, so that the rules alone decide: reinstall fallbackd"


class Explanation(Struct, frozen=True, kw_only=True):
    because: str
    statements: tuple[str, ...]
    """Lines that count as said by the program, the last of them at the end."""
    rule: str | None
    rule_reason: Reason | None
    margin: float = 0.0
    """This and what follows is of the model, and empty without one."""
    threshold: float = 0.0
    """Bound that the margin has to exceed where the exit status is unknown."""
    failure_share: float = 0.0
    reasons: tuple[tuple[Reason, float], ...] = ()
    """Given that it is a failure."""
    for_failure: tuple[Deciding, ...] = ()
    for_reason: tuple[Deciding, ...] = ()
    """Features that speak for the likeliest reason."""


def explain(
    evidence: Evidence,
    rules: tuple[Rule, ...],
    kind: str,
    failure: Failure | None,
    model: Model | None = None,
) -> Explanation:
    """Account for the verdict `failure` about this evidence."""
    model, hit = model or usable(), rule_of(evidence, rules)
    text, status = evidence.text, evidence.http_status
    said = [line.text for line in lines_of(text, evidence.stream) if not line.is_deep]
    found = Explanation(
        because=_decided(failure) or "no signature decides",
        statements=tuple(said[-MAX_STATEMENTS:]),
        rule=None if hit is None else hit.rule.id,
        rule_reason=None if hit is None else hit.rule.reason,
    )
    if model is None:
        return structs.replace(found, because=f"{found.because}; {WITHOUT_MODEL}")
    guess = model.guess(text, status, kind)
    best, _ = weigh(model, guess, named_reason(hit))
    threshold = model.threshold(text, is_ruled=hit is not None)
    ranked = sorted(model.shares(guess.reasons).items(), key=lambda one: -one[1])
    known = best if best in model.head.reasons else ranked[0][0]
    deciding = model.deciding(text, status, kind, count=MAX_FEATURES)
    return structs.replace(
        found,
        because=_because(evidence, failure, guess.margin, threshold, ranked[0]),
        margin=round(guess.margin, 3),
        threshold=round(threshold, 3),
        failure_share=round(model.failure_share(guess.margin), 3),
        reasons=tuple((reason, round(share, 3)) for reason, share in ranked[:MAX_REASONS]),
        for_failure=tuple(deciding),
        for_reason=tuple(model.deciding(text, status, kind, reason=known, count=MAX_FEATURES)),
    )


def _decided(failure: Failure | None) -> str:
    if failure is None:
        return ""
    if failure.confidence == "structured":
        return f"a structured error is known by the signature {failure.signature}"
    if failure.confidence == "exit_code":
        return "the exit status alone says so"
    if failure.signature.startswith("model/"):
        return "no signature decides; the learned model names the reason"
    return f"a line is known by the signature {failure.signature}"


def _because(
    evidence: Evidence,
    failure: Failure | None,
    margin: float,
    threshold: float,
    best: tuple[Reason, float],
) -> str:
    if failure is not None:
        is_status = failure.confidence == "exit_code" and failure.reason is Reason.UNKNOWN
        if is_status and evidence.text.strip():
            return (
                f"the exit status says that it failed, and the likeliest reason,"
                f" {best[0].value}, is below {LIKELY:.0%}: {best[1]:.0%};"
                f" the line that was not named: {failure.evidence}"
            )
        return _decided(failure)
    if evidence.exit_code == 0:
        return "the program ended with status 0, so words alone raise no alarm"
    if evidence.http_status is not None and evidence.http_status < 400:
        return "an HTTP answer with a good status counts by its structure alone"
    if margin > threshold:
        return "words alone raise no alarm in this stream, or nothing is said outside of quotations"
    return f"no structured error, and the margin {margin:.2f} is not above {threshold:.2f}"
