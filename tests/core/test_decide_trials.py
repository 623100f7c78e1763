"""Playbooks: what comes back by the clock is tried by one, and others wait or go on."""

import pytest
from msgspec import structs
from tests.support.playbook import (
    T0,
    Playbook,
    answered,
    answers,
    delegate,
    fail,
    failed,
    policy_of,
    started,
    starts,
    stops,
    succeeded,
)

from fallbackd.core.decision import StartAttempt
from fallbackd.core.events import AttemptRetrying, CancelRequested, Ticked
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, BackendId, DelegationId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.reasons import Reason

AB = policy_of("a", "b", chains={"a": ["b"]})
ALONE = policy_of("a")


def fallen(policy: Policy, failure: Failure, *names: str) -> Playbook:
    """Each of the named backends has failed at 0."""
    play = Playbook(policy)
    for name in names:
        play.when(delegate(f"x{name}", backend=name, failover=False))
        play.when(failed(f"x{name}.1", failure))
    play.then_whatever()
    return play


def on(play: Playbook, backend: str) -> list[str]:
    given = play.then_whatever()
    return [
        one.attempt for one in given if isinstance(one, StartAttempt) and one.backend == backend
    ]


def test_fifty_at_the_end_of_an_outage_put_one_on_the_backend() -> None:
    play = fallen(AB, fail(Reason.CRASH), "a").at(61)
    for number in range(50):
        play.when(delegate(f"d{number}", backend="a"))
    given = play.then_whatever()
    starts_on = [one.backend for one in given if isinstance(one, StartAttempt)]
    assert starts_on.count(BackendId("a")) == 1
    assert starts_on.count(BackendId("b")) == 49
    assert play.delegation("d0").attempts[0].trial
    hop = play.delegation("d1").hops[0]
    assert (hop.trigger, hop.to_backend) == ("preemptive", "b")


def test_where_there_is_no_next_one_they_wait_for_the_trial_and_follow_it() -> None:
    play = fallen(ALONE, fail(Reason.CRASH), "a").at(61)
    for number in range(50):
        play.when(delegate(f"d{number}", backend="a"))
    assert on(play, "a") == ["d0.1"]
    assert play.delegation("d7").state == "waiting"
    play.at(65).when(answered("d0.1"))
    assert len(on(play, "a")) == 49
    assert not play.seen("a").unproven


def test_when_the_trial_fails_those_that_wait_go_on_waiting_for_nothing() -> None:
    play = fallen(ALONE, fail(Reason.CRASH), "a").at(61)
    play.when(delegate("d0", backend="a"), delegate("d1", backend="a")).then_whatever()
    play.at(65).when(failed("d0.1", fail(Reason.CRASH, at=65)))
    assert play.delegation("d0").state == "refused"
    found = play.delegation("d1")
    assert found.state == "refused"
    assert found.retry_at == T0 + 65 + 120


def test_the_wait_for_a_trial_has_a_limit_and_tells_the_time() -> None:
    play = fallen(ALONE, fail(Reason.CRASH), "a").at(61)
    play.when(delegate("d0", backend="a"), delegate("d1", backend="a", mode="interactive"))
    play.then_whatever()
    play.at(90.9).then()
    play.at(91).then(answers("d1"))
    found = play.delegation("d1")
    assert (found.state, found.attempts) == ("refused", ())
    assert found.retry_at is not None


def test_a_trial_is_not_retried() -> None:
    play = fallen(AB, fail(Reason.OVERLOADED), "a").at(4)  # back-off of the first
    play.when(failed("xa.2", fail(Reason.OVERLOADED, at=4))).then_whatever()
    play.at(100).when(delegate("d1", backend="a")).then(starts("d1.1", "a"))
    assert play.delegation("d1").attempts[0].trial
    play.at(101).when(failed("d1.1", fail(Reason.OVERLOADED, at=101))).then(starts("d1.2", "b"))
    assert play.outage("a").count == 2


def test_a_trial_that_is_cancelled_is_free_for_the_next_and_counts_nothing() -> None:
    play = fallen(ALONE, fail(Reason.CRASH), "a").at(70)
    play.when(delegate("d1", backend="a"), started("d1.1")).then(starts("d1.1", "a"))
    play.at(75).when(CancelRequested(delegation=DelegationId("d1")))
    play.when(failed("d1.1", fail(Reason.CANCELLED))).then(stops("d1.1"), answers("d1"))
    assert play.seen("a").unproven
    play.when(delegate("d2", backend="a")).then(starts("d2.1", "a"))
    assert play.delegation("d2").attempts[0].trial
    assert play.outage("a").count == 1


