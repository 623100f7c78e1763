"""How a delegation ends where no step is left: with which state, failure and words."""

from msgspec import structs

from fallbackd.core.case_view import CaseView
from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.reasons import FINAL, WORDS
from fallbackd.core.records import Ending, Verdict
from fallbackd.core.routing.resolve import NEVER_BY_TIME, awaited, without_choice
from fallbackd.core.turn import without_marks
from fallbackd.core.work.resolution import request_of
from fallbackd.core.work.steps import End, Verdicts

BY_CALLER = "cancelled by the caller"


def deadline_passed(*, now: float) -> End:
    failure = make_failure(
        Reason.TIMEOUT,
        now=now,
        detail="deadline",
        confidence="structured",
        signature="fallbackd/deadline",
        evidence="the caller's own deadline is over",
    )
    failure = structs.replace(failure, marks_health=False, retryable=False, hop=False)
    message = "deadline exceeded (timeout_s)"
    return End(outcome=Ending(state="failed", failure=failure, message=message))


def exhausted(case: CaseView, why: str) -> End:
    """No candidate is left: `refused` with the time to retry, or `failed` by the task itself."""
    one = case.delegation
    failures = [each.failure for each in one.attempts if each.failure is not None]
    health = None
    is_denied = bool(failures) and all(each.reason is Reason.PERMISSION for each in failures)
    if is_denied:
        # Shared by all: it is about the request, its directory as a rule.
        health = {**case.health, **without_marks(case.health, one.turn.marks)}
        why = "every backend that was tried was denied permission: check the directory of the work"
    final = case.resolve(case.turn.candidates, request_of(case), health=health)
    verdicts = without_choice(final, f"not used: {why}").verdicts
    last = reported_failure(case, verdicts)
    outcome = Ending(state="refused", failure=last, message=why, retry_at=earliest_return(verdicts))
    if last is not None and all(each.reason.row.about == "request" for each in (*failures, last)):
        message = f"every backend that was tried rejects the task itself; {why}"
        outcome = Ending(state="failed", failure=last, message=message)
    return End(outcome=outcome, why=why, verdicts=verdicts, withdraws=is_denied)


def reported_failure(case: CaseView, verdicts: Verdicts) -> Failure | None:
    """
    Choose the failure that is reported to the caller: the last one, unless another one is over by
    itself, and what failed since was no more than a fallback.
    """
    attempts = case.delegation.attempts
    failures = [one.failure for one in attempts if one.failure is not None]
    if not failures:
        return None
    last = failures[-1]
    if last.reason.row.is_over_by_itself or last.reason in FINAL:
        return last
    for before in reversed(failures):
        if before.reason.row.is_over_by_itself:
            return before
    out = awaited(verdicts, asked={one.backend for one in attempts})
    return last if out is None else _out_of_rotation(out, now=case.now)


def _out_of_rotation(out: Verdict, *, now: float) -> Failure:
    reason = Reason(out.reason or "")
    text = f"{out.backend} is out of rotation: {reason.value}"
    reset_s = None if out.until_at is None else out.until_at - now
    return make_failure(
        reason,
        now=now,
        reset_s=reset_s,
        signature="fallbackd/out-of-rotation",
        evidence=text,
        marks=False,
    )


def earliest_return(verdicts: Verdicts) -> float | None:
    """
    When the first of the candidates is usable again, where a time is known: of those that need no
    repair, if there are any.
    """
    known = [
        (not _is_over_by_itself(one), one.until_at)
        for one in verdicts
        if one.until_at is not None
        and one.verdict not in NEVER_BY_TIME
        and (one.state in ("rate_limited", "broken") or one.verdict == "in_trial")
    ]
    return min(known, default=(False, None))[1]


def _is_over_by_itself(one: Verdict) -> bool:
    return one.reason not in WORDS or Reason(one.reason or "").row.is_over_by_itself
