"""The way back up a chain, for roles that count answers."""

from itertools import pairwise

import pytest
from tests.support.playbook import Playbook, delegate, fail, failed, policy_of, succeeded

from fallbackd.core.callers.lease import Resolution
from fallbackd.core.events import HealthMarked, HealthResumed, Reported, ResolveRequested, Ticked
from fallbackd.core.ids import BackendId, SessionId
from fallbackd.core.policy import Entry, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation

NAMES = ("primary", "p0", "p1", "p2")


def role(**more: object) -> Role:
    chain = tuple(Entry(backend=BackendId(one)) for one in NAMES)
    return Role(name="build", chain=chain, return_policy="successes", **more)  # type: ignore[arg-type]


class Talk:
    """One session of the role, one delegation after the other, ten minutes apart."""

    def __init__(self, made: Role, *, at: str) -> None:
        self.play = Playbook(policy_of(*NAMES, roles={"build": made}))
        self.count = 0
        self.step_s = 600.0
        self.broken: dict[str, Reason] = {}
        for name in NAMES[: NAMES.index(at)]:
            self.play.when(HealthMarked(target=name, reason="rate_limit", ttl_s=700))
        self.say()
        assert self.last.served_by == at
        self.play.at(self.play.now + 2000)
        self.prove(at)

    def prove(self, at: str) -> None:
        """Everybody above is healthy again, and proven."""
        for name in NAMES[: NAMES.index(at)]:
            self.play.when(HealthMarked(target=name, ttl_s=0))

    @property
    def last(self) -> Delegation:
        return self.play.delegation(f"d{self.count}")

    def say(self) -> str | None:
        """The next delegation, to its end. Returns who served it."""
        self.count += 1
        self.play.at(self.play.now + self.step_s)
        self.play.when(delegate(f"d{self.count}", session="s", role="build"))
        while not self.last.is_ended:
            running = self.last.running
            if running is None:
                wake = self.play.next_wake()
                assert wake is not None
                self.play.at(wake[1])
                continue
            reason = self.broken.get(running.backend)
            if reason is None:
                self.play.when(succeeded(running.attempt))
            else:
                self.play.when(failed(running.attempt, fail(reason, at=self.play.now)))
        return self.last.served_by

    def times(self, count: int) -> list[str | None]:
        return [self.say() for _ in range(count)]

    def recovered(self) -> list[str]:
        """Whom it was told to be used again, each time."""
        found = self.play.noted("session.notice")
        return [one.fields["to"] for one in found if one.fields["notice"] == "recovered"]

    def moves(self) -> list[tuple[str, str]]:
        found = self.play.noted("delegation.hopped")
        return [
            (one.fields["from"], one.fields["to"])
            for one in found
            if one.fields["trigger"] == "recovery"
        ]


def test_after_n_answers_on_a_lower_entry_the_best_is_used_again() -> None:
    talk = Talk(role(), at="p1")
    assert talk.times(4) == ["p1"] * 4
    assert all(not talk.play.delegation(f"d{n}").hops for n in range(2, 6))
    assert talk.say() == "primary"
    [hop] = talk.last.hops
    assert (hop.from_backend, hop.to_backend, hop.trigger) == ("p1", "primary", "recovery")
    session = talk.play.session("s")
    assert (session.current, session.depth) == ("primary", 0)


def test_one_step_at_a_time_where_the_role_says_so() -> None:
    talk = Talk(role(return_step="one"), at="p1")
    assert talk.times(16) == ["p1"] * 4 + ["p0"] * 5 + ["primary"] * 7
    assert talk.moves() == [("p1", "p0"), ("p0", "primary")]


@pytest.mark.parametrize("step", ["best", "one"])
def test_a_dead_level_is_skipped_and_nobody_goes_lower(step: str) -> None:
    """A chain of four whose middle entry is dead: from the last one up, past it."""
    talk = Talk(role(return_step=step), at="p2")
    talk.play.when(HealthMarked(target="p1", reason="broken", ttl_s=10_000_000))
    talk.play.when(HealthMarked(target="p0", reason="broken", ttl_s=10_000_000))
    assert talk.times(5) == ["p2"] * 4 + ["primary"]
    assert not [one for n in range(2, 7) for one in talk.play.delegation(f"d{n}").attempts
                if one.backend in ("p0", "p1")]  # fmt: skip
    assert talk.times(10) == ["primary"] * 10


