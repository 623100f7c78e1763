"""What health, sessions and counters look like to a reader."""

from tests.support.playbook import T0, Playbook, delegate, fail, failed, policy_of, succeeded

from fallbackd.api import shapes
from fallbackd.core.events import HealthMarked, HealthPaused
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason
from fallbackd.core.views import (
    Shown,
    fallback_reason,
    health_entries,
    health_entry,
    scope_entry,
)

AB = policy_of("a", "b", chains={"a": ["b"]})


def entry_of(play: Playbook, name: str = "a") -> Shown:
    return health_entry(BackendId(name), play.peek(), play.policy, now=play.wall)


def broken(play: Playbook, failure_at: float = 0.0, reason: Reason = Reason.RATE_LIMIT) -> Playbook:
    play.at(failure_at).when(delegate(f"x{failure_at}", backend="a", failover=False))
    return play.when(failed(f"x{failure_at}.1", fail(reason, at=failure_at)))


def test_a_healthy_backend_says_nothing_else() -> None:
    found = entry_of(Playbook(AB))
    assert (found["state"], found["unproven"], found["count"]) == ("healthy", False, 0)
    for name in ("reason", "since_at", "until_at", "source", "seconds_remaining", "note"):
        assert found[name] is None
    assert found["scopes"] == []


def test_a_limited_backend_says_since_when_until_when_and_why() -> None:
    play = broken(Playbook(AB)).at(100)
    found = entry_of(play)
    expected = {
        "state": "rate_limited",
        "reason": "rate_limit",
        "since_at": T0,
        "until_at": T0 + 300,
        "count": 1,
        "source": "policy",
        "seconds_remaining": 200,
        "marked_broken_at": T0,
        "ttl_seconds": 300,
        "age_s": 100,
    }
    assert {name: found[name] for name in expected} == expected
    (scope,) = found["scopes"]
    assert (scope["scope"], scope["state"], scope["count"]) == ("backend:a", "rate_limited", 1)


def test_after_the_window_it_keeps_reason_and_count_but_no_times() -> None:
    found = entry_of(broken(Playbook(AB)).at(901))
    assert (found["state"], found["unproven"]) == ("healthy", True)
    assert (found["reason"], found["count"]) == ("rate_limit", 1)
    assert (found["since_at"], found["until_at"], found["seconds_remaining"]) == (None, None, None)


def test_success_leaves_no_trace() -> None:
    play = broken(Playbook(AB)).at(901).when(delegate("d1", backend="a"), succeeded("d1.1"))
    found = entry_of(play)
    assert (found["unproven"], found["reason"], found["count"]) == (False, None, 0)


def test_a_person_s_mark_and_pause_are_told_with_their_words() -> None:
    play = Playbook(AB).when(HealthMarked(target="a", reason="r", ttl_s=600)).at(44)
    found = entry_of(play)
    assert (found["state"], found["reason"], found["detail"]) == ("broken", "manual", "r")
    assert (found["source"], found["seconds_remaining"], found["ttl_seconds"]) == (
        "person",
        556,
        600,
    )
    paused = entry_of(play.when(HealthPaused(target="a", note="x")))
    assert (paused["state"], paused["note"], paused["source"]) == ("paused", "x", "person")


def test_the_worst_of_the_scopes_counts_and_all_are_shown() -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="x", quota="q"))
    play = broken(Playbook(policy), reason=Reason.CRASH)
    play.when(HealthMarked(target="quota:q", reason="usage_limit", ttl_s=3600))
    play.at(1)
    found = entry_of(play)
    assert (found["reason"], found["until_at"]) == ("usage_limit", T0 + 3600)
    assert {one["scope"] for one in found["scopes"]} == {"backend:a", "quota:q"}


def test_a_mark_on_another_model_is_shown_and_harms_nothing() -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="x", model="m"))
    play = Playbook(policy).when(HealthMarked(target="model:a/other"))
    found = entry_of(play)
    assert found["state"] == "healthy"
    assert [(one["scope"], one["state"]) for one in found["scopes"]] == [
        ("model:a/other", "broken")
    ]
    play.when(HealthMarked(target="model:a/m"))
    assert entry_of(play)["state"] == "broken"


def test_over_an_enforced_cap_it_is_limited_by_its_own_budget() -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="x", hourly_cap=1))
    play = Playbook(policy).when(delegate("d1", backend="a"), succeeded("d1.1"))
    found = entry_of(play)
    assert (found["state"], found["reason"]) == ("rate_limited", "local_budget")
    assert found["until_at"] == T0 + found["seconds_remaining"]


def test_the_list_holds_every_configured_backend_and_what_else_is_on_record() -> None:
    play = broken(Playbook(AB))
    play.policy = policy_of("b", "c")
    found = health_entries(play.peek(), play.policy, now=play.wall)
    assert list(found) == ["b", "c", "a"]
    only = health_entries(play.peek(), play.policy, now=play.wall, only="unhealthy")
    assert list(only) == ["a"]
    play.at(901)
    assert health_entries(play.peek(), play.policy, now=play.wall, only="unhealthy") == {}


def test_a_scope_by_itself_and_the_trial_on_it() -> None:
    play = broken(Playbook(AB)).at(950).when(delegate("d1", backend="a"))
    found = scope_entry(ScopeId("backend:a"), play.peek(), now=play.wall)
    assert (found["state"], found["unproven"]) == ("healthy", True)
    assert found["scopes"][0]["trial"] == "d1.1"
    assert scope_entry(ScopeId("quota:x"), play.peek(), now=play.wall)["state"] == "healthy"


def test_a_session_is_shown_with_its_way() -> None:
    play = Playbook(AB).when(delegate("d1", session="s", backend="a"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT)))
    found = shapes.session(play.session("s"))
    assert (found.original, found.current, found.depth) == ("a", "b", 1)
    assert (found.running, found.notices) == ("d1", ("a>b",))
    assert found.hops[0].from_ == "a"
    play.when(succeeded("d1.2"))
    assert [backend for backend, _ in play.session("s").usage] == ["a", "b"]


def test_the_reason_of_a_fallback_begins_with_the_first_hop() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a"))
    assert fallback_reason(play.delegation("d1")) is None
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT)))
    text = fallback_reason(play.delegation("d1"))
    assert text is not None
    assert text.startswith("rate_limit: a failed")
