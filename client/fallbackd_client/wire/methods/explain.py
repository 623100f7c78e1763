"""`explain`: every decision that was taken about one delegation, and why."""

from typing import Any

from msgspec import Struct, field

from fallbackd_client.wire.bounds import Name
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import CandidateVerdict, Question


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name


class Step(Struct, frozen=True, kw_only=True):
    """One decision."""

    at: float
    event: str
    """What happened, as the name of the event (`DelegateRequested`, `AttemptFailed`, …)."""
    text: str = ""
    """The same as a sentence."""
    attempt: str | None = None
    candidates: tuple[CandidateVerdict, ...] = ()
    policy: dict[str, Any] = field(default_factory=dict)  # knobs by name, as they were used
    evidence: dict[str, Any] | None = None  # fields of the failure or of its evidence, redacted
    changes: tuple[str, ...] = ()
    """What was kept, a sentence each."""
    effects: tuple[str, ...] = ()
    """What was set going, a sentence each."""


class Result(Struct, frozen=True, kw_only=True):
    delegation: str
    decisions: tuple[Step, ...] = ()
    state: str | None = None
    requested: str | None = None
    served_by: str | None = None
    questions: tuple[Question, ...] = ()
    """What persons were asked about it, in order."""
    truncated: bool = False
    """Older decisions were dropped."""


METHOD: Method[Params, Result] = Method(
    "explain",
    params=Params,
    result=Result,
    read_only=True,
    summary="Every decision taken about one delegation, with candidates, policy and evidence.",
)
