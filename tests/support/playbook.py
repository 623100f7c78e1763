"""
Playbooks: what happens when, and what the core orders then.

    play = Playbook(policy)
    play.at(0).when(delegate("d1", backend="a")).then(starts("d1.1", "a"))
    play.at(5).when(failed("d1.1", fail(Reason.CRASH))).then(starts("d1.2", "b"))

The memory behind it is the one of the stores. `at` lets time pass: every `WakeAt` that falls due
on the way comes back as `Woke`, in order. `WakeWaiting` comes back at once.
"""

from collections.abc import Mapping
from typing import Any

from fallbackd.core.decide import decide
from fallbackd.core.decision import (
    Answer,
    Decision,
    Effect,
    Note,
    PutStory,
    StartAttempt,
    StopAttempt,
    WakeAt,
    WakeWaiting,
)
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptEnded,
    AttemptStarted,
    ClockStepped,
    DelegateRequested,
    Event,
    Resumed,
    Woke,
)
from fallbackd.core.failures import Confidence, Failure, make_failure
from fallbackd.core.health import Health, Outage, View, view
from fallbackd.core.history import HourUse
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, ScopeId, SessionId
from fallbackd.core.policy import REASONS, Backend, Defaults, Entry, Policy, Role, max_wait_s
from fallbackd.core.protocol import Observation, Usage
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation, Session, Snapshot
from fallbackd.core.watch import Watch, see
from fallbackd.core.work.standby import in_order
from fallbackd.engine.loop import keys_of
from fallbackd.stores.mirror import Draft, Mirror

T0 = 1_800_000_000.0
"""The zero of a playbook's clock, in Unix seconds."""


class Memory:
    """Records of the core, kept as the stores keep them."""

    def __init__(self) -> None:
        self.mirror = Mirror()
        self.stories: list[PutStory] = []
        self.hours: list[HourUse] = []

    def snapshot(self, event: Event) -> Snapshot:
        return Draft(self.mirror).snapshot(keys_of(event, self.mirror.peek()))

    def apply(self, decision: Decision) -> list[Note]:
        draft = Draft(self.mirror)
        notes = draft.add(decision.changes)
        self.mirror.apply(draft)
        self.stories.extend(draft.stories)
        self.hours.extend(draft.hours)
        return [one.note for one in notes]


