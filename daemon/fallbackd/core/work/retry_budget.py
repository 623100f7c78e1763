"""
The budget of this host for attempts beyond the first one of each delegation.

In a full outage each retry and each hop is one more call to a provider that is down. All of them
together may make `retry_share` of the first attempts of the last minutes; a quiet host has
`retry_floor` to spend, which fades as its demand grows. Retries leave a part of that to hops.

A hop is held back and not refused: one at a time scouts a backend of which nothing has been heard
since the trouble began, and its first output lets all the others through. So an outage of some
providers costs seconds, and an outage of all of them costs next to nothing.
"""

from typing import Any

from msgspec import Struct

from fallbackd.core import meter
from fallbackd.core.case_view import CaseView
from fallbackd.core.policy import Backend
from fallbackd.core.records import Attempt, Delegation
from fallbackd.core.routing.configured import Choice

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
    When to look again whether a move away from the last attempt may be made; None: now.

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
