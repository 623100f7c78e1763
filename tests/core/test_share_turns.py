"""Machines that cannot ask the arbiter take turns without a word between them."""

from hypothesis import given
from hypothesis import strategies as st

from fallbackd.core.ids import ScopeId
from fallbackd.core.share import TURN_S, turn_of

PLAN = ScopeId("quota:plan")
NAMES = [f"i{number}" for number in range(10)]
INSTANTS = st.floats(0.0, 4e9)


@given(st.frozensets(st.sampled_from(NAMES), min_size=1), INSTANTS)
def test_at_any_instant_one_machine_of_those_that_know_each_other_has_the_turn(
    known: frozenset[str], now: float
) -> None:
    having = [one for one in known if turn_of(PLAN, known, now=now).instance == one]
    assert len(having) == 1


@given(st.data(), INSTANTS)
def test_two_machines_that_know_each_other_never_both_have_it_whatever_else_each_knows(
    data: st.DataObject, now: float
) -> None:
    left, right = data.draw(st.permutations(NAMES))[:2]
    others = st.frozensets(st.sampled_from(NAMES))
    by_left = data.draw(others) | {left, right}
    by_right = data.draw(others) | {left, right}
    assert not (
        turn_of(PLAN, by_left, now=now).instance == left
        and turn_of(PLAN, by_right, now=now).instance == right
    )


@given(INSTANTS)
def test_a_turn_is_one_machine_s_until_it_ends(now: float) -> None:
    turn = turn_of(PLAN, NAMES, now=now)
    assert 0.0 < turn.ends_in_s <= TURN_S
    later = turn_of(PLAN, NAMES, now=now + turn.ends_in_s / 2)
    assert later.instance == turn.instance


def test_every_machine_has_a_turn_before_long() -> None:
    took = {turn_of(PLAN, NAMES, now=number * TURN_S).instance for number in range(100)}
    assert took == set(NAMES)


def test_scopes_take_turns_of_their_own() -> None:
    scopes = [ScopeId(f"quota:{number}") for number in range(50)]
    assert len({turn_of(one, NAMES, now=0.0).instance for one in scopes}) > 1
