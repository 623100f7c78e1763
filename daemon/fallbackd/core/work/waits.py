"""
How long a failing candidate is waited for.

A time that its provider states is waited for once in all, by the program or by the engine, and
only while no other candidate could take over now or where the time is short. Patience counts from
the first failure until a whole step has succeeded: it bounds further failures, and waiting that is
not seen. A try that is under way has the time of every first answer, whether it is the program's
own or one of the engine, and what is left of patience with its failure.
"""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.failures import Failure
from fallbackd.core.policy import Backend
from fallbackd.core.records import Attempt, Delegation, Waiting
from fallbackd.core.routing.resolve import candidate_key
from fallbackd.core.work.resolution import failover_of, halted, request_after
from fallbackd.core.work.rotation import rotated


def has_alternative(case: Case, delegation: Delegation) -> bool:
    """Whether another candidate, or another credential, could take over from the last attempt."""
    failover = failover_of(delegation)
    if rotated(case, failover) is not None:
        return True
    candidates, halt = halted(case.policy, failover)
    if halt is not None:
        return False
    request = request_after(case.policy, failover)
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


def is_worth_waiting(case: Case, delegation: Delegation, *, until_at: float) -> bool:
    """Whether the engine waits until then, and tries the candidate that failed last again."""
    wait_s = until_at - case.now
    if wait_s > case.policy.wait_threshold_s(delegation.mode):
        return False
    if has_waited(delegation, delegation.attempts[-1], now=case.now):
        return False
    return wait_s <= case.policy.patience_s(delegation.mode) or not has_alternative(
        case, delegation
    )


def is_overtaken(case: Case, delegation: Delegation, waiting: Waiting) -> bool:
    """Whether another candidate has become usable while a stated time is waited for."""
    wait_s = waiting.until_at - case.now
    if waiting.resumes:
        return False  # another one would have to begin the work again
    if not waiting.is_stated or wait_s <= case.policy.patience_s(delegation.mode):
        return False
    return has_alternative(case, delegation)


def with_waited(delegation: Delegation, attempt: Attempt) -> Delegation:
    """The delegation with the stated time of a candidate as waited for."""
    key = candidate_key(attempt.backend, attempt.model)
    if key in delegation.waited:
        return delegation
    return structs.replace(delegation, waited=(*delegation.waited, key))


def give_up(
    case: Case,
    delegation: Delegation,
    attempt: Attempt,
    failure: Failure,
    backend: Backend | None,
    *,
    luck: float,
) -> Delegation:
    """Leave the candidate that failed last: mark it once, and release its lease."""
    made = None
    if backend is not None:
        made = case.mark(
            failure,
            backend,
            model=attempt.model,
            credential=attempt.credential,
            started_at=attempt.started_at,
            luck=luck,
            repeated=failure.wait_s is not None and has_waited(delegation, attempt, now=case.now),
        )
    case.release(attempt)
    policy = case.policy.reason(failure.reason, attempt.backend)
    case.tell(
        delegation,
        "attempt failed",
        outcome=f"leaves {attempt.backend}: {failure.reason.value}"
        + ("" if made is None else f", marks {made.scope}"),
        evidence=failure.evidence,
        signature=failure.signature,
        confidence=failure.confidence,
        window_s=None if policy is None else policy.window_s,
        wait_s=failure.wait_s,
    )
    if made is not None:
        marked = structs.replace(attempt, failure=structs.replace(failure, scope=made.scope))
        delegation = structs.replace(
            delegation,
            attempts=(*delegation.attempts[:-1], marked),
            marks=(*delegation.marks, made),
        )
    case.keep_delegation(delegation)
    return delegation