class Playbook:
    """
    Attributes:
        now: Seconds after `T0`.
        decision: What the last event was answered with.
        notes: Everything that was journaled.
    """

    def __init__(self, policy: Policy, *, luck: float = 0.5) -> None:
        self.policy = policy
        self.luck = luck
        self.now = 0.0
        self.memory = Memory()
        self.decision = Decision()
        self.notes: list[Note] = []
        self.attempts: dict[AttemptId, Watch] = {}
        """The running ones, with what they have shown."""
        self.answered: list[DelegationId] = []
        self._wakes: dict[tuple[str, str | None, str], float] = {}
        self._orders: list[Effect] = []
        self._pending: list[Event] = []

    # --- time and events -------------------------------------------------------------------

    @property
    def wall(self) -> float:
        return T0 + self.now

    def at(self, seconds: float) -> "Playbook":
        """Let time pass until `seconds` after the start."""
        while due := self.next_wake(seconds):
            key, at = due
            del self._wakes[key]
            self.now = max(self.now, at)
            self._hear(self._woke(key))
        self.now = seconds
        return self

    def next_wake(
        self, until: float = float("inf")
    ) -> tuple[tuple[str, str | None, str], float] | None:
        due = [(at, key) for key, at in self._wakes.items() if at <= until]
        if not due:
            return None
        at, key = min(due, key=lambda one: (one[0], str(one[1])))
        return key, at

    def _woke(self, key: tuple[str, str | None, str]) -> Woke:
        delegation, attempt, _ = key
        name = None if attempt is None else AttemptId(attempt)
        return Woke(
            delegation=DelegationId(delegation),
            attempt=name,
            watch=None if name is None else self.attempts.get(name),
            luck=self.luck,
        )

    def when(self, *events: Event) -> "Playbook":
        for event in events:
            self._hear(event)
        return self

    def shows(self, attempt: str, *seen: Observation) -> "Playbook":
        """An attempt shows something now. The core hears of it only with its next look."""
        for one in seen:
            name = AttemptId(attempt)
            self.attempts[name] = see(self.attempts[name], one, now=self.wall)
        return self

    def step_clock(self, by_s: float) -> "Playbook":
        """The wall clock is set while no time passes: timers and watches move with it."""
        self.now += by_s
        self._wakes = {key: at + by_s for key, at in self._wakes.items()}
        self.attempts = {
            name: Watch(
                started_at=one.started_at + by_s,
                first_output_at=_moved(one.first_output_at, by_s),
                answered_at=_moved(one.answered_at, by_s),
                last_output_at=_moved(one.last_output_at, by_s),
            )
            for name, one in self.attempts.items()
        }
        return self.when(ClockStepped(by_s=by_s))

    def restart(self) -> "Playbook":
        """The daemon is gone and comes back: what it held in memory is lost."""
        self.attempts.clear()
        self._wakes.clear()
        return self

    def resume(self, *names: str, boot: str = "", **more: Any) -> "Playbook":
        """What the engine does at its start for each unfinished delegation, as it stands then."""
        found = [self.delegation(name) for name in names]
        return self.when(
            *(
                Resumed(
                    delegation=one.delegation,
                    attempt=None if one.running is None else one.running.attempt,
                    boot=boot,
                    **more,
                )
                for one in found
            )
        )

    def _hear(self, event: Event) -> None:
        self._pending.append(event)
        if len(self._pending) > 1:
            return
        self.decision = self._take(event)
        del self._pending[0]
        while self._pending:
            self._take(self._pending[0])
            del self._pending[0]

    def _take(self, event: Event) -> Decision:
        seen = self.memory.snapshot(event)
        decision = decide(seen, event, self.policy, now=self.wall)
        self.notes.extend(self.memory.apply(decision))
        if isinstance(event, AttemptEnded):
            self.attempts.pop(event.attempt, None)
        for effect in decision.effects:
            self._perform(effect)
        return decision

    def _perform(self, effect: Effect) -> None:
        match effect:
            case StartAttempt():
                assert effect.attempt not in self.attempts, f"{effect.attempt} runs already"
                self.attempts[effect.attempt] = Watch(started_at=self.wall)
                self._orders.append(effect)
            case StopAttempt():
                self._orders.append(effect)
            case Answer():
                self.answered.append(effect.delegation)
                self._orders.append(effect)
            case WakeAt():
                key = (effect.delegation, effect.attempt, effect.purpose)
                self._wakes[key] = effect.at - T0
            case WakeWaiting():
                self._pending.extend(
                    Woke(delegation=one.delegation, luck=self.luck)
                    for one in in_order(self.memory.mirror.active.values())
                    if (one.state in ("waiting", "queued", "awaiting_answer") or one.cancelling)
                    and one.running is None
                )
            case _:
                pass

    # --- what is expected ------------------------------------------------------------------

    def then(self, *orders: Effect) -> "Playbook":
        """What was ordered since the last `then`: starts, stops and answers, in order."""
        given = [_plain(one) for one in self._orders]
        self._orders.clear()
        assert given == [_plain(one) for one in orders], given
        return self

    def then_whatever(self) -> list[Effect]:
        given = list(self._orders)
        self._orders.clear()
        return given

    # --- records ---------------------------------------------------------------------------

    def delegation(self, name: str) -> Delegation:
        found = self.memory.mirror.delegation(DelegationId(name))
        assert found is not None, f"no delegation {name}"
        return found

    def session(self, name: str) -> Session:
        found = self.memory.mirror.session(SessionId(name))
        assert found is not None, f"no session {name}"
        return found

    def health(self, scope: str) -> Health:
        name = scope if ":" in scope else f"backend:{scope}"
        return self.memory.mirror.health.get(ScopeId(name), Health(scope=ScopeId(name)))

    def outage(self, scope: str) -> Outage:
        found = self.health(scope).outage
        assert found is not None, f"{scope} has no outage on record"
        return found

    def seen(self, scope: str) -> View:
        return view(self.health(scope), now=self.wall)

    def peek(self) -> Snapshot:
        return self.memory.mirror.peek()

    def put_health(self, *records: Health) -> "Playbook":
        """What was on record before the play."""
        self.memory.mirror.health = {
            **self.memory.mirror.health,
            **{one.scope: one for one in records},
        }
        return self

    def noted(self, kind: str) -> list[Note]:
        return [one for one in self.notes if one.kind == kind]


