"""Playbooks: how attempts end, and what follows."""

import pytest
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

from fallbackd.core.events import AttemptRetrying, CancelRequested, HealthCleared, HealthMarked
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, BackendId, DelegationId
from fallbackd.core.policy import Backend, Policy, Role
from fallbackd.core.protocol import Usage
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


def test_an_answer_is_handed_on_without_a_hop() -> None:
    play = playing(session="s").then(starts("d1.1", "a"))
    assert play.session("s").running == "d1"
    play.at(5).when(answered("d1.1"), succeeded("d1.1", usage=Usage(input_tokens=3)))
    play.then(answers("d1"))
    found = play.delegation("d1")
    assert (found.state, found.served_by, found.active, found.hops) == ("succeeded", "a", "a", ())
    assert found.usage.input_tokens == 3
    assert play.session("s").running is None
    assert play.health("a").outage is None
    assert [one.kind for one in play.notes] == [
        "delegation.accepted",
        "attempt.started",
        "attempt.ended",
        "delegation.ended",
    ]


def test_a_failure_hops_to_the_next_one_and_marks_the_first() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(5).when(failed("d1.1", fail(Reason.RATE_LIMIT, at=5))).then(starts("d1.2", "b"))
    play.at(6).when(succeeded("d1.2")).then(answers("d1"))
    found = play.delegation("d1")
    assert found.served_by == "b"
    hop = found.hops[0]
    assert (hop.from_backend, hop.to_backend, hop.trigger, hop.reason) == (
        "a",
        "b",
        "reactive",
        "rate_limit",
    )
    assert play.seen("a").until_at == T0 + 305


def test_a_failure_names_the_scope_that_it_has_marked() -> None:
    play = playing(policy_of("a", "b", chains={"a": ["b"]}))
    play.at(5).when(failed("d1.1", fail(Reason.USAGE_LIMIT)), started("d1.2"))
    play.at(6).when(failed("d1.2", fail(Reason.FORMAT_ERROR)))
    found = play.delegation("d1")
    scopes = [None if one.failure is None else one.failure.scope for one in found.attempts]
    assert scopes == ["backend:a", None]
    assert play.health("a").outage is not None
    alone = playing(policy_of("a"))
    alone.at(5).when(failed("d1.1", fail(Reason.USAGE_LIMIT)))
    ended = alone.delegation("d1")
    assert ended.failure is not None
    assert (ended.state, ended.failure.scope) == ("refused", "backend:a")


def test_a_mark_before_any_attempt_redirects() -> None:
    play = Playbook(ABC).when(delegate("d0", backend="a"), failed("d0.1", fail(Reason.AUTH)))
    play.then_whatever()
    play.at(1).when(delegate("d1", backend="a")).then(starts("d1.1", "b"))
    hop = play.delegation("d1").hops[0]
    assert (hop.trigger, hop.reason, hop.from_backend) == ("preemptive", "auth", "a")
    assert play.delegation("d1").requested == "a"


@pytest.mark.parametrize(
    "reason", [Reason.OVERLOADED, Reason.SERVER_ERROR, Reason.NETWORK, Reason.EMPTY_RESULT]
)
def test_a_passing_failure_is_retried_once_after_a_back_off_and_then_left(reason: Reason) -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", fail(reason, at=1))).then()
    assert play.delegation("d1").state == "waiting"
    assert play.health("a").outage is None
    play.at(3.4).then()
    play.at(3.5).then(starts("d1.2", "a"))  # 2 s and a quarter more by a luck of one half
    play.at(4).when(failed("d1.2", fail(reason, at=4))).then(starts("d1.3", "b"))
    assert play.outage("a").count == 1
    assert [one.reason for one in play.delegation("d1").hops] == [reason]


def test_a_retry_that_succeeds_leaves_no_mark_and_no_hop() -> None:
    play = playing()
    play.at(1).when(failed("d1.1", fail(Reason.SERVER_ERROR, at=1))).at(4)
    play.when(succeeded("d1.2"))
    assert play.delegation("d1").hops == ()
    assert play.delegation("d1").served_by == "a"
    assert play.health("a").outage is None


@pytest.mark.parametrize(
    "reason",
    [Reason.TIMEOUT, Reason.STALLED, Reason.CRASH, Reason.UNKNOWN, Reason.USAGE_LIMIT, Reason.AUTH],
)
def test_other_failures_are_not_retried(reason: Reason) -> None:
    play = playing().then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", fail(reason, at=1))).then(starts("d1.2", "b"))


