"""Tiers: a stand-in for a missing model, the second way in, and the caller itself."""

from typing import Any

import pytest
from tests.support.playbook import (
    Playbook,
    answers,
    delegate,
    fail,
    failed,
    policy_of,
    starts,
    succeeded,
)

from fallbackd.core.callers.lease import Resolution
from fallbackd.core.events import HealthMarked, HealthPaused, ResolveRequested
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import HandedBack
from fallbackd.core.views import Shown, health_entry


def backend(name: str, **more: Any) -> Backend:
    return Backend(id=BackendId(name), kind="codex", **more)


def entry(name: str, **more: Any) -> Entry:
    return Entry(backend=BackendId(name), **more)


IN_SESSION = Backend(id=BackendId("in-session"), kind=IN_SESSION_KIND)
CASCADE = (
    entry("primary", tier="primary"),
    entry("api", tier="api"),
    entry("other-api", tier="api"),
    entry("in-session", tier="in_session", model="opus", effort="medium"),
)


def cascade() -> Playbook:
    role = Role(name="lens", kind="validator", chain=CASCADE)
    return Playbook(
        policy_of(
            "primary", "api", "other-api", IN_SESSION, roles={"lens": role}, wait_threshold_s=30
        )
    )


# --- a missing model ---------------------------------------------------------------------------


def test_a_missing_model_is_swapped_once_and_the_hop_says_so() -> None:
    play = Playbook(policy_of(backend("g", model="A", fallback_model="B"), chains={"g": []}))
    play.when(delegate("d1", backend="g")).then(starts("d1.1", "g"))
    play.when(failed("d1.1", fail(Reason.MODEL_NOT_FOUND))).then(starts("d1.2", "g"))
    play.when(succeeded("d1.2")).then(answers("d1"))
    found = play.delegation("d1")
    assert [one.model for one in found.attempts] == ["A", "B"]
    [hop] = found.hops
    assert (hop.from_backend, hop.to_backend, hop.reason) == ("g", "g", "model_not_found")
    assert (hop.from_model, hop.to_model, hop.tier_to) == ("A", "B", "model")
    assert found.tier_served == "model"
    assert found.warnings == ("the model A of g is missing; B is used",)
    assert play.seen("model:g/A").state == "broken"
    assert play.seen("g").state == "healthy"


def test_the_next_delegation_begins_with_the_stand_in() -> None:
    play = Playbook(policy_of(backend("g", model="A", fallback_model="B"), chains={"g": []}))
    play.when(delegate("d1", backend="g"), failed("d1.1", fail(Reason.MODEL_NOT_FOUND)))
    play.when(succeeded("d1.2"), delegate("d2", backend="g"))
    assert [one.model for one in play.delegation("d2").attempts] == ["B"]


def test_a_throttle_does_not_swap_the_model() -> None:
    play = Playbook(policy_of(backend("g", model="A", fallback_model="B"), chains={"g": []}))
    play.when(delegate("d1", backend="g"), failed("d1.1", fail(Reason.RATE_LIMIT)))
    found = play.delegation("d1")
    assert (found.state, len(found.attempts)) == ("refused", 1)
    assert [one.model for one in found.verdicts] == ["A"]


def test_a_swap_does_not_count_as_a_hop() -> None:
    play = Playbook(
        policy_of("a", backend("g", model="A", fallback_model="B"), chains={"a": ["g"]},
                  max_fallback_depth=1)
    )  # fmt: skip
    play.when(delegate("d1", backend="a"), failed("d1.1", fail(Reason.RATE_LIMIT)))
    play.when(failed("d1.2", fail(Reason.MODEL_NOT_FOUND))).when(succeeded("d1.3"))
    assert [one.model for one in play.delegation("d1").attempts] == [None, "A", "B"]


def test_a_stand_in_works_where_nobody_knows_the_name_of_the_missing_model() -> None:
    play = Playbook(policy_of(backend("g", fallback_model="B"), chains={"g": []}))
    play.when(delegate("d1", backend="g"), failed("d1.1", fail(Reason.MODEL_NOT_FOUND)))
    play.when(succeeded("d1.2"))
    assert play.delegation("d1").served_by == "g"
    assert play.seen("model:g/default").state == "broken"
    assert play.seen("g").state == "healthy"
    play.when(delegate("d2", backend="g"))
    assert [one.model for one in play.delegation("d2").attempts] == ["B"]


