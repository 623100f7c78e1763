"""A case as those see it who only read: `plan`, and what decides on its behalf."""

from collections.abc import Mapping
from typing import Protocol

from fallbackd.core.health.record import Health
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Entry, Policy
from fallbackd.core.records import Delegation, Meter, Session, Snapshot
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.turn import Turn


class CaseView(Protocol):
    """Nothing of it can be changed."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def now(self) -> float: ...

    @property
    def luck(self) -> float: ...

    @property
    def health(self) -> Mapping[ScopeId, Health]: ...

    @property
    def meters(self) -> Mapping[BackendId, Meter]: ...

    @property
    def delegation(self) -> Delegation: ...

    @property
    def turn(self) -> Turn: ...

    @property
    def session(self) -> Session: ...

    def resolve(
        self,
        candidates: tuple[Entry, ...],
        request: Request,
        *,
        health: Mapping[ScopeId, Health] | None = None,
    ) -> Resolved: ...
