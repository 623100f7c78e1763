"""
How long a failing candidate is waited for.

A time that its provider states is waited for once in all, by the program or by the engine, and
only while no other candidate could take over now or where the time is short. Patience counts from
the first failure until a whole step has succeeded: it bounds further failures, and waiting that is
not seen. A try that is under way has the time of every first answer, whether it is the program's
own or one of the engine, and what is left of patience with its failure.
"""

from fallbackd.core.case_view import CaseView
from fallbackd.core.failures import Failure
from fallbackd.core.records import Attempt, Delegation, Waiting
from fallbackd.core.routing.configured import candidate_key
from fallbackd.core.work.resolution import halted, request_after
from fallbackd.core.work.rotation import rotated


def has_alternative(case: CaseView) -> bool:
    """Whether another candidate, or another credential, could take over from the last attempt."""
    turn = case.turn
    if rotated(case, turn) is not None:
        return True
    candidates, halt = halted(case.policy, turn)
    if halt is not None:
        return False
    request = request_after(case.policy, turn)
    return case.resolve(candidates, request).choice is not None


def stated_until(failure: Failure, *, now: float) -> float | None:
    """When the time is over that a provider stated; None: it stated none."""
    if failure.wait_s is None:
        return None
    return max(now, failure.wait_until_at or now + failure.wait_s)


def has_waited(delegation: Delegation, attempt: Attempt, *, now: float) -> bool:
    """Whether a stated time of this candidate was waited for to its end."""
    if candidate_key(attempt.backend, attempt.model) not in delegation.waited:
        return False
    return attempt.waits_until_at is None or now >= attempt.waits_until_at


def is_past_deadline(delegation: Delegation, at: float) -> bool:
    """Whether the caller's own deadline is over by then."""
    return delegation.deadline_at is not None and at >= delegation.deadline_at


def is_worth_waiting(case: CaseView, *, until_at: float) -> bool:
    """Whether the engine waits until then, and tries the candidate that failed last again."""
    wait_s, delegation = until_at - case.now, case.delegation
    if wait_s > case.policy.wait_threshold_s(delegation.mode):
        return False
    if has_waited(delegation, delegation.attempts[-1], now=case.now):
        return False
    return wait_s <= case.policy.patience_s(delegation.mode) or not has_alternative(case)


def is_overtaken(case: CaseView, waiting: Waiting) -> bool:
    """Whether another candidate has become usable while a stated time is waited for."""
    wait_s = waiting.until_at - case.now
    if waiting.resumes:
        return False  # another one would have to begin the work again
    if not waiting.is_stated or wait_s <= case.policy.patience_s(case.delegation.mode):
        return False
    return has_alternative(case)


def with_waited(delegation: Delegation, attempt: Attempt) -> tuple[str, ...]:
    """The candidates whose stated time was waited for, with the one of an attempt."""
    key = candidate_key(attempt.backend, attempt.model)
    return delegation.waited if key in delegation.waited else (*delegation.waited, key)
