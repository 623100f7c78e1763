"""Which credential of a pool is picked."""

from collections import Counter

import pytest
from tests.support.playbook import Playbook, delegate, fail, failed, policy_of, succeeded

from fallbackd.core.events import HealthMarked, ResolveRequested
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, CredentialStrategy, Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.routing.looking import pick, usable

LABELS = ("k1", "k2", "k3")


def policy(strategy: CredentialStrategy) -> Policy:
    return policy_of(
        Backend(id=BackendId("a"), kind="x", credentials=LABELS, credential_strategy=strategy)
    )


def served(play: Playbook, times: int, *, lucks: tuple[float, ...] = (0.5,)) -> list[str | None]:
    """The credentials of so many delegations, one after the other, each answered."""
    found = []
    for number in range(times):
        name = f"d{number}"
        play.when(delegate(name, backend="a", luck=lucks[number % len(lucks)]))
        found.append(play.delegation(name).attempts[0].credential)
        play.when(succeeded(f"{name}.1"))
    return found


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("fill_first", ["k1", "k1", "k1", "k1", "k1"]),
        ("round_robin", ["k1", "k2", "k3", "k1", "k2"]),
        ("least_used", ["k1", "k2", "k3", "k1", "k2"]),
    ],
)
def test_the_strategy_says_whose_turn_it_is(
    strategy: CredentialStrategy, expected: list[str]
) -> None:
    assert served(Playbook(policy(strategy)), 5) == expected


def test_least_used_lets_one_that_was_out_catch_up() -> None:
    play = Playbook(policy("least_used"))
    play.when(HealthMarked(target="credential:a/k1", reason="auth", ttl_s=10))
    assert served(play, 4) == ["k2", "k3", "k2", "k3"]
    play.at(11)
    play.when(delegate("x", backend="a"))
    assert play.delegation("x").attempts[0].credential == "k1"


def test_chance_comes_in_events_and_reaches_every_usable_one() -> None:
    play = Playbook(policy("random"))
    play.when(HealthMarked(target="credential:a/k2", reason="billing"))
    found = served(play, 40, lucks=(0.0, 0.3, 0.6, 0.999))
    assert Counter(found) == {"k1": 20, "k3": 20}


def test_a_turn_skips_those_that_are_out() -> None:
    play = Playbook(policy("round_robin"))
    play.when(HealthMarked(target="credential:a/k2", reason="billing"))
    assert served(play, 4) == ["k1", "k3", "k1", "k3"]


def test_callers_that_make_the_call_themselves_take_their_turns_too() -> None:
    play = Playbook(policy("round_robin"))
    found = [
        play.when(ResolveRequested(backend=BackendId("a"))).decision.answer.credential
        for _ in range(4)
    ]
    assert found == ["k1", "k2", "k3", "k1"]


def test_what_has_failed_for_this_work_is_not_picked_and_a_wanted_one_is() -> None:
    backend = policy("fill_first").backends[BackendId("a")]
    assert pick(backend, None, {}, None, without=frozenset({"k1"}), now=0, luck=0) == "k2"
    assert pick(backend, None, {}, None, without=frozenset(LABELS), now=0, luck=0) is None
    assert pick(backend, None, {}, None, only="k3", now=0, luck=0) == "k3"
    assert pick(backend, None, {}, None, only="gone", now=0, luck=0) == "k1"


def test_where_none_is_free_the_one_that_is_back_first_stands_for_the_backend() -> None:
    play = Playbook(policy("fill_first"))
    for label, ttl_s in zip(LABELS, (900, 60, 300), strict=True):
        play.when(HealthMarked(target=f"credential:a/{label}", reason="rate_limit", ttl_s=ttl_s))
    found = play.when(ResolveRequested(backend=BackendId("a"))).decision.answer
    assert found.backend is None
    assert [one.credential for one in found.candidates] == ["k2"]


def test_the_usable_ones_are_the_healthy_and_the_recovering() -> None:
    play = Playbook(policy("fill_first"))
    play.when(HealthMarked(target="credential:a/k1", reason="rate_limit", ttl_s=10))
    play.when(HealthMarked(target="credential:a/k2", reason="billing"))
    backend = play.policy.backends[BackendId("a")]
    assert usable(backend, None, play.peek().health, now=play.wall) == ("k3",)
    play.at(11)
    assert usable(backend, None, play.peek().health, now=play.wall) == ("k1", "k3")


def test_a_login_failure_of_the_only_one_is_out_for_ten_minutes() -> None:
    only = policy_of(Backend(id=BackendId("a"), kind="x", credentials=("k1",)))
    play = Playbook(only).when(delegate("x", backend="a"), failed("x.1", fail(Reason.AUTH)))
    outage = play.outage("credential:a/k1")
    assert outage.until_at is not None
    assert outage.until_at - outage.since_at == 600