@pytest.mark.parametrize(("luck", "wait_s"), [(0.0, 2.0), (0.5, 2.5), (0.999, 2.999)])
def test_the_first_back_off_is_two_to_three_seconds(luck: float, wait_s: float) -> None:
    play = Playbook(ABC)
    play.when(delegate("d1", backend="a")).then_whatever()
    play.when(failed("d1.1", fail(Reason.OVERLOADED), luck=luck))
    waiting = play.delegation("d1").waiting
    assert waiting is not None
    assert waiting.until_at == pytest.approx(T0 + wait_s)


def test_the_back_off_doubles_and_stays_below_its_ceiling() -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="x", retries=6), "b", max_attempts=50)
    play = playing(policy, failover=False)
    waits = []
    for number in range(1, 7):
        play.when(failed(f"d1.{number}", fail(Reason.OVERLOADED), luck=1.0))
        waiting = play.delegation("d1").waiting
        assert waiting is not None
        waits.append(round(waiting.until_at - play.wall, 3))
        play.at(play.now + waits[-1])
    assert waits == [3, 6, 12, 24, 48, 60]


def test_a_stated_wait_within_the_threshold_is_waited_for_on_the_same_backend() -> None:
    play = playing(mode="interactive").then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", fail(Reason.RATE_LIMIT, at=1, wait_s=4))).then()
    assert play.delegation("d1").state == "waiting"
    play.at(4.9).then()
    play.at(5).then(starts("d1.2", "a"))
    play.at(6).when(succeeded("d1.2")).then(answers("d1"))
    found = play.delegation("d1")
    assert (found.served_by, found.hops, len(found.attempts)) == ("a", (), 2)


@pytest.mark.parametrize(("mode", "wait_s"), [("interactive", 31), ("batch", 301), ("batch", 3600)])
def test_a_stated_wait_beyond_the_threshold_hops_at_once(mode: str, wait_s: float) -> None:
    play = playing(mode=mode).then(starts("d1.1", "a"))
    play.at(1).when(failed("d1.1", fail(Reason.RATE_LIMIT, at=1, wait_s=wait_s)))
    play.then(starts("d1.2", "b"))
    assert play.seen("a").until_at == T0 + 1 + wait_s


def test_a_stated_wait_is_waited_for_once() -> None:
    play = playing(mode="interactive")
    play.at(1).when(failed("d1.1", fail(Reason.RATE_LIMIT, at=1, wait_s=4))).at(5).then_whatever()
    play.at(6).when(failed("d1.2", fail(Reason.RATE_LIMIT, at=6, wait_s=4)))
    play.then(starts("d1.3", "b"))


def test_a_back_off_does_not_use_up_the_one_stated_wait() -> None:
    play = playing(mode="interactive")
    play.at(1).when(failed("d1.1", fail(Reason.OVERLOADED, at=1))).at(4).then_whatever()
    play.at(5).when(failed("d1.2", fail(Reason.RATE_LIMIT, at=5, wait_s=4))).then()
    play.at(9).then(starts("d1.3", "a"))


def test_without_a_stated_time_a_throttle_is_not_waited_for() -> None:
    play = playing().then(starts("d1.1", "a"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT))).then(starts("d1.2", "b"))


def test_the_same_blind_failure_on_two_candidates_is_the_task_s_and_marks_nobody() -> None:
    play = playing()
    play.at(1).when(failed("d1.1", fail(Reason.CRASH, at=1, confidence="exit_code")))
    assert play.seen("a").state == "rate_limited"
    play.at(2).when(failed("d1.2", fail(Reason.CRASH, at=2, confidence="exit_code")))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"), answers("d1"))
    found = play.delegation("d1")
    assert found.state == "failed"
    assert "the task is the likely cause" in (found.message or "")
    assert play.health("a").outage is None
    assert play.health("b").outage is None


def test_what_was_marked_before_poison_work_comes_back() -> None:
    play = Playbook(ABC).when(delegate("d0", backend="a"))
    play.when(
        failed("d0.1", fail(Reason.CRASH)), cancel("d0"), failed("d0.2", fail(Reason.CANCELLED))
    )
    before = play.health("a").outage
    assert before is not None
    play.at(100).when(delegate("d1", backend="a", chain=(entry("b"),)))
    for number in (1, 2):
        play.at(100 + number).when(
            failed(f"d1.{number}", fail(Reason.UNKNOWN, at=100 + number, confidence="text"))
        )
    assert play.delegation("d1").state == "failed"
    assert play.health("a").outage == before


