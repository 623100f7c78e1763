"""Playbooks: several credentials of one backend, and who goes on when one of them fails."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.playbook import (
    T0,
    Playbook,
    delegate,
    fail,
    failed,
    policy_of,
    succeeded,
)

from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import HealthMarked, Reported, ResolveRequested
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.reasons import Reason

A = BackendId("a")


def pool(*labels: str, chains: dict[str, list[str]] | None = None, **more: Any) -> Policy:
    backend = Backend(id=A, kind="x", model="m", provider="api.example", credentials=labels, **more)
    return policy_of(backend, "b", chains={"a": ["b"]} if chains is None else chains)


THREE = pool("k1", "k2", "k3")


def throttle(play: Playbook, **more: Any) -> Failure:
    return fail(Reason.RATE_LIMIT, at=play.now, **more)


def used(play: Playbook, name: str = "x") -> list[tuple[str, str | None]]:
    return [(one.backend, one.credential) for one in play.delegation(name).attempts]


def ends(play: Playbook, *failures: Failure | None, name: str = "x") -> Playbook:
    """The attempts of a delegation end so, one after the other; None is an answer."""
    for failure in failures:
        running = play.at(play.now).delegation(name).running
        assert running is not None
        play.when(
            succeeded(running.attempt) if failure is None else failed(running.attempt, failure)
        )
    return play.at(play.now)


def on_scope(play: Playbook, label: str, *, model: bool = False) -> str:
    scope = f"credential:api.example/{label}" + ("+model:m" if model else "")
    return play.seen(scope).state


def resolved(play: Playbook, **more: Any) -> Resolution:
    found = play.when(ResolveRequested(backend=A, **more)).decision.answer
    assert isinstance(found, Resolution)
    return found


def report(play: Playbook, failure: Failure | None, **said: Any) -> ReportAnswer:
    outcome: Any = "failure" if failure is not None else "success"
    found = play.when(Reported(outcome=outcome, backend=A, failure=failure, **said))
    assert isinstance(found.decision.answer, ReportAnswer), found.decision.rejection
    return found.decision.answer


# --- a delegation ------------------------------------------------------------------------------


def test_the_first_throttle_is_tried_once_more_and_the_second_marks_and_rotates() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    ends(play, throttle(play))
    assert on_scope(play, "k1", model=True) == "healthy"
    ends(play, throttle(play))
    assert on_scope(play, "k1", model=True) == "rate_limited"
    ends(play, None)
    found = play.delegation("x")
    assert used(play) == [("a", "k1"), ("a", "k1"), ("a", "k2")]
    assert (found.state, found.served_by, found.hops) == ("succeeded", "a", ())
    assert found.attempts[1].retry_of == "x.1"


def test_the_second_throttle_marks_also_where_it_comes_late() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    ends(play, throttle(play))
    play.at(play.now + 100)
    ends(play, throttle(play))
    assert used(play) == [("a", "k1"), ("a", "k1"), ("a", "k2")]
    assert on_scope(play, "k1", model=True) == "rate_limited"


def test_the_second_throttle_of_a_caller_marks_also_where_it_comes_late() -> None:
    play = Playbook(THREE)
    first = resolved(play)
    asked: dict[str, Any] = {"model": first.model, "credential": first.credential}
    answer = report(play, throttle(play), turn=first.turn, **asked)
    assert (answer.next and answer.next.credential) == "k1"
    play.at(play.now + 100)
    answer = report(play, throttle(play), turn=answer.turn, **asked)
    assert (answer.next and answer.next.credential) == "k2"
    assert on_scope(play, "k1", model=True) == "rate_limited"


def test_three_keys_the_first_throttled_twice_the_second_revoked_the_third_serves_everybody() -> (
    None
):
    play = Playbook(THREE).when(delegate("x", backend="a"))
    revoked = fail(Reason.AUTH, detail="revoked")
    ends(play, throttle(play), throttle(play), revoked, None)
    assert used(play) == [("a", "k1"), ("a", "k1"), ("a", "k2"), ("a", "k3")]
    assert play.outage("credential:api.example/k1+model:m").until_at == T0 + 300
    assert play.outage("credential:api.example/k2").until_at is None
    assert [on_scope(play, one) for one in ("k1", "k2", "k3")] == ["healthy", "broken", "healthy"]
    assert play.seen("a").state == "healthy"
    # Nobody else touches the first two, neither by delegation nor by calls of their own.
    play.at(1).when(delegate("y", backend="a"))
    assert used(play, "y") == [("a", "k3")]
    assert resolved(play).credential == "k3"


@pytest.mark.parametrize(
    ("reason", "until_s"),
    [(Reason.USAGE_LIMIT, 3600), (Reason.BILLING, 3600), (Reason.AUTH, 300)],
)
def test_what_waiting_does_not_cure_rotates_at_once(reason: Reason, until_s: float) -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    ends(play, fail(reason), None)
    assert used(play) == [("a", "k1"), ("a", "k2")]
    assert play.outage("credential:api.example/k1").until_at == T0 + until_s
    assert play.delegation("x").hops == ()


def test_a_credential_without_its_secret_rotates_and_says_so() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    ends(play, structs.replace(fail(Reason.NOT_CONFIGURED), rotate_credential=True), None)
    assert used(play) == [("a", "k1"), ("a", "k2")]
    assert play.outage("credential:api.example/k1").reason is Reason.NOT_CONFIGURED


def test_a_stated_time_within_reach_is_waited_for_once_on_the_same_credential() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a", mode="interactive"))
    ends(play, throttle(play, wait_s=5))
    assert play.delegation("x").state == "waiting"
    play.at(5)
    ends(play, throttle(play, wait_s=5), None)
    assert used(play) == [("a", "k1"), ("a", "k1"), ("a", "k2")]


def test_a_stated_time_out_of_reach_rotates_at_once_and_is_kept() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a", mode="interactive"))
    ends(play, throttle(play, wait_s=6), None)
    assert used(play) == [("a", "k1"), ("a", "k2")]
    assert play.outage("credential:api.example/k1+model:m").until_at == T0 + 6


@pytest.mark.parametrize("labels", [("k1",), ()])
def test_with_one_credential_or_none_the_first_throttle_marks(labels: tuple[str, ...]) -> None:
    play = Playbook(pool(*labels)).when(delegate("x", backend="a"))
    ends(play, throttle(play), None)
    assert [one[0] for one in used(play)] == ["a", "b"]


def test_a_limit_of_the_whole_account_does_not_rotate() -> None:
    play = Playbook(pool("k1", "k2", quota="plan")).when(delegate("x", backend="a"))
    ends(play, fail(Reason.USAGE_LIMIT), None)
    assert [one[0] for one in used(play)] == ["a", "b"]
    assert play.seen("quota:plan").state == "rate_limited"
    assert len(play.delegation("x").hops) == 1


def test_an_upstream_limit_of_an_aggregator_hops_and_leaves_every_key_alone() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    ends(play, structs.replace(throttle(play), rotate_credential=False), None)
    assert [one[0] for one in used(play)] == ["a", "b"]
    assert [on_scope(play, one, model=True) for one in ("k1", "k2", "k3")] == ["healthy"] * 3
    assert play.seen("model:a/m").state == "rate_limited"


@pytest.mark.parametrize("reason", [Reason.SERVER_ERROR, Reason.TIMEOUT, Reason.OVERLOADED])
def test_trouble_of_the_service_does_not_rotate(reason: Reason) -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    while play.delegation("x").active == "a":
        play.at(play.now + 60)
        ends(play, fail(reason, at=play.now))
        play.at(play.now + 60)
    assert {label for backend, label in used(play) if backend == "a"} == {"k1"}


def test_when_every_credential_is_out_the_next_backend_takes_over_with_one_hop() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    ends(play, *(fail(Reason.BILLING) for _ in range(3)), None)
    assert used(play) == [("a", "k1"), ("a", "k2"), ("a", "k3"), ("b", None)]
    assert [(hop.from_backend, hop.to_backend) for hop in play.delegation("x").hops] == [("a", "b")]


def test_rotation_is_no_fallback_so_it_happens_without_failover_too() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a", failover=False))
    ends(play, fail(Reason.BILLING), None)
    assert used(play) == [("a", "k1"), ("a", "k2")]


def test_rotations_are_attempts_of_the_one_budget() -> None:
    labels = tuple(f"k{n}" for n in range(12))
    play = Playbook(pool(*labels, chains={})).when(delegate("x", backend="a"))
    ends(play, *(fail(Reason.BILLING) for _ in range(8)))
    assert len(used(play)) == 8
    assert play.delegation("x").state == "refused"


def test_a_healthy_backend_goes_before_a_credential_that_is_only_second_choice() -> None:
    play = Playbook(pool("k1", "k2"))
    play.when(HealthMarked(target="credential:api.example/k2", reason="rate_limit"))
    play.at(400).when(delegate("x", backend="a"))
    assert on_scope(play, "k2") == "cooldown"
    ends(play, fail(Reason.BILLING, at=400), None)
    assert used(play) == [("a", "k1"), ("b", None)]


def test_with_nobody_else_the_second_choice_is_tried_under_its_lease() -> None:
    play = Playbook(pool("k1", "k2", chains={}))
    play.when(HealthMarked(target="credential:api.example/k2", reason="rate_limit"))
    play.at(400).when(delegate("x", backend="a"))
    ends(play, fail(Reason.BILLING, at=400))
    assert used(play) == [("a", "k1"), ("a", "k2")]
    assert play.delegation("x").attempts[-1].trial


def test_the_mark_is_of_the_credential_that_made_the_call_and_not_of_the_one_chosen_since() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"), delegate("y", backend="a"))
    ends(play, fail(Reason.BILLING))
    play.when(failed("y.1", fail(Reason.BILLING)))
    assert used(play, "y") == [("a", "k1"), ("a", "k2")]
    assert [on_scope(play, one) for one in ("k1", "k2", "k3")] == ["broken", "healthy", "healthy"]


def test_a_burst_of_throttles_is_one_first_throttle() -> None:
    play = Playbook(THREE).when(*(delegate(one, backend="a") for one in ("x", "y", "z")))
    play.at(1)
    for name in ("x.1", "y.1", "z.1"):
        play.when(failed(name, throttle(play)))
    play.at(1)
    assert [play.delegation(one).attempts[-1].credential for one in ("x", "y", "z")] == ["k1"] * 3
    assert on_scope(play, "k1", model=True) == "healthy"
    play.at(2).when(failed("x.2", throttle(play)))
    assert on_scope(play, "k1", model=True) == "rate_limited"


def test_begun_work_goes_on_with_another_key_and_a_note_of_what_was_done() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    play.then_whatever()
    play.when(failed("x.1", throttle(play), effects="seen", changed_files=("f.py",)))
    assert used(play) == [("a", "k1"), ("a", "k2")]
    (order,) = [one for one in play.then_whatever() if hasattr(one, "handoff")]
    assert "f.py" in order.handoff


def test_two_backends_on_the_same_key_share_its_fate() -> None:
    twin = Backend(
        id=BackendId("twin"), kind="x", model="n", provider="api.example", credentials=("k1",)
    )
    made = policy_of(THREE.backends[A], twin, "b", chains={"twin": ["b"]})
    play = Playbook(made).when(delegate("x", backend="a"))
    ends(play, fail(Reason.BILLING), None)
    play.when(delegate("y", backend="twin"))
    assert used(play, "y") == [("b", None)]


def test_the_story_tells_the_rotation_by_label() -> None:
    play = Playbook(THREE).when(delegate("x", backend="a"))
    ends(play, fail(Reason.BILLING), None)
    told = [one.outcome for one in play.memory.stories]
    assert "starts x.2 on a with credential k2" in told


# --- callers that make the call themselves -----------------------------------------------------


def test_reports_count_alike_the_second_within_a_minute_marks() -> None:
    play = Playbook(THREE)
    first = report(play, throttle(play), credential="k1", model="m")
    assert first.next is not None
    assert (first.next.backend, first.next.credential) == ("a", "k1")
    play.at(30)
    second = report(play, throttle(play), credential="k1", model="m")
    assert second.next is not None
    assert (second.next.backend, second.next.credential) == ("a", "k2")
    assert on_scope(play, "k1", model=True) == "rate_limited"
    assert second.next.position == 0


def test_a_throttle_after_a_minute_is_a_first_one_again() -> None:
    play = Playbook(THREE)
    report(play, throttle(play), credential="k1", model="m")
    play.at(61)
    report(play, throttle(play), credential="k1", model="m")
    assert on_scope(play, "k1", model=True) == "healthy"


def test_an_answer_in_between_makes_the_next_throttle_a_first_one() -> None:
    play = Playbook(THREE)
    report(play, throttle(play), credential="k1", model="m")
    report(play.at(1), None, credential="k1", model="m")
    report(play.at(2), throttle(play), credential="k1", model="m")
    assert on_scope(play, "k1", model=True) == "healthy"


def test_a_report_of_one_client_protects_all_the_others_at_once() -> None:
    play = Playbook(THREE)
    assert report(play, fail(Reason.USAGE_LIMIT, wait_s=7200), credential="k1").next is not None
    assert {resolved(play).credential for _ in range(20)} == {"k2"}


def test_with_every_key_out_a_report_is_told_the_next_backend_its_place_and_all_verdicts() -> None:
    play = Playbook(THREE)
    for label in ("k1", "k2"):
        report(play, fail(Reason.BILLING), credential=label)
    answer = report(play, fail(Reason.BILLING), credential="k3")
    assert answer.next is not None
    assert (answer.next.backend, answer.next.position) == ("b", 1)
    assert [one.verdict for one in answer.candidates] == ["tried", "chosen"]


def test_a_report_can_take_the_lease_for_what_comes_next() -> None:
    play = Playbook(THREE)
    play.when(HealthMarked(target="b", reason="crash"))
    play.at(100)
    for label in ("k1", "k2"):
        report(play, fail(Reason.BILLING, at=100), credential=label)
    lease = AttemptId("lease-9")
    answer = report(
        play, fail(Reason.BILLING, at=100), credential="k3", next_lease=lease, owner="agent 7"
    )
    assert answer.next is not None
    assert (answer.next.backend, answer.next.lease_id) == ("b", lease)
    trial = play.health("b").trial
    assert trial is not None
    assert (trial.owner, trial.generation) == ("agent 7", answer.next.lease_generation)


def test_a_report_about_a_credential_that_is_not_there_is_refused_by_name() -> None:
    play = Playbook(THREE)
    play.when(
        Reported(outcome="failure", backend=A, credential="nope", failure=fail(Reason.BILLING))
    )
    rejection = play.decision.rejection
    assert rejection is not None
    assert "it has k1, k2, k3" in rejection.message


def test_a_report_without_a_label_is_about_the_only_credential() -> None:
    play = Playbook(pool("k1"))
    report(play, fail(Reason.BILLING))
    assert on_scope(play, "k1") == "broken"
