"""Playbooks: people, readiness, configuration, the tick, recovery."""

import pytest
from msgspec import structs
from tests.support.playbook import (
    T0,
    Playbook,
    answers,
    delegate,
    fail,
    failed,
    policy_of,
    starts,
    succeeded,
)

from fallbackd.core.decision import Export
from fallbackd.core.events import (
    ConfigReloaded,
    HealthCleared,
    HealthMarked,
    HealthPaused,
    HealthResumed,
    ReadinessSeen,
    Ticked,
)
from fallbackd.core.ids import BackendId, SessionId
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Session

A = BackendId("a")
RICH = policy_of(
    Backend(id=A, kind="x", model="m", quota="q", provider="api.example", credentials=("k1", "k2")),
    "b",
    chains={"a": ["b"]},
)
AB = policy_of("a", "b", chains={"a": ["b"]})


def marked(target: str = "a", **more: object) -> HealthMarked:
    return HealthMarked(target=target, **more)  # type: ignore[arg-type]


def outage(play: Playbook, scope: str = "a") -> tuple[str, str, str | None, float | None]:
    found = play.health(scope).outage
    assert found is not None
    until_at = None if found.until_at is None else found.until_at - T0
    return (found.state, found.reason.value, found.detail, until_at)


@pytest.mark.parametrize(
    ("reason", "ttl", "expected"),
    [
        (None, None, ("broken", "manual", None, 600)),
        ("down for repair", None, ("broken", "manual", "down for repair", 600)),
        ("down", 50, ("broken", "manual", "down", 50)),
        ("rate_limit", None, ("rate_limited", "rate_limit", None, 300)),
        (
            "rate_limit: 429 from openai.com",
            None,
            (
                "broken",
                "manual",
                "rate_limit: 429 from openai.com",
                600,
            ),
        ),
        ("usage_limit", 1e9, ("rate_limited", "usage_limit", None, 1e9)),
        ("auth", None, ("broken", "auth", None, 600)),
        ("model_not_found", None, ("broken", "model_not_found", None, 86_400)),
        ("task_failed", None, ("broken", "manual", "task_failed", 600)),
    ],
)
def test_a_mark_takes_a_word_of_the_taxonomy_as_such(
    reason: str | None, ttl: float | None, expected: tuple[object, ...]
) -> None:
    play = Playbook(AB).when(marked(reason=reason, ttl_s=ttl))
    assert outage(play) == expected
    assert play.decision.answer is True
    assert any(isinstance(one, Export) for one in play.decision.effects)


def test_a_note_is_kept_where_there_are_no_other_words() -> None:
    assert outage(Playbook(AB).when(marked(note="n")))[2] == "n"
    assert outage(Playbook(AB).when(marked(reason="r", note="n")))[2] == "r"


def test_a_mark_with_no_time_left_clears() -> None:
    play = Playbook(AB).when(marked(), marked(ttl_s=0))
    assert play.health("a").outage is None


def test_a_person_s_mark_is_not_tried_as_a_last_resort() -> None:
    play = Playbook(policy_of("a")).when(marked(reason="rate_limit", ttl_s=5000))
    play.at(1000).when(delegate("d1", backend="a")).then(answers("d1"))


@pytest.mark.parametrize(
    "event", [marked("x"), HealthPaused(target="x"), HealthResumed(target="x")]
)
def test_an_unknown_target_is_said(event: HealthMarked) -> None:
    assert Playbook(AB).when(event).decision.answer is False


def test_clearing_an_unknown_target_is_said() -> None:
    assert Playbook(AB).when(HealthCleared(target="x")).decision.answer is None


@pytest.mark.parametrize(
    "scope",
    ["credential:api.example/k1", "model:a/m", "quota:q", "provider:api.example", "backend:a"],
)
def test_scopes_can_be_marked_without_a_record(scope: str) -> None:
    play = Playbook(RICH).when(marked(scope, reason="rate_limit"))
    assert outage(play, scope)[0] == "rate_limited"


def test_clear_of_a_backend_clears_every_scope_that_it_touches() -> None:
    play = Playbook(RICH)
    scopes = ["credential:api.example/k1", "model:a/m", "quota:q", "provider:api.example", "a"]
    for scope in scopes:
        play.when(marked(scope, reason="rate_limit"))
    play.when(marked("b"), HealthCleared(target="a"))
    assert play.decision.answer == ["a"]
    assert [play.health(one).outage for one in scopes] == [None] * 5
    assert play.health("b").outage is not None


def test_clear_lists_what_had_a_mark() -> None:
    play = Playbook(AB).when(marked("a"))
    assert play.when(HealthCleared(target="b")).decision.answer == []
    play.when(marked("b"))
    assert play.when(HealthCleared()).decision.answer == ["a", "b"]
    assert play.when(HealthCleared()).decision.answer == []


