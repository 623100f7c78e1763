"""Playbooks: this machine has no network, or a provider cannot be reached."""

import pytest
from tests.support.playbook import (
    Playbook,
    answered,
    answers,
    delegate,
    fail,
    failed,
    policy_of,
    starts,
    succeeded,
)

from fallbackd.core.callers.lease import ReportAnswer
from fallbackd.core.events import Reported
from fallbackd.core.ids import BackendId, SessionId
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason


def backend(name: str, host: str, *, loopback: bool = False) -> Backend:
    return Backend(id=BackendId(name), kind="hermes-api", provider=host, loopback=loopback)


HOSTS = policy_of(
    backend("a", "a.example"),
    backend("b", "b.example"),
    backend("near", "127.0.0.1:8088", loopback=True),
    backend("also-a", "a.example"),
    chains={"a": ["b", "near"], "b": ["a"], "also-a": ["b"], "near": ["b"]},
)
NETWORK = fail(Reason.NETWORK)


def left(play: Playbook, name: str, at: float) -> None:
    """`name` is given up for `network` at `at`, its retry included."""
    play.at(at - 3).when(delegate(f"{name}{at}", backend=name, failover=False))
    play.when(failed(f"{name}{at}.1", fail(Reason.NETWORK, at=at - 3)))
    play.at(at).when(failed(f"{name}{at}.2", fail(Reason.NETWORK, at=at))).then_whatever()


def test_without_a_route_nobody_is_marked_and_the_local_one_is_used() -> None:
    play = Playbook(HOSTS).when(delegate("d", backend="a"))
    play.when(failed("d.1", NETWORK, has_route=False))
    play.then(starts("d.1", "a"), starts("d.2", "near"))
    assert play.health("provider:a.example").outage is None
    assert play.delegation("d").hops[0].reason == "local_network"
    by_name = {one.backend: one.verdict for one in play.delegation("d").verdicts}
    assert by_name["b"] == "local_network"
    play.when(succeeded("d.2"))
    assert play.delegation("d").served_by == "near"


def test_without_a_route_and_a_local_one_the_answer_is_refused() -> None:
    play = Playbook(HOSTS).when(delegate("d", backend="b"))
    play.when(failed("d.1", NETWORK, has_route=False)).then(starts("d.1", "b"), answers("d"))
    found = play.delegation("d")
    assert (found.state, found.failure and found.failure.reason) == ("refused", "local_network")


def test_two_hosts_within_a_moment_are_this_machine_and_marks_are_withdrawn() -> None:
    play = Playbook(HOSTS)
    left(play, "a", 5)
    assert play.outage("provider:a.example").reason is Reason.NETWORK
    play.at(14).when(delegate("d", backend="b", failover=False))
    play.when(failed("d.1", fail(Reason.NETWORK, at=14))).then(starts("d.1", "b"), answers("d"))
    assert play.health("provider:a.example").outage is None
    assert play.health("provider:b.example").outage is None
    assert "several providers" in play.delegation("d").attempts[0].failure.evidence  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("first", "at"),
    [
        ("near", 14),  # says nothing about the way out
        ("also-a", 14),  # the same host
        ("a", 16),  # long ago
    ],
)
def test_other_network_failures_are_the_provider_s(first: str, at: float) -> None:
    second = "a" if first == "also-a" else "b"
    play = Playbook(HOSTS).when(delegate("d", backend=second, failover=False))
    left(play, first, 5)
    play.at(at).when(failed("d.1", fail(Reason.NETWORK, at=at)))
    assert play.delegation("d").attempts[0].failure.reason is Reason.NETWORK  # type: ignore[union-attr]
    assert play.delegation("d").state == "waiting"


def test_a_provider_that_answers_says_that_there_is_a_network() -> None:
    play = Playbook(HOSTS)
    play.when(delegate("ok", backend="b", failover=False))
    left(play, "a", 5)
    play.at(8).when(answered("ok.1"))
    play.at(14).when(failed("ok.1", fail(Reason.NETWORK, at=14)))
    assert play.delegation("ok").attempts[0].failure.reason is Reason.NETWORK  # type: ignore[union-attr]
    assert play.outage("provider:a.example").reason is Reason.NETWORK


def test_a_host_on_this_machine_needs_no_route() -> None:
    play = Playbook(HOSTS).when(delegate("d", backend="near", failover=False))
    play.when(failed("d.1", NETWORK, has_route=False))
    assert play.delegation("d").attempts[0].failure.reason is Reason.NETWORK  # type: ignore[union-attr]


def test_a_report_of_a_second_host_counts_alike() -> None:
    play = Playbook(HOSTS)
    left(play, "a", 5)
    event = Reported(
        outcome="failure",
        backend=BackendId("b"),
        session=SessionId("s"),
        failure=fail(Reason.NETWORK, at=14),
    )
    found = play.at(14).when(event).decision.answer
    assert isinstance(found, ReportAnswer)
    assert found.failure is not None
    assert found.failure.reason is Reason.LOCAL_NETWORK
    assert found.next is None
    assert play.health("provider:b.example").outage is None


def test_a_program_that_costs_nothing_because_it_is_local_is_local() -> None:
    program = Backend(id=BackendId("program"), kind="generic-cli", cost="local")
    policy = policy_of(backend("a", "a.example"), program, chains={"a": ["program"]})
    play = Playbook(policy).when(delegate("d", backend="a"))
    play.when(failed("d.1", NETWORK, has_route=False))
    play.then(starts("d.1", "a"), starts("d.2", "program"))
