"""Turns of opencode sessions, their rescue and redirects, as decisions."""

from typing import Any

from msgspec import structs
from tests.support.playbook import Playbook, fail, policy_of

from fallbackd.core.events import (
    HealthMarked,
    HealthPaused,
    HealthResumed,
    RedirectAsked,
    RescueAdvanced,
    SessionCompacted,
    Ticked,
    TurnAnswered,
    TurnBegan,
    TurnEnded,
    TurnFailed,
    TurnUsed,
)
from fallbackd.core.ids import AttemptId, BackendId, SessionId
from fallbackd.core.opencode.session import in_project, longest_windows, why_unprotected
from fallbackd.core.opencode.turns import Redirect, Ruled
from fallbackd.core.policy import REASONS, Backend, Entry, Policy, Project, Role
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Rescue

A, B, C = BackendId("a/m"), BackendId("b/m"), BackendId("c/m")
SERVED = frozenset({A, B, C})
LIMIT = Reason.RATE_LIMIT


def play(**more: Any) -> Playbook:
    made = policy_of(roles={"build": ["b/m", "c/m"]}, **more)
    return Playbook(structs.replace(made, served=SERVED))


def began(message: str, model: BackendId, session: str = "s") -> TurnBegan:
    return TurnBegan(session=SessionId(session), message=message, backend=model, role="build")


def failed(
    p: Playbook, message: str, model: BackendId, reason: Reason = LIMIT, **more: Any
) -> Ruled:
    wait_s = more.pop("wait_s", None)
    p.when(
        TurnFailed(
            **{
                "session": SessionId("s"),
                "message": message,
                "backend": model,
                "failure": fail(reason, at=p.now, wait_s=wait_s),
                "role": "build",
                "rescue": f"r-{message}",
                "new_message": f"{message}-again",
                **more,
            }
        )
    )
    found = p.decision.answer
    assert isinstance(found, Ruled)
    return found


def rescued(p: Playbook, message: str, model: BackendId, **more: Any) -> Rescue:
    """Through all steps."""
    rescue = failed(p, message, model, **more).rescue
    assert rescue is not None
    for step in ("revert", "prompt", "done"):
        assert advanced(p, rescue, step)
    return rescue


def advanced(p: Playbook, rescue: Rescue, outcome: Any, session: str = "s") -> bool:
    p.when(RescueAdvanced(session=SessionId(session), rescue=rescue.id, outcome=outcome))
    return p.decision.answer is True


def notices(p: Playbook) -> list[str]:
    return [str(one.fields["notice"]) for one in p.noted("session.notice")]


def redirect(p: Playbook, model: BackendId, session: str = "s") -> str | None:
    p.when(
        RedirectAsked(
            session=SessionId(session),
            backend=model,
            role="build",
            lease=AttemptId(f"lease-{session}-{p.now}"),
        )
    )
    found = p.decision.answer
    assert isinstance(found, Redirect)
    return found.model


def test_the_step_that_comes_next_is_on_record_before_it_is_done() -> None:
    p = play()
    rescue = failed(p, "m1", A).rescue
    assert rescue is not None
    assert (rescue.left, rescue.to, rescue.model) == (A, B, "b/m")
    for step in ("abort", "revert", "prompt"):
        if step != "abort":
            advanced(p, rescue, step)
        held = p.session("s").rescue
        assert held is not None
        assert held.step == step
    advanced(p, rescue, "done")
    session = p.session("s")
    assert (session.rescue, session.current, session.depth) == (None, B, 1)
    assert session.message is not None
    assert session.message.id == "m1-again"


def test_a_second_failure_waits_for_no_one_and_counts_for_nothing() -> None:
    p = play()
    failed(p, "m1", A)
    assert failed(p, "m1", A).ruling == "busy"
    assert p.session("s").ignored_reports == 1


def test_the_lock_of_an_owner_that_is_gone_runs_out() -> None:
    p = play()
    old = failed(p, "m1", A).rescue
    assert old is not None
    p.at(121)
    assert failed(p, "m1", A, rescue="r2").ruling == "rescue"
    assert not advanced(p, old, "done"), "whoever comes late has lost it"
    assert p.session("s").current == A


def test_what_is_said_about_a_turn_that_was_left_is_late_for_ever() -> None:
    p = play()
    rescued(p, "m1", A)
    p.at(5000)
    assert failed(p, "m1", A).ruling == "late"
    assert failed(p, "m1-again", A).ruling == "late", "that message is on another model"


