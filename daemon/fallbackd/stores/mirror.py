"""
The records in memory: what every store decides on, and what it answers at once.

`Mirror` is the state as of the last commit. `Draft` is what has been decided on top of it and is
not durable yet: a store writes the draft first, then lets the mirror take it over.

The mappings that a `Snapshot` shows are replaced, never changed, so a snapshot stays what it was.
"""

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from fallbackd.core.decision import (
    Change,
    DropSession,
    Journaled,
    Note,
    PutDelegation,
    PutFact,
    PutHealth,
    PutHour,
    PutMeter,
    PutSession,
    PutStory,
)
from fallbackd.core.health import Health
from fallbackd.core.history import HourUse
from fallbackd.core.ids import BackendId, DelegationId, ScopeId, SessionId
from fallbackd.core.records import Delegation, Keys, Meter, Session, Snapshot
from fallbackd.ports.store import Selection


def newest_first(
    delegations: Iterable[Delegation], wanted: Selection, *, limit: int
) -> list[Delegation]:
    return nlargest(limit, filter(wanted.fits, delegations), key=wanted.place)


class LoadedRecords(NamedTuple):
    """Records of an earlier run, without those that have ended."""

    health: Sequence[Health] = ()
    meters: Sequence[Meter] = ()
    sessions: Sequence[Session] = ()
    active: Sequence[Delegation] = ()
    finished: Mapping[str, int] = MappingProxyType({})
    facts: Mapping[str, str] = MappingProxyType({})
    last_seq: int = 0


