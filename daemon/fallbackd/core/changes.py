"""
What a decision wants kept (`Change`), announced (`Note`, `PutStory`) and answered.

The store makes the changes of one `Decision` durable together.
"""

from typing import Any, Literal

from msgspec import Struct, field

from fallbackd.core.effects import Effect
from fallbackd.core.health.record import Health
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, SessionId
from fallbackd.core.records import Delegation, Meter, Session, Verdict


class PutHealth(Struct, frozen=True, tag="put_health"):
    health: Health


class PutDelegation(Struct, frozen=True, tag="put_delegation"):
    delegation: Delegation


class PutSession(Struct, frozen=True, tag="put_session"):
    session: Session


class DropSession(Struct, frozen=True, tag="drop_session"):
    session: SessionId


class PutMeter(Struct, frozen=True, tag="put_meter"):
    meter: Meter


class PutFact(Struct, frozen=True, tag="put_fact"):
    """A word of the daemon to a later run of itself; no decision reads it."""

    key: str
    value: str


class Note(Struct, frozen=True, kw_only=True, tag="note"):
    """An event for the journal and for subscribers. The store gives it its `seq`."""

    kind: str
    at: float
    delegation: DelegationId | None = None
    session: SessionId | None = None
    backend: BackendId | None = None
    fields: dict[str, Any] = field(default_factory=dict)  # event fields, any JSON


class PutStory(Struct, frozen=True, kw_only=True, tag="put_story"):
    """One decision about a delegation, for `explain`."""

    delegation: DelegationId
    at: float
    event: str
    verdicts: tuple[Verdict, ...] = ()
    outcome: str = ""
    policy: dict[str, Any] = field(default_factory=dict)  # names and numbers that were used
    evidence: str = ""
    attempt: AttemptId | None = None
    """The attempt that it is about, where it is about one."""
    changes: tuple[str, ...] = ()
    """What was kept with it, a few words each."""
    effects: tuple[str, ...] = ()
    """What it set going, a few words each."""


Change = PutHealth | PutDelegation | PutSession | DropSession | PutMeter | PutFact | Note | PutStory


RejectionKind = Literal[
    "unknown_backend",
    "unknown_session",
    "busy",
    "workspace",
    "draining",
    "nesting",
    "request_id",
    "empty_chain",
    "prompt_too_large",
    "limit",
    "unknown_question",
    "answered",
    "choice",
]


class Rejection(Struct, frozen=True, kw_only=True):
    """A caller's request that never becomes a delegation."""

    kind: RejectionKind
    message: str
    data: dict[str, Any] = field(default_factory=dict)  # error data of the wire, any JSON


class Decision(Struct, frozen=True, kw_only=True):
    changes: tuple[Change, ...] = ()
    effects: tuple[Effect, ...] = ()
    rejection: Rejection | None = None
    answer: Any = None
    """What the asker gets at once (a `resolve`, a `report`): a value of `core.views` types."""


class Journaled(Struct, frozen=True, kw_only=True):
    """A `Note` with its place in the journal."""

    seq: int
    note: Note