def test_a_chain_is_walked_for_one_message_and_each_model_is_asked_once() -> None:
    p = play()
    rescued(p, "m1", A)
    rescued(p, "m1-again", B)
    assert p.session("s").current == C
    assert failed(p, "m1-again-again", C, wait_s=3600).ruling == "exhausted"
    assert len(p.noted("session.notice")) == 3


def test_a_turn_that_goes_on_without_a_way_out_says_so_once() -> None:
    p = play()
    for model in (B, C):
        failed(p, "m0", model, session=SessionId(f"on-{model}"), wait_s=7200)
    for attempt in range(4):
        p.at(attempt * 10.0)
        assert failed(p, "m1", A, wait_s=7200).ruling == "exhausted"
    told = [one for one in p.noted("session.notice") if one.session == "s"]
    assert [one.fields["notice"] for one in told] == ["outage"]
    assert p.outage(A).count == 1, "four tries of one turn are one failure"


def test_a_model_that_comes_back_by_the_clock_alone_is_tried_by_one_session() -> None:
    p = play()
    failed(p, "m0", B, session=SessionId("other"))
    p.at(1000)
    assert p.seen(B).unproven
    rescue = rescued(p, "m1", A)
    assert rescue.to == B
    assert failed(p, "x1", A, session=SessionId("s2"), rescue="r2").rescue is not None
    other = p.session("s2").rescue
    assert other is not None
    assert other.to == C
    p.when(TurnAnswered(session=SessionId("s"), message="m1-again", backend=B))
    assert not p.seen(B).unproven
    message = p.session("s").message
    assert message is not None
    assert message.lease is None


def test_a_trial_that_fails_is_over() -> None:
    p = play()
    failed(p, "m0", B, session=SessionId("other"))
    p.at(1000)
    rescued(p, "m1", A)
    failed(p, "m1-again", B)
    assert p.seen(B).state == "rate_limited"
    assert p.health(B).trial is None


def test_a_rescue_that_fails_gives_its_trial_back() -> None:
    p = play()
    failed(p, "m0", B, session=SessionId("other"))
    p.at(1000)
    rescue = failed(p, "m1", A).rescue
    assert rescue is not None
    assert p.health(B).trial is not None
    advanced(p, rescue, "failed")
    assert p.health(B).trial is None


def test_a_rescue_that_fails_at_each_of_the_servers_tries_is_announced_once() -> None:
    p = play()
    for number in range(3):
        ruled = failed(p, "m1", A, rescue=f"r{number}", retries_since_at=p.wall)
        assert ruled.rescue is not None
        assert advanced(p, ruled.rescue, "failed")
    assert notices(p) == ["failed"]
    ruled = failed(p, "m2", A)
    assert ruled.rescue is not None
    assert advanced(p, ruled.rescue, "failed")
    assert notices(p) == ["failed", "failed"]


def test_a_model_that_the_user_chooses_is_the_original_from_then_on() -> None:
    p = play()
    rescued(p, "m1", A)
    p.when(began("m2", B))
    assert p.session("s").original == A, "it is where the session is anyway"
    p.when(began("m3", C))
    session = p.session("s")
    assert (session.original, session.current, session.depth, session.hops) == (C, C, 0, ())


def test_the_message_of_a_rescue_is_not_a_choice_of_the_user() -> None:
    p = play()
    rescue = failed(p, "m1", A).rescue
    assert rescue is not None
    p.when(began(rescue.new_message, B))
    advanced(p, rescue, "done")
    session = p.session("s")
    assert (session.original, session.current, session.depth) == (A, B, 1)


def test_a_message_that_waits_is_a_choice_of_the_user_only_when_its_turn_begins() -> None:
    p = play()
    p.when(began("m1", A))
    assert redirect(p, C) is None  # written while A works
    rescue = failed(p, "m1", A).rescue
    assert rescue is not None
    assert redirect(p, C) is None  # sent again by the rescue
    advanced(p, rescue, "done")
    p.when(TurnEnded(session=SessionId("s")))
    assert (p.session("s").original, p.session("s").current) == (A, B)
    assert "recovered" not in notices(p)
    p.when(began("m2", C))
    assert (p.session("s").original, p.session("s").current) == (C, C)


def test_the_original_is_announced_when_it_is_well_and_nothing_runs() -> None:
    p = play()
    rescued(p, "m1", A)
    p.at(2000)
    p.when(Ticked(fallen_sessions=(p.session("s"),)))
    assert len(p.noted("session.notice")) == 1, "a turn is under way"
    p.when(TurnEnded(session=SessionId("s")), TurnEnded(session=SessionId("s")))
    told = [one.fields["notice"] for one in p.noted("session.notice")]
    assert told == ["fallback", "recovered"]


