"""Events: subscriptions on a connection."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from fallbackd_client.wire.bounds import Name, SessionName
from fallbackd_client.wire.envelope import Method

EventKind = Literal[
    "health.moved",
    "attempt.started",
    "attempt.output",
    "attempt.ended",
    "delegation.accepted",
    "delegation.hopped",
    "delegation.ended",
    "session.notice",
    "question.opened",
    "question.answered",
    "config.reloaded",
    "config.rejected",
    "daemon.draining",
    "subscription.dropped",
]
NOTIFICATION = "event"


class EventsSubscribeParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kinds: tuple[str, ...] | None = None
    """Null: all but `attempt.output`, which has to be named."""
    session: SessionName | None = None
    since: Annotated[int, Meta(ge=0)] | None = None
    """Replay journaled events with a `seq` above this one first."""


class EventsSubscribeResult(Struct, frozen=True, kw_only=True):
    subscription: str
    seq: int
    """Of the last journaled event at this moment."""
    warning: str | UnsetType = UNSET
    """`since` is beyond the end of the journal: it began anew, or belongs to somebody else."""


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that a kind does not carry are absent."""

    at: float
    kind: EventKind
    seq: int | UnsetType = UNSET
    subscription: str | UnsetType = UNSET
    delegation: str | UnsetType = UNSET
    session: str | UnsetType = UNSET
    backend: str | UnsetType = UNSET
    attempt: str | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    state: str | UnsetType = UNSET
    """Of the delegation, the attempt or the backend after it."""
    previous: str | UnsetType = UNSET
    """Of the backend before it."""
    reason: str | UnsetType | None = UNSET
    until_at: float | UnsetType | None = UNSET
    scope: str | UnsetType = UNSET
    unproven: bool | UnsetType = UNSET
    from_: str | UnsetType | None = field(name="from", default=UNSET)
    to: str | UnsetType | None = UNSET
    from_model: str | UnsetType | None = UNSET
    to_model: str | UnsetType | None = UNSET
    trigger: str | UnsetType = UNSET
    stream: str | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    """`attempt.output`: where the new bytes begin in the log."""
    size_bytes: int | UnsetType = UNSET
    """`attempt.output`: size of the log now."""
    notice: Literal["fallback", "recovered", "outage"] | UnsetType = UNSET
    question: str | UnsetType = UNSET
    question_kind: str | UnsetType = UNSET
    """outage, consent, partial, must_differ."""
    role: str | UnsetType | None = UNSET
    choices: tuple[str, ...] | UnsetType = UNSET
    deadline_at: float | UnsetType | None = UNSET
    choice: str | UnsetType = UNSET
    note: str | UnsetType | None = UNSET
    answered_by: dict[str, int | None] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    """A sentence for people."""
    errors: tuple[Any, ...] | UnsetType = UNSET  # `ConfigProblem`s of a rejected configuration


EVENTS_SUBSCRIBE: Method[EventsSubscribeParams, EventsSubscribeResult] = Method(
    "events.subscribe",
    params=EventsSubscribeParams,
    result=EventsSubscribeResult,
    read_only=False,  # bound to its connection
    summary="Be told what happens, as notifications on this connection. Without `kinds` every kind"
    " but `attempt.output` comes: that one has to be named.",
)


class EventsUnsubscribeParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    subscription: Name


class EventsUnsubscribeResult(Struct, frozen=True, kw_only=True):
    ended: bool
    """False: there was none of that name."""


EVENTS_UNSUBSCRIBE: Method[EventsUnsubscribeParams, EventsUnsubscribeResult] = Method(
    "events.unsubscribe",
    params=EventsUnsubscribeParams,
    result=EventsUnsubscribeResult,
    read_only=False,
    summary="End a subscription of this connection.",
)


METHODS = (
    EVENTS_SUBSCRIBE,
    EVENTS_UNSUBSCRIBE,
)
