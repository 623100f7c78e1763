"""
Further tries: how long a failing candidate is waited for, and the budget of this host.

A time that its provider states is waited for once in all, by the program or by the engine, and
only while no other candidate could take over now or where the time is short. Patience counts from
the first failure until a whole step has succeeded: it bounds further failures, and waiting that is
not seen. A try that is under way has the time of every first answer, whether it is the program's
own or one of the engine, and what is left of patience with its failure.

A budget of the host for retries and moves: in a full outage all clients together make at most a
tenth more attempts than were asked for; a failover is held back while other work finds out whether
a backend answers again.
"""

from typing import Any

from msgspec import Struct

from fallbackd.core import meter
from fallbackd.core.case import CaseView
from fallbackd.core.failures import Failure
from fallbackd.core.policy import Backend
from fallbackd.core.records import Attempt, Delegation, Waiting
from fallbackd.core.routing.candidates import Choice, candidate_key
from fallbackd.core.work.resolution import halted, request_after, rotated


def has_alternative(case: CaseView) -> bool:
    """
    Return whether another candidate, or another credential, could take over from the last attempt.
    """
    turn = case.turn
    if rotated(case, turn) is not None:
        return True
    candidates, halt = halted(case.policy, turn)
    if halt is not None:
        return False
    request = request_after(case.policy, turn)
    return case.resolve(candidates, request).choice is not None


def stated_until(failure: Failure, *, now: float) -> float | None:
    """Return the end of the time that a provider stated; None: it stated none."""
    if failure.wait_s is None:
        return None
    return max(now, failure.wait_until_at or now + failure.wait_s)


def has_waited(delegation: Delegation, attempt: Attempt, *, now: float) -> bool:
    """Return whether a stated time of this candidate was waited for to its end."""
    if candidate_key(attempt.backend, attempt.model) not in delegation.waited:
        return False
    return attempt.waits_until_at is None or now >= attempt.waits_until_at


def is_past_deadline(delegation: Delegation, at: float) -> bool:
    """Return whether the caller's own deadline has passed by then."""
    return delegation.deadline_at is not None and at >= delegation.deadline_at


def is_worth_waiting(case: CaseView, *, until_at: float) -> bool:
    """
    Return whether the engine waits until then, and tries the candidate that failed last again.
    """
    wait_s, delegation = until_at - case.now, case.delegation
    if wait_s > case.policy.wait_threshold_s(delegation.mode):
        return False
    if has_waited(delegation, delegation.attempts[-1], now=case.now):
        return False
    return wait_s <= case.policy.patience_s(delegation.mode) or not has_alternative(case)


def is_overtaken(case: CaseView, waiting: Waiting) -> bool:
    """Return whether another candidate has become usable while a stated time is waited for."""
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


# The budget of this host for attempts beyond the first one of each delegation.
#
# In a full outage each retry and each hop is one more call to a provider that is down. All of them
# together may make `retry_share` of the first attempts of the last minutes; a quiet host has
# `retry_floor` to spend, which fades as its demand grows. Retries leave a part of that to hops.
#
# A hop is held back and not refused: one at a time scouts a backend of which nothing has been heard
# since the trouble began, and its first output lets all the others through. So an outage of some
# providers costs seconds, and an outage of all of them costs next to nothing.


RETRIES_PART = 0.6
HOPS_PART = 0.8
"""The rest is for scouts."""


class Budget(Struct, frozen=True, kw_only=True):
    firsts: int
    further: int
    """Made, or promised as a retry after its back-off."""
    share: float
    floor: float

    def has_room(self, part: float) -> bool:
        demanded = self.share * self.firsts
        return self.further + 1 <= max(part * demanded, self.floor - demanded)


def budget_of(case: CaseView) -> Budget:
    firsts, further = meter.demand(case.meters.values(), now=case.now)
    own = case.snapshot.delegation
    promised = sum(
        1
        for one in case.snapshot.active.values()
        if one.waiting is not None
        and one.waiting.retry is not None
        and (own is None or one.delegation != own.delegation)
    )
    defaults = case.policy.defaults
    return Budget(
        firsts=firsts,
        further=further + promised,
        share=defaults.retry_share,
        floor=defaults.retry_floor,
    )


def shown(found: Budget) -> dict[str, Any]:  # for the story
    return {
        "first_attempts": found.firsts,
        "further_attempts": found.further,
        "retry_share": found.share,
        "retry_floor": found.floor,
        "window_s": meter.DEMAND_MIN * 60,
    }


def may_retry(case: CaseView) -> bool:
    return budget_of(case).has_room(RETRIES_PART)


def backoff_s(case: CaseView, backend: Backend, retry: int, *, luck: float) -> float:
    """Wait before retry `retry` (from 1): exponential, jittered upwards by half, then capped."""
    defaults = case.policy.defaults
    base_s = defaults.backoff_base_s if backend.backoff_base_s is None else backend.backoff_base_s
    max_s = defaults.backoff_max_s if backend.backoff_max_s is None else backend.backoff_max_s
    return min(max_s, base_s * 2.0 ** min(retry - 1, 60) * (1 + luck / 2))


def held_until(
    case: CaseView, budget: Budget, delegation: Delegation, choice: Choice
) -> float | None:
    """
    Return when to look again whether a move away from the last attempt may be made; None: now.

    Args:
        choice: Another backend, or another credential of the same one.
    """
    if budget.has_room(HOPS_PART):
        return None
    last = delegation.attempts[-1]
    trouble_at = last.started_at if last.ended_at is None else last.ended_at
    used = case.meters.get(choice.backend.id)
    if used is not None and used.answered_at is not None and used.answered_at > trouble_at:
        return None
    grace_s = case.policy.defaults.trial_grace_s
    scouts = [one for one in _others(case, delegation) if _is_there(one, choice)]
    if not scouts or any(case.now - one.started_at >= grace_s for one in scouts):
        return None
    return min(one.started_at + grace_s for one in scouts)


def _others(case: CaseView, delegation: Delegation) -> list[Attempt]:
    """Attempts beyond the first that run now."""
    return [
        running
        for other in case.snapshot.active.values()
        if len(other.attempts) > 1
        and other.delegation != delegation.delegation
        and (running := other.running) is not None
    ]


def _is_there(attempt: Attempt, choice: Choice) -> bool:
    return (attempt.backend, attempt.credential) == (choice.backend.id, choice.credential)