def health_of(play: Playbook, name: str) -> Shown:
    return health_entry(BackendId(name), play.peek(), play.policy, now=play.wall)


@pytest.mark.parametrize(("model", "is_of_role"), [(None, False), ("A", False), ("A", True)])
def test_a_backend_whose_stand_in_serves_is_shown_as_healthy(
    model: str | None, is_of_role: bool
) -> None:
    one = backend("g", model=model, fallback_model=None if is_of_role else "B")
    role = Role(name="lens", chain=(entry("g"),), fallback_model="B" if is_of_role else None)
    play = Playbook(policy_of(one, roles={"lens": role}))
    play.when(delegate("d1", role="lens"), failed("d1.1", fail(Reason.MODEL_NOT_FOUND)))
    play.when(succeeded("d1.2"))
    found = health_of(play, "g")
    assert (found["state"], found["reason"]) == ("healthy", None)
    assert [one["reason"] for one in found["scopes"] if one["state"] == "broken"] == [
        "model_not_found"
    ]
    play.when(delegate("d2", role="lens"), failed("d2.1", fail(Reason.MODEL_NOT_FOUND)))
    found = health_of(play, "g")
    assert (found["state"], found["reason"]) == ("broken", "model_not_found")


def test_the_stand_in_of_the_role_goes_before_the_one_of_the_backend() -> None:
    role = Role(name="lens", chain=(entry("g"),), fallback_model="C")
    play = Playbook(policy_of(backend("g", model="A", fallback_model="B"), roles={"lens": role}))
    play.when(delegate("d1", role="lens"), failed("d1.1", fail(Reason.MODEL_NOT_FOUND)))
    assert [one.model for one in play.delegation("d1").attempts] == ["A", "C"]


def test_a_stand_in_equal_to_the_model_is_none() -> None:
    play = Playbook(policy_of(backend("g", model="A", fallback_model="A"), chains={"g": []}))
    play.when(delegate("d1", backend="g"), failed("d1.1", fail(Reason.MODEL_NOT_FOUND)))
    assert (play.delegation("d1").state, len(play.delegation("d1").attempts)) == ("refused", 1)


# --- the cascade of a throttle -----------------------------------------------------------------


def test_a_throttle_goes_to_the_second_way_in_once_and_then_back_to_the_caller() -> None:
    play = cascade()
    play.when(delegate("d1", role="lens"), failed("d1.1", fail(Reason.RATE_LIMIT)))
    play.when(failed("d1.2", fail(Reason.RATE_LIMIT)))
    found = play.delegation("d1")
    assert [one.backend for one in found.attempts] == ["primary", "api"]
    assert (found.state, found.served_by, found.tier_served) == ("handed_back", None, "in_session")
    assert found.handed_back == HandedBack(model="opus", effort="medium")
    assert [(one.from_backend, one.to_backend, one.tier_to) for one in found.hops] == [
        ("primary", "api", "api"),
        ("api", "in-session", "in_session"),
    ]
    assert play.answered == ["d1"]
    assert play.session("s-d1").running is None


def test_a_stated_wait_within_the_threshold_comes_before_any_tier() -> None:
    play = cascade()
    play.when(delegate("d1", role="lens", mode="interactive"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT, wait_s=4))).at(4)
    play.when(succeeded("d1.2"))
    found = play.delegation("d1")
    assert (found.served_by, found.tier_served, found.hops) == ("primary", "primary", ())


def test_the_first_entry_is_the_primary_and_others_without_a_label_have_none() -> None:
    play = Playbook(policy_of("a", "b", chains={"a": ["b"]}))
    play.when(delegate("d1", backend="a"), failed("d1.1", fail(Reason.RATE_LIMIT)))
    play.when(succeeded("d1.2"))
    assert [one.tier for one in play.delegation("d1").attempts] == ["primary", None]
    assert play.delegation("d1").tier_served is None


