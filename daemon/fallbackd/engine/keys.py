"""Which records a decision about an event has to read."""

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


def keys_of(event: Event, seen: Snapshot) -> Keys:
    """`seen` knows the session of every unfinished delegation."""
    match event:
        case DelegateRequested():
            return Keys(session=event.session, request_id=event.request_id)
        case (
            AttemptStarted()
            | ConversationSeen()
            | AttemptAnswered()
            | AttemptRetrying()
            | AttemptGaveUp()
            | AttemptEnded()
        ):
            return _of_delegation(delegation_of(event.attempt), seen)
        case (
            Woke()
            | CancelRequested()
            | KeepRequested()
            | Resumed()
            | QuestionAnswered()
            | WorkspaceMoved()
        ):
            return _of_delegation(event.delegation, seen)
        case ResolveRequested() | Reported():
            return Keys(session=event.session)
        case SessionEnded() | SessionCompacted():
            return Keys(session=event.session)
        case (
            TurnBegan()
            | TurnFailed()
            | TurnAnswered()
            | TurnEnded()
            | TurnUsed()
            | RescueAdvanced()
            | RedirectAsked()
        ):
            return Keys(session=event.session)
        case _:
            return Keys()


def _of_delegation(delegation: DelegationId, seen: Snapshot) -> Keys:
    active = seen.active.get(delegation)
    session: SessionId | None = None if active is None else active.session
    return Keys(delegation=delegation, session=session)
