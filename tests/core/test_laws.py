"""
Random histories of several sessions on shared backends, held against the laws of the core.

Times pass, clocks are set, daemons are lost, events come late and twice. Whatever happens:
each accepted delegation is answered exactly once, nobody waits for nothing, no window shrinks
without a reason, and a trial belongs to one running attempt.
"""

from typing import Any

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs
from tests.support import laws
from tests.support.playbook import (
    T0,
    Playbook,
    delegate,
    entry,
    fail,
    failed,
    policy_of,
    started,
    succeeded,
)

from fallbackd.core.decide import decide
from fallbackd.core.decision import Answer, Decision, StartAttempt
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptEnded,
    AttemptGaveUp,
    AttemptRetrying,
    CancelRequested,
    ClockStepped,
    ConfigReloaded,
    ConversationSeen,
    Event,
    HealthCleared,
    HealthMarked,
    HealthPaused,
    HealthResumed,
    QuestionAnswered,
    ReadinessSeen,
    Reported,
    ResolveRequested,
    SessionCompacted,
    SessionEnded,
    Ticked,
    Woke,
)
from fallbackd.core.health import Health, Outage, from_disk
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, ScopeId, SessionId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Role
from fallbackd.core.protocol import Output, ProviderAnswered
from fallbackd.core.reasons import Reason
from fallbackd.core.records import USE, Delegation
from fallbackd.core.work.sessions import resumed_conversation

NAMES = ("a", "b", "c", "d")
POLICY = policy_of(
    Backend(
        id=BackendId("a"),
        kind="codex",
        model="m",
        fallback_model="m2",
        quota="q",
        provider="p1",
        family="gpt",
        cost="subscription",
    ),
    Backend(id=BackendId("b"), kind="opencode", quota="q", family="claude"),
    Backend(id=BackendId("c"), kind="generic-cli", plain_output=True, hourly_cap=6),
    Backend(
        id=BackendId("d"),
        kind="openai-http",
        model="m",
        provider="p1",
        loopback=True,
        credentials=("k1", "k2"),
        context_tokens=1_000_000,
        cost="metered",
    ),
    Backend(id=BackendId("in-session"), kind=IN_SESSION_KIND),
    chains={"a": ["b", "c", "d"], "b": ["a", "d"], "*": ["c", "a"]},
    roles={
        "build": ["b", "a", "c"],
        "write": Role(
            name="write",
            kind="creative",
            chain=(entry("b"), entry("a"), entry("in-session")),
            on_outage="ask",
            question_timeout_s=500,
        ),
        "judge": Role(
            name="judge",
            kind="adversarial",
            chain=(entry("a"), Entry(backend=BackendId("c"), tier="api"), entry("b"), entry("d")),
            must_differ_from=("author",),
        ),
        "climb": Role(
            name="climb",
            chain=(entry("a"), entry("b"), entry("c")),
            return_policy="successes",
            return_n=2,
            on_outage="skip",
        ),
    },
    max_running=3,
)
SCOPES = ("a", "b", "c", "d", "quota:q", "model:a/m", "provider:p1", "credential:p1/k1")
PEOPLE = (HealthMarked, HealthCleared, ClockStepped, ConfigReloaded, ReadinessSeen)

backends = st.sampled_from(NAMES)
reasons = st.sampled_from(sorted(Reason))
waits = st.one_of(st.none(), st.none(), st.sampled_from([3.0, 25.0, 100.0, 900.0, 50_000.0]))
pick = st.integers(0, 10**6)


