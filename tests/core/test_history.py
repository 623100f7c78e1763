"""Use by the hour: what is counted, when an hour is over, and the states in it."""

import pytest
from tests.support.playbook import (
    T0,
    Playbook,
    delegate,
    fail,
    failed,
    policy_of,
    started,
    succeeded,
)

from fallbackd.core.events import HealthCleared, HealthMarked, Ticked
from fallbackd.core.history import (
    MAX_MOVES,
    MAX_SHARES,
    OTHERS,
    HourUse,
    Move,
    Share,
    begun,
    moved,
    shared,
)
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason

AB = policy_of("a", "b", chains={"a": ["b"]})
A = BackendId("a")
HOUR = 3600.0


def hour(play: Playbook, backend: str) -> HourUse:
    found = play.peek().meters[BackendId(backend)].hour
    assert found is not None
    return found


def states(one: HourUse) -> list[tuple[float, str, str | None]]:
    return [(move.at - T0, move.state, move.reason) for move in one.moves]


def fallen() -> Playbook:
    """`a` fails after 10 s, and `b` answers 20 s later."""
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/srv/app"), started("d1.1"))
    limit = fail(Reason.USAGE_LIMIT, wait_s=600, at=10)
    play.at(10).when(failed("d1.1", limit, usage=Usage(input_tokens=5)))
    used = Usage(input_tokens=100, output_tokens=7, cost_usd=0.25)
    return play.when(started("d1.2")).at(30).when(succeeded("d1.2", usage=used))


def test_a_failover_is_counted_where_it_left_and_its_answer_where_it_came_from() -> None:
    play = fallen()
    a, b = hour(play, "a"), hour(play, "b")
    assert (a.calls, a.answered, a.failures) == (1, 0, {"usage_limit": 1})
    assert a.hops == (("b", "usage_limit", 1),)
    assert a.usage == Usage(input_tokens=5)
    assert (b.calls, b.answered, b.took_s, b.longest_s) == (1, 1, 20.0, 20.0)
    assert b.usage.cost_usd == 0.25
    whole = Usage(input_tokens=105, output_tokens=7, cost_usd=0.25)
    assert b.shares == (Share(project="/srv/app", requests=1, answered=1, rescued=1, usage=whole),)
    assert a.shares == ()


def test_states_follow_the_clock_as_the_tick_announces_them() -> None:
    play = fallen()
    for at in (700, 5000):
        play.at(at).when(Ticked())
    [over] = [one for one in play.memory.hours if one.backend == "a"]
    assert states(over) == [
        (10, "rate_limited", "usage_limit"),
        (700, "cooldown", "usage_limit"),
    ]
    assert states(hour(play, "a")) == [(HOUR, "cooldown", "usage_limit"), (5000, "healthy", None)]


def test_an_hour_is_kept_once_when_it_is_over_also_where_nothing_happened_in_it() -> None:
    play = fallen()
    for at in range(1000, int(3 * HOUR) + 1000, 500):
        play.at(at).when(Ticked())
    kept = sorted((one.backend, one.hour - T0 / HOUR) for one in play.memory.hours)
    assert kept == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]
    assert sum(one.calls for one in play.memory.hours) == 2


def test_a_tick_of_a_daemon_that_never_worked_writes_nothing() -> None:
    play = Playbook(AB).when(Ticked()).at(2 * HOUR).when(Ticked())
    assert play.decision.changes == ()


def test_what_is_counted_after_the_clock_was_set_back_is_added_to_the_hour_that_was_left() -> None:
    play = fallen()
    play.at(HOUR + 5).when(Ticked())
    play.step_clock(-2 * HOUR)
    play.when(delegate("d2", backend="b"), started("d2.1"), succeeded("d2.1"))
    assert hour(play, "b").hour == T0 / HOUR + 1
    assert hour(play, "b").calls == 1
    assert [one.calls for one in play.memory.hours if one.backend == "b"] == [1]


def test_the_time_without_a_daemon_is_in_no_state_of_its_backends() -> None:
    play = fallen()
    play.at(300).restart().at(2 * HOUR + 60).when(Ticked(ran_until_at=T0 + 200))
    [over] = [one for one in play.memory.hours if one.backend == "b"]
    assert states(over) == [(30, "healthy", None), (200, "stopped", None)]
    assert states(hour(play, "b")) == [(2 * HOUR + 60, "healthy", None)]


def test_a_restart_within_the_hour_leaves_a_gap_and_goes_on() -> None:
    play = fallen()
    play.at(300).restart().at(320).when(Ticked(ran_until_at=T0 + 25))
    assert states(hour(play, "b")) == [
        (30, "healthy", None),
        (pytest.approx(30.001), "stopped", None),
        (320, "healthy", None),
    ]


def test_a_mark_of_another_model_is_no_outage_of_the_backend() -> None:
    play = fallen()
    play.at(60).when(HealthMarked(target="model:b/other", reason="rate_limit"))
    assert states(hour(play, "b")) == [(30, "healthy", None)]


def test_states_that_change_without_end_keep_the_first_ones_and_the_last() -> None:
    play = fallen()
    for number in range(MAX_MOVES * 2):
        play.at(60 + number).when(HealthMarked(target="b", reason="rate_limit"))
        play.when(HealthCleared(target="b"))
    found = states(hour(play, "b"))
    assert len(found) <= MAX_MOVES
    assert found[-1][1] == "healthy"


def test_an_hour_begins_in_the_state_in_which_the_one_before_ended() -> None:
    one = HourUse(backend=A, hour=7, moves=(Move(at=7 * HOUR, state="broken", reason="auth"),))
    after = begun(A, one, now=8 * HOUR + 90)
    assert after.moves == (Move(at=8 * HOUR, state="broken", reason="auth"),)
    later = begun(A, one, now=9 * HOUR + 90)
    assert later.moves == (Move(at=9 * HOUR + 90, state="stopped"),)


def test_a_state_that_stays_is_no_move() -> None:
    one = begun(A, None, now=5.0)
    assert moved(one, "healthy", None, at=9.0) is one


def test_many_directories_are_counted_together_beyond_a_number() -> None:
    one = begun(A, None, now=5.0)
    for number in range(MAX_SHARES + 5):
        one = shared(one, Share(project=f"/{number}", requests=1))
    assert len(one.shares) == MAX_SHARES + 1
    assert one.shares[-1] == Share(role=OTHERS, project=OTHERS, requests=5)
