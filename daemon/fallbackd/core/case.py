"""
The subject of one decision: its delegation and session as current values, and what is ordered.

Local to one call of `decide`; what leaves is the frozen `Decision`. Whatever differs from the
snapshot at the end is kept: nothing has to be put back.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from msgspec import structs

from fallbackd.core import health, history
from fallbackd.core.decision import (
    Change,
    Decision,
    DropSession,
    Effect,
    Export,
    Note,
    PutDelegation,
    PutFact,
    PutHealth,
    PutHour,
    PutMeter,
    PutSession,
    PutStory,
    Rejection,
    WakeWaiting,
)
from fallbackd.core.decision_log import told
from fallbackd.core.failures import Failure
from fallbackd.core.health import Health, doubted, is_doubtful, is_leased, view
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, ScopeId, SessionId
from fallbackd.core.meter import Meters
from fallbackd.core.policy import MODEL_UNKNOWN_WINDOW_S, Backend, Entry, Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.records import (
    Attempt,
    Delegation,
    DelegationState,
    MadeMark,
    Meter,
    Session,
    Snapshot,
    Tried,
    Turn,
    Verdict,
    session_of,
    without_marks,
)
from fallbackd.core.routing.candidates import Choice
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved, resolve
from fallbackd.core.scopes import backend_of, failed_scope, find_backend, own_health, scopes_of

# A case for readers that change nothing: `plan`, and what decides on its behalf.


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


# Progress of a delegation along its chain: its turn, with what was tried by now.


FREE_TIERS = frozenset({"model", "in_session"})
"""Moves there do not count: a stand-in for a model stays where it is, the caller starts nothing."""


def reactive_hops(delegation: Delegation) -> int:
    """Moves that count."""
    standby = delegation.standby
    hops = delegation.hops if standby is None else delegation.hops[standby.hops :]
    return sum(1 for hop in hops if hop.trigger == "reactive" and hop.tier_to not in FREE_TIERS)


def turn_of(delegation: Delegation) -> Turn:
    """The turn of a delegation with what was tried by now."""
    asked = delegation.turn
    return structs.replace(
        asked,
        candidates=asked.candidates if delegation.failover else asked.candidates[:1],
        prompt_tokens=_whole_tokens(delegation),
        tried=tuple(map(_tried, delegation.counted)),
        hops=reactive_hops(delegation),
    )


def _tried(attempt: Attempt) -> Tried:
    tried = Tried(
        backend=attempt.backend,
        model=attempt.model,
        credential=attempt.credential,
        tier=attempt.tier,
    )
    return tried if attempt.failure is None else tried.failed_with(attempt.failure)


def _whole_tokens(delegation: Delegation) -> int | None:
    """The prompt with the note about work that was begun, which every hop adds to it."""
    tokens = delegation.turn.prompt_tokens
    if tokens is None:
        return None
    begun = [one for one in delegation.attempts if one.effects != "none"]
    if not begun:
        return tokens
    names = sum(len(name) for one in begun for name in one.changed_files[:20])
    return tokens + 80 * len(begun) + names // 4


class Case:
    delegation: Delegation
    """Absent where the decision is about none."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, *, now: float, luck: float = 0.5
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.luck = luck
        self.health: dict[ScopeId, Health] = dict(snapshot.health)
        self.meters = Meters(snapshot.meters, now=now)
        self.effects: list[Effect] = []
        if snapshot.delegation is not None:
            self.delegation = snapshot.delegation
        self._session = snapshot.session
        self._turn: tuple[Delegation, Turn] | None = None
        self._is_session_lost = False
        if snapshot.delegation is not None and snapshot.session is None:
            self._session = session_of(snapshot.delegation, now=now)
            # Work that has only waited so far has none yet.
            self._is_session_lost = bool(snapshot.delegation.attempts)
        self._other_delegations: dict[DelegationId, Delegation] = {}
        self._other_sessions: list[Session] = []
        self._dropped: list[DropSession] = []
        self._touched: dict[ScopeId, None] = {}
        self._others: list[Change] = []
        self._stories: list[PutStory] = []

    # --- the delegation and its session ----------------------------------------------------

    @property
    def turn(self) -> Turn:
        """The turn of the delegation, with what was tried by now."""
        if self._turn is None or self._turn[0] is not self.delegation:
            self._turn = (self.delegation, turn_of(self.delegation))
        return self._turn[1]

    @property
    def session(self) -> Session:
        """
        The session of the delegation; one that was ended while its delegation ran is never kept.
        """
        assert self._session is not None, "this decision is about no session"
        return self._session

    def open(self, delegation: Delegation) -> None:
        """Begin a delegation."""
        self.delegation = delegation

    def update(self, **fields: Any) -> None:
        """Change fields of the delegation. Its state is changed by `enter` alone."""
        assert "state" not in fields, "only `enter` moves a delegation to another state"
        self.delegation = structs.replace(self.delegation, **fields)

    def enter(self, state: DelegationState, **fields: Any) -> None:
        """Move the delegation to a state. Called by `core.work.transitions` alone."""
        self.delegation = structs.replace(self.delegation, state=state, **fields)

    def update_attempt(self, **fields: Any) -> Attempt:
        """Change fields of the last attempt."""
        attempts = self.delegation.attempts
        after = structs.replace(attempts[-1], **fields)
        self.update(attempts=(*attempts[:-1], after))
        return after

    def update_other(self, name: DelegationId, **fields: Any) -> Delegation:
        """Change fields of another unfinished delegation. It is moved by its own events alone."""
        assert "state" not in fields, "only `enter` moves a delegation to another state"
        before = self._other_delegations.get(name) or self.snapshot.active[name]
        after = structs.replace(before, **fields)
        self._other_delegations[name] = after
        return after

    def keep_session(self, session: Session) -> None:
        self._session = session

    def move(self, **fields: Any) -> None:
        """Change fields of the session."""
        self._session = structs.replace(self.session, **fields)

    def keep_other_session(self, session: Session) -> None:
        """Keep a session that is not the one of this decision."""
        self._other_sessions.append(session)

    def keep_facts(self, facts: tuple[tuple[str, str], ...]) -> None:
        self._others += [PutFact(key, value) for key, value in facts]

    def drop_session_id(self, session: SessionId) -> None:
        self._dropped.append(DropSession(session))

    def holder_of(self, session: SessionId) -> DelegationId | None:
        """The unfinished delegation that holds a session."""
        active = self.snapshot.active.values()
        held = (one.delegation for one in active if one.session == session and not one.blocked_by)
        return next(held, None)

    def put_health(self, health: Health) -> None:
        if self.health.get(health.scope) == health:
            return
        self.health[health.scope] = health
        self._touched[health.scope] = None

    def note(
        self,
        kind: str,
        delegation: Delegation | None = None,
        *,
        backend: BackendId | None = None,
        session: SessionId | None = None,
        route: tuple[str, str] | None = None,
        **fields: Any,
    ) -> None:
        """Journal an event. `route` becomes its fields `from` and `to`."""
        if route is not None:
            fields = {"from": route[0], "to": route[1], **fields}
        self._others.append(
            Note(
                kind=kind,
                at=self.now,
                delegation=None if delegation is None else delegation.delegation,
                session=session if delegation is None else delegation.session,
                backend=backend,
                fields=fields,
            )
        )

    def tell(
        self,
        delegation: Delegation,
        event: str,
        *,
        outcome: str,
        verdicts: tuple[Verdict, ...] = (),
        evidence: str = "",
        attempt: AttemptId | None = None,
        **policy: Any,
    ) -> None:
        """
        Add to the decision log of a delegation. `policy` holds the values that were used.

        Args:
            attempt: The one that the event is about; None: the last one.
        """
        if attempt is None and delegation.attempts:
            attempt = delegation.attempts[-1].attempt
        self._stories.append(
            PutStory(
                delegation=delegation.delegation,
                at=self.now,
                event=event,
                verdicts=verdicts,
                outcome=outcome,
                policy=policy,
                evidence=evidence,
                attempt=attempt,
            )
        )

    # --- health ----------------------------------------------------------------------------

    def resolve(
        self,
        candidates: tuple[Entry, ...],
        request: Request,
        *,
        health: Mapping[ScopeId, Health] | None = None,
    ) -> Resolved:
        """
        Args:
            health: Another one than the current one.
        """
        request = structs.replace(request, luck=self.luck)
        known = self.health if health is None else health
        return resolve(candidates, request, self.policy, known, self.meters, now=self.now)

    def mark(
        self,
        failure: Failure,
        backend: Backend,
        *,
        model: str | None,
        credential: str | None,
        started_at: float | None,
        luck: float,
        repeated: bool = False,
    ) -> MadeMark | None:
        """
        Take the scope that a failure is about out of use. None: it marks none.

        Args:
            repeated: The time that its provider stated was waited for already.
        """
        policy = self.policy.reason(failure.reason, backend.id)
        if policy is None or not failure.marks_health:
            return None
        scope = failed_scope(failure, backend, model, credential)
        before = self.health.get(scope)
        first_window_s = None
        if failure.reason is Reason.MODEL_NOT_FOUND and model is None:
            first_window_s = MODEL_UNKNOWN_WINDOW_S
        if failure.reason is Reason.AUTH and len(backend.credentials) > 1:
            first_window_s = 300.0
        if is_doubtful(failure):
            failure, policy = doubted(failure, policy, now=self.now)
            first_window_s = None
        after = health.fail(
            before,
            scope,
            failure,
            policy,
            started_at=started_at,
            now=self.now,
            luck=luck,
            forever=failure.detail == "revoked" and failure.reason is Reason.AUTH,
            first_window_s=first_window_s,
            repeated=repeated,
        )
        if after == before or after.outage is None:
            return None
        self.put_health(after)
        return MadeMark(
            scope=scope,
            since_at=after.outage.since_at,
            before=None if before is None else before.outage,
        )

    def withdraw(self, marks: tuple[MadeMark, ...]) -> None:
        """Take marks back, each unless its scope was marked again since."""
        for record in without_marks(self.health, marks).values():
            self.put_health(record)

    def succeed(
        self, backend: Backend, *, model: str | None, credential: str | None, started_at: float
    ) -> None:
        """The provider answered: every scope that the attempt touched is proven."""
        changed = False
        for scope in scopes_of(backend, model, credential):
            record = self.health.get(scope)
            if record is None:
                continue
            after = health.succeed(record, started_at=started_at)
            changed = changed or after != record
            self.put_health(after)
        if changed:
            self.wake_waiting()
        self.meters.count_answer(backend.id)

    def take_lease(
        self,
        choice: Choice,
        name: AttemptId,
        *,
        expires_at: float | None = None,
        owner: str | None = None,
    ) -> int:
        """
        Lease the single trial that a call of a choice is, where it is one.

        Args:
            name: Of the call.
            expires_at: None: with the attempt.
            owner: Who makes it, in a word for people.

        Returns:
            The generation of the lease.
        """
        generation = 0
        for scope in choice.trial_scopes:
            held = health.lease(
                self.health[scope], name, now=self.now, expires_at=expires_at, owner=owner
            )
            self.put_health(held)
            generation = held.generation
        return generation

    def give_back(self, name: AttemptId) -> bool:
        """Give a lease back. False: it had run out or was overtaken, and proves nothing more."""
        was_held = False
        for record in list(self.health.values()):
            if record.trial is not None and record.trial.attempt == name:
                was_held = was_held or is_leased(record, now=self.now)
                self.put_health(health.release(record, name))
        if was_held:
            self.wake_waiting()
        return was_held

    def release(self, attempt: Attempt) -> None:
        """Give the trial lease of an attempt back."""
        if attempt.trial_scopes:
            self.give_back(attempt.attempt)
            self.wake_waiting()

    def wake_waiting(self) -> None:
        if (wake := WakeWaiting()) not in self.effects:
            self.effects.append(wake)

    # --- the end ---------------------------------------------------------------------------

    def announce(self, record: Health) -> Health:
        """Say how the state of a scope has moved since it was last said."""
        state = view(record, now=self.now)
        if state.state == record.announced:
            return record
        outage = record.outage
        self.note(
            "health.moved",
            backend=backend_of(record.scope, self.policy),
            scope=record.scope,
            route=(record.announced, state.state),
            unproven=state.unproven,
            reason=None if outage is None else outage.reason.value,
            detail=None if outage is None else outage.detail,
            until_at=state.until_at,
        )
        return structs.replace(record, announced=state.state)

    def finish(self, *, rejection: Rejection | None = None, answer: Any = None) -> Decision:
        health: list[Change] = []
        for scope in self._touched:
            record = self.announce(self.health[scope])
            self.health[scope] = record
            if record != self.snapshot.health.get(scope):
                health.append(PutHealth(record))
        self._count_request()
        self._count_states()
        over, used = map(PutHour, self.meters.over), map(PutMeter, self.meters.changed())
        records = (*health, *over, *used, *self._records())
        effects = (*self.effects, Export()) if health else tuple(self.effects)
        stories = told(self._stories, records, effects)
        return Decision(
            changes=(*records, *self._other_records(), *self._others, *stories),
            effects=effects,
            rejection=rejection,
            answer=answer,
        )

    def _count_request(self) -> None:
        """A delegation that has ended counts for the backend that answered, or was asked last."""
        one: Delegation | None = getattr(self, "delegation", None)
        seen = self.snapshot.delegation
        if one is None or not one.is_ended or (seen is not None and seen.is_ended):
            return
        is_answered = one.state == "succeeded"
        moved = any(each.trigger in ("reactive", "preemptive") for each in one.hops)
        share = history.Share(
            role=one.role or "",
            project=one.cwd,
            requests=1,
            answered=int(is_answered),
            rescued=int(is_answered and moved and one.served_by != one.requested),
            usage=one.usage,
        )
        self.meters.count_share(one.served_by or one.active, share)

    def _count_states(self) -> None:
        """Keep the states that backends with an hour of their own came into."""
        names = tuple(self.meters) if self._touched else tuple(self.meters.changed_names)
        for name in names:
            used, backend = self.meters[name], find_backend(self.policy, name)
            if used.hour is None or backend is None:
                continue
            seen, record = own_health(backend, self.health, now=self.now)
            out = record.outage if record is not None and seen.state != "healthy" else None
            after = history.moved(
                self.meters.hour(name),
                seen.state,
                None if out is None else out.reason.value,
                at=self.now,
            )
            if after is not self.meters[name].hour:
                self.meters.put_hour(after)

    def _records(self) -> Iterator[Change]:
        """The session and the delegation, where they differ from those of the snapshot."""
        seen = self.snapshot
        delegation: Delegation | None = getattr(self, "delegation", None)
        if self._session not in (None, seen.session) and self._keeps_session(delegation):
            assert self._session is not None
            yield PutSession(self._session)
        yield from self._dropped
        if delegation is not None and delegation != seen.delegation:
            yield PutDelegation(delegation)

    def _keeps_session(self, delegation: Delegation | None) -> bool:
        if self._is_session_lost:
            return False
        if delegation is None or self.snapshot.delegation is None or self.snapshot.session:
            return True
        # Work that waits for another holds no session: it begins it with its first attempt.
        return bool(delegation.attempts) or not (delegation.blocked_by or delegation.is_ended)

    def _other_records(self) -> Iterator[Change]:
        yield from (PutSession(one) for one in self._other_sessions)
        for name, one in self._other_delegations.items():
            if one != self.snapshot.active[name]:
                yield PutDelegation(one)