def test_a_mark_of_somebody_else_outlives_poison_work() -> None:
    play = playing()
    play.at(1).when(failed("d1.1", fail(Reason.CRASH, at=1, confidence="exit_code")))
    play.at(70).when(delegate("d2", backend="a"))
    play.at(71).when(failed("d2.1", fail(Reason.USAGE_LIMIT, at=71)))
    play.at(72).when(failed("d1.2", fail(Reason.CRASH, at=72, confidence="exit_code")))
    assert play.seen("a").state == "rate_limited"


@pytest.mark.parametrize("others", [["b"], ["b", "c"]])
def test_permission_that_every_candidate_was_denied_marks_none(others: list[str]) -> None:
    play = Playbook(policy_of("a", "b", "c", chains={"a": others}))
    play.when(HealthMarked(target="c", reason="rate_limit", ttl_s=50))
    play.when(delegate("d1", backend="a"))
    for number in (1, 2):
        play.at(number).when(
            started(f"d1.{number}"),
            failed(f"d1.{number}", fail(Reason.PERMISSION, at=number)),
        )
    found = play.delegation("d1")
    assert (found.state, found.turn.marks) == ("refused", ())
    assert "permission" in (found.message or "")
    assert [play.seen(name).state for name in "ab"] == ["healthy", "healthy"]
    play.then_whatever()
    play.at(3).when(delegate("d2", backend="a")).then(starts("d2.1", "a"))


def test_permission_that_one_candidate_was_denied_marks_it() -> None:
    play = playing()
    play.at(1).when(failed("d1.1", fail(Reason.PERMISSION, at=1))).at(2).when(succeeded("d1.2"))
    assert play.delegation("d1").served_by == "b"
    assert play.seen("a").state == "broken"
    play = playing()
    play.at(1).when(failed("d1.1", fail(Reason.PERMISSION, at=1)))
    play.at(2).when(failed("d1.2", fail(Reason.BILLING, at=2)))
    play.at(3).when(failed("d1.3", fail(Reason.PERMISSION, at=3)))
    assert [play.seen(name).state for name in "abc"] == ["broken", "broken", "broken"]


def test_limits_of_our_own_are_no_sign_of_poison() -> None:
    play = playing()
    for number in (1, 2):
        play.at(number).when(failed(f"d1.{number}", fail(Reason.TIMEOUT, at=number)))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"), starts("d1.3", "c"))


def test_an_error_of_the_task_ends_it_and_marks_nobody() -> None:
    for reason in (Reason.TASK_FAILED, Reason.APPROVAL_REQUIRED, Reason.CANCELLED):
        play = playing()
        play.at(1).when(failed("d1.1", fail(reason))).then(starts("d1.1", "a"), answers("d1"))
        assert play.delegation("d1").state == "failed"
        assert play.health("a").outage is None


def test_a_malformed_request_goes_to_one_other_provider_and_ends_at_the_second() -> None:
    play = playing()
    play.at(1).when(failed("d1.1", fail(Reason.FORMAT_ERROR)))
    play.at(2).when(failed("d1.2", fail(Reason.FORMAT_ERROR)))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"), answers("d1"))
    assert play.delegation("d1").state == "failed"
    assert [play.health(one).outage for one in "abc"] == [None] * 3


@pytest.mark.parametrize("reason", [Reason.CONTENT_POLICY, Reason.PROVIDER_POLICY])
def test_a_policy_of_every_provider_is_the_task_s_failure(reason: Reason) -> None:
    play = playing()
    for number in (1, 2, 3):
        play.at(number).when(failed(f"d1.{number}", fail(reason)))
    assert play.delegation("d1").state == "failed"
    assert play.delegation("d1").failure is not None
    assert len(play.delegation("d1").attempts) == 3


