"""Playbooks: how long a failing candidate is waited for, in stated times and in patience."""

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

from fallbackd.core.events import AttemptAnswered, AttemptRetrying, HealthCleared, HealthMarked
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId
from fallbackd.core.policy import Policy
from fallbackd.core.protocol import Output, ProviderAnswered, ToolEnded, ToolStarted
from fallbackd.core.reasons import Reason

AB = policy_of("a", "b", chains={"a": ["b"]})
ALONE = policy_of("a")
PATIENCE = {"interactive": 5.0, "batch": 30.0}


def playing(policy: Policy = AB, *, mode: str = "interactive", **asked: object) -> Playbook:
    """A delegation `d1` that has its first attempt under way."""
    return Playbook(policy).when(
        delegate("d1", backend="a", mode=mode, **asked),  # type: ignore[arg-type]
        started("d1.1"),
    )


def throttle(at: float, wait_s: float | None = None) -> Failure:
    return fail(Reason.RATE_LIMIT, at=at, wait_s=wait_s)


def retrying(attempt: str, failure: Failure, wait_s: float | None = None) -> AttemptRetrying:
    return AttemptRetrying(attempt=AttemptId(attempt), failure=failure, wait_s=wait_s)


def stepped(attempt: str) -> AttemptAnswered:
    return AttemptAnswered(attempt=AttemptId(attempt), whole_step=True)


# --- stated times ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", PATIENCE)
@pytest.mark.parametrize("reason", [Reason.RATE_LIMIT, Reason.OVERLOADED])
def test_a_stated_time_beyond_patience_is_not_waited_for_beside_a_usable_candidate(
    mode: str, reason: Reason
) -> None:
    wait_s = PATIENCE[mode] + 1
    play = playing(mode=mode).then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", fail(reason, at=1, wait_s=wait_s))).then(starts("d1.2", "b"))
    assert play.seen("a").until_at == T0 + 1 + wait_s


@pytest.mark.parametrize("mode", PATIENCE)
def test_a_stated_time_within_patience_is_waited_for(mode: str) -> None:
    play = playing(mode=mode).then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", throttle(1, PATIENCE[mode]))).then()
    play.at(1 + PATIENCE[mode]).then(starts("d1.2", "a"))


@pytest.mark.parametrize(("mode", "threshold"), [("interactive", 30), ("batch", 300)])
def test_without_another_candidate_it_is_waited_for_up_to_the_threshold(
    mode: str, threshold: float
) -> None:
    for wait_s, waits in ((threshold, True), (threshold + 1, False)):
        play = playing(ALONE, mode=mode).then(starts("d1.1", "a"))
        play.at(1).when(failed("d1.1", throttle(1, wait_s)))
        if waits:
            play.then().at(1 + wait_s).then(starts("d1.2", "a"))
        else:
            play.then(answers("d1"))


@pytest.mark.parametrize(
    "other", [HealthMarked(target="b", reason="down"), HealthMarked(target="b", reason="tls")]
)
def test_a_candidate_that_is_out_of_use_does_not_shorten_the_wait(other: HealthMarked) -> None:
    play = Playbook(AB).when(other, delegate("d1", backend="a"), started("d1.1"))
    play.then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", throttle(1, 200))).then()
    play.at(201).then(starts("d1.2", "a"))


def test_a_candidate_that_becomes_usable_ends_the_wait() -> None:
    play = Playbook(AB).when(HealthMarked(target="b", reason="down"), delegate("d1", backend="a"))
    play.then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", throttle(1, 200))).then()
    assert play.health("a").outage is None
    play.at(50).when(HealthCleared(target="b")).then(starts("d1.2", "b"))
    assert play.seen("a").until_at == T0 + 201
    assert [one.reason for one in play.delegation("d1").hops] == ["rate_limit"]


def test_a_candidate_that_no_hop_may_reach_is_none() -> None:
    play = playing(AB, failover=False).then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", throttle(1, 20))).then()
    play.at(21).then(starts("d1.2", "a"))
    spent = structs.replace(AB, defaults=structs.replace(AB.defaults, max_attempts=1))
    play = playing(spent).then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", throttle(1, 4))).then(answers("d1"))


def test_a_stated_time_is_waited_for_once_in_all_by_the_program() -> None:
    play = playing(mode="batch").then(starts("d1.1", "a"))
    play.at(1).shows("d1.1", Output()).when(retrying("d1.1", throttle(1, 20), 20)).then()
    play.at(21.5).when(retrying("d1.1", throttle(21.5, 5), 5)).then(stops("d1.1"))
    play.when(failed("d1.1", throttle(21.5, 5))).then(starts("d1.2", "b"))


def test_a_stated_time_that_the_program_waited_for_is_not_waited_for_again() -> None:
    play = playing(mode="batch").then(starts("d1.1", "a"))
    play.at(1).shows("d1.1", Output()).when(retrying("d1.1", throttle(1, 20), 20)).then()
    play.at(21.5).when(failed("d1.1", throttle(21.5, 20))).then(starts("d1.2", "b"))


def test_a_stated_time_that_the_engine_waited_for_is_not_waited_for_by_the_program() -> None:
    play = playing(mode="batch").then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", throttle(1, 20))).at(21).then(starts("d1.2", "a"))
    play.when(started("d1.2")).shows("d1.2", Output())
    play.at(22).when(retrying("d1.2", throttle(22, 20), 20)).then(stops("d1.2"))
    play.when(failed("d1.2", throttle(22, 20))).then(starts("d1.3", "b"))


