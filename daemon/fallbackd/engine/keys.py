"""Which records a decision about an event has to read."""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from fallbackd.core.events import (
    AttemptAnswered,
    AttemptEnded,
    AttemptGaveUp,
    AttemptRetrying,
    AttemptStarted,
    CancelRequested,
    ConversationSeen,
    DelegateRequested,
    Event,
    KeepRequested,
    QuestionAnswered,
    RecordsFound,
    Reported,
    ResolveRequested,
    Resumed,
    SessionCompacted,
    SessionEnded,
    Woke,
    WorkspaceMoved,
)
from fallbackd.core.ids import DelegationId, SessionId, delegation_of
from fallbackd.core.records import Keys, Snapshot
from fallbackd.core.turn_events import (
    RedirectAsked,
    RescueAdvanced,
    TurnAnswered,
    TurnBegan,
    TurnEnded,
    TurnFailed,
    TurnUsed,
)

_OfAttempt = (
    AttemptStarted
    | ConversationSeen
    | AttemptAnswered
    | AttemptRetrying
    | AttemptGaveUp
    | AttemptEnded
)
_OfDelegation = Woke | CancelRequested | KeepRequested | Resumed | QuestionAnswered | WorkspaceMoved
_OfSession = (
    ResolveRequested
    | Reported
    | SessionEnded
    | SessionCompacted
    | TurnBegan
    | TurnFailed
    | TurnAnswered
    | TurnEnded
    | TurnUsed
    | RescueAdvanced
    | RedirectAsked
)


def keys_of(event: Event, seen: Snapshot) -> Keys:
    """`seen` knows the session of every unfinished delegation."""
    return KEYS[type(event)](event, seen)


def _of_request(event: DelegateRequested, seen: Snapshot) -> Keys:
    return Keys(session=event.session, request_id=event.request_id)


def _of_attempt(event: _OfAttempt, seen: Snapshot) -> Keys:
    return _of_work(delegation_of(event.attempt), seen)


def _of_delegation(event: _OfDelegation, seen: Snapshot) -> Keys:
    return _of_work(event.delegation, seen)


def _of_records(event: RecordsFound, seen: Snapshot) -> Keys:
    if len(event.records) != 1:
        return Keys()
    (one,) = event.records
    return Keys(delegation=one.delegation, session=one.session)


def _of_session(event: _OfSession, seen: Snapshot) -> Keys:
    return Keys(session=event.session)


def _of_none(event: Event, seen: Snapshot) -> Keys:
    return Keys()


def _of_work(delegation: DelegationId, seen: Snapshot) -> Keys:
    active = seen.active.get(delegation)
    session: SessionId | None = None if active is None else active.session
    return Keys(delegation=delegation, session=session)


KEYS: Mapping[type, Callable[[Any, Snapshot], Keys]] = {
    **dict.fromkeys(get_args(Event), _of_none),
    DelegateRequested: _of_request,
    RecordsFound: _of_records,
    **dict.fromkeys(get_args(_OfAttempt), _of_attempt),
    **dict.fromkeys(get_args(_OfDelegation), _of_delegation),
    **dict.fromkeys(get_args(_OfSession), _of_session),
}
"""By the type of the event."""
