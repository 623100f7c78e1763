"""A candidate that is given up: its mark, and the marks that are taken back."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.failures import Failure
from fallbackd.core.policy import Backend
from fallbackd.core.work.waits import has_waited


def give_up(case: Case, failure: Failure, backend: Backend | None, *, luck: float) -> Failure:
    """
    Leave the candidate of the last attempt: mark it once, and release its lease.

    Returns:
        The failure, with the scope that was marked.
    """
    one = case.delegation
    attempt = one.attempts[-1]
    made = None
    if backend is not None:
        made = case.mark(
            failure,
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
            luck=luck,
            repeated=failure.wait_s is not None and has_waited(one, attempt, now=case.now),
        )
    case.release(attempt)
    policy = case.policy.reason(failure.reason, attempt.backend)
    case.tell(
        one,
        "attempt failed",
        outcome=f"leaves {attempt.backend}: {failure.reason.value}"
        + ("" if made is None else f", marks {made.scope}"),
        evidence=failure.evidence,
        signature=failure.signature,
        confidence=failure.confidence,
        window_s=None if policy is None else policy.window_s,
        wait_s=failure.wait_s,
    )
    if made is None:
        return failure
    failure = structs.replace(failure, scope=made.scope)
    case.update(
        attempts=(*one.attempts[:-1], structs.replace(attempt, failure=failure)),
        turn=structs.replace(one.turn, marks=(*one.turn.marks, made)),
    )
    return failure


def withdraw_marks(case: Case) -> None:
    """Take back the marks that the delegation has made."""
    turn = case.delegation.turn
    case.withdraw(turn.marks)
    case.update(turn=structs.replace(turn, marks=()))