def test_the_same_wait_that_is_said_twice_is_one() -> None:
    play = playing(mode="batch").then(starts("d1.1", "a"))
    play.at(1).shows("d1.1", Output())
    play.when(retrying("d1.1", throttle(1, 20), 20), retrying("d1.1", throttle(1, 20), 20)).then()
    play.at(25).when(answered("d1.1"), succeeded("d1.1")).then(answers("d1"))


def test_a_program_that_is_stopped_in_its_wait_leaves_it_to_the_engine() -> None:
    play = playing(ALONE).then(starts("d1.1", "a"))
    play.at(1).shows("d1.1", Output()).when(retrying("d1.1", throttle(1, 20), 20))
    play.then(stops("d1.1")).at(2).when(failed("d1.1", fail(Reason.CRASH, at=2))).then()
    play.at(21).then(starts("d1.2", "a"))
    play.at(22).when(failed("d1.2", throttle(22, 20))).then(answers("d1"))


def test_a_stated_time_that_proved_too_short_marks_for_the_first_window_of_the_policy() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", throttle(1, 1.5))).at(2.5).then(starts("d1.2", "a"))
    play.at(3).when(failed("d1.2", throttle(3, 1.5))).then(starts("d1.3", "b"))
    assert play.seen("a").until_at == T0 + 3 + 300


def test_a_program_that_ends_in_its_wait_leaves_the_rest_to_the_engine() -> None:
    play = playing(mode="batch").then(starts("d1.1", "a"))
    play.at(1).shows("d1.1", Output()).when(retrying("d1.1", throttle(1, 20), 20)).then()
    play.at(3).when(failed("d1.1", throttle(1, 20))).then()
    play.at(21).then(starts("d1.2", "a"))


# --- patience ----------------------------------------------------------------------------------


def test_a_retry_of_the_engine_has_the_time_of_every_first_answer() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", fail(Reason.OVERLOADED, at=1))).at(3.5).then(starts("d1.2", "a"))
    play.when(started("d1.2")).at(3.5 + 119).then()
    play.when(answered("d1.2"), succeeded("d1.2")).then(answers("d1"))
    assert play.delegation("d1").served_by == "a"
    assert play.health("a").outage is None


def test_a_retry_of_the_engine_that_never_answers_is_stopped_by_that_limit() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", fail(Reason.OVERLOADED, at=1))).at(3.5).then(starts("d1.2", "a"))
    play.when(started("d1.2")).at(3.5 + 120).then(stops("d1.2"))
    ending = play.delegation("d1").attempts[-1].ending
    assert ending is not None
    assert (ending.reason, ending.detail) == (Reason.TIMEOUT, "first_output")


def test_a_retry_of_the_engine_has_what_is_left_of_patience_with_failures() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", fail(Reason.OVERLOADED, at=1))).at(3.5).then(starts("d1.2", "a"))
    play.when(started("d1.2")).shows("d1.2", Output())
    play.at(5).when(retrying("d1.2", fail(Reason.OVERLOADED, at=5), 0.5)).then()
    play.at(60).then()
    play.when(retrying("d1.2", fail(Reason.OVERLOADED, at=60), 0.5)).then(stops("d1.2"))


def test_a_retry_of_the_program_has_the_time_of_every_first_answer_where_its_wait_is_seen() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).shows("d1.1", Output()).when(retrying("d1.1", fail(Reason.OVERLOADED, at=1), 2))
    play.at(100).then().when(answered("d1.1"), succeeded("d1.1")).then(answers("d1"))


def test_a_wait_that_is_not_seen_is_bounded_by_patience() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).shows("d1.1", Output()).when(retrying("d1.1", fail(Reason.OVERLOADED, at=1)))
    play.at(5.9).then().at(6).then(stops("d1.1"))


def test_partial_text_does_not_renew_patience() -> None:
    play = playing().then(starts("d1.1", "a"))
    at = 1.0
    for _ in range(3):
        play.at(at).shows("d1.1", ProviderAnswered()).when(answered("d1.1"))
        play.at(at + 0.5).when(retrying("d1.1", throttle(at + 0.5), 1)).then()
        at += 2
    play.at(6).when(retrying("d1.1", throttle(6), 1)).then(stops("d1.1"))
    play.when(failed("d1.1", throttle(6))).then(starts("d1.2", "b"))


def test_what_answers_is_not_stopped_by_patience() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).shows("d1.1", Output()).when(retrying("d1.1", fail(Reason.OVERLOADED, at=1), 1))
    play.at(3).shows("d1.1", ProviderAnswered()).when(answered("d1.1")).at(60).then()
    play.when(retrying("d1.1", fail(Reason.OVERLOADED, at=60), 1)).then(stops("d1.1"))


@pytest.mark.parametrize("mode", PATIENCE)
def test_a_tool_call_that_ended_renews_patience(mode: str) -> None:
    play = playing(mode=mode).then(starts("d1.1", "a"))
    at = 1.0
    for _ in range(4):
        play.at(at).shows("d1.1", Output())
        play.when(retrying("d1.1", fail(Reason.OVERLOADED, at=at), 1))
        at += PATIENCE[mode] - 1
        play.at(at).shows("d1.1", ToolStarted(key="k", name="bash"), ToolEnded())
        play.when(answered("d1.1"), stepped("d1.1")).then()
        at += 1
    play.when(succeeded("d1.1")).then(answers("d1"))