class Mirror:
    """
    The records as of the last commit.

    Args:
        max_ended: Ended delegations that stay in memory, the last read or written ones; None: all.
        max_journal: Entries of the journal that stay in memory; None: all.
    """

    def __init__(self, *, max_ended: int | None = None, max_journal: int | None = None) -> None:
        self.health: Mapping[ScopeId, Health] = {}
        self.meters: Mapping[BackendId, Meter] = {}
        self.active: Mapping[DelegationId, Delegation] = {}
        self.finished: Mapping[str, int] = {}
        self.facts: dict[str, str] = {}
        self.ended: OrderedDict[DelegationId, Delegation] = OrderedDict()
        self.requests: dict[str, DelegationId] = {}
        self.last_seq = 0
        self._sessions: dict[SessionId, Session] = {}
        self._by_use: list[tuple[float, SessionId]] = []
        self._journal: deque[Journaled] = deque(maxlen=max_journal)
        self._max_ended = max_ended

    # Reading.

    def delegation(self, delegation: DelegationId) -> Delegation | None:
        return self.active.get(delegation) or self.ended.get(delegation)

    def session(self, session: SessionId) -> Session | None:
        return self._sessions.get(session)

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    def sessions(self, *, limit: int) -> Sequence[Session]:
        """Most recently used first."""
        return [self._sessions[one] for _, one in islice(reversed(self._by_use), limit)]

    def in_memory(self) -> Iterator[Delegation]:
        yield from self.active.values()
        yield from self.ended.values()

    def peek(self) -> Snapshot:
        return Snapshot(
            health=self.health,
            active=self.active,
            meters=self.meters,
            session_count=self.session_count,
        )

    def first_seq(self) -> int:
        """The oldest place of the journal that is in memory; the next one, where none is."""
        return self._journal[0].seq if self._journal else self.last_seq + 1

    def journal(self, *, after_seq: int, limit: int) -> Sequence[Journaled]:
        """Entries in memory only: see `first_seq`."""
        start = max(0, after_seq + 1 - self.first_seq())
        return list(islice(self._journal, start, start + limit))

    # Writing.

    def load(self, kept: LoadedRecords) -> None:
        """Take over the records of an earlier run, into an empty mirror."""
        self.health = {one.scope: one for one in kept.health}
        self.meters = {one.backend: one for one in kept.meters}
        self.active = {one.delegation: one for one in kept.active}
        self.finished = dict(kept.finished)
        self.facts = dict(kept.facts)
        self.last_seq = kept.last_seq
        self._sessions = {one.session: one for one in kept.sessions}
        self._by_use = sorted((one.last_used_at, one.session) for one in self._sessions.values())
        for one in self.active.values():
            self._index(one)

    def remember(self, delegation: Delegation) -> None:
        """Keep a delegation at hand that was read from elsewhere, as it was read."""
        self.ended[delegation.delegation] = delegation
        self._index(delegation)

    def apply(self, draft: "Draft") -> None:
        """Take a draft over. It was made on this mirror, and nothing was applied since."""
        self.health = draft.health
        self.meters = draft.meters
        self.active = draft.active
        self.finished = draft.finished
        self.facts.update(draft.facts)
        for delegation in draft.delegations.values():
            self._index(delegation)
            if delegation.is_ended:
                self.ended[delegation.delegation] = delegation
                self.ended.move_to_end(delegation.delegation)
            else:
                self.ended.pop(delegation.delegation, None)
        for session_id, session in draft.sessions.items():
            self._put_session(session_id, session)
        self._journal.extend(draft.notes)
        self.last_seq = draft.last_seq

    def forget_surplus(self) -> None:
        """Let go of the ended delegations beyond the maximum. Only when all are durable."""
        while self._max_ended is not None and len(self.ended) > self._max_ended:
            self.forget(next(iter(self.ended)))

    def forget(self, delegation: DelegationId) -> None:
        """Drop an ended delegation from memory."""
        found = self.ended.pop(delegation, None)
        if found is None or found.request_id is None:
            return
        if self.requests.get(found.request_id) == delegation:
            del self.requests[found.request_id]

    def forget_journal(self, *, before_at: float, up_to_seq: int) -> None:
        """Drop the oldest entries up to the first one that is not older."""
        while self._journal and (
            self._journal[0].note.at < before_at or self._journal[0].seq <= up_to_seq
        ):
            self._journal.popleft()

    def due_sessions(self, *, max_sessions: int, before_at: float) -> list[SessionId]:
        """Idle sessions that are past their time or over the maximum, oldest first."""
        due: list[SessionId] = []
        surplus = len(self._sessions) - max_sessions
        for last_used_at, session_id in self._by_use:
            if last_used_at >= before_at and len(due) >= surplus:
                break
            if self._sessions[session_id].running is None:
                due.append(session_id)
        return due

    def _index(self, delegation: Delegation) -> None:
        if delegation.request_id is not None:
            self.requests[delegation.request_id] = delegation.delegation

    def _put_session(self, session_id: SessionId, session: Session | None) -> None:
        old = self._sessions.get(session_id)
        if old is not None and (session is None or old.last_used_at != session.last_used_at):
            del self._by_use[bisect_left(self._by_use, (old.last_used_at, session_id))]
        if session is None:
            self._sessions.pop(session_id, None)
            return
        if old is None or old.last_used_at != session.last_used_at:
            insort(self._by_use, (session.last_used_at, session_id))
        self._sessions[session_id] = session


