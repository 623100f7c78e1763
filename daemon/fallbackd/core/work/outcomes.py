"""How a delegation ends where no step is left: with which state, failure and words."""

from msgspec import structs

from fallbackd.core.case_view import CaseView
from fallbackd.core.failures import Reason, make_failure
from fallbackd.core.records import Ending
from fallbackd.core.routing.resolve import NEVER_BY_TIME, without_choice
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
    last = one.attempts[-1].failure if one.attempts else None
    health = None
    is_denied = bool(failures) and all(each.reason is Reason.PERMISSION for each in failures)
    if is_denied:
        # Shared by all: it is about the request, its directory as a rule.
        health = {**case.health, **without_marks(case.health, one.turn.marks)}
        why = "every backend that was tried was denied permission: check the directory of the work"
    final = case.resolve(case.turn.candidates, request_of(case), health=health)
    verdicts = without_choice(final, f"not used: {why}").verdicts
    outcome = Ending(state="refused", failure=last, message=why, retry_at=earliest_return(verdicts))
    if failures and all(each.reason.row.about == "request" for each in failures):
        message = f"every backend that was tried rejects the task itself; {why}"
        outcome = Ending(state="failed", failure=last, message=message)
    return End(outcome=outcome, why=why, verdicts=verdicts, withdraws=is_denied)


def earliest_return(verdicts: Verdicts) -> float | None:
    """When the first of the candidates is usable again, where a time is known."""
    known = [
        one.until_at
        for one in verdicts
        if one.until_at is not None
        and one.verdict not in NEVER_BY_TIME
        and (one.state in ("rate_limited", "broken") or one.verdict == "in_trial")
    ]
    return min(known, default=None)
