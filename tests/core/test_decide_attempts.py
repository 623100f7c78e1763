"""Playbooks: what attempts show, their limits, patience, deadlines and cancels."""

import pytest
from tests.support.playbook import (
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

from fallbackd.core.events import AttemptGaveUp, AttemptRetrying, CancelRequested
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.core.policy import Policy
from fallbackd.core.protocol import Output, ProviderAnswered, ToolStarted
from fallbackd.core.reasons import Reason

ABC = policy_of("a", "b", "c", chains={"a": ["b", "c"]})


def playing(policy: Policy = ABC, **asked: object) -> Playbook:
    """A delegation `d1` that has its first attempt under way."""
    asked.setdefault("backend", None if "role" in asked else "a")
    return Playbook(policy).when(delegate("d1", **asked), started("d1.1"))  # type: ignore[arg-type]


def cancel(name: str) -> CancelRequested:
    return CancelRequested(delegation=DelegationId(name))


def retrying(attempt: str, failure: Failure, wait_s: float | None = None) -> AttemptRetrying:
    return AttemptRetrying(attempt=AttemptId(attempt), failure=failure, wait_s=wait_s)


def test_silence_from_the_start_is_a_timeout_and_stops_first() -> None:
    play = playing(mode="interactive").then(starts("d1.1", "a"))
    play.at(119).then()
    play.at(120).then(stops("d1.1"))
    play.at(121).when(failed("d1.1", fail(Reason.CRASH, at=121))).then(starts("d1.2", "b"))
    attempt = play.delegation("d1").attempts[0]
    assert attempt.failure is not None
    assert (attempt.failure.reason, attempt.failure.detail) == (Reason.TIMEOUT, "first_output")


def test_silence_after_an_answer_is_a_stall() -> None:
    play = playing().at(1).shows("d1.1", ProviderAnswered()).when(answered("d1.1"))
    play.at(450).then(starts("d1.1", "a"))
    play.at(451).then(stops("d1.1"))


def test_a_loop_is_seen_at_the_next_look() -> None:
    play = playing().at(1)
    for _ in range(20):
        play.shows("d1.1", ToolStarted(key="k", name="bash"))
    play.at(300).then(starts("d1.1", "a"), stops("d1.1"))
    ending = play.delegation("d1").attempts[0].ending
    assert ending is not None
    assert (ending.reason, ending.detail) == (Reason.STALLED, "loop")


def test_an_attempt_that_gave_up_is_stopped_and_judged_by_its_own_words() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.when(AttemptGaveUp(attempt=AttemptId("d1.1"), failure=fail(Reason.BILLING)))
    play.then(stops("d1.1"))
    play.at(1).when(failed("d1.1", fail(Reason.CRASH))).then(starts("d1.2", "b"))
    assert play.seen("a").state == "broken"


def test_a_retry_of_the_program_that_cannot_help_is_stopped_at_once() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.when(retrying("d1.1", fail(Reason.BILLING))).then(stops("d1.1"))


@pytest.mark.parametrize(("mode", "patience"), [("interactive", 5), ("batch", 30)])
def test_a_wait_beyond_patience_is_stopped_at_its_first_event(mode: str, patience: float) -> None:
    for stated in (True, False):
        play = playing(mode=mode).then(starts("d1.1", "a"))
        failure = fail(Reason.RATE_LIMIT, wait_s=patience + 1 if stated else None)
        play.when(retrying("d1.1", failure, None if stated else patience + 1))
        play.then(stops("d1.1"))


def test_patience_is_counted_from_the_first_retry() -> None:
    play = playing(mode="interactive").then(starts("d1.1", "a"))
    play.at(10).shows("d1.1", Output()).when(retrying("d1.1", fail(Reason.OVERLOADED), 1))
    play.at(13).when(retrying("d1.1", fail(Reason.OVERLOADED))).then()
    play.at(14.9).then()
    play.at(15).then(stops("d1.1"))
    play.at(16).when(failed("d1.1", fail(Reason.CRASH, at=16)))
    failure = play.delegation("d1").attempts[0].failure
    assert failure is not None
    assert failure.reason is Reason.OVERLOADED


@pytest.mark.parametrize(("failed_at", "follows"), [(12, "a"), (16, "b")])
def test_a_retry_that_patience_would_end_at_its_start_is_left_out(
    failed_at: float, follows: str
) -> None:
    overloaded = fail(Reason.OVERLOADED, at=10)
    play = playing(ABC, mode="interactive").then(starts("d1.1", "a"))
    play.at(10.0).shows("d1.1", Output()).when(retrying("d1.1", overloaded, 1)).then()
    play.at(failed_at).then_whatever()
    play.when(failed("d1.1", overloaded)).at(failed_at + 3).then(starts("d1.2", follows))


def test_a_retry_that_patience_would_end_is_made_where_nobody_else_is_left() -> None:
    overloaded = fail(Reason.OVERLOADED, at=10)
    play = playing(policy_of("a"), mode="interactive").then(starts("d1.1", "a"))
    play.at(10.0).shows("d1.1", Output()).when(retrying("d1.1", overloaded, 1)).then()
    play.at(16).then_whatever()
    play.when(failed("d1.1", overloaded)).at(20).then(starts("d1.2", "a"))


def test_an_answer_ends_the_patience() -> None:
    play = playing(mode="interactive").then(starts("d1.1", "a"))
    play.at(10).shows("d1.1", Output()).when(retrying("d1.1", fail(Reason.OVERLOADED), 1))
    play.at(12).shows("d1.1", ProviderAnswered()).when(answered("d1.1"))
    play.at(100).then()
    assert play.delegation("d1").attempts[0].failure is None
    play.when(succeeded("d1.1")).then(answers("d1"))


def test_the_caller_s_deadline_stops_and_never_marks() -> None:
    play = playing(timeout_s=60).then(starts("d1.1", "a"))
    play.at(60).then(stops("d1.1"))
    play.at(61).when(failed("d1.1", fail(Reason.CRASH, at=61))).then(answers("d1"))
    found = play.delegation("d1")
    assert found.state == "failed"
    assert found.failure is not None
    assert found.failure.detail == "deadline"
    assert play.health("a").outage is None


def test_what_gave_up_before_the_deadline_marks_although_it_ends_behind_it() -> None:
    play = playing(timeout_s=60).then(starts("d1.1", "a"))
    failure = fail(Reason.SERVER_ERROR, at=59)
    play.at(59).when(AttemptGaveUp(attempt=AttemptId("d1.1"), failure=failure))
    play.then(stops("d1.1"))
    play.at(61).when(failed("d1.1", fail(Reason.CRASH, at=61))).then(answers("d1"))
    found = play.delegation("d1")
    assert found.failure is not None
    assert found.failure.detail == "deadline"
    assert play.outage("a").reason is Reason.SERVER_ERROR


def test_what_gave_up_before_it_was_cancelled_marks() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.when(AttemptGaveUp(attempt=AttemptId("d1.1"), failure=fail(Reason.BILLING)))
    play.then(stops("d1.1")).when(CancelRequested(delegation=DelegationId("d1")))
    play.at(1).when(failed("d1.1", fail(Reason.CRASH))).then(answers("d1"))
    assert play.delegation("d1").state == "cancelled"
    assert play.outage("a").reason is Reason.BILLING


def test_the_deadline_is_shared_by_all_attempts_and_waits() -> None:
    play = playing(timeout_s=10)
    play.at(9).when(failed("d1.1", fail(Reason.OVERLOADED, at=9)))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"))  # no time is left for a back-off
    play.at(10).then(stops("d1.2"))


def test_an_answer_in_the_last_moment_counts() -> None:
    play = playing(timeout_s=10).at(10)
    play.when(succeeded("d1.1"))
    assert play.delegation("d1").state == "succeeded"


def test_cancel_stops_first_and_answers_once_it_is_proven() -> None:
    play = playing(session="s").then(starts("d1.1", "a"))
    play.at(1).when(cancel("d1"), cancel("d1")).then(stops("d1.1"))
    assert play.session("s").running == "d1"
    play.at(2).when(failed("d1.1", fail(Reason.RATE_LIMIT, at=2))).then(answers("d1"))
    assert play.delegation("d1").state == "cancelled"
    assert play.delegation("d1").attempts[0].state == "cancelled"
    assert play.health("a").outage is None
    assert play.session("s").running is None


def test_cancel_while_it_waits_answers_at_once() -> None:
    play = playing().when(failed("d1.1", fail(Reason.OVERLOADED)), cancel("d1"))
    play.then(starts("d1.1", "a"), answers("d1"))
    play.at(100).then()


def test_late_and_repeated_events_of_an_attempt_change_nothing() -> None:
    play = playing().when(failed("d1.1", fail(Reason.AUTH)))
    play.then_whatever()
    before = play.peek()
    play.at(1).when(
        failed("d1.1", fail(Reason.AUTH)),
        succeeded("d1.1"),
        answered("d1.1"),
        started("d1.1"),
        retrying("d1.1", fail(Reason.OVERLOADED)),
        failed("d7.1", fail(Reason.AUTH)),
    ).then()
    assert play.peek().active == before.active
    assert play.peek().health == before.health