def _moved(at: float | None, by_s: float) -> float | None:
    return None if at is None else at + by_s


def _plain(effect: Effect) -> tuple[Any, ...]:
    match effect:
        case StartAttempt():
            return ("start", effect.attempt, effect.backend)
        case StopAttempt():
            return ("stop", effect.attempt)
        case Answer():
            return ("answer", effect.delegation)
        case _:
            return (type(effect).__name__,)


# --- words -------------------------------------------------------------------------------------


def starts(attempt: str, backend: str) -> StartAttempt:
    name = AttemptId(attempt)
    return StartAttempt(
        attempt=name,
        delegation=DelegationId(attempt.rpartition(".")[0]),
        backend=BackendId(backend),
    )


def stops(attempt: str) -> StopAttempt:
    return StopAttempt(attempt=AttemptId(attempt), grace_s=0)


def answers(delegation: str) -> Answer:
    return Answer(delegation=DelegationId(delegation))


def delegate(
    name: str,
    *,
    session: str | None = None,
    backend: str | None = None,
    role: str | None = None,
    parent: str | None = None,
    **more: Any,
) -> DelegateRequested:
    return DelegateRequested(
        delegation=DelegationId(name),
        session=SessionId(session or f"s-{name}"),
        backend=None if backend is None else BackendId(backend),
        role=role,
        parent=None if parent is None else DelegationId(parent),
        **more,
    )


def started(attempt: str, pid: int = 4711) -> AttemptStarted:
    return AttemptStarted(attempt=AttemptId(attempt), pid=pid)


def answered(attempt: str) -> AttemptAnswered:
    return AttemptAnswered(attempt=AttemptId(attempt))


def succeeded(attempt: str, *, usage: Usage | None = None, gone: bool = True) -> AttemptEnded:
    return AttemptEnded(
        attempt=AttemptId(attempt),
        failure=None,
        exit_code=0,
        answered=True,
        usage=usage or Usage(),
        gone=gone,
    )


def failed(attempt: str, failure: Failure, *, gone: bool = True, **more: Any) -> AttemptEnded:
    ended = {"attempt": AttemptId(attempt), "exit_code": 1, "gone": gone, **more}
    return AttemptEnded(failure=failure, **ended)


def fail(
    reason: Reason,
    *,
    wait_s: float | None = None,
    at: float = 0.0,
    confidence: Confidence = "structured",
    detail: str | None = None,
    scope: str | None = None,
) -> Failure:
    """A failure as the classifier makes it at `at` seconds of the playbook."""
    return make_failure(
        reason,
        now=T0 + at,
        max_wait_s=max_wait_s(REASONS, reason),
        reset_s=wait_s,
        confidence=confidence,
        detail=detail,
        scope=scope,
        signature="test",
        evidence=f"{reason.value} happened",
    )


def entry(name: str | Entry) -> Entry:
    return name if isinstance(name, Entry) else Entry(backend=BackendId(name))


def policy_of(
    *backends: str | Backend,
    chains: Mapping[str, list[str | Entry] | list[str]] | None = None,
    roles: Mapping[str, Role | list[str]] | None = None,
    **defaults: Any,
) -> Policy:
    """A policy with the given backends, CLIs of no kind in particular."""
    made = [
        one
        if isinstance(one, Backend)
        else Backend(id=BackendId(one), kind="codex", keeps_to_reading=True)
        for one in backends
    ]
    return Policy(
        defaults=Defaults(**defaults),
        backends={one.id: one for one in made},
        chains={name: tuple(entry(one) for one in chain) for name, chain in (chains or {}).items()},
        roles={
            name: role
            if isinstance(role, Role)
            else Role(name=name, chain=tuple(entry(one) for one in role))
            for name, role in (roles or {}).items()
        },
    )
