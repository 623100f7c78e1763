"""
An event is decided on and its changes are made durable; then its news are published.

Where machines share health, a trial of what is common to all is decided with them.

`except Exception` stands only where the failure of one must not be the failure of all, and each is
logged with its traceback: an attempt (a bug in a kind becomes `crash`/`internal`), a subscriber and
a tick, a notification, a connection and a call of a front, a look of the configuration watcher, and
the writer of the store.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, get_args

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup
from msgspec import structs

from fallbackd.core.decide import decide
from fallbackd.core.decision import Decision, Journaled
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
    RedirectAsked,
    Reported,
    RescueAdvanced,
    ResolveRequested,
    Resumed,
    SessionCompacted,
    SessionEnded,
    StandbyAsked,
    TurnAnswered,
    TurnBegan,
    TurnEnded,
    TurnFailed,
    TurnUsed,
    Woke,
    WorkspaceMoved,
)
from fallbackd.core.ids import DelegationId, SessionId, delegation_of
from fallbackd.core.records import Keys, Snapshot
from fallbackd.engine.environment import Settings
from fallbackd.engine.live import Audience
from fallbackd.engine.peers import HealthOf, SharingPeers, Unasked
from fallbackd.lib.failpoints import hit
from fallbackd.ports.store import Outlives, Store
from fallbackd.ports.transport import Clock

_OfAttempt = (
    AttemptStarted
    | ConversationSeen
    | AttemptAnswered
    | AttemptRetrying
    | AttemptGaveUp
    | AttemptEnded
)
_OfDelegation = (
    Woke
    | CancelRequested
    | KeepRequested
    | Resumed
    | QuestionAnswered
    | StandbyAsked
    | WorkspaceMoved
)
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
"""Functions that name the records, by the type of the event."""


KEPT_FIRST = (DelegateRequested, QuestionAnswered, StandbyAsked)
"""Events that begin work: nothing is done about them unless they can be put on record."""

_OF_THIS_BOOT = (AttemptStarted, AttemptAnswered)
"""Events that end with the machine: an attempt of an earlier boot is closed in any case."""

WRITTEN_WITHIN_S = 1.0

MAX_ASKS = 8
"""Other trials that may come in the place of one that another machine makes."""


class CommittingHost(Protocol):
    store: Store
    clock: Clock
    settings: Settings
    peers: SharingPeers | None
    tasks: TaskGroup | None

    @property
    def is_draining(self) -> bool: ...


class Committing:
    def __init__(self, host: CommittingHost, audience: Audience) -> None:
        self._host = host
        self._audience = audience
        self._is_to_write = False

    def _decide(self, seen: Snapshot, event: Event, *, now: float) -> Decision:
        if self._host.is_draining:
            seen = structs.replace(seen, draining=True)
        return decide(seen, event, self._host.settings.policy, now=now)

    async def transact(
        self,
        keys: Keys,
        event: Event,
        *,
        outlives: Outlives = "machine",
        is_asked: bool = False,
    ) -> Decision:
        # Fixed here: decisions are made in the order of their instants, also around a set clock.
        now = self._host.clock.now()
        peers = self._host.peers
        before: HealthOf = {}

        def run(seen: Snapshot) -> Decision:
            nonlocal before
            before = seen.health
            decision = self._decide(seen, event, now=now)
            if peers is None:
                return decision
            return peers.weighed(before, decision, is_asked=is_asked, again=again(seen))

        def again(seen: Snapshot) -> Callable[[HealthOf], Decision]:
            return lambda health: self._decide(structs.replace(seen, health=health), event, now=now)

        decision, notes = await self._host.store.transact(
            keys,
            run,
            must_keep=isinstance(event, KEPT_FIRST),
            outlives="process" if type(event) in _OF_THIS_BOOT else outlives,
        )
        self._kept(notes, outlives=outlives)
        if peers is not None:
            peers.learned(event, before, decision)
        return decision

    def transact_now(self, keys: Keys, event: Event) -> Decision | None:
        """Decide what outlives nothing, without a wait; None: it has to wait."""
        if self._host.peers is not None:
            return None
        now = self._host.clock.now()
        found = self._host.store.transact_now(keys, lambda seen: self._decide(seen, event, now=now))
        if found is None:
            return None
        decision, notes = found
        self._kept(notes, outlives="nothing")
        return decision

    def _kept(self, notes: Sequence[Journaled], *, outlives: Outlives) -> None:
        hit("journal.kept")
        if outlives == "nothing":
            self._write_soon()
        self._audience.publish(notes)

    def _write_soon(self) -> None:
        """Write what is in memory alone to disk within a second, together."""

        async def write() -> None:
            await anyio.sleep(WRITTEN_WITHIN_S)
            self._is_to_write = False
            await self._host.store.flush()

        if self._host.tasks is not None and not self._is_to_write:
            self._is_to_write = True
            self._host.tasks.start_soon(write)

    async def decided(self, keys: Keys, event: Event, *, outlives: Outlives) -> Decision:
        """The other machines are asked before a trial of what is common to all begins."""
        transact = partial(self.transact, keys, event, outlives=outlives)
        decision = await transact()
        peers = self._host.peers
        if peers is None:
            return decision
        deadline = anyio.current_time() + peers.limit_s
        for _ in range(MAX_ASKS):
            if not isinstance(decision.answer, Unasked):
                return decision
            if anyio.current_time() >= deadline:
                break
            await peers.ask(decision.answer.scopes, deadline=deadline)
            decision = await transact()
        if not isinstance(decision.answer, Unasked):
            return decision
        return await transact(is_asked=True)


log = structlog.get_logger("engine")
