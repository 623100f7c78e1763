"""
What has to hold, whatever happens. Looks at every decision once it is durable.

Breaches are kept, not raised: the daemon must not be able to swallow one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.stage import Stage
from tests.support import laws

from fallbackd.core.decision import (
    Answer,
    Decision,
    DropSession,
    PutDelegation,
    PutHealth,
    PutSession,
    StartAttempt,
)
from fallbackd.core.events import (
    AttemptEnded,
    ClockStepped,
    Event,
    HealthMarked,
    ReadinessSeen,
    Reported,
    ResolveRequested,
    Woke,
)
from fallbackd.core.health import Health, is_leased, view
from fallbackd.core.ids import AttemptId, DelegationId, ScopeId, SessionId, delegation_of
from fallbackd.core.policy import Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, Delegation, Session, Snapshot
from fallbackd.core.scopes import find_backend, scopes_of
from fallbackd.core.work.workspaces import is_nested

if TYPE_CHECKING:
    from tests.simulation.programs import Program


BELIEVED_S = {Reason.USAGE_LIMIT: 8 * 86_400.0}
"""Of a stated time no more than this is believed; for other reasons six hours."""


class Start(NamedTuple):
    at_s: float
    attempt: Attempt
    is_early: bool
    """A last resort: a trial inside a window."""


class _Decided(NamedTuple):
    seen: Snapshot
    event: Event
    decision: Decision
    policy: Policy
    now: float


class Laws:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.broken: list[str] = []
        self.delegations: dict[DelegationId, Delegation] = {}
        self.sessions: dict[SessionId, Session] = {}
        self.health: dict[ScopeId, Health] = {}
        self.starts: list[Start] = []
        self.marks: dict[ScopeId, list[float]] = {}
        """When each scope was taken out, in seconds since the beginning."""
        self.has_begun_trial = False
        """By the last decision."""
        self.answered: set[DelegationId] = set()
        self.leases: set[str] = set()
        """Of callers."""
        self._ordered: set[AttemptId] = set()
        self._ended: set[AttemptId] = set()
        self._waiting: list[_Decided] = []

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(f"{self.stage.elapsed():.3f} {what}")
            self.stage.tell(f"BROKEN: {what}")

    def _hold(self, law: Callable[..., None], *records: Any) -> None:
        try:
            law(*records)
        except AssertionError as error:
            self.require(False, f"{law.__name__}: {error}")

    # --- decisions -----------------------------------------------------------------------------

    def decided(
        self, seen: Snapshot, event: Event, decision: Decision, policy: Policy, *, now: float
    ) -> None:
        self._waiting.append(_Decided(seen, event, decision, policy, now))

    def forget_decided(self) -> None:
        self._waiting.clear()

    def take_decided(self) -> bool:
        """What was decided is durable now. False: nothing was."""
        decided, self._waiting = self._waiting, []
        for one in decided:
            self._take(one)
        return any(one.decision.changes for one in decided)

    def _take(self, one: _Decided) -> None:
        decision = one.decision
        if isinstance(one.event, ResolveRequested) and one.event.lease is not None:
            self.leases.add(one.event.lease)
        ended = isinstance(one.event, AttemptEnded) and self._is_news(one)
        if isinstance(one.event, AttemptEnded) and ended:
            self.require(one.event.attempt not in self._ended, f"{one.event.attempt} ended twice")
            self._ended.add(one.event.attempt)
        before = self.health
        self.health = dict(self.health)
        made: list[tuple[Delegation, Attempt]] = []
        for change in decision.changes:
            match change:
                case PutHealth(health):
                    self._marked(one, health)
                    self.health[health.scope] = health
                case PutSession(session):
                    self.sessions[session.session] = session
                case DropSession(session_id):
                    self.sessions.pop(session_id, None)
                case PutDelegation(delegation):
                    made += self._kept(delegation)
        for delegation, attempt in made:
            self._made(one, before, delegation, attempt)
        self.has_begun_trial = any(attempt.trial for _, attempt in made)
        self._effects(decision, {attempt.attempt for _, attempt in made})
        self._tell(one)
        if decision.changes:
            self._hold_records()

    def _is_news(self, one: _Decided) -> bool:
        return any(isinstance(change, PutDelegation) for change in one.decision.changes)

    def _kept(self, delegation: Delegation) -> list[tuple[Delegation, Attempt]]:
        name = delegation.delegation
        before = self.delegations.get(name)
        if before is not None and before.is_ended:
            self.require(before == delegation, f"{name} was changed after its answer")
        self.delegations[name] = delegation
        self._hold(laws.a_walk_is_bounded, delegation)
        if delegation.is_ended:
            self._hold_poison(delegation)
            self._hold_nothing_below(delegation, "ended")
        known = 0 if before is None else len(before.attempts)
        return [(delegation, attempt) for attempt in delegation.attempts[known:]]

    def _effects(self, decision: Decision, made: set[AttemptId]) -> None:
        for effect in decision.effects:
            match effect:
                case StartAttempt():
                    is_again = getattr(effect, "taken_up", False)
                    is_new = effect.attempt in made and effect.attempt not in self._ordered
                    self.require(is_again or is_new, f"{effect.attempt} was ordered again")
                    self._ordered.add(effect.attempt)
                case Answer(delegation=delegation):
                    found = self.delegations[delegation]
                    self.require(found.is_ended, f"{delegation} was answered before its end")
                    is_first = delegation not in self.answered
                    self.require(is_first, f"{delegation} was answered twice")
                    self.answered.add(delegation)

    def _hold_records(self) -> None:
        active = self.active()
        sessions = self.sessions.values()
        self._hold(laws.one_attempt_at_a_time, active)
        self._hold(laws.what_is_below_ends_with_its_attempt, active)
        self._hold(laws.one_family_writes_in_a_directory, active)
        self._hold(laws.a_session_is_held_exactly_while_its_work_is_unfinished, active, sessions)
        self._hold(
            laws.a_trial_belongs_to_a_running_attempt_or_to_a_caller,
            self.health,
            active,
            self.leases,
        )
        self._hold(laws.outages_make_sense, self.health.values())

    def active(self) -> dict[DelegationId, Delegation]:
        return {name: one for name, one in self.delegations.items() if not one.is_ended}

    def _tell(self, one: _Decided) -> None:
        if not one.decision.changes and not one.decision.effects:
            return
        ids = [getattr(one.event, name, None) for name in ("delegation", "attempt", "backend")]
        effects = [
            f"{type(effect).__name__} {getattr(effect, 'attempt', None) or ''}".strip()
            for effect in one.decision.effects
            if type(effect).__name__ not in ("Export", "WakeAt", "WakeWaiting")
        ]
        states = [
            f"{change.delegation.delegation}={change.delegation.state}"
            for change in one.decision.changes
            if isinstance(change, PutDelegation)
        ]
        said = " ".join(str(each) for each in (*ids, *states, *effects) if each)
        self.stage.tell(f"  {type(one.event).__name__} {said}")

    # --- attempts ------------------------------------------------------------------------------

    def _made(
        self,
        one: _Decided,
        before: dict[ScopeId, Health],
        delegation: Delegation,
        attempt: Attempt,
    ) -> None:
        name = attempt.attempt
        tried = [view(before.get(scope), now=one.now).state for scope in attempt.trial_scopes]
        is_early = any(state in ("rate_limited", "broken") for state in tried)
        self.starts.append(Start(self.stage.elapsed(), attempt, is_early))
        if len(delegation.attempts) > 1:
            self._hold_nothing_below(delegation, "goes on")
        for earlier in delegation.attempts[:-1]:
            is_gone = earlier.ended_at is not None and earlier.gone is True
            self.require(is_gone, f"{name} follows {earlier.attempt}, which is not proven gone")
        if attempt.retry_of is not None:
            last = delegation.attempts[-2]
            self.require(last.effects == "none", f"{name} repeats {last.attempt} with its effects")
            self.require(not last.trial, f"{name} repeats the trial {last.attempt}")
        resumed = None
        if attempt.resumes is not None:
            last = delegation.attempts[-2]
            self._hold(laws.a_resumption_continues_what_the_same_agent_began, last, attempt)
            resumed = last.conversation
        begun = any(earlier.effects != "none" for earlier in delegation.attempts[:-1])
        for effect in one.decision.effects:
            if isinstance(effect, StartAttempt) and effect.attempt == name:
                told = effect.handoff is not None
                wanted = begun and attempt.resumes is None
                self.require(told == wanted, f"{name} is told what was done before it")
                self.require(effect.resume == resumed, f"{name} continues {effect.resume}")
        backend = find_backend(one.policy, attempt.backend)
        assert backend is not None
        for scope in scopes_of(backend, attempt.model, attempt.credential):
            record = before.get(scope)
            if view(record, now=one.now).unproven:
                trial = None if record is None else record.trial
                own = [earlier.attempt for earlier in delegation.attempts[:-1]]
                is_own = trial is not None and trial.attempt in own  # given back just now
                free = is_own or not is_leased(record, now=one.now)
                self.require(free, f"{name} begins a second trial of {scope}")
                for other in self._trials(scope):
                    if other != name:
                        self.require(False, f"{name} tries {scope} beside {other}")
                self.require(scope in attempt.trial_scopes, f"{name} is no trial of {scope}")
        for scope in attempt.trial_scopes:
            trial = self.health[scope].trial
            is_own = trial is not None and trial.attempt == name
            self.require(is_own, f"{name} has not the lease of {scope}")

    def _hold_nothing_below(self, delegation: Delegation, what: str) -> None:
        """What was asked for from inside an attempt is over before anything follows it."""
        for one in self.active().values():
            is_below = one.parent == delegation.delegation
            self.require(not is_below, f"{delegation.delegation} {what} beside {one.delegation}")

    def _trials(self, scope: ScopeId) -> list[AttemptId]:
        """Attempts that try a scope now, and have not shown yet how that goes."""
        running = [one.running for one in self.active().values()]
        return [
            one.attempt
            for one in running
            if one is not None
            and scope in one.trial_scopes
            and one.answered_at is None
            and not one.proven
        ]

    def began(self, program: "Program") -> None:
        """A program was started in the world."""
        programs = self.stage.programs
        name, own = program.attempt, program.delegation
        self.require(name not in programs.known, f"{name} was started twice")
        self.require(name in self._ordered, f"{name} was started without an order")
        above = laws.family(own, self.delegations)
        held = max(self.stage.script.settings.policy.defaults.max_running, 1)
        outer = [one for one in programs.alive() if one.delegation.parent is None]
        is_outer = own.parent is None
        self.require(not is_outer or len(outer) < held, f"{name} has no place on the host")
        for other in programs.known.values():
            theirs = other.delegation
            if theirs.delegation == own.delegation:
                is_gone = not other.is_alive and not other.is_unproven
                self.require(is_gone, f"{name} was started beside {other.attempt}")
            if not other.is_alive:
                continue
            if own.delegation in laws.family(theirs, self.delegations):
                self.require(False, f"{name} was started beside {other.attempt} from inside it")
            beside = f"{name} was started while {other.attempt} ran"
            self.require(theirs.session != own.session, f"{beside} in the session {own.session}")
            if theirs.delegation in above or not own.cwd or not theirs.cwd:
                continue
            is_apart = "read" in (own.permissions, theirs.permissions)
            is_beside = is_nested(own.cwd, theirs.cwd) or is_nested(theirs.cwd, own.cwd)
            self.require(is_apart or not is_beside, f"{beside} in {own.cwd}")

    # --- marks ---------------------------------------------------------------------------------

    def _marked(self, one: _Decided, health: Health) -> None:
        old, outage = one.seen.health.get(health.scope), health.outage
        if outage is None or (old is not None and old.outage == outage):
            return
        made = [made for each in one.seen.active.values() for made in each.turn.marks]
        if any(mark.before == outage for mark in made):
            return  # a mark was withdrawn
        before = None if old is None else old.outage
        is_kept = before is not None and before.until_at == outage.until_at
        if outage.source == "provider" and not is_kept:
            bound_s = BELIEVED_S.get(outage.reason, 6 * 3600.0)
            is_bounded = outage.until_at is not None and outage.until_at - one.now <= bound_s + 1
            what = f"{health.scope} is out until {outage.until_at}, which nobody can know"
            self.require(is_bounded, what)
        self.marks.setdefault(health.scope, []).append(self.stage.elapsed())
        what = f"{health.scope} is marked {outage.reason}"
        match one.event:
            case ClockStepped() | HealthMarked() | Reported():
                pass
            case ReadinessSeen():
                name = str(one.event.backend)
                is_so = self.stage.was_missing(self.stage.member(name))
                self.require(is_so, f"{what}, but its program is there")
            case Woke(delegation=name):  # a stated wait is given up, since another one is usable
                last = one.seen.active[name].attempts[-1].attempt
                blame = self.stage.programs.blame_of(last)
                is_so = outage.reason in blame
                self.require(is_so, f"{what} after {last}, which has shown {sorted(blame)}")
            case AttemptEnded(attempt=attempt):
                blame = self.stage.programs.blame_of(attempt)
                is_so = outage.reason in blame
                self.require(is_so, f"{what} by {attempt}, which has shown {sorted(blame)}")
            case event:
                self.require(False, f"{what} by {type(event).__name__}")

    def _hold_poison(self, delegation: Delegation) -> None:
        """What the task itself has caused, on two backends alike, is held against nobody."""
        if self.stage.task_of(delegation) != "poison":
            return
        caused = [
            one
            for one in delegation.attempts
            if one.failure is not None and one.failure.reason is Reason.UNKNOWN
        ]
        if len({one.backend for one in caused}) < 2:
            return
        ends = {one.ended_at for one in caused}
        for record in self.health.values():
            outage = record.outage
            is_held = outage is not None and outage.reason is Reason.UNKNOWN
            is_own = outage is not None and outage.last_failure_at in ends
            what = f"{record.scope} is marked by the poison of {delegation.delegation}"
            self.require(not (is_held and is_own), what)

    # --- lives ---------------------------------------------------------------------------------

    def woke_up(self, seen: Snapshot) -> None:
        """A new daemon has read its records: what was durable, and nothing else."""
        self._waiting.clear()
        for name, one in seen.active.items():
            self.require(self.delegations.get(name) == one, f"{name} is not as it was kept")
        for name in self.active():
            self.require(name in seen.active, f"{name} is lost")
        self.health = dict(seen.health)

    def has_shown_trouble(self, attempt: AttemptId) -> bool:
        """Whether it told of its backend; those that a caller has ended tell nothing."""
        found = self.delegations[delegation_of(attempt)].attempt(attempt)
        assert found is not None
        return found.failure is not None and found.failure.marks_health