@pytest.mark.parametrize("refusal", [Reason.FORMAT_ERROR, Reason.AUTH, Reason.BILLING])
def test_the_limit_that_can_be_waited_for_is_told_and_not_what_a_fallback_refuses(
    refusal: Reason,
) -> None:
    play = playing(policy_of("a", "b", chains={"a": ["b"]}))
    play.at(1).when(failed("d1.1", fail(Reason.RATE_LIMIT, at=1, wait_s=4000)))
    play.at(2).when(failed("d1.2", fail(refusal, at=2)))
    found = play.delegation("d1")
    assert found.failure is not None
    assert (found.state, found.failure.reason) == ("refused", Reason.RATE_LIMIT)
    assert (found.failure.stated_reset_at, found.retry_at) == (T0 + 4001, T0 + 4001)
    play.then_whatever()
    # Now the first is passed over, and the fallback alone is asked, where it may be.
    play.at(3).when(HealthCleared(target="b"), delegate("d2", backend="a"))
    play.at(4).when(failed("d2.1", fail(refusal, at=4)))
    found = play.delegation("d2")
    assert found.failure is not None
    assert (found.attempts[0].backend, found.failure.reason) == ("b", Reason.RATE_LIMIT)
    assert (found.failure.wait_until_at, found.retry_at) == (T0 + 4001, T0 + 4001)
    assert not found.failure.marks_health


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        (Reason.AUTH, Reason.RATE_LIMIT, Reason.RATE_LIMIT),
        (Reason.RATE_LIMIT, Reason.USAGE_LIMIT, Reason.USAGE_LIMIT),
        (Reason.RATE_LIMIT, Reason.CONTENT_POLICY, Reason.CONTENT_POLICY),
        (Reason.AUTH, Reason.BILLING, Reason.BILLING),
    ],
)
def test_else_the_last_failure_is_told(first: Reason, last: Reason, told: Reason) -> None:
    play = playing(policy_of("a", "b", chains={"a": ["b"]}))
    play.at(1).when(failed("d1.1", fail(first, at=1)))
    play.at(2).when(failed("d1.2", fail(last, at=2)))
    failure = play.delegation("d1").failure
    assert failure is not None
    assert failure.reason is told


SIZES = policy_of(
    Backend(id=BackendId("a"), kind="x", context_tokens=32_000),
    Backend(id=BackendId("b"), kind="x", context_tokens=32_000),
    Backend(id=BackendId("c"), kind="x", context_tokens=1_000_000),
    chains={"a": ["b", "c"]},
)


def test_an_overflow_goes_to_a_larger_context_only() -> None:
    play = playing(SIZES)
    play.at(1).when(failed("d1.1", fail(Reason.CONTEXT_OVERFLOW)))
    play.then(starts("d1.1", "a"), starts("d1.2", "c"))
    assert [play.health(one).outage for one in "abc"] == [None] * 3


def test_an_overflow_everywhere_is_the_task_s_failure() -> None:
    play = playing(SIZES)
    play.at(1).when(failed("d1.1", fail(Reason.CONTEXT_OVERFLOW)))
    play.at(2).when(failed("d1.2", fail(Reason.CONTEXT_OVERFLOW)))
    assert play.delegation("d1").state == "failed"


def test_three_hops_and_a_retry_each_are_the_bound() -> None:
    names = [f"b{number}" for number in range(1, 13)]
    play = playing(policy_of(*names, chains={"b1": names[1:]}), backend="b1")
    while not play.delegation("d1").is_ended:
        running = play.delegation("d1").running
        if running is not None:
            play.when(failed(running.attempt, fail(Reason.SERVER_ERROR, at=play.now)))
        else:
            play.at(play.now + 1)
    found = play.delegation("d1")
    assert found.state == "refused"
    assert [one.backend for one in found.attempts] == [
        *("b1", "b1"),
        *("b2", "b2"),
        *("b3", "b3"),
        *("b4", "b4"),
    ]
    assert len(found.hops) == 3
    assert found.retry_at is not None


def test_the_bound_of_a_role_goes_before_the_default() -> None:
    role = Role(name="r", chain=tuple(entry(one) for one in "abc"), max_fallback_depth=1)
    play = playing(policy_of("a", "b", "c", roles={"r": role}), role="r")
    play.when(failed("d1.1", fail(Reason.AUTH))).when(failed("d1.2", fail(Reason.AUTH)))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"), answers("d1"))