def test_compaction_in_the_middle_of_a_rescue_leaves_its_lock() -> None:
    p = play()
    rescue = failed(p, "m1", A).rescue
    assert rescue is not None
    p.when(SessionCompacted(session=SessionId("s")))
    assert failed(p, "m1", A).ruling == "busy"
    assert advanced(p, rescue, "done")


def test_a_message_of_ours_is_not_redirected_away_from_the_trial_that_it_is() -> None:
    p = play()
    failed(p, "m0", B, session=SessionId("other"))
    p.at(1000)
    rescue = failed(p, "m1", A).rescue
    assert rescue is not None
    assert redirect(p, B) is None
    advanced(p, rescue, "done")
    assert redirect(p, B) is None


def test_a_redirect_that_is_a_trial_hands_its_lease_to_the_turn() -> None:
    p = play()
    failed(p, "m0", A, session=SessionId("other"))
    p.at(1000)
    assert redirect(p, A) is None
    assert redirect(p, A, session="s2") is None
    p.when(began("m1", A))
    message = p.session("s").message
    assert message is not None
    assert message.lease is not None
    p.when(TurnAnswered(session=SessionId("s"), message="m1", backend=A))
    assert redirect(p, A, session="s3") is None


def test_messages_are_redirected_inside_the_window_and_not_while_the_model_recovers() -> None:
    p = play()
    failed(p, "m0", A, session=SessionId("other"))
    for at, wanted in ((299, "b/m"), (300, None), (301, None), (899, None), (901, None)):
        p.at(at)
        assert redirect(p, A, session=f"s{at}") == wanted, at


def test_messages_are_redirected_from_a_model_that_is_paused_or_broken() -> None:
    p = play()
    p.when(HealthPaused(target=A))
    assert redirect(p, A, session="s1") == "b/m"
    p.when(HealthResumed(target=A), HealthMarked(target=A, reason="down", ttl_s=60))
    assert redirect(p, A, session="s2") == "b/m"
    p.at(61)
    assert redirect(p, A, session="s3") is None


def test_a_model_is_not_redirected_for_longer_than_its_provider_asked_for() -> None:
    p = play()
    failed(p, "m0", A, session=SessionId("other"), wait_s=2)
    assert redirect(p, A, session="s1") == "b/m"
    p.at(2)
    assert redirect(p, A, session="s2") is None
    p.at(4)
    assert p.seen(A).state == "healthy"


def test_messages_that_miss_the_redirect_lengthen_no_window() -> None:
    p = play()
    failed(p, "m0", A, session=SessionId("s0"))
    until_at = p.seen(A).until_at
    assert until_at is not None
    for number in range(1, 15):
        p.at(number * 10)
        failed(p, f"m{number}", A, session=SessionId(f"s{number}"))
    assert p.seen(A).until_at == until_at
    assert p.outage(A).count == 1


def test_a_wall_that_a_session_hits_is_one_for_every_program_on_that_account() -> None:
    codex = Backend(id=BackendId("codex"), kind="codex", quota="plan")
    made = policy_of(codex, roles={"build": ["b/m"]})
    p = Playbook(structs.replace(made, served=SERVED, quotas={"a": "plan"}))
    failed(p, "m1", A, reason=Reason.USAGE_LIMIT)
    assert p.seen("quota:plan").state == "rate_limited"
    assert redirect(p, A, session="s2") == "b/m"


def test_usage_is_counted_once_for_each_message() -> None:
    p = play()
    p.when(began("m1", A))
    used = TurnUsed(
        session=SessionId("s"),
        message="m2",
        backend=A,
        usage=Usage(input_tokens=3, output_tokens=4),
        at=p.wall,
    )
    p.when(used, used)
    assert p.session("s").usage == ((A, Usage(input_tokens=3, output_tokens=4)),)


# --- projects ------------------------------------------------------------------------------------


def role(*models: str, **more: Any) -> Role:
    return Role(name="build", chain=tuple(Entry(backend=BackendId(m)) for m in models), **more)


def test_the_nearest_file_wins() -> None:
    policy = Policy(
        roles={"build": role("b/m")},
        projects={
            "": Project(roles={"build": role("a/m"), "plan": role("a/m")}),
            "/work": Project(roles={"build": role("c/m")}),
        },
    )
    assert in_project(policy, "/work").roles["build"].chain[0].backend == C
    assert in_project(policy, "/else").roles["build"].chain[0].backend == B
    assert in_project(policy, "/else").roles["plan"].chain[0].backend == A