class World(Playbook):
    """A playbook that looks at every single decision."""

    def __init__(self) -> None:
        super().__init__(POLICY)
        self.accepted: set[str] = set()
        self.ended: dict[DelegationId, Delegation] = {}

    def _take(self, event: Event) -> Decision:
        before = dict(self.memory.mirror.health)
        decision = super()._take(event)
        self._hold_windows(before, event)
        self._hold_orders(decision)
        return decision

    def _hold_windows(self, before: dict[ScopeId, Health], event: Event) -> None:
        """A window shrinks by a person, a success, a stated time or a repair only."""
        for scope, record in before.items():
            old, new = record.outage, self.health(scope).outage
            if old is None or isinstance(event, PEOPLE) or not self._is_on(old):
                continue
            if new is None:
                assert self._is_good_news(event, old), (event, old)
            elif new.source != "provider" and new.until_at is not None:
                assert old.until_at is not None, (event, old, new)
                is_withdrawn = isinstance(event, AttemptEnded) and new.since_at < old.since_at
                is_longer = new.until_at >= old.until_at
                # An attempt may answer first, and fail then.
                is_fair = is_longer or is_withdrawn or self._is_good_news(event, old)
                assert is_fair, (event, old, new)

    def _is_on(self, outage: Outage) -> bool:
        return outage.until_at is None or outage.until_at > self.wall

    def _is_good_news(self, event: Event, old: Outage) -> bool:
        is_of_now = 0 <= self.wall - old.last_failure_at <= 10
        is_end = isinstance(event, AttemptEnded | Reported)
        if is_end and is_of_now and old.reason is Reason.NETWORK:
            return True  # withdrawn: this machine had no network
        match event:
            case Reported(outcome="success"):
                return (event.started_at or self.wall) >= old.since_at
            case AttemptAnswered(attempt=name) | Woke(attempt=str(name)):
                return self._started_at(name) >= old.since_at
            case AttemptEnded(attempt=name):
                delegation = self.delegation(name.rpartition(".")[0])
                if "two backends ended" in (delegation.message or ""):
                    return True
                good = event.failure is None or event.answered
                return good and self._started_at(name) >= old.since_at
            case _:
                return False

    def _started_at(self, name: str) -> float:
        found = self.delegation(name.rpartition(".")[0]).attempt(AttemptId(name))
        assert found is not None
        return found.started_at

    def _hold_orders(self, decision: Decision) -> None:
        for effect in decision.effects:
            match effect:
                case StartAttempt():
                    found = self.delegation(effect.delegation)
                    assert found.state == "running"
                    assert found.running is not None
                    assert found.running.attempt == effect.attempt
                    assert effect.resume == resumed_conversation(found, found.running)
                    assert effect.resume is None or effect.handoff is None
                    if found.running.resumes is not None:
                        laws.a_resumption_continues_what_the_same_agent_began(*found.attempts[-2:])
                case Answer():
                    found = self.delegation(effect.delegation)
                    assert found.is_ended
                    assert effect.delegation not in self.ended
                    self.ended[effect.delegation] = found


