"""
The one way to another state: each move of a delegation is checked against `TRANSITIONS`, which
ARCHITECTURE.md draws.
"""

from collections.abc import Mapping
from typing import Any

from fallbackd.core.case import Case
from fallbackd.core.decision import Effect, WakeAt
from fallbackd.core.records import DelegationState
from fallbackd.core.work.outages import Out

_UNFINISHED: frozenset[DelegationState] = frozenset(
    {"queued", "running", "waiting", "awaiting_answer"}
)


_WITHOUT_ANSWER: frozenset[DelegationState] = frozenset({"refused", "failed", "cancelled"})


TRANSITIONS: Mapping[DelegationState, frozenset[DelegationState]] = {
    "queued": _UNFINISHED | _WITHOUT_ANSWER | {"handed_back"},
    "running": _UNFINISHED | _WITHOUT_ANSWER | {"handed_back", "succeeded"},
    "waiting": _UNFINISHED | _WITHOUT_ANSWER | {"handed_back", "succeeded"},
    "awaiting_answer": _WITHOUT_ANSWER | {"waiting"},
    "succeeded": frozenset(),
    "failed": frozenset(),
    "refused": frozenset(),
    "cancelled": frozenset(),
    "handed_back": frozenset(),
}


def enter(case: Case, state: DelegationState, **fields: Any) -> None:
    before = case.delegation.state
    assert state in TRANSITIONS[before], f"{before} -> {state} is in no table"
    case.enter(state, **fields)


def wake_at(case: Case, at: float) -> Effect:
    return WakeAt(at=at, delegation=case.delegation.delegation, purpose="wait")


def note_outage(case: Case, out: Out | None) -> None:
    if out is None:
        return
    case.note(
        "session.notice",
        case.delegation,
        backend=out.verdict.backend,
        notice="outage",
        route=(case.delegation.requested, out.verdict.backend),
        from_model=None,
        to_model=out.verdict.model,
        reason=out.verdict.reason,
        text=out.text,
    )