def test_a_better_one_that_refuses_is_asked_less_and_less_often() -> None:
    talk = Talk(role(), at="p0")
    talk.broken["primary"] = Reason.SERVER_ERROR
    assert talk.times(150) == ["p0"] * 150
    looks = [
        n
        for n in range(2, 152)
        if any(one.backend == "primary" for one in talk.play.delegation(f"d{n}").attempts)
    ]
    # 5 answers, then 10, 20, 40, and never more than 64.
    assert [right - left for left, right in pairwise(looks)] == [10, 20, 40, 64]
    assert talk.play.session("s").needed == 64
    assert talk.recovered() == []


def test_a_fall_back_soon_after_a_move_doubles_what_it_takes() -> None:
    talk = Talk(role(), at="p0")
    assert talk.times(5) == ["p0"] * 4 + ["primary"]
    talk.broken["primary"] = Reason.RATE_LIMIT
    assert talk.say() == "p0"
    assert talk.play.session("s").needed == 10


def test_answers_enough_on_the_better_one_bring_the_base_back() -> None:
    talk = Talk(role(), at="p0")
    talk.broken["primary"] = Reason.SERVER_ERROR
    talk.times(5)
    assert talk.play.session("s").needed == 10
    talk.broken.clear()
    assert talk.times(9)[-1] == "p0"
    assert talk.say() == "primary"
    assert talk.play.session("s").needed == 10
    talk.times(9)
    assert talk.play.session("s").needed == 0
    talk.broken["primary"] = Reason.RATE_LIMIT
    assert talk.say() == "p0"  # long after the move: no flapping
    assert talk.play.session("s").needed == 0


def test_a_failed_delegation_neither_counts_nor_resets() -> None:
    talk = Talk(role(), at="p0")
    talk.times(3)
    talk.broken["p0"] = Reason.TASK_FAILED
    assert talk.say() is None
    talk.broken.clear()
    assert talk.times(2) == ["p0", "primary"]


def test_nobody_better_is_used_before_the_time_that_it_stated() -> None:
    talk = Talk(role(), at="p0")
    talk.step_s = 60
    talk.play.when(HealthMarked(target="primary", reason="usage_limit", ttl_s=3000))
    assert talk.times(20) == ["p0"] * 20
    talk.play.at(talk.play.now + 2400)  # the window and its cooldown are over
    assert talk.say() == "primary"


def test_the_return_is_told_once_when_it_has_answered_and_not_by_the_clock() -> None:
    talk = Talk(role(), at="p0")
    talk.play.when(Ticked(fallen_sessions=(talk.play.session("s"),)))
    assert talk.recovered() == []
    talk.times(9)
    assert talk.recovered() == ["primary"]


def test_a_resumed_service_is_not_a_reason_to_move_by_itself() -> None:
    talk = Talk(role(), at="p0")
    talk.play.when(HealthResumed(target="primary"))
    assert talk.times(2) == ["p0", "p0"]


def test_explain_shows_why_a_session_stays_and_what_it_takes_to_move() -> None:
    talk = Talk(role(), at="p0")
    talk.say()
    told = [one for one in talk.play.memory.stories if one.delegation == "d2"]
    assert {"stays_with": "p0", "answers": 1, "answers_needed": 5}.items() <= told[0].policy.items()


def test_a_caller_that_makes_the_calls_itself_goes_back_up_as_well() -> None:
    play = Playbook(policy_of(*NAMES, roles={"build": role()}))
    play.when(HealthMarked(target="primary", reason="rate_limit", ttl_s=10))

    def asked() -> str | None:
        play.when(ResolveRequested(session=SessionId("s"), role="build"))
        found = play.decision.answer
        assert isinstance(found, Resolution)
        return found.backend

    def told(name: str, reason: Reason | None = None) -> None:
        failure = None if reason is None else fail(reason, at=play.now)
        play.when(
            Reported(
                outcome="success" if failure is None else "failure",
                backend=BackendId(name),
                session=SessionId("s"),
                failure=failure,
            )
        )

    assert asked() == "p0"
    told("p0")
    play.when(HealthMarked(target="primary", ttl_s=0))
    for _ in range(4):
        assert asked() == "p0"
        told("p0")
    assert asked() == "primary"
    told("primary", Reason.STALLED)
    assert play.session("s").needed == 10
    play.at(10_000).when(HealthMarked(target="primary", ttl_s=0))
    for _ in range(10):
        assert asked() == "p0"
        told("p0")
    assert asked() == "primary"
    told("primary")
    assert play.session("s").current == "primary"
