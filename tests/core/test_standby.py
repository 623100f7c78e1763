"""Playbooks: work that waits until a backend is available."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.support.playbook import (
    T0,
    Playbook,
    answered,
    answers,
    delegate,
    entry,
    fail,
    failed,
    policy_of,
    started,
    starts,
    succeeded,
)

from fallbackd.core.decision import StartAttempt
from fallbackd.core.events import (
    CancelRequested,
    CredentialSeen,
    HealthCleared,
    HealthMarked,
    HealthPaused,
    HealthResumed,
    ReadinessSeen,
    StandbyAsked,
)
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.policy import Backend, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Standby
from fallbackd.core.work.standby import LONGEST_S, PAUSE_S, terms

HOUR_S = 3600.0
COOLDOWN_S = 600.0
"""Where another backend is free, one that was out is left alone for this time after its limit."""
ALONE = policy_of("a")
AB = policy_of("a", "b", chains={"a": ["b"]})


def waits(*, now: float = 0.0, **asked: object) -> Standby:
    found = terms(when_available=True, now=T0 + now, **asked)  # type: ignore[arg-type]
    assert found is not None
    return found


def out_until(play: Playbook, seconds: float, name: str = "d0") -> Playbook:
    """Backend `a` says to `name` that its plan is used up until then."""
    play.when(delegate(name, backend="a"), started(f"{name}.1"))
    play.when(failed(f"{name}.1", fail(Reason.USAGE_LIMIT, at=play.now, wait_s=seconds)))
    play.then_whatever()
    return play


def asks(play: Playbook, name: str, **asked: object) -> Playbook:
    return play.when(
        delegate(name, backend="a", standby=waits(now=play.now, **asked))  # type: ignore[arg-type]
    )


def ran(play: Playbook) -> list[str]:
    return [one.attempt for one in play.then_whatever() if isinstance(one, StartAttempt)]


# --- it waits, and goes on ---------------------------------------------------------------------


def test_work_waits_for_the_stated_time_beyond_every_threshold_and_runs_then() -> None:
    play = asks(out_until(Playbook(ALONE), 5 * HOUR_S), "d1").then()
    one = play.delegation("d1")
    assert one.on_standby
    assert one.waiting is not None
    assert one.waiting.until_at == T0 + 5 * HOUR_S
    play.at(5 * HOUR_S - 1).then().at(5 * HOUR_S).then(starts("d1.1", "a"))
    play.when(started("d1.1"), answered("d1.1"), succeeded("d1.1")).then(answers("d1"))
    assert [one.kind for one in play.notes if one.kind.startswith("standby")] == [
        "standby.began",
        "standby.ended",
    ]


def test_work_that_may_not_wait_is_refused_as_ever() -> None:
    out_until(Playbook(ALONE), 5 * HOUR_S).when(delegate("d1", backend="a")).then(answers("d1"))


def test_work_that_a_backend_can_do_now_does_not_wait() -> None:
    asks(Playbook(ALONE), "d1").then(starts("d1.1", "a"))


def test_a_limit_uses_up_neither_an_attempt_nor_a_hop() -> None:
    policy = policy_of("a", "b", chains={"a": ["b"]}, max_attempts=2, max_fallback_depth=1)
    play = asks(Playbook(policy), "d1", wait_for_s=20 * HOUR_S).then(starts("d1.1", "a"))
    number = 1
    for _ in range(6):
        for name in ("a", "b"):
            at = play.now
            play.when(started(f"d1.{number}"))
            play.when(failed(f"d1.{number}", fail(Reason.USAGE_LIMIT, at=at, wait_s=HOUR_S)))
            number += 1
            if name == "a":
                play.then(starts(f"d1.{number}", "b"))
        play.then()
        assert play.delegation("d1").on_standby
        play.at(play.now + HOUR_S).then(starts(f"d1.{number}", "a"))
    play.when(started(f"d1.{number}"), succeeded(f"d1.{number}")).then(answers("d1"))
    assert play.delegation("d1").state == "succeeded"


def test_an_error_of_the_task_itself_is_not_waited_out() -> None:
    play = asks(Playbook(ALONE), "d1").then(starts("d1.1", "a"))
    play.when(started("d1.1"), failed("d1.1", fail(Reason.TASK_FAILED))).then(answers("d1"))


def test_a_program_that_is_not_set_up_is_told_at_once() -> None:
    gone = ReadinessSeen(backend=BackendId("a"), reason=Reason.NOT_INSTALLED)
    asks(Playbook(ALONE).when(gone), "d1").then(answers("d1"))


def test_a_machine_without_a_network_is_waited_out_with_growing_pauses() -> None:
    play = asks(Playbook(ALONE), "d1").then(starts("d1.1", "a"))
    for number, pause_s in enumerate((PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S), start=1):
        at = play.now
        lost = failed(f"d1.{number}", fail(Reason.NETWORK, at=at), has_route=False)
        play.when(started(f"d1.{number}"), lost)
        while play.delegation("d1").waiting is not None and not play.delegation("d1").on_standby:
            pytest.fail("it waits for a retry")
        play.then().at(at + pause_s - 1).then().at(at + pause_s)
        play.then(starts(f"d1.{number + 1}", "a"))


def test_at_its_limit_it_ends_with_a_refusal_that_says_so() -> None:
    play = asks(out_until(Playbook(ALONE), 9 * HOUR_S), "d1", wait_for_s=HOUR_S).then()
    play.at(HOUR_S - 1).then().at(HOUR_S).then(answers("d1"))
    one = play.delegation("d1")
    assert one.state == "refused"
    assert "the time that it was to wait is over" in (one.message or "")
    assert one.retry_at == T0 + 9 * HOUR_S


def test_a_suspended_machine_starts_nothing_after_its_limit() -> None:
    play = asks(out_until(Playbook(ALONE), HOUR_S), "d1", wait_for_s=2 * HOUR_S).then()
    play.now = 3 * HOUR_S  # nothing was woken meanwhile
    play.at(3 * HOUR_S).then(answers("d1"))


def test_it_does_not_begin_before_its_time_though_a_backend_is_free() -> None:
    play = asks(Playbook(ALONE), "d1", not_before_at=T0 + HOUR_S).then()
    play.at(HOUR_S - 1).then().at(HOUR_S).then(starts("d1.1", "a"))


def test_the_deadline_of_the_work_counts_from_its_start() -> None:
    play = out_until(Playbook(ALONE), 5 * HOUR_S)
    play.when(delegate("d1", backend="a", timeout_s=600.0, standby=waits())).then()
    assert play.delegation("d1").deadline_at is None
    play.at(5 * HOUR_S).then(starts("d1.1", "a"))
    assert play.delegation("d1").deadline_at == T0 + 5 * HOUR_S + 600


# --- many at once ------------------------------------------------------------------------------


def many(play: Playbook, count: int = 100) -> Playbook:
    for number in range(1, count + 1):
        asks(play, f"d{number:03}")
    return play.then()


def test_of_a_hundred_one_is_the_trial_and_its_answer_lets_all_go() -> None:
    play = many(out_until(Playbook(policy_of("a", max_running=200)), HOUR_S))
    assert ran(play.at(HOUR_S)) == ["d001.1"]
    assert ran(play.when(started("d001.1"))) == []
    assert ran(play.when(answered("d001.1"))) == [f"d{number:03}.1" for number in range(2, 101)]


def test_of_a_hundred_one_call_is_made_while_the_backend_is_still_out() -> None:
    play = many(out_until(Playbook(ALONE), HOUR_S))
    assert ran(play.at(HOUR_S)) == ["d001.1"]
    play.when(started("d001.1"))
    play.when(failed("d001.1", fail(Reason.USAGE_LIMIT, at=play.now, wait_s=HOUR_S)))
    assert ran(play.at(2 * HOUR_S - 1)) == []
    assert ran(play.at(2 * HOUR_S)) == ["d001.1".replace(".1", ".2")]


def test_a_hundred_outlive_a_restart_and_none_runs_twice() -> None:
    play = many(out_until(Playbook(policy_of("a", max_running=200)), HOUR_S))
    names = [f"d{number:03}" for number in range(1, 101)]
    play.restart().resume(*names).then()
    assert ran(play.at(HOUR_S)) == ["d001.1"]
    play.restart().resume(*names)
    assert [one for one in ran(play) if one != "d001.1"] == []
    play.attempts.clear()
    rest = ran(play.when(started("d001.1"), answered("d001.1")))
    assert rest == [f"{name}.1" for name in names[1:]]


def test_the_places_of_the_host_bound_what_is_let_go() -> None:
    play = many(out_until(Playbook(policy_of("a", max_running=3)), HOUR_S), 10)
    assert ran(play.at(HOUR_S)) == ["d001.1"]
    assert ran(play.when(started("d001.1"), answered("d001.1"))) == ["d002.1", "d003.1"]


def test_priority_goes_before_age() -> None:
    play = out_until(Playbook(policy_of("a", max_running=2)), HOUR_S)
    asks(play, "d1")
    asks(play, "d2", priority=5)
    asks(play, "d3", priority=9).then()
    assert ran(play.at(HOUR_S)) == ["d3.1"]
    assert ran(play.when(started("d3.1"), answered("d3.1"))) == ["d2.1"]


@given(
    st.lists(st.integers(min_value=-100, max_value=100), min_size=1, max_size=8),
    st.booleans(),
)
def test_whatever_the_priorities_one_trial_is_made_and_nothing_is_lost(
    priorities: list[int], passes: bool
) -> None:
    play = out_until(Playbook(policy_of("a", max_running=100)), HOUR_S)
    for number, priority in enumerate(priorities, start=1):
        asks(play, f"d{number}", priority=priority, wait_for_s=3 * HOUR_S)
    (first,) = ran(play.at(HOUR_S))
    most = max(priorities)
    assert first == f"d{priorities.index(most) + 1}.1"
    play.when(started(first))
    if passes:
        play.when(answered(first))
        assert len(ran(play)) == len(priorities) - 1
        return
    play.when(failed(first, fail(Reason.USAGE_LIMIT, at=play.now, wait_s=9 * HOUR_S)))
    assert ran(play) == []
    play.at(3 * HOUR_S)
    states = {play.delegation(f"d{number}").state for number in range(1, len(priorities) + 1)}
    assert states == {"refused"}


# --- what it keeps free ------------------------------------------------------------------------


def test_its_directory_is_free_while_it_waits_and_is_not_shared_afterwards() -> None:
    play = out_until(Playbook(AB), HOUR_S)
    play.when(HealthMarked(target="b", reason="down", ttl_s=HOUR_S))
    play.when(delegate("d1", backend="a", cwd="/w", standby=waits())).then()
    play.when(HealthCleared(target="b")).then_whatever()
    play = out_until(Playbook(AB), HOUR_S)
    play.when(HealthPaused(target="b"))
    play.when(delegate("d1", backend="a", cwd="/w", standby=waits())).then()
    play.when(delegate("d2", chain=(), cwd="/w", backend="b")).then_whatever()
    assert play.delegation("d2").blocked_by is None


def test_it_does_not_begin_beside_another_writer() -> None:
    play = Playbook(ALONE)
    play.when(delegate("d1", backend="a", cwd="/w", standby=waits(not_before_at=T0 + 60.0))).then()
    play.when(delegate("d2", backend="a", cwd="/w"), started("d2.1")).then(starts("d2.1", "a"))
    play.at(61.0).then()
    play.when(answered("d2.1"), succeeded("d2.1")).then(answers("d2"), starts("d1.1", "a"))


def test_it_takes_no_place_of_the_host() -> None:
    play = Playbook(policy_of("a", max_running=1))
    asks(play, "d1", not_before_at=T0 + HOUR_S).then()
    play.when(delegate("d2", backend="a")).then(starts("d2.1", "a"))


def test_it_takes_no_place_of_the_work_that_may_be_unfinished() -> None:
    few = {"max_unfinished": 2, "max_unfinished_of_client": 2}
    play = Playbook(policy_of("a", "b", max_running=1, **few))
    asks(play, "d1", not_before_at=T0 + HOUR_S).then()
    asks(play, "d2", not_before_at=T0 + HOUR_S).then()
    play.when(delegate("d3", backend="b"), delegate("d4", backend="b"))
    assert play.decision.rejection is None
    play.when(delegate("d5", backend="b"))
    assert play.decision.rejection is not None


def test_no_more_than_that_is_on_standby_either() -> None:
    play = Playbook(policy_of("a", max_unfinished=2))
    for name in ("d1", "d2", "d3"):
        asks(play, name, not_before_at=T0 + HOUR_S).then()
    assert play.decision.rejection is not None
    assert "wait for a backend" in play.decision.rejection.message


# --- a person, a login, the clock --------------------------------------------------------------


def test_a_person_starts_it_whatever_is_known_of_its_backend() -> None:
    play = asks(out_until(Playbook(ALONE), 5 * HOUR_S), "d1").then()
    play.when(StandbyAsked(delegation=DelegationId("d1"), starts=True)).then(starts("d1.1", "a"))
    play.when(started("d1.1"), succeeded("d1.1")).then(answers("d1"))
    assert play.health("a").outage is None


def test_one_that_is_started_in_vain_waits_again() -> None:
    play = asks(out_until(Playbook(ALONE), 5 * HOUR_S), "d1").then()
    play.when(StandbyAsked(delegation=DelegationId("d1"), starts=True)).then(starts("d1.1", "a"))
    play.when(started("d1.1"))
    play.when(failed("d1.1", fail(Reason.USAGE_LIMIT, at=play.now, wait_s=5 * HOUR_S))).then()
    play.at(5 * HOUR_S).then(starts("d1.2", "a"))


def test_a_backend_that_is_paused_is_started_by_no_word() -> None:
    play = asks(Playbook(ALONE).when(HealthPaused(target="a")), "d1").then()
    play.when(StandbyAsked(delegation=DelegationId("d1"), starts=True)).then()
    play.when(HealthResumed(target="a")).then(starts("d1.1", "a"))


def test_a_person_moves_its_time() -> None:
    play = asks(Playbook(ALONE), "d1", not_before_at=T0 + 5 * HOUR_S).then()
    play.when(StandbyAsked(delegation=DelegationId("d1"), not_before_at=T0 + HOUR_S)).then()
    play.at(HOUR_S).then(starts("d1.1", "a"))


def test_a_person_cancels_it() -> None:
    play = asks(out_until(Playbook(ALONE), HOUR_S), "d1").then()
    play.when(CancelRequested(delegation=DelegationId("d1"))).then(answers("d1"))
    play.at(2 * HOUR_S).then()


def test_nothing_is_moved_that_does_not_wait() -> None:
    play = asks(Playbook(ALONE), "d1").then(starts("d1.1", "a"))
    play.when(StandbyAsked(delegation=DelegationId("d1"), starts=True)).then()
    assert play.decision.rejection is not None
    assert play.decision.rejection.kind == "standby"


def test_a_repair_lets_one_go_at_once() -> None:
    play = Playbook(ALONE).when(HealthMarked(target="a", reason="auth"))
    asks(play, "d1").then()
    play.when(HealthCleared(target="a")).then(starts("d1.1", "a"))


def test_another_login_is_tried_once() -> None:
    keyed = policy_of(Backend(id=BackendId("a"), kind="codex", credentials=("main",)))
    play = Playbook(keyed)
    play.when(delegate("d0", backend="a"), started("d0.1"))
    play.when(failed("d0.1", fail(Reason.USAGE_LIMIT, wait_s=5 * HOUR_S))).then_whatever()
    asks(play, "d1")
    asks(play, "d2").then()
    seen = CredentialSeen(backend=BackendId("a"), credential="main", reason=None, changed=True)
    assert ran(play.when(seen)) == ["d1.1"]


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_a_clock_that_is_set_moves_durations_and_no_times_of_the_clock(by_s: float) -> None:
    play = out_until(Playbook(ALONE), 5 * HOUR_S)
    asks(play, "d1", wait_for_s=2 * HOUR_S)
    asks(play, "d2", wait_until_at=T0 + 2 * HOUR_S).then()
    play.step_clock(by_s).then()
    assert play.delegation("d1").standby.limit_at == T0 + 2 * HOUR_S + by_s  # type: ignore[union-attr]
    assert play.delegation("d2").standby.limit_at == T0 + 2 * HOUR_S  # type: ignore[union-attr]
    play.at(2 * HOUR_S)
    assert play.delegation("d2").is_ended
    assert play.delegation("d1").is_ended is (by_s < 0)


def test_a_begin_that_was_given_as_a_duration_moves_with_the_clock() -> None:
    play = asks(Playbook(ALONE), "d1", not_before_s=HOUR_S).then()
    play.step_clock(2 * HOUR_S).then()
    play.at(3 * HOUR_S - 1).then()
    play.at(3 * HOUR_S).then(starts("d1.1", "a"))


def test_a_begin_that_a_person_moves_is_a_duration_or_a_time_as_the_person_says() -> None:
    play = asks(Playbook(ALONE), "d1", not_before_at=T0 + HOUR_S).then()
    play.when(StandbyAsked(delegation=DelegationId("d1"), not_before_s=2 * HOUR_S)).then()
    play.step_clock(3 * HOUR_S).then()
    play.when(StandbyAsked(delegation=DelegationId("d1"), priority=4)).then()
    play.step_clock(HOUR_S).then()
    play.at(6 * HOUR_S - 1).then()
    play.at(6 * HOUR_S).then(starts("d1.1", "a"))


def test_a_clock_that_is_set_over_its_time_starts_it_at_once() -> None:
    play = asks(Playbook(ALONE), "d1", not_before_at=T0 + HOUR_S).then()
    play.step_clock(2 * HOUR_S).then(starts("d1.1", "a"))


# --- in line behind other work -----------------------------------------------------------------


def test_its_wait_ends_also_in_line_behind_other_work_that_waits() -> None:
    play = out_until(Playbook(ALONE), 9 * HOUR_S)
    play.when(delegate("d1", session="s", backend="a", standby=waits()))
    asked = waits(wait_for_s=HOUR_S)
    play.when(delegate("d2", session="s", backend="a", standby=asked)).then()
    assert play.delegation("d2").blocked_by == "d1"
    play.at(HOUR_S - 1).then().at(HOUR_S).then(answers("d2"))
    assert play.delegation("d2").message == "the time that it was to wait is over"
    assert play.delegation("d1").on_standby


def test_its_wait_ends_also_while_no_place_is_free() -> None:
    play = Playbook(policy_of("a", max_running=1))
    play.when(delegate("d1", backend="a"), started("d1.1")).then(starts("d1.1", "a"))
    asks(play, "d2", wait_for_s=60.0).then()
    play.at(59.0).then().at(60.0).then(answers("d2"))
    assert play.delegation("d2").state == "refused"


def test_one_that_a_person_starts_begins_when_its_directory_is_free() -> None:
    play = out_until(Playbook(AB), 5 * HOUR_S)
    play.when(HealthPaused(target="b"))
    play.when(delegate("d1", backend="a", cwd="/w", failover=False, standby=waits()))
    play.when(HealthResumed(target="b"))
    play.when(delegate("d2", backend="b", cwd="/w"), started("d2.1")).then_whatever()
    play.when(StandbyAsked(delegation=DelegationId("d1"), starts=True)).then()
    assert ran(play.when(answered("d2.1"), succeeded("d2.1"))) == ["d1.1"]


# --- rules of roles, and work from inside an attempt -------------------------------------------


def test_a_role_that_stops_at_an_outage_waits_where_its_caller_says_so() -> None:
    role = Role(name="writes", kind="creative", chain=ALONE.backends and (entry("a"),))
    policy = policy_of("a", roles={"writes": role})
    play = Playbook(policy).when(HealthMarked(target="a", reason="auth"))
    play.when(delegate("d1", role="writes", standby=waits())).then()
    play.when(HealthCleared(target="a")).then(starts("d1.1", "a"))


def test_a_role_that_stays_with_its_backend_waits_though_another_is_free() -> None:
    role = Role(name="writes", kind="creative", chain=(entry("a"), entry("b")))
    play = out_until(Playbook(policy_of("a", "b", roles={"writes": role})), 5 * HOUR_S)
    play.when(delegate("d1", role="writes", standby=waits())).then()
    assert play.delegation("d1").on_standby
    play.at(5 * HOUR_S).then().at(5 * HOUR_S + COOLDOWN_S).then(starts("d1.1", "a"))


def test_a_role_that_stays_with_its_backend_waits_for_it_after_its_limit() -> None:
    role = Role(name="writes", kind="creative", chain=(entry("a"), entry("b")))
    play = Playbook(policy_of("a", "b", roles={"writes": role}))
    play.when(delegate("d1", role="writes", standby=waits()), started("d1.1"))
    play.then(starts("d1.1", "a"))
    play.when(failed("d1.1", fail(Reason.USAGE_LIMIT, at=play.now, wait_s=5 * HOUR_S))).then()
    play.at(5 * HOUR_S).then().at(5 * HOUR_S + COOLDOWN_S).then(starts("d1.2", "a"))


def test_work_that_cannot_be_started_as_it_was_asked_for_ends() -> None:
    play = asks(Playbook(ALONE), "d1").then(starts("d1.1", "a"))
    lost = structs.replace(fail(Reason.NOT_CONFIGURED), marks_health=False)
    play.when(started("d1.1"), failed("d1.1", lost)).then(answers("d1"))


def test_work_from_inside_an_attempt_waits_no_longer_than_that_lives() -> None:
    play = Playbook(AB).when(delegate("d1", backend="b"), started("d1.1"))
    play.when(HealthMarked(target="a", reason="auth")).then_whatever()
    play.when(delegate("d2", chain=(), backend="a", failover=False, parent="d1", standby=waits()))
    assert play.delegation("d2").on_standby
    play.then().when(succeeded("d1.1"))
    assert play.delegation("d2").state == "cancelled"


def test_work_from_inside_an_attempt_goes_before_none_that_its_parent_would_not() -> None:
    play = Playbook(AB).when(delegate("d1", backend="b"), started("d1.1"))
    play.when(HealthMarked(target="a", reason="auth"))
    asked = waits(priority=100)
    play.when(delegate("d2", backend="a", failover=False, parent="d1", standby=asked))
    play.when(StandbyAsked(delegation=DelegationId("d2"), priority=50))
    assert play.delegation("d2").standby.priority == 0  # type: ignore[union-attr]


def test_work_that_is_repeated_goes_before_none_that_it_could_not_at_first() -> None:
    play = out_until(Playbook(ALONE), 5 * HOUR_S)
    again = delegate("d2", backend="a", inside=(DelegationId("d1"),), standby=waits(priority=100))
    play.when(again, StandbyAsked(delegation=DelegationId("d2"), priority=50))
    assert play.delegation("d2").standby.priority == 0  # type: ignore[union-attr]


# --- what cannot be ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"wait_until_at": -86_400.0}, "that time is over"),
        ({"wait_for_s": 1e9}, "more than 30 days"),
        ({"wait_until_at": LONGEST_S + 1}, "more than 30 days"),
        ({"wait_for_s": -1.0}, "that time is over"),
        ({"wait_for_s": 60.0, "wait_until_at": 60.0}, "give one of them"),
        ({"not_before_at": 7200.0, "wait_for_s": 3600.0}, "the wait ends before that"),
        ({"not_before_at": 7200.0, "wait_until_at": 7200.0}, "the wait ends before that"),
    ],
)
def test_a_wait_that_cannot_be_is_refused(asked: dict[str, float], said: str) -> None:
    given = {name: value if name == "wait_for_s" else T0 + value for name, value in asked.items()}
    with pytest.raises(ValueError, match=said):
        terms(when_available=True, now=T0, **given)  # type: ignore[arg-type]


def test_a_priority_without_a_wait_is_refused() -> None:
    with pytest.raises(ValueError, match="add when_available"):
        terms(priority=1, now=T0)