def test_a_project_that_is_switched_off_is_left_alone() -> None:
    p = play()
    p.policy = structs.replace(p.policy, projects={"/work": Project(enabled=False)})
    assert failed(p, "m1", A, project="/work").ruling == "switched_off"
    assert p.seen(A).state == "rate_limited", "what is known of models is for everybody"
    assert failed(p, "m2", A, session=SessionId("s2"), project="/else").ruling == "rescue"


def test_sessions_are_protected_where_some_agent_has_a_chain_that_servers_know() -> None:
    own = Project(roles={"build": role("b/m")})
    off = Project(enabled=False, roles={"build": role("b/m")})
    agents = Policy(chains={"*": (Entry(backend=BackendId("codex")),)})
    assert why_unprotected(Policy()) == "no_chain"
    assert why_unprotected(agents) == "no_chain"
    assert why_unprotected(Policy(roles={"build": role("b/m", enabled=False)})) == "no_chain"
    assert why_unprotected(Policy(roles={"build": role("b/m")})) is None
    assert why_unprotected(Policy(chains={"a/m": role("b/m").chain})) is None
    assert why_unprotected(Policy(chains={"*": role("b/m").chain})) is None
    assert why_unprotected(Policy(chains={"nightly": role("b/m").chain})) == "no_chain"
    policy = Policy(projects={"/work": own, "/off": off})
    found = {one: why_unprotected(in_project(policy, one)) for one in ("/work", "/off", "/else")}
    assert found == {"/work": None, "/off": "switched_off", "/else": "no_chain"}


def test_a_turn_that_fails_without_a_chain_is_announced_once_for_each_message() -> None:
    p = play()
    p.policy = structs.replace(p.policy, roles={})
    assert failed(p, "m1", A).ruling == "no_chain"
    assert failed(p, "m1", A).ruling == "no_chain"
    assert notices(p) == ["failed"]
    assert failed(p, "m2", A).ruling == "no_chain"
    assert notices(p) == ["failed", "failed"]


def test_of_several_files_that_name_a_model_the_longest_window_counts() -> None:
    def project(window_s: float) -> Project:
        reason = structs.replace(REASONS[LIMIT], window_s=window_s, cooldown_s=0.0)
        return Project(roles={"build": role("a/m")}, reasons={LIMIT: reason})

    windows = longest_windows([project(60), project(120), project(90)])
    assert windows[A][LIMIT].window_s == 120
    p = play()
    p.policy = structs.replace(p.policy, windows=windows)
    failed(p, "m1", A)
    assert p.outage(A).until_at == p.wall + 120


def test_a_model_that_was_never_out_is_not_announced_as_back() -> None:
    p = play()
    rescued(p, "m1", A, reason=Reason.CONTENT_POLICY)
    p.when(TurnEnded(session=SessionId("s")))
    assert notices(p) == ["fallback"]


def test_the_same_change_is_told_once_in_a_session() -> None:
    p = play()
    for number in range(3):
        rescued(p, f"m{number}", A)
        p.when(TurnEnded(session=SessionId("s")))
        p.at(p.now + 20_000)
        p.when(began(f"n{number}", A))
        p.when(TurnEnded(session=SessionId("s")))
    assert notices(p).count("fallback") == 1


def large(backends: dict[BackendId, Backend]) -> Playbook:
    return Playbook(structs.replace(play().policy, backends=backends))


def test_an_overflow_moves_to_a_larger_context_or_says_that_there_is_none() -> None:
    sizes = {A: 100_000, B: 50_000, C: 200_000}
    backends = {
        one: Backend(id=one, kind="opencode", model=one, context_tokens=size)
        for one, size in sizes.items()
    }
    p = large(backends)
    assert failed(p, "m1", A, reason=Reason.CONTEXT_OVERFLOW).rescue.to == C  # type: ignore[union-attr]
    p = large(backends)
    assert failed(p, "m1", C, reason=Reason.CONTEXT_OVERFLOW).ruling == "exhausted"
    assert notices(p) == ["failed"]


def test_an_old_rescue_is_not_continued() -> None:
    p = play()
    rescue = failed(p, "m1", A).rescue
    assert rescue is not None
    p.at(p.now + 59)
    assert advanced(p, rescue, "resumed")
    for _ in range(10):
        assert advanced(p, rescue, "revert")
        p.at(p.now + 55)
    assert not advanced(p, rescue, "prompt")
    assert p.session("s").rescue is None
    assert notices(p) == ["failed"]