def test_work_is_handed_back_where_the_maximum_of_hops_is_reached() -> None:
    play = Playbook(
        policy_of("a", "b", "c", IN_SESSION, chains={"a": ["b", "c", "in-session"]},
                  max_fallback_depth=1)
    )  # fmt: skip
    play.when(delegate("d1", backend="a"), failed("d1.1", fail(Reason.RATE_LIMIT)))
    play.when(failed("d1.2", fail(Reason.RATE_LIMIT)))
    assert play.delegation("d1").state == "handed_back"


def test_somebody_in_cooldown_is_used_before_the_work_is_handed_back() -> None:
    play = Playbook(policy_of("a", IN_SESSION, chains={"a": ["in-session"]}))
    play.when(HealthMarked(target="a", reason="rate_limit", ttl_s=10)).at(20)
    play.when(delegate("d1", backend="a")).then(starts("d1.1", "a"))
    assert play.delegation("d1").attempts[0].trial


def test_the_session_itself_may_be_asked_for() -> None:
    play = Playbook(policy_of(IN_SESSION))
    play.when(delegate("d1", backend="in-session", model="opus")).then(answers("d1"))
    assert play.delegation("d1").handed_back == HandedBack(model="opus")
    assert play.delegation("d1").hops == ()


def test_the_session_that_is_asked_for_gets_the_work_back_although_others_are_healthy() -> None:
    play = Playbook(policy_of("a", IN_SESSION, chains={"*": ["a"]}))
    play.when(delegate("d1", backend="in-session")).then(answers("d1"))
    found = play.delegation("d1")
    assert (found.state, found.attempts, found.hops) == ("handed_back", (), ())
    play.when(ResolveRequested(backend=BackendId("in-session")))
    answer = play.decision.answer
    assert isinstance(answer, Resolution)
    assert (answer.backend, answer.trigger) == ("in-session", None)


def test_the_session_that_is_asked_for_is_left_with_a_hop_while_it_is_paused() -> None:
    play = Playbook(policy_of("a", IN_SESSION, chains={"*": ["a"]}))
    play.when(HealthPaused(target="in-session"))
    play.when(delegate("d1", backend="in-session")).then(starts("d1.1", "a"))
    (hop,) = play.delegation("d1").hops
    assert (hop.from_backend, hop.to_backend, hop.trigger) == ("in-session", "a", "preemptive")


# --- context -----------------------------------------------------------------------------------


def test_a_session_leaves_a_backend_into_which_the_prompt_does_not_fit() -> None:
    play = Playbook(
        policy_of(
            backend("small", context_tokens=1000), backend("big", context_tokens=100_000),
            roles={"r": ["small", "big"]},
        )
    )  # fmt: skip
    play.when(delegate("d1", session="s", role="r", prompt_tokens=10), succeeded("d1.1"))
    play.when(delegate("d2", session="s", role="r", prompt_tokens=5000), succeeded("d2.1"))
    assert play.delegation("d2").served_by == "big"
    assert play.delegation("d2").hops[0].reason == "context"
    # From now on its prompt cache is there, and the session stays.
    play.when(delegate("d3", session="s", role="r", prompt_tokens=10), succeeded("d3.1"))
    assert (play.delegation("d3").served_by, play.delegation("d3").hops) == ("big", ())


def test_the_note_about_begun_work_counts_for_the_context_of_the_next() -> None:
    play = Playbook(
        policy_of("a", backend("small", context_tokens=1000), "c", chains={"a": ["small", "c"]})
    )
    play.when(delegate("d1", backend="a", prompt_tokens=980))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT), effects="seen", changed_files=("x" * 90,)))
    assert play.delegation("d1").active == "c"


def test_who_would_be_used_shows_what_does_not_fit() -> None:
    play = Playbook(policy_of(backend("small", context_tokens=64_000), "big",
                              roles={"r": ["small", "big"]}))  # fmt: skip
    play.when(ResolveRequested(role="r", prompt_tokens=125_516))
    found = play.decision.answer
    assert isinstance(found, Resolution)
    assert [one.verdict for one in found.candidates] == ["context", "chosen"]
