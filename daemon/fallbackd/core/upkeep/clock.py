"""The wall clock was set: every window, wait and deadline moves with it."""

from typing import Any

from msgspec import structs

from fallbackd.core import meter
from fallbackd.core.case import Case
from fallbackd.core.events import ClockStepped
from fallbackd.core.health.clocks import shift, shift_outage
from fallbackd.core.questions import shifted
from fallbackd.core.records import Delegation


def clock_stepped(case: Case, event: ClockStepped) -> None:
    for record in list(case.health.values()):
        case.put_health(shift(record, event.by_s))
    for used in list(case.meters.values()):
        case.meters.put(meter.shift(used, event.by_s))
    case.keep_facts(event.facts)
    for one in case.snapshot.active.values():
        case.update_other(one.delegation, **_shifted(one, event.by_s))


def _shifted(delegation: Delegation, by_s: float) -> dict[str, Any]:
    """The instants of a delegation after the wall clock was set."""
    waiting = delegation.waiting
    if waiting is not None:
        waiting = structs.replace(
            waiting,
            since_at=waiting.since_at + by_s,
            until_at=waiting.until_at + by_s,
            limit_at=waiting.limit_at + by_s,
        )

    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    attempts = tuple(
        structs.replace(
            one,
            started_at=one.started_at + by_s,
            answered_at=moved(one.answered_at),
            patience_until_at=moved(one.patience_until_at),
            tries_at=moved(one.tries_at),
            waits_until_at=moved(one.waits_until_at),
        )
        if one.ended_at is None
        else one
        for one in delegation.attempts
    )
    marks = tuple(
        structs.replace(
            one,
            since_at=one.since_at + by_s,
            before=None if one.before is None else shift_outage(one.before, by_s),
        )
        for one in delegation.turn.marks
    )
    outcome = delegation.outcome
    if outcome is not None:
        outcome = structs.replace(outcome, retry_at=moved(outcome.retry_at))
    return {
        "outcome": outcome,
        "attempts": attempts,
        "waiting": waiting,
        "turn": structs.replace(delegation.turn, marks=marks),
        "questions": shifted(delegation.questions, by_s),
        "rests_until_at": moved(delegation.rests_until_at),
        "deadline_at": moved(delegation.deadline_at),
        "last_activity_at": moved(delegation.last_activity_at),
    }