def test_clear_wakes_those_that_wait() -> None:
    play = Playbook(policy_of("a")).when(delegate("x", backend="a"))
    play.when(failed("x.1", fail(Reason.RATE_LIMIT, wait_s=100), effects="seen"))
    play.when(delegate("d1", backend="a")).then_whatever()
    assert play.delegation("d1").state == "waiting"
    play.at(5).when(HealthCleared(target="a")).then(starts("d1.1", "a"))


def test_a_pause_keeps_everybody_away_until_it_is_lifted() -> None:
    play = Playbook(AB).when(HealthPaused(target="a", note="later"))
    assert play.seen("a").state == "paused"
    play.at(1e6).when(delegate("d1", backend="a")).then(starts("d1.1", "b"))
    assert play.delegation("d1").hops[0].reason == "paused"
    play.when(HealthResumed(target="a"), delegate("d2", backend="a")).then(starts("d2.1", "a"))


def test_a_pause_hides_no_mark() -> None:
    play = Playbook(AB).when(marked(ttl_s=1000), HealthPaused(target="a"))
    play.at(10).when(HealthResumed(target="a"))
    assert play.seen("a").state == "broken"


def seen(reason: Reason | None = None, *, repaired: bool = False) -> ReadinessSeen:
    return ReadinessSeen(backend=A, reason=reason, repaired=repaired)


def test_a_program_that_is_not_there_is_out_until_it_is() -> None:
    play = Playbook(AB).when(seen(Reason.NOT_INSTALLED))
    assert outage(play) == ("broken", "not_installed", None, 600)
    for number in range(1, 100):
        play.at(30 * number).when(seen(Reason.NOT_INSTALLED))
        assert play.seen("a").state == "broken"
    assert play.outage("a").count == 1
    assert play.outage("a").since_at == T0
    play.when(delegate("d1", backend="a")).then(starts("d1.1", "b"))
    assert play.delegation("d1").hops[0].reason == "not_installed"
    play.when(seen())
    assert play.health("a").outage is None


def test_readiness_neither_hides_nor_shortens_what_was_said() -> None:
    play = Playbook(AB).when(marked(reason="usage_limit", ttl_s=5000))
    play.when(seen(Reason.NOT_INSTALLED), seen())
    assert outage(play) == ("rate_limited", "usage_limit", None, 5000)
    play = Playbook(AB).when(marked(ttl_s=50))
    play.when(seen(Reason.NOT_INSTALLED))
    assert outage(play)[1] == "manual"


@pytest.mark.parametrize(
    ("reason", "state", "unproven"),
    [
        (Reason.AUTH, "healthy", True),
        (Reason.BILLING, "cooldown", True),
        (Reason.NOT_CONFIGURED, "healthy", True),
        (Reason.RATE_LIMIT, "rate_limited", False),
    ],
)
def test_a_login_that_changed_ends_what_needed_a_repair(
    reason: Reason, state: str, unproven: bool
) -> None:
    play = Playbook(AB).when(delegate("x", backend="a"), failed("x.1", fail(reason)))
    play.at(5).when(seen())
    assert play.seen("a").state != "healthy"
    play.when(seen(repaired=True))
    assert (play.seen("a").state, play.seen("a").unproven) == (state, unproven)


def test_a_login_that_changed_revives_the_credential() -> None:
    play = Playbook(RICH).when(delegate("x", backend="a"))
    play.when(failed("x.1", fail(Reason.AUTH, detail="revoked")))
    scope = "credential:api.example/k1"
    assert outage(play, scope) == ("broken", "auth", "revoked", None)
    play.at(9).when(seen(repaired=True))
    assert play.seen(scope).unproven
    assert play.seen(scope).state == "healthy"


def test_a_person_s_mark_is_not_repaired_by_a_look() -> None:
    play = Playbook(AB).when(marked(reason="auth"), seen(repaired=True))
    assert play.seen("a").state == "broken"


def test_a_credential_of_several_is_out_for_five_minutes() -> None:
    play = Playbook(RICH).when(delegate("x", backend="a"), failed("x.1", fail(Reason.AUTH)))
    assert outage(play, "credential:api.example/k1")[3] == 300


def test_a_model_that_is_not_there_is_out_for_a_day_and_a_nameless_one_for_ten_minutes() -> None:
    play = Playbook(RICH).when(delegate("x", backend="a"))
    play.when(failed("x.1", fail(Reason.MODEL_NOT_FOUND)))
    assert outage(play, "model:a/m")[3] == 86_400
    play = Playbook(AB).when(delegate("x", backend="a"))
    play.when(failed("x.1", fail(Reason.MODEL_NOT_FOUND)))
    assert outage(play)[3] == 600


def test_new_settings_clear_what_was_wrong_with_the_old_ones_only() -> None:
    play = Playbook(RICH).when(delegate("x", backend="a"))
    play.when(failed("x.1", fail(Reason.MODEL_NOT_FOUND)), marked("quota:q", reason="usage_limit"))
    play.when(ConfigReloaded(changed=(BackendId("b"),)))
    assert play.health("model:a/m").outage is not None
    play.when(ConfigReloaded(changed=(A,)))
    assert play.health("model:a/m").outage is None
    assert play.health("quota:q").outage is not None