class ReadsMirror:
    """Answers of a store that come from memory alone."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    @property
    def last_seq(self) -> int:
        return self._mirror.last_seq

    def peek(self) -> Snapshot:
        return self._mirror.peek()

    async def session(self, session: SessionId) -> Session | None:
        return self._mirror.session(session)

    async def sessions(self, *, limit: int = 100) -> Sequence[Session]:
        return self._mirror.sessions(limit=limit)

    async def finished_counts(self) -> dict[str, int]:
        return dict(self._mirror.finished)

    async def get_meta(self, key: str) -> str | None:
        return self._mirror.facts.get(key)


class Draft:
    """Decisions on top of a mirror that are not durable yet, one after the other."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self.health = mirror.health
        self.meters = mirror.meters
        self.active = mirror.active
        self.finished = mirror.finished
        self.last_seq = mirror.last_seq
        self.delegations: dict[DelegationId, Delegation] = {}
        self.sessions: dict[SessionId, Session | None] = {}
        """Sessions of the draft; None: dropped."""
        self.facts: dict[str, str] = {}
        self.stories: list[PutStory] = []
        self.hours: list[HourUse] = []
        self.notes: list[Journaled] = []
        self._requests: dict[str, DelegationId] = {}
        self._session_count = mirror.session_count
        self._put_healths: dict[ScopeId, Health] = {}
        self._put_meters: dict[BackendId, Meter] = {}

    def delegation(self, delegation: DelegationId) -> Delegation | None:
        return self.delegations.get(delegation) or self._mirror.delegation(delegation)

    def session(self, session: SessionId) -> Session | None:
        if session in self.sessions:
            return self.sessions[session]
        return self._mirror.session(session)

    def request(self, request_id: str) -> Delegation | None:
        known = self._requests.get(request_id) or self._mirror.requests.get(request_id)
        return None if known is None else self.delegation(known)

    def snapshot(self, keys: Keys) -> Snapshot:
        """
        Show the records of the keys; a delegation that is named alone is shown with its session.
        """
        delegation = None if keys.delegation is None else self.delegation(keys.delegation)
        session_id = keys.session
        if session_id is None and delegation is not None:
            session_id = delegation.session
        return Snapshot(
            health=self.health,
            delegation=delegation,
            session=None if session_id is None else self.session(session_id),
            same_request=None if keys.request_id is None else self.request(keys.request_id),
            active=self.active,
            meters=self.meters,
            session_count=self._session_count,
        )

    def add(self, changes: Sequence[Change]) -> tuple[Journaled, ...]:
        """Add the changes of one decision. Returns its notes with their places."""
        known = len(self.notes)
        for change in changes:
            ADDED[type(change)](self, change)
        if self._put_healths:
            self.health = {**self.health, **self._put_healths}
            self._put_healths.clear()
        if self._put_meters:
            self.meters = {**self.meters, **self._put_meters}
            self._put_meters.clear()
        return tuple(self.notes[known:])

    def add_health(self, change: PutHealth) -> None:
        self._put_healths[change.health.scope] = change.health

    def add_meter(self, change: PutMeter) -> None:
        self._put_meters[change.meter.backend] = change.meter

    def add_hour(self, change: PutHour) -> None:
        self.hours.append(change.hour)

    def add_fact(self, change: PutFact) -> None:
        self.facts[change.key] = change.value

    def add_delegation(self, change: PutDelegation) -> None:
        self._put_delegation(change.delegation)

    def add_session(self, change: PutSession) -> None:
        self._put_session(change.session.session, change.session)

    def drop_session(self, change: DropSession) -> None:
        self._put_session(change.session, None)

    def add_story(self, change: PutStory) -> None:
        self.stories.append(change)

    def add_note(self, change: Note) -> None:
        self.last_seq += 1
        self.notes.append(Journaled(seq=self.last_seq, note=change))

    def _put_delegation(self, delegation: Delegation) -> None:
        """One that is not in memory is new: a decision has read what it changes."""
        before = self.delegation(delegation.delegation)
        self.delegations[delegation.delegation] = delegation
        if delegation.request_id is not None:
            self._requests[delegation.request_id] = delegation.delegation
        if not delegation.is_ended:
            self.active = {**self.active, delegation.delegation: delegation}
            return
        if delegation.delegation in self.active:
            self.active = {
                one: record for one, record in self.active.items() if one != delegation.delegation
            }
        if before is None or not before.is_ended:
            count = self.finished.get(delegation.state, 0) + 1
            self.finished = {**self.finished, delegation.state: count}

    def _put_session(self, session_id: SessionId, session: Session | None) -> None:
        was_there = self.session(session_id) is not None
        self.sessions[session_id] = session
        self._session_count += (session is not None) - was_there


ADDED: Mapping[type, Callable[[Draft, Any], None]] = {
    PutHealth: Draft.add_health,
    PutMeter: Draft.add_meter,
    PutHour: Draft.add_hour,
    PutFact: Draft.add_fact,
    PutDelegation: Draft.add_delegation,
    PutSession: Draft.add_session,
    DropSession: Draft.drop_session,
    PutStory: Draft.add_story,
    Note: Draft.add_note,
}
"""Steps by the type of a change."""