def test_skipped_candidates_are_one_hop_and_do_not_count() -> None:
    play = Playbook(
        policy_of("a", "b", "c", "d", chains={"a": ["b", "c", "d"]}, max_fallback_depth=1)
    )
    for one in "ab":
        play.when(delegate(f"x{one}", backend=one, failover=False))
        play.when(failed(f"x{one}.1", fail(Reason.AUTH)))
    play.then_whatever()
    play.at(1).when(delegate("d1", backend="a")).when(failed("d1.1", fail(Reason.AUTH, at=1)))
    play.then(starts("d1.1", "c"), starts("d1.2", "d"))
    hops = play.delegation("d1").hops
    assert [(one.from_backend, one.to_backend, one.trigger) for one in hops] == [
        ("a", "c", "preemptive"),
        ("c", "d", "reactive"),
    ]


def test_each_candidate_is_hopped_to_once() -> None:
    play = playing(policy_of("a", "b", chains={"a": ["b", "a", "b"]}))
    play.when(failed("d1.1", fail(Reason.AUTH))).when(failed("d1.2", fail(Reason.AUTH)))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"), answers("d1"))
    assert play.delegation("d1").state == "refused"


def test_no_hop_when_the_old_attempt_is_not_proven_gone() -> None:
    play = playing()
    play.at(1).when(failed("d1.1", fail(Reason.RATE_LIMIT, at=1), gone=False))
    play.then(starts("d1.1", "a"), answers("d1"))
    found = play.delegation("d1")
    assert (found.state, found.hops, len(found.attempts)) == ("failed", (), 1)
    assert "the attempt on a could not be stopped" in (found.message or "")
    assert play.seen("a").state == "rate_limited"


def test_an_answer_counts_also_when_something_is_left_behind() -> None:
    play = playing().when(succeeded("d1.1", gone=False))
    found = play.delegation("d1")
    assert found.state == "succeeded"
    assert "may still run" in found.warnings[-1]


def test_without_failover_the_first_failure_is_the_answer() -> None:
    play = playing(failover=False)
    play.at(1).when(failed("d1.1", fail(Reason.USAGE_LIMIT, at=1, wait_s=7200)))
    play.then(starts("d1.1", "a"), answers("d1"))
    found = play.delegation("d1")
    assert (found.state, found.hops, found.served_by) == ("refused", (), None)
    assert found.failure is not None
    assert found.failure.reason is Reason.USAGE_LIMIT
    assert found.retry_at == T0 + 1 + 7200


def test_a_role_falls_back_only_on_its_reasons_but_marks_all() -> None:
    role = Role(
        name="r",
        chain=tuple(entry(one) for one in "ab"),
        fallback_on=frozenset({Reason.RATE_LIMIT}),
    )
    policy = policy_of("a", "b", roles={"r": role})
    play = playing(policy, role="r").when(failed("d1.1", fail(Reason.BILLING)))
    play.then(starts("d1.1", "a"), answers("d1"))
    assert play.delegation("d1").state == "refused"
    assert play.seen("a").state == "broken"
    play = playing(policy, role="r").when(failed("d1.1", fail(Reason.RATE_LIMIT)))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"))


def test_a_role_s_reasons_hold_also_when_a_retry_is_not_possible_any_more() -> None:
    role = Role(
        name="r",
        chain=tuple(entry(one) for one in "ab"),
        fallback_on=frozenset({Reason.RATE_LIMIT}),
    )
    play = playing(policy_of("a", "b", roles={"r": role}), role="r")
    play.when(failed("d1.1", fail(Reason.OVERLOADED)))
    play.when(delegate("d2", backend="a"), failed("d2.1", fail(Reason.AUTH))).then_whatever()
    play.at(10).then(answers("d1"))
    assert play.delegation("d1").state == "refused"


# --- effects and handoff -----------------------------------------------------------------------


def test_work_that_was_begun_is_not_retried_and_is_handed_over() -> None:
    play = playing()
    play.at(1).when(
        failed(
            "d1.1",
            fail(Reason.OVERLOADED, at=1),
            effects="seen",
            changed_files=("notes.md", "b.py"),
        )
    )
    _, second = play.then_whatever()
    note = getattr(second, "handoff", None)
    assert note is not None
    for word in ("a", "overloaded", "notes.md", "b.py"):
        assert word in note
    play.at(2).when(failed("d1.2", fail(Reason.AUTH, at=2)))
    (third,) = play.then_whatever()
    assert "notes.md" in (getattr(third, "handoff", None) or "")


