"""Events: subscriptions on a connection."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from fallbackd_client.wire.bounds import Name, QuestionKindWord, SessionName
from fallbackd_client.wire.envelope import Method

EventKind = Literal[
    "health.moved",
    "attempt.started",
    "attempt.output",
    "attempt.phase",
    "attempt.text",
    "attempt.ended",
    "delegation.accepted",
    "delegation.hopped",
    "delegation.ended",
    "session.notice",
    "plan.near",
    "standby.began",
    "standby.moved",
    "standby.ended",
    "question.opened",
    "question.answered",
    "config.reloaded",
    "config.rejected",
    "daemon.draining",
    "subscription.dropped",
]
NOTIFICATION = "event"


class TextPlace(Struct, frozen=True, kw_only=True):
    """A place in the text that an attempt writes."""

    attempt: Name
    """The attempt."""
    offset: Annotated[int, Meta(ge=0)]
    """Characters (Unicode code points) of its text before the place."""
    run: str = ""
    """The `run` of the event that the place is from, where it has one."""


class EventsSubscribeParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kinds: tuple[str, ...] | None = None
    """Kinds of events to send; null: all but `attempt.output`, `attempt.phase` and `attempt.text`,
    which come often and have to be named."""
    session: SessionName | None = None
    """Only of this session."""
    delegation: Name | None = None
    """Only of this delegation. With the kind `attempt.text` its text is sent from the beginning,
    what was written before the subscription included; the last event is `delegation.ended` or
    `question.opened`, even where that lies in the past."""
    text_since: TextPlace | None = None
    """With `delegation`: send its text from this place on, as after a lost connection. The text of
    attempts that began later follows whole."""
    since: Annotated[int, Meta(ge=0)] | None = None
    """First replay the journaled events with a `seq` above this one."""


class EventsSubscribeResult(Struct, frozen=True, kw_only=True):
    subscription: str
    """Id of the subscription."""
    seq: int
    """`seq` of the last journaled event."""
    warning: str | UnsetType = UNSET
    """`since` lies beyond the end of the journal, which was lost or belongs to another daemon."""


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that a kind does not carry are absent."""

    at: float
    """When it happened."""
    kind: EventKind
    """What happened."""
    seq: int | UnsetType = UNSET
    """Place in the journal; absent for events that are not journaled."""
    subscription: str | UnsetType = UNSET
    """The subscription that it is sent for."""
    delegation: str | UnsetType = UNSET
    """The delegation."""
    session: str | UnsetType = UNSET
    """The session."""
    backend: str | UnsetType = UNSET
    """The backend."""
    attempt: str | UnsetType = UNSET
    """The attempt."""
    model: str | UnsetType | None = UNSET
    """The model."""
    state: str | UnsetType = UNSET
    """State of the delegation, attempt or backend after the event."""
    previous: str | UnsetType = UNSET
    """State of the backend before the event."""
    reason: str | UnsetType | None = UNSET
    """The reason of a failure or outage."""
    until_at: float | UnsetType | None = UNSET
    """When the backend is expected to be available again."""
    scope: str | UnsetType = UNSET
    """The scope whose health changed."""
    unproven: bool | UnsetType = UNSET
    """The outage ended by time alone; the next call is a probe."""
    from_: str | UnsetType | None = field(name="from", default=UNSET)
    """The backend that was left."""
    to: str | UnsetType | None = UNSET
    """The next backend."""
    from_model: str | UnsetType | None = UNSET
    """The model that was left."""
    to_model: str | UnsetType | None = UNSET
    """The next model."""
    trigger: str | UnsetType = UNSET
    """Why the work moved, as in `Hop`."""
    stream: str | UnsetType = UNSET
    """Stream of new output: `stdout` or `stderr`."""
    offset: int | UnsetType = UNSET
    """With `attempt.output`: how many bytes the log has. With `attempt.text`: how many characters
    the pieces before this one had, also those before a restart of the daemon; more than were
    received means that pieces were left out."""
    run: str | UnsetType = UNSET
    """With `attempt.text`: which run of the attempt writes it, where it was begun again after a
    restart of the daemon (HTTP APIs); its text begins at 0."""
    phase: str | UnsetType = UNSET
    """With `attempt.phase`: `thinking`, `writing`, `waiting` or the name of the tool in use."""
    size_bytes: int | UnsetType = UNSET
    """With `attempt.output`: size of the log now."""
    notice: Literal["fallback", "recovered", "outage"] | UnsetType = UNSET
    """Kind of a session notice."""
    question: str | UnsetType = UNSET
    """Id of the question."""
    question_kind: QuestionKindWord | UnsetType = UNSET
    """Kind of the question, as in `Question`."""
    role: str | UnsetType | None = UNSET
    """Role of the delegation."""
    choices: tuple[str, ...] | UnsetType = UNSET
    """What can be chosen."""
    deadline_at: float | UnsetType | None = UNSET
    """When the delegation ends without an answer."""
    choice: str | UnsetType = UNSET
    """What was chosen."""
    note: str | UnsetType | None = UNSET
    """The note that came with the answer."""
    answered_by: dict[str, int | None] | UnsetType = UNSET
    """The process that answered."""
    text: str | UnsetType = UNSET
    """A sentence for people. With `attempt.text`: a piece of what the agent writes, as it comes,
    to be put behind the piece before."""
    errors: tuple[Any, ...] | UnsetType = UNSET  # `ConfigProblem`s of a rejected configuration
    """What is wrong with the rejected configuration."""


EVENTS_SUBSCRIBE: Method[EventsSubscribeParams, EventsSubscribeResult] = Method(
    "events.subscribe",
    params=EventsSubscribeParams,
    result=EventsSubscribeResult,
    read_only=False,  # bound to its connection
    who="own",
    promises="nothing",
    errors=("unknown", "draining"),
    summary="Receive events as notifications on this connection. Without `kinds` every kind"
    " comes but `attempt.output`, `attempt.phase` and `attempt.text`: those have to be named.",
    example=({"kinds": ["health.moved", "delegation.hopped"]}, {"subscription": "e1", "seq": 1204}),
)


class EventsUnsubscribeParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    subscription: Name
    """Id of the subscription."""


class EventsUnsubscribeResult(Struct, frozen=True, kw_only=True):
    ended: bool
    """It existed; false: there is no such subscription."""


EVENTS_UNSUBSCRIBE: Method[EventsUnsubscribeParams, EventsUnsubscribeResult] = Method(
    "events.unsubscribe",
    params=EventsUnsubscribeParams,
    result=EventsUnsubscribeResult,
    read_only=False,
    who="own",
    promises="nothing",
    errors=("unknown", "draining"),
    summary="End a subscription of this connection.",
    example=({"subscription": "e1"}, {"ended": True}),
)


METHODS = (
    EVENTS_SUBSCRIBE,
    EVENTS_UNSUBSCRIBE,
)