PLAIN = policy_of(Backend(id=BackendId("a"), kind="generic-cli", plain_output=True))


def test_plain_output_passes_its_trial_after_the_grace() -> None:
    play = fallen(PLAIN, fail(Reason.CRASH), "a").at(100)
    play.when(delegate("d1", backend="a"), started("d1.1"), delegate("d2", backend="a"))
    play.then(starts("d1.1", "a"))
    play.at(119.9).then()
    play.at(120).then(starts("d2.1", "a"))
    assert not play.seen("a").unproven
    play.at(500).when(failed("d1.1", fail(Reason.CRASH, at=500)))
    assert play.outage("a").count == 1


def test_plain_output_that_fails_within_the_grace_has_not_passed() -> None:
    play = fallen(PLAIN, fail(Reason.CRASH), "a").at(100)
    play.when(delegate("d1", backend="a"), started("d1.1"))
    play.at(119).when(failed("d1.1", fail(Reason.CRASH, at=119)))
    assert play.outage("a").count == 2


def test_a_retry_of_its_own_is_a_sign_of_failure_within_the_grace() -> None:
    policy = structs.replace(PLAIN, defaults=structs.replace(PLAIN.defaults, patience_s=60))
    play = fallen(policy, fail(Reason.CRASH), "a").at(100)
    play.when(delegate("d1", backend="a"), started("d1.1"))
    play.at(110).when(AttemptRetrying(attempt=AttemptId("d1.1"), failure=fail(Reason.OVERLOADED)))
    play.at(125)
    assert play.seen("a").unproven


def test_success_of_a_trial_makes_healthy_and_resets_the_count() -> None:
    play = fallen(AB, fail(Reason.RATE_LIMIT), "a").at(1000)
    assert play.seen("a").unproven
    play.when(delegate("d1", backend="a"), succeeded("d1.1"))
    assert play.delegation("d1").attempts[0].trial
    assert play.health("a").outage is None
    assert play.health("a").trial is None


def test_one_trial_a_minute_where_everybody_is_out_by_our_own_windows() -> None:
    play = fallen(AB, fail(Reason.RATE_LIMIT), "a", "b").at(50)
    play.when(delegate("d1", backend="a")).then(answers("d1"))
    assert play.delegation("d1").retry_at == T0 + 300
    play.at(60).when(delegate("d2", backend="a")).then(starts("d2.1", "a"))
    assert play.delegation("d2").attempts[0].trial
    assert play.delegation("d2").hops == ()
    play.when(delegate("d3", backend="a")).then(starts("d3.1", "b"))
    play.when(delegate("d4", backend="a")).then(answers("d4"))
    play.at(61).when(failed("d2.1", fail(Reason.RATE_LIMIT, at=61))).then(answers("d2"))
    assert play.seen("a").until_at == T0 + 300


def test_no_such_trial_into_a_stated_time_or_a_repair() -> None:
    play = fallen(ALONE, fail(Reason.USAGE_LIMIT, wait_s=7200), "a").at(3000)
    play.when(delegate("d1", backend="a")).then(answers("d1"))
    play = fallen(ALONE, fail(Reason.AUTH), "a").at(300)
    play.when(delegate("d1", backend="a")).then(answers("d1"))


def test_an_outage_of_the_account_is_tried_by_one_of_its_backends() -> None:
    policy = policy_of(
        Backend(id=BackendId("a"), kind="x", quota="q"),
        Backend(id=BackendId("b"), kind="x", quota="q"),
        "c",
        chains={"a": ["c"], "b": ["c"]},
    )
    play = fallen(policy, fail(Reason.USAGE_LIMIT, wait_s=600), "a").at(1201)
    play.when(delegate("d1", backend="a"), delegate("d2", backend="b"))
    play.then(starts("d1.1", "a"), starts("d2.1", "c"))
    play.when(answered("d1.1"), delegate("d3", backend="b")).then(starts("d3.1", "b"))


@pytest.mark.parametrize("ticks", [0, 1, 40])
def test_how_often_anybody_looked_makes_no_difference(ticks: int) -> None:
    play = fallen(AB, fail(Reason.RATE_LIMIT), "a")
    for number in range(ticks):
        play.at(1 + number * 20).when(Ticked())
    play.at(1000).when(delegate("d1", backend="a")).then(starts("d1.1", "a"))
    record = structs.replace(play.health("a"), announced="healthy")
    expected = fallen(AB, fail(Reason.RATE_LIMIT), "a")
    expected.at(1000).when(delegate("d1", backend="a"))
    assert record == structs.replace(expected.health("a"), announced="healthy")