def test_nothing_done_is_nothing_to_hand_over() -> None:
    play = playing().when(failed("d1.1", fail(Reason.AUTH)))
    assert [getattr(one, "handoff", None) for one in play.then_whatever()] == [None, None]


def test_on_partial_fail_ends_with_the_backend_s_reason() -> None:
    play = playing(on_partial="fail")
    play.when(failed("d1.1", fail(Reason.USAGE_LIMIT), effects="possible"))
    play.then(starts("d1.1", "a"), answers("d1"))
    found = play.delegation("d1")
    assert found.state == "failed"
    assert found.failure is not None
    assert found.failure.reason is Reason.USAGE_LIMIT
    assert play.seen("a").state == "rate_limited"


def test_an_answered_attempt_that_fails_starts_its_count_anew() -> None:
    play = playing()
    for number in range(3):
        at = 400.0 * number
        play.at(at).when(delegate(f"x{number}", backend="a", failover=False))
        play.at(at + 1).when(failed(f"x{number}.1", fail(Reason.CRASH, at=at + 1)))
    assert play.outage("a").count == 3
    play.at(1200).when(delegate("d2", backend="a"), answered("d2.1"))
    play.when(failed("d2.1", fail(Reason.CRASH, at=1200), answered=True))
    assert play.outage("a").count == 1


def test_the_windows_of_consecutive_delegations_double_to_ten_minutes() -> None:
    play = Playbook(policy_of("a"))
    windows = []
    for number in range(6):
        play.when(delegate(f"d{number}", backend="a"), started(f"d{number}.1"))
        play.at(play.now + 1).when(failed(f"d{number}.1", fail(Reason.CRASH)))
        until_at = play.seen("a").until_at
        assert until_at is not None
        windows.append(until_at - play.wall)
        play.at(play.now + windows[-1] + 1)
    assert windows == [60, 120, 240, 480, 600, 600]


def test_usage_is_kept_for_delegation_session_and_backend() -> None:
    play = playing(session="s")
    play.when(failed("d1.1", fail(Reason.AUTH), usage=Usage(input_tokens=5)))
    play.when(succeeded("d1.2", usage=Usage(input_tokens=7, cost_usd=0.5)))
    assert play.delegation("d1").usage == Usage(input_tokens=12, cost_usd=0.5)
    assert play.peek().meters[BackendId("a")].totals.input_tokens == 5
    kept = dict(play.session("s").usage)
    assert kept[BackendId("b")].cost_usd == 0.5


def test_usage_is_charged_to_the_backend_of_each_attempt() -> None:
    play = Playbook(policy_of("a", "b", chains={"a": ["b"]}))
    play.when(delegate("d1", session="s", backend="a"))
    first, second = Usage(input_tokens=1000, output_tokens=50), Usage(input_tokens=7)
    play.when(failed("d1.1", fail(Reason.AUTH), usage=first), succeeded("d1.2", usage=second))
    assert dict(play.session("s").usage) == {"a": first, "b": second}


def test_usage_of_work_that_fails_everywhere_is_charged_too() -> None:
    play = Playbook(policy_of("a")).when(delegate("d1", session="s", backend="a"))
    spent = Usage(input_tokens=1000, cost_usd=0.5)
    play.when(failed("d1.1", fail(Reason.AUTH), usage=spent))
    assert dict(play.session("s").usage) == {"a": spent}


@pytest.mark.parametrize(
    ("role", "key"),
    [
        (Role(name="r", chain=(entry("a"), entry("b"), entry("c"))), "max_fallback_depth"),
        (Role(name="r", chain=(entry("a"), entry("b")), on_outage="stop"), "on_outage"),
        (Role(name="r", chain=(entry("a"), entry("b")), fallback_on=frozenset()), "fallback_on"),
    ],
)
def test_the_bound_that_ended_it_is_named_with_its_key(role: Role, key: str) -> None:
    play = Playbook(policy_of("a", "b", "c", roles={"r": role}, max_fallback_depth=1))
    play.when(delegate("d1", role="r"))
    while (running := play.delegation("d1").running) is not None:
        play.when(failed(running.attempt, fail(Reason.AUTH)))
    ended = play.delegation("d1")
    assert ended.state == "refused"
    assert all(one.verdict != "chosen" for one in ended.verdicts)
    assert any(key in (one.reason or "") for one in ended.verdicts), ended.verdicts
    assert key in (ended.message or "")
