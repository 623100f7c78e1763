"""Playbooks: what all work of one host together may add to what is demanded of it."""

import pytest
from tests.support.playbook import (
    T0,
    Playbook,
    answered,
    delegate,
    fail,
    failed,
    policy_of,
    started,
    succeeded,
)

from fallbackd.core import meter
from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.reasons import Reason

CHAIN = policy_of("a", "b", "c", "d", chains={"a": ["b", "c", "d"]}, max_running=1000)


def crowd(count: int, policy: Policy = CHAIN, **more: object) -> Playbook:
    """So many clients at the same instant, each with its first attempt on `a`."""
    play = Playbook(policy)
    play.when(*(delegate(f"d{n}", backend="a", **more) for n in range(count)))
    return play


def until_quiet(play: Playbook, *, alive: frozenset[str] = frozenset()) -> None:
    """Every attempt ends a second after the last: with an answer where somebody is alive."""
    while True:
        running = [one.running for one in play.peek().active.values() if one.running is not None]
        for one in running:
            if one.backend in alive:
                play.when(answered(one.attempt), succeeded(one.attempt))
            else:
                play.when(failed(one.attempt, fail(Reason.SERVER_ERROR, at=play.now)))
        if not running:
            due = play.next_wake()
            if due is None:
                return
            play.at(due[1])
        else:
            play.at(play.now + 1)


def attempts(play: Playbook, count: int) -> int:
    return sum(len(play.delegation(f"d{n}").attempts) for n in range(count))


@pytest.mark.parametrize("count", [100, 150])
def test_in_a_full_outage_all_together_make_a_tenth_more_than_was_demanded(count: int) -> None:
    play = crowd(count)
    until_quiet(play)
    assert attempts(play, count) <= 1.1 * count
    assert {play.delegation(f"d{n}").state for n in range(count)} == {"refused"}


@pytest.mark.parametrize("count", [2, 10, 30, 60])
def test_a_few_clients_make_a_handful_more(count: int) -> None:
    play = crowd(count)
    until_quiet(play)
    assert attempts(play, count) <= 1.1 * count + 8


def test_one_client_alone_uses_its_own_budget_and_no_less() -> None:
    play = crowd(1)
    until_quiet(play)
    found = play.delegation("d0")
    assert [one.backend for one in found.attempts] == [*"aabbccdd"]


def test_the_same_outage_for_clients_that_come_one_after_the_other_costs_one_walk() -> None:
    play = Playbook(CHAIN)
    for number in range(50):
        play.when(delegate(f"d{number}", backend="a"))
        until_quiet(play)
    assert attempts(play, 50) <= 8


def test_where_a_part_is_down_everybody_moves_on_after_the_first_sign_of_life() -> None:
    play = crowd(100)
    until_quiet(play, alive=frozenset("b"))
    served = [play.delegation(f"d{n}").served_by for n in range(100)]
    assert served == ["b"] * 100


def test_a_scout_goes_alone_and_the_others_wait_for_what_it_finds() -> None:
    play = crowd(100)
    for number in range(100):
        play.when(failed(f"d{number}.1", fail(Reason.CRASH)))
    on_b = [one for one in play.peek().active.values() if one.running is not None]
    assert {one.running.backend for one in on_b if one.running is not None} == {"b"}
    assert len(on_b) == 8
    waiting = [one for one in play.peek().active.values() if one.state == "waiting"]
    assert len(waiting) == 92
    scout = on_b[0].running
    assert scout is not None
    play.at(2).when(started(scout.attempt), answered(scout.attempt))
    assert all(one.running is not None for one in play.peek().active.values())


def test_one_that_shows_nothing_before_its_end_is_a_sign_of_life_after_a_while() -> None:
    play = crowd(100)
    for number in range(100):
        play.when(failed(f"d{number}.1", fail(Reason.CRASH)))
    play.at(19)
    assert any(one.state == "waiting" for one in play.peek().active.values())
    play.at(20)
    assert all(one.running is not None for one in play.peek().active.values())


def test_another_credential_is_a_move_like_a_hop() -> None:
    pool = Backend(id=BackendId("a"), kind="x", credentials=tuple(f"k{n}" for n in range(5)))
    play = crowd(100, policy_of(pool, max_running=1000))
    for number in range(100):
        play.when(failed(f"d{number}.1", fail(Reason.BILLING)))
    running = [one for one in play.peek().active.values() if one.running is not None]
    assert len(running) == 8


def test_the_numbers_are_policy_and_old_demand_is_forgotten() -> None:
    generous = policy_of("a", "b", chains={"a": ["b"]}, retry_share=1.0, max_running=1000)
    play = crowd(50, generous)
    for number in range(50):
        play.when(failed(f"d{number}.1", fail(Reason.CRASH)))
    assert sum(1 for one in play.peek().active.values() if one.running is not None) == 40
    strict = crowd(1, policy_of("a", "b", chains={"a": ["b"]}, retry_share=0, retry_floor=0))
    strict.when(failed("d0.1", fail(Reason.SERVER_ERROR)))
    assert any(one.outcome.startswith("no retry: the budget") for one in strict.memory.stories)
    found = strict.delegation("d0")
    assert [one.backend for one in found.attempts] == ["a", "b"]  # a scout, and no retry


def test_the_story_shows_the_numbers() -> None:
    play = crowd(1)
    play.when(failed("d0.1", fail(Reason.CRASH)))
    told = [
        one.policy["retry_budget"] for one in play.memory.stories if "retry_budget" in one.policy
    ]
    assert [one for one in told if one] == [
        {
            "first_attempts": 1,
            "further_attempts": 0,
            "retry_share": 0.1,
            "retry_floor": 8,
            "window_s": 120,
        }
    ]


def test_calls_that_callers_make_themselves_are_counted_like_those_of_delegations() -> None:
    a = BackendId("a")
    play = Playbook(CHAIN)
    lease = ResolveRequested(backend=a, lease=AttemptId("lease-1"))
    play.when(ResolveRequested(backend=a))  # a look
    turn = play.when(lease).decision.answer.turn
    assert meter.demand(play.peek().meters.values(), now=T0) == (1, 0)
    failure = fail(Reason.SERVER_ERROR, at=play.now)
    twice = Reported(
        outcome="failure",
        backend=a,
        failure=failure,
        turn=turn,
        further=1,
        next_lease=AttemptId("l"),
    )
    assert play.when(twice).decision.answer.next.backend == "b"
    assert meter.demand(play.peek().meters.values(), now=T0) == (1, 2)
