"""Records to store, and decisions that put them."""

from collections.abc import Callable
from typing import Any

from fallbackd.core.decision import Change, Decision, Note, PutStory
from fallbackd.core.health import Health, Outage
from fallbackd.core.ids import BackendId, DelegationId, ScopeId, SessionId
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation, Meter, Session, Snapshot

NOW = 1_700_000_000.0
CODEX = BackendId("codex")


def a_delegation(name: str = "d1", *, at: float = NOW, **fields: Any) -> Delegation:
    given: dict[str, Any] = {
        "session": SessionId("s1"),
        "state": "running",
        "requested": CODEX,
        "active": CODEX,
        "created_at": at,
    }
    given.update(fields)
    return Delegation(delegation=DelegationId(name), **given)


def an_ended(name: str = "d1", *, at: float = NOW, **fields: Any) -> Delegation:
    return a_delegation(name, at=at, **{"state": "succeeded", "ended_at": at + 1, **fields})


def a_session(name: str = "s1", *, at: float = NOW, **fields: Any) -> Session:
    return Session(
        session=SessionId(name),
        original=CODEX,
        current=CODEX,
        created_at=at,
        last_used_at=at,
        **fields,
    )


def an_outage(scope: str = "backend:codex", *, at: float = NOW, **fields: Any) -> Health:
    return Health(
        scope=ScopeId(scope),
        outage=Outage(
            state="rate_limited", reason=Reason.RATE_LIMIT, since_at=at, until_at=at + 60
        ),
        **fields,
    )


def a_meter(backend: str = "codex", *, tokens: int = 5) -> Meter:
    return Meter(backend=BackendId(backend), starts=((28_333_333, 1, tokens),))


def a_note(kind: str = "delegation.started", *, at: float = NOW, **fields: Any) -> Note:
    return Note(kind=kind, at=at, fields=fields)


def a_story(delegation: str = "d1", *, at: float = NOW, event: str = "requested") -> PutStory:
    return PutStory(delegation=DelegationId(delegation), at=at, event=event, policy={"budget": 8})


def deciding(*changes: Change) -> Callable[[Snapshot], Decision]:
    return lambda _snapshot: Decision(changes=changes)