class Laws(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.number = 0
        self.leases: list[AttemptId] = []
        self.asked_by: dict[str, AttemptId] = {}
        """The attempt from inside which a nested delegation was asked for."""
        self.seen: list[AttemptId] = []

    # --- what happens ----------------------------------------------------------------------

    def _any(self, found: list[Any], index: int) -> Any:
        assume(found)
        return found[index % len(found)]

    def _running(self, index: int) -> AttemptId:
        return AttemptId(self._any(sorted(self.world.attempts), index))

    @rule(
        session=st.integers(0, 4),
        backend=st.one_of(st.none(), backends),
        role=st.sampled_from([None, None, "build", "write", "judge", "climb"]),
        on_partial=st.sampled_from([None, None, "ask", "fail"]),
        allow_metered=st.booleans(),
        differs_from=st.sampled_from([None, None, None, ("gpt",), ("?",)]),
        cwd=st.sampled_from(["", "/w", "/w/x", "/v"]),
        mode=st.sampled_from(["interactive", "batch"]),
        timeout_s=st.one_of(st.none(), st.none(), st.sampled_from([5.0, 100.0])),
        failover=st.sampled_from([True, True, True, False]),
        permissions=st.sampled_from(["workspace", "workspace", "read"]),
        parent=st.one_of(st.none(), st.none(), pick),
        repeated=st.booleans(),
    )
    def a_caller_delegates(
        self, session: int, parent: int | None, *, repeated: bool, **more: Any
    ) -> None:
        self.number += 1
        name = f"d{self.number}"
        active = sorted(self.world.peek().active)
        inside = None if parent is None or not active else active[parent % len(active)]
        above = None if inside is None else self.world.delegation(inside)
        event = delegate(
            name,
            session=f"s{session}",
            parent=inside,
            request_id=f"r{self.number}",
            digest="x",
            **more,
        )
        self.world.when(event)
        if self.world.decision.rejection is None:
            self.world.accepted.add(name)
            if above is not None:
                assert above.running is not None
                self.asked_by[name] = above.running.attempt
            if repeated:
                self.world.when(structs.replace(event, delegation=DelegationId(f"{name}again")))
                answer = self.world.decision.answer
                assert isinstance(answer, Delegation)
                assert answer.delegation == name
        self.seen.extend(self.world.attempts)

    @rule(index=pick)
    def an_attempt_starts(self, index: int) -> None:
        self.world.when(started(self._running(index)))

    @rule(index=pick, told=st.booleans())
    def an_attempt_shows_an_answer(self, index: int, *, told: bool) -> None:
        name = self._running(index)
        self.world.shows(name, Output(), ProviderAnswered())
        if told:
            self.world.when(AttemptAnswered(attempt=name))

    @rule(index=pick, is_new=st.sampled_from([True, False, False, False]))
    def a_program_names_its_conversation(self, index: int, *, is_new: bool) -> None:
        name = self._running(index)
        delegation = self.world.delegation(name.rpartition(".")[0])
        attempt = delegation.attempt(name)
        assert attempt is not None
        resumed = None if is_new else resumed_conversation(delegation, attempt)
        self.world.when(ConversationSeen(attempt=name, conversation=resumed or f"talk of {name}"))

    @rule(index=pick)
    def an_attempt_succeeds(self, index: int) -> None:
        self.world.when(succeeded(self._running(index)))

    @rule(
        index=pick,
        reason=reasons,
        wait_s=waits,
        confidence=st.sampled_from(["structured", "text", "exit_code"]),
        effects=st.sampled_from(["none", "none", "possible", "seen"]),
        gone=st.sampled_from([True] * 9 + [False]),
        answered=st.sampled_from([False, False, True]),
        has_route=st.sampled_from([True, True, True, False]),
        luck=st.floats(0, 1, exclude_max=True),
    )
    def an_attempt_fails(
        self, index: int, reason: Reason, wait_s: float | None, confidence: Any, **more: Any
    ) -> None:
        name = self._running(index)
        failure = fail(reason, at=self.world.now, wait_s=wait_s, confidence=confidence)
        self.world.when(failed(name, failure, **more))

    @rule(index=pick, reason=reasons, wait_s=waits, gives_up=st.booleans())
    def a_program_retries_or_gives_up(
        self, index: int, reason: Reason, wait_s: float | None, *, gives_up: bool
    ) -> None:
        name = self._running(index)
        failure = fail(reason, at=self.world.now, wait_s=wait_s)
        self.world.shows(name, Output())
        if gives_up:
            self.world.when(AttemptGaveUp(attempt=name, failure=failure))
        else:
            self.world.when(AttemptRetrying(attempt=name, failure=failure, wait_s=wait_s))

    @rule(index=pick, reason=reasons)
    def an_event_comes_late_or_twice(self, index: int, reason: Reason) -> None:
        name = self._any(self.seen, index)
        assume(name not in self.world.attempts)
        before = self.world.peek()
        failure = fail(reason, at=self.world.now)
        for event in (
            started(name),
            ConversationSeen(attempt=name, conversation="late"),
            AttemptAnswered(attempt=name),
            failed(name, failure),
            succeeded(name),
            AttemptRetrying(attempt=name, failure=failure),
            Woke(delegation=DelegationId("d0"), attempt=name),
        ):
            self.world.when(event)
        after = self.world.peek()
        assert (before.active, before.health) == (after.active, after.health)

    @rule(index=pick)
    def a_caller_cancels(self, index: int) -> None:
        name = self._any(sorted(self.world.accepted), index)
        self.world.when(CancelRequested(delegation=DelegationId(name)))

    @rule(index=pick, choice=pick, twice=st.booleans())
    def a_person_answers(self, index: int, choice: int, *, twice: bool) -> None:
        asked = [
            one.question for one in self.world.peek().active.values() if one.question is not None
        ]
        question = self._any(sorted(asked, key=lambda one: one.question), index)
        chosen = question.options[choice % len(question.options)].choice
        event = QuestionAnswered(
            question=question.question, delegation=question.delegation, choice=chosen, uid=1000
        )
        self.world.when(event)
        if (refusal := self.world.decision.rejection) is not None:
            # Others work in its directory, which it did not hold while the question was open.
            assert (refusal.kind, self.world.decision.changes) == ("workspace", ())
            return
        if twice:
            self.world.when(event)
            assert self.world.decision.rejection is not None
            assert self.world.decision.changes == ()

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0, 61.0, 301.0, 1000.0, 4000.0, 90_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.at(self.world.now + seconds)

    @rule(by_s=st.sampled_from([-86_400.0, -3600.0, 120.0, 86_400.0]))
    def the_clock_is_set(self, by_s: float) -> None:
        self.world.step_clock(by_s)

    @rule()
    def a_tick_comes(self) -> None:
        before = self.world.memory.mirror.health
        self.world.when(Ticked())
        for scope, record in self.world.memory.mirror.health.items():
            if not self.world.peek().active:
                plain = structs.replace(record, announced="healthy")
                assert plain == structs.replace(before[scope], announced="healthy")

    @rule(backend=backends, mode=st.sampled_from(["interactive", "batch"]))
    def a_tick_makes_no_difference(self, backend: str, mode: Any) -> None:
        event = delegate("probe", session="probe", backend=backend, mode=mode)
        seen = self.world.memory.snapshot(event)
        now = self.world.wall
        plain = decide(seen, event, POLICY, now=now)
        ticked = decide(seen, Ticked(), POLICY, now=now)
        told = {
            **seen.health,
            **{one.health.scope: one.health for one in ticked.changes if hasattr(one, "health")},
        }
        after = decide(structs.replace(seen, health=told), event, POLICY, now=now)
        assert after.effects == plain.effects
        assert after.rejection == plain.rejection

    @rule(
        scope=st.sampled_from(SCOPES),
        reason=st.sampled_from([None, "down", "rate_limit", "auth"]),
        ttl_s=st.one_of(st.none(), st.sampled_from([0.0, 10.0, 5000.0])),
        source=st.sampled_from(["person", "person", "import"]),
    )
    def somebody_marks(self, scope: str, **more: Any) -> None:
        self.world.when(HealthMarked(target=scope, **more))
        assert self.world.decision.answer is True

    @rule(
        event=st.sampled_from(
            [
                HealthCleared(),
                HealthCleared(target="a"),
                HealthPaused(target="b"),
                HealthPaused(target="quota:q"),
                HealthResumed(target="b"),
                ConfigReloaded(changed=(BackendId("a"),)),
                ReadinessSeen(backend=BackendId("a"), reason=Reason.NOT_INSTALLED),
                ReadinessSeen(backend=BackendId("a")),
                ReadinessSeen(backend=BackendId("d"), repaired=True),
                SessionEnded(session=SessionId("s1")),
                SessionCompacted(session=SessionId("s2")),
            ]
        )
    )
    def something_else_happens(self, event: Event) -> None:
        self.world.when(event)

    @rule(session=st.integers(0, 4), backend=backends, asks=st.booleans())
    def a_caller_resolves(self, session: int, backend: str, *, asks: bool) -> None:
        lease = AttemptId(f"lease-{len(self.leases)}") if asks else None
        if lease is not None:
            self.leases.append(lease)
        name = SessionId(f"s{session}")
        self.world.when(ResolveRequested(session=name, backend=BackendId(backend), lease=lease))

    @rule(
        session=st.one_of(st.none(), st.integers(0, 4)),
        backend=backends,
        outcome=st.sampled_from(["success", "failure", "released"]),
        reason=reasons,
        wait_s=waits,
        lease=st.one_of(st.none(), pick),
        age_s=st.one_of(st.none(), st.sampled_from([0.0, 50.0])),
    )
    def a_caller_reports(
        self,
        session: int | None,
        backend: str,
        outcome: Any,
        reason: Reason,
        wait_s: float | None,
        lease: int | None,
        age_s: float | None,
    ) -> None:
        known = self.leases
        self.world.when(
            Reported(
                outcome=outcome,
                backend=BackendId(backend),
                session=None if session is None else SessionId(f"s{session}"),
                lease=None if lease is None or not known else known[lease % len(known)],
                failure=fail(reason, at=self.world.now, wait_s=wait_s),
                started_at=None if age_s is None else self.world.wall - age_s,
            )
        )

    @precondition(lambda self: self.world.peek().active)
    @rule(
        stopped_s=st.sampled_from([0.0, 0.0, 7200.0]),
        boot=st.sampled_from(["", "", "another"]),
    )
    def the_daemon_is_lost(self, stopped_s: float, boot: str) -> None:
        world = self.world
        self.seen.extend(world.attempts)
        lost = dict(world.peek().active)
        world.restart()
        world.now += stopped_s
        active = world.peek().active.values()
        running = {one.running.attempt for one in active if one.running is not None}
        records = world.memory.mirror.health.values()
        world.put_health(*(from_disk(one, now=world.wall, running=running) for one in records))
        world.resume(*lost, boot=boot)

    # --- the laws --------------------------------------------------------------------------

    @invariant()
    def what_is_ended_stays_as_it_was_answered(self) -> None:
        answered = self.world.answered
        assert len(answered) == len(set(answered))
        for name, ended in self.world.ended.items():
            assert self.world.delegation(name) == ended

    @invariant()
    def accepted_work_is_unfinished_or_answered(self) -> None:
        active = self.world.peek().active
        for name in self.world.accepted:
            assert (name in active) != (DelegationId(name) in self.world.ended)

    @invariant()
    def one_attempt_runs_for_a_delegation_and_it_is_the_one_on_record(self) -> None:
        active = self.world.peek().active
        running = {one.running.attempt for one in active.values() if one.running is not None}
        assert running == set(self.world.attempts)
        laws.one_attempt_at_a_time(active)

    @invariant()
    def one_family_writes_in_a_directory(self) -> None:
        laws.one_family_writes_in_a_directory(self.world.peek().active)

    @invariant()
    def what_was_begun_inside_an_attempt_is_over_before_anything_follows_it(self) -> None:
        active = self.world.peek().active
        for name, asked_by in self.asked_by.items():
            if DelegationId(name) not in active:
                continue
            one = self.world.delegation(name)
            assert one.parent is not None
            above = self.world.delegation(one.parent)
            assert not above.is_ended
            if above.running is None or above.cancelling:
                assert one.cancelling
                assert one.running is None or one.running.state == "stopping"
            else:
                assert above.running.attempt == asked_by

    @invariant()
    def nothing_starts_beside_what_could_not_be_stopped_below(self) -> None:
        for one in self.world.peek().active.values():
            if one.unstopped and one.running is not None:
                assert one.running.attempt in self.asked_by.values()

    @invariant()
    def a_session_is_held_exactly_while_its_work_is_unfinished(self) -> None:
        sessions = self.world.memory.mirror.sessions(limit=100)
        active = self.world.peek().active
        laws.a_session_is_held_exactly_while_its_work_is_unfinished(active, sessions)

    @invariant()
    def a_trial_belongs_to_one_running_attempt_or_to_a_caller(self) -> None:
        seen = self.world.peek()
        laws.a_trial_belongs_to_a_running_attempt_or_to_a_caller(
            seen.health, seen.active, self.leases
        )

    @invariant()
    def walks_are_bounded(self) -> None:
        for name in self.world.accepted:
            one = self.world.delegation(name)
            by_choice = sum(1 for each in one.questions if (each.choice or "").startswith(USE))
            turn = structs.replace(one.turn, budget=one.turn.budget + by_choice)
            laws.a_walk_is_bounded(structs.replace(one, turn=turn))

    @invariant()
    def a_question_is_open_exactly_while_a_person_is_asked(self) -> None:
        for name in self.world.accepted:
            one = self.world.delegation(name)
            is_asked = one.question is not None
            if not one.cancelling:
                assert is_asked == (one.state == "awaiting_answer") or one.outcome is not None
            if is_asked:
                assert one.running is None
            assert all(each.closed_at is not None for each in one.questions[:-1])

    @invariant()
    def nobody_is_charged_or_judged_by_his_own_without_a_person(self) -> None:
        families = {"a": "gpt", "b": "claude"}
        for name in self.world.accepted:
            one = self.world.delegation(name)
            chosen = {each.choice.removeprefix(USE) for each in one.questions if each.choice}
            for each in one.attempts:
                if each.backend in chosen:
                    continue
                assert one.turn.allow_metered or each.backend != "d"
                if one.turn.differs_from:
                    assert "?" not in one.turn.differs_from
                    assert families.get(each.backend) not in (None, *one.turn.differs_from)
                if one.turn.creative:
                    assert each.backend == one.requested

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        wakes = {key[0] for key, at in self.world._wakes.items() if at >= self.world.now - 1e-3}
        for one in self.world.peek().active.values():
            if one.state == "waiting":
                below = [each for each in self.world.peek().active.values() if each.parent]
                assert one.delegation in wakes or one.delegation in {e.parent for e in below}
            elif one.blocked_by is not None:
                assert one.blocked_by in self.world.peek().active
            elif one.state == "queued":
                assert self.world.attempts

    @invariant()
    def outages_make_sense(self) -> None:
        laws.outages_make_sense(self.world.peek().health.values())

    def teardown(self) -> None:
        """Drive the world to its end: everything that was accepted gets its answer."""
        world = self.world
        for _ in range(2000):
            if not world.peek().active:
                break
            if world.attempts:
                name = sorted(world.attempts)[0]
                world.when(failed(name, fail(Reason.AUTH, at=world.now)))
            elif asked := [one.question for one in world.peek().active.values() if one.question]:
                name, delegation = asked[0].question, asked[0].delegation
                world.when(
                    QuestionAnswered(question=name, delegation=delegation, choice="stop", uid=0)
                )
            else:
                due = world.next_wake()
                assert due is not None, world.peek().active
                world.at(max(world.now, due[1]))
        assert not world.peek().active
        assert set(world.answered) == {DelegationId(one) for one in world.accepted}
        assert len(world.answered) == len(world.accepted)
        trials = [one.trial for one in world.peek().health.values() if one.trial is not None]
        assert all(one.attempt in self.leases for one in trials)
        assert world.wall > T0 - 10**7


Laws.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLaws = Laws.TestCase