def test_a_tick_announces_each_transition_once() -> None:
    play = Playbook(policy_of("a", "b", "c"))
    for name in "abc":
        play.when(delegate(f"x{name}", backend=name))
        play.when(failed(f"x{name}.1", fail(Reason.RATE_LIMIT)))
    assert len(play.noted("health.moved")) == 3
    play.at(301).when(Ticked(), Ticked())
    moved = play.noted("health.moved")[3:]
    assert [(one.backend, one.fields["from"], one.fields["to"]) for one in moved] == [
        (name, "rate_limited", "cooldown") for name in "abc"
    ]
    play.at(902).when(Ticked(), Ticked())
    assert len(play.noted("health.moved")) == 9


def fallen(play: Playbook) -> Session:
    play.when(delegate("d1", session="s", backend="a"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT)), succeeded("d1.2"))
    return play.session("s")


def test_recovery_is_announced_once_and_only_when_healthy() -> None:
    play = Playbook(AB)
    session = fallen(play)
    for at, notices in ((10, 0), (400, 0), (901, 1), (931, 1)):
        play.at(at).when(Ticked(fallen_sessions=(play.session("s"),)))
        found = [one for one in play.noted("session.notice") if one.fields["notice"] == "recovered"]
        assert len(found) == notices, at
    assert play.session("s").current == session.current


def test_a_mark_on_another_model_does_not_hold_the_recovery_back() -> None:
    play = Playbook(policy_of(Backend(id=A, kind="x", model="m"), "b", chains={"a": ["b"]}))
    fallen(play)
    play.at(901).when(marked("model:a/other"), Ticked(fallen_sessions=(play.session("s"),)))
    assert play.noted("session.notice")[-1].fields["notice"] == "recovered"


def test_no_recovery_is_told_in_the_middle_of_a_turn_and_no_lock_is_lost() -> None:
    play = Playbook(AB)
    before = fallen(play)
    play.at(901).when(delegate("d2", session="s", role=None, backend="b"))
    play.when(Ticked(fallen_sessions=(before,), idle_sessions=(SessionId("s"),)))
    assert play.session("s").running == "d2"
    assert [one.fields["notice"] for one in play.noted("session.notice")] == ["fallback"]


def test_idle_sessions_are_dropped_by_the_tick() -> None:
    play = Playbook(AB)
    fallen(play)
    play.when(Ticked(idle_sessions=(SessionId("s"),)))
    assert play.memory.mirror.session(SessionId("s")) is None


def test_moved_events_name_the_backend_of_a_model_scope() -> None:
    name = BackendId("openai/gpt-5")
    policy = policy_of(Backend(id=name, kind="opencode", model="openai/gpt-5"))
    play = Playbook(policy).when(marked("model:openai/gpt-5/openai/gpt-5"))
    assert play.noted("health.moved")[0].backend == name


def test_a_clear_before_the_windows_end_is_announced() -> None:
    play = Playbook(AB).when(marked(), HealthCleared(target="a"))
    assert [one.fields["to"] for one in play.noted("health.moved")] == ["broken", "healthy"]
    assert structs.replace(play.health("a"), generation=0).outage is None


def test_work_of_another_chain_is_no_fall_to_recover_from() -> None:
    policy = policy_of("a", "c", "d", roles={"r": ["c", "d"]})
    play = Playbook(policy).when(delegate("d1", session="s", backend="a"), succeeded("d1.1"))
    play.when(delegate("d2", session="s", role="r"), succeeded("d2.1"))
    assert (play.session("s").original, play.session("s").current) == ("a", "c")
    play.when(Ticked(fallen_sessions=(play.session("s"),)))
    assert play.noted("session.notice") == []


def test_a_fall_within_another_chain_names_the_first_of_that_chain() -> None:
    policy = policy_of("a", "c", "d", roles={"r": ["c", "d"]})
    play = Playbook(policy).when(delegate("d1", session="s", backend="a"), succeeded("d1.1"))
    play.when(delegate("d2", session="s", role="r"))
    play.when(failed("d2.1", fail(Reason.RATE_LIMIT)), succeeded("d2.2"))
    play.at(1000).when(Ticked(fallen_sessions=(play.session("s"),)))
    told = [
        (n.fields["notice"], n.fields["from"], n.fields["to"])
        for n in play.notes
        if n.kind == "session.notice"
    ]
    assert told == [("fallback", "c", "d"), ("recovered", "d", "c")]


def test_names_of_models_that_are_marked_are_bounded() -> None:
    play = Playbook(policy_of("a"))
    for number in range(300):
        play.when(HealthMarked(target=f"model:a/m{number}", reason="manual"))
    marked = [scope for scope in play.memory.mirror.health if scope.startswith("model:")]
    assert len(marked) == 256
    play.when(HealthMarked(target="model:a/m1", reason="auth"))
    assert play.decision.rejection is None
