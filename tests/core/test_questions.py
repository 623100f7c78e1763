"""Choices that only a person may make: when one is asked for, and what comes of the answer."""

from typing import Any

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
    started,
    starts,
    succeeded,
)

from fallbackd.core.callers.lease import Resolution
from fallbackd.core.decide import decide
from fallbackd.core.events import (
    CancelRequested,
    HealthMarked,
    QuestionAnswered,
    ResolveRequested,
    Ticked,
)
from fallbackd.core.ids import BackendId, DelegationId, SessionId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Role, RoleKind
from fallbackd.core.reasons import Reason
from fallbackd.core.records import AnsweredBy, HandedBack, Question, delegation_asking


def backend(name: str, **more: Any) -> Backend:
    return Backend(id=BackendId(name), kind="codex", **more)


def entry(name: str, **more: Any) -> Entry:
    return Entry(backend=BackendId(name), **more)


def role(kind: RoleKind | None, *chain: str | Entry, **more: Any) -> Role:
    entries = tuple(one if isinstance(one, Entry) else entry(one) for one in chain)
    return Role(name="judge", kind=kind, chain=entries, **more)


def of(made: Role, *backends: str | Backend, **defaults: Any) -> Playbook:
    return Playbook(policy_of(*backends, roles={"judge": made}, **defaults))


def adversary(**more: Any) -> Playbook:
    """A judge whose service needs a repair, with somebody else behind it."""
    play = of(role("adversarial", "codex", "gemini", **more), "codex", "gemini")
    return play.when(HealthMarked(target="codex", reason="auth", ttl_s=100_000))


def question(play: Playbook, name: str = "d1") -> Question:
    found = play.delegation(name).question
    assert found is not None
    return found


def choose(choice: str, *, of: str = "d1.q1", note: str | None = None) -> QuestionAnswered:
    return QuestionAnswered(
        question=of,
        delegation=DelegationId(of.rpartition(".")[0]),
        choice=choice,
        note=note,
        uid=1000,
        pid=77,
    )


def choices(play: Playbook, name: str = "d1") -> list[str]:
    return [one.choice for one in question(play, name).options]


# --- a service that is out ---------------------------------------------------------------------


def test_a_service_that_is_out_is_not_replaced_in_silence() -> None:
    play = adversary().when(delegate("d1", role="judge")).then()
    found = play.delegation("d1")
    assert (found.state, found.attempts) == ("awaiting_answer", ())
    assert question(play).kind == "outage"
    assert choices(play) == ["use:gemini", "wait", "skip", "hand_back", "stop"]
    [told] = play.noted("question.opened")
    assert told.fields["question"] == "d1.q1"
    assert [one.fields["notice"] for one in play.noted("session.notice")] == ["outage"]
    assert play.session("s-d1").running == "d1"


def test_no_time_answers_it() -> None:
    play = adversary().when(delegate("d1", role="judge"))
    for minute in range(1000):
        play.at(60.0 * minute)
        play.when(Ticked())
    play.restart().resume("d1", boot="next").then()
    assert play.delegation("d1").state == "awaiting_answer"
    assert question(play).is_open


def test_the_deadline_of_a_question_ends_the_work_where_one_is_set() -> None:
    play = adversary(question_timeout_s=60).when(delegate("d1", role="judge"))
    assert question(play).deadline_at == T0 + 60
    play.at(59).then()
    play.restart().resume("d1", boot="next")
    play.at(60).then(answers("d1"))
    found = play.delegation("d1")
    assert found.state == "refused"
    assert found.questions[0].choice is None
    assert not found.questions[0].is_open


def test_the_deadline_of_the_work_holds_while_a_person_is_asked() -> None:
    play = adversary().when(delegate("d1", role="judge", timeout_s=30)).at(30)
    found = play.delegation("d1")
    assert found.failure is not None
    assert (found.state, found.failure.detail) == ("failed", "deadline")


def test_a_person_may_let_another_backend_do_it() -> None:
    play = adversary().when(delegate("d1", role="judge")).then()
    play.when(choose("use:gemini", note="release today")).then(starts("d1.1", "gemini"))
    answered = play.decision.answer
    assert isinstance(answered, Question)
    assert answered.answered_by == AnsweredBy(uid=1000, pid=77)
    assert (answered.choice, answered.note, answered.answered_at) == (
        "use:gemini", "release today", T0)  # fmt: skip
    [hop] = play.delegation("d1").hops
    assert (hop.from_backend, hop.to_backend, hop.trigger) == ("codex", "gemini", "manual")
    play.when(succeeded("d1.1")).then(answers("d1"))
    assert play.delegation("d1").served_by == "gemini"
    [told] = play.noted("question.answered")
    assert told.fields["answered_by"] == {"uid": 1000, "pid": 77, "attempt": None}


@pytest.mark.parametrize(
    ("choice", "state"), [("stop", "cancelled"), ("skip", "refused"), ("hand_back", "handed_back")]
)
def test_a_person_may_end_it(choice: str, state: str) -> None:
    play = adversary().when(delegate("d1", role="judge")).then()
    play.when(choose(choice)).then(answers("d1"))
    found = play.delegation("d1")
    assert (found.state, found.attempts, found.served_by) == (state, (), None)
    assert found.questions[0].choice == choice
    assert play.session("s-d1").running is None


def test_what_is_handed_back_names_the_model_of_the_chain() -> None:
    made = role("adversarial", "codex", entry("in-session", tier="in_session", model="opus"))
    play = of(made, "codex", Backend(id=BackendId("in-session"), kind=IN_SESSION_KIND))
    play.when(HealthMarked(target="codex", reason="auth"), delegate("d1", role="judge"))
    play.when(choose("hand_back"))
    assert play.delegation("d1").handed_back == HandedBack(model="opus")


def test_the_first_answer_counts() -> None:
    play = adversary().when(delegate("d1", role="judge"), choose("stop"))
    play.when(choose("use:gemini"))
    assert play.decision.rejection is not None
    assert play.decision.rejection.kind == "answered"
    assert play.decision.changes == ()
    assert play.delegation("d1").state == "cancelled"


@pytest.mark.parametrize(("choice", "is_taken"), [("use:gemini", False), ("stop", True)])
def test_a_daemon_that_drains_takes_no_answer_that_starts_something(
    choice: str, is_taken: bool
) -> None:
    play = adversary().when(delegate("d1", role="judge"))
    event = choose(choice)
    seen = structs.replace(play.memory.snapshot(event), draining=True)
    decision = decide(seen, event, play.policy, now=play.wall)
    assert (decision.rejection is None) == is_taken


def test_only_what_is_offered_can_be_chosen() -> None:
    play = adversary().when(delegate("d1", role="judge"), choose("use:codex"))
    assert play.decision.rejection is not None
    assert play.decision.rejection.kind == "choice"
    assert question(play).is_open


@pytest.mark.parametrize("name", ["d1.q2", "d2.q1"])
def test_a_question_that_nobody_asked_is_unknown(name: str) -> None:
    play = adversary().when(delegate("d1", role="judge"), choose("stop", of=name))
    assert play.decision.rejection is not None
    assert play.decision.rejection.kind == "unknown_question"


@pytest.mark.parametrize("name", ["", "d1", "q1", ".q1", "d1.q0", "d1.q1 "])
def test_not_every_word_is_the_name_of_a_question(name: str) -> None:
    assert delegation_asking(name) is None


def test_cancelling_closes_the_question() -> None:
    play = adversary().when(delegate("d1", role="judge"))
    play.when(CancelRequested(delegation=DelegationId("d1"))).then(answers("d1"))
    assert play.delegation("d1").question is None
    play.when(choose("use:gemini")).then()
    assert play.decision.rejection is not None


def test_waiting_goes_on_by_itself_when_the_service_is_back() -> None:
    play = of(role("adversarial", "codex", "gemini"), "codex", "gemini")
    play.when(HealthMarked(target="codex", reason="auth", ttl_s=400))
    play.when(delegate("d1", role="judge"), choose("wait")).then()
    assert play.delegation("d1").state == "waiting"
    play.at(399).when(HealthMarked(target="gemini", ttl_s=0)).then()
    play.at(400).then(starts("d1.1", "codex"))
    assert play.delegation("d1").attempts[0].trial


def test_who_chose_to_wait_is_asked_again_where_the_service_stays_out() -> None:
    play = adversary().when(delegate("d1", role="judge"), choose("wait"))
    play.at(10).when(HealthMarked(target="codex", reason="billing", ttl_s=500_000))
    play.at(100_000).then()
    assert question(play).question == "d1.q2"
    assert [one.choice for one in play.delegation("d1").questions] == ["wait", None]


def crashing(*chain: str) -> Playbook:
    """A judge whose first service has crashed three times in a row: out for 240 s."""
    play = of(role("adversarial", *chain), *chain)
    for number, at in enumerate((0, 70, 200)):
        play.at(at).when(delegate(f"x{number}", backend=chain[0], failover=False))
        play.when(failed(f"x{number}.1", fail(Reason.CRASH, at=at)))
    play.then_whatever()
    return play


def test_waiting_lasts_until_the_trial_of_the_service_is_due() -> None:
    play = crashing("codex", "gemini").when(delegate("d1", role="judge"), choose("wait"))
    play.at(200 + 299).then()
    assert [one.choice for one in play.delegation("d1").questions] == ["wait"]
    play.at(200 + 300).then(starts("d1.1", "codex"))
    assert play.delegation("d1").attempts[0].trial


@pytest.mark.parametrize("choice", [None, "wait"])
def test_work_goes_on_when_other_work_was_served_by_the_recovered_service(
    choice: str | None,
) -> None:
    play = crashing("codex", "gemini").when(delegate("d1", role="judge"))
    if choice is not None:
        play.when(choose(choice))
    play.at(460).when(delegate("d2", backend="codex")).then(starts("d2.1", "codex"))
    play.when(succeeded("d2.1")).then(answers("d2"), starts("d1.1", "codex"))
    assert play.delegation("d1").question is None
    assert not play.delegation("d1").attempts[0].trial
    assert play.when(choose("skip")).decision.rejection is not None


def test_the_end_of_a_window_alone_closes_no_question() -> None:
    play = crashing("codex", "gemini").when(delegate("d1", role="judge"))
    play.at(5000).when(HealthMarked(target="gemini", ttl_s=0)).then()
    assert question(play).question == "d1.q1"


def test_a_choice_that_fails_is_asked_about_again() -> None:
    play = adversary().when(delegate("d1", role="judge"), choose("use:gemini"))
    play.when(failed("d1.1", fail(Reason.BILLING)))
    assert question(play).question == "d1.q2"
    assert "use:gemini" not in choices(play)


def test_a_choice_that_became_impossible_is_asked_about_again() -> None:
    play = adversary().when(delegate("d1", role="judge"))
    play.when(HealthMarked(target="gemini", reason="auth"), choose("use:gemini"))
    assert question(play).question == "d1.q2"


# --- which outages, and which roles ------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "state", "detail"),
    [
        ("creative", "refused", "outage_stop"),
        ("adversarial", "awaiting_answer", None),
        ("validator", "awaiting_answer", None),
        ("utility", "running", None),
        (None, "running", None),
    ],
)
def test_each_kind_of_role_has_a_rule_for_outages(
    kind: RoleKind | None, state: str, detail: str | None
) -> None:
    play = of(role(kind, "codex", "gemini"), "codex", "gemini")
    play.when(HealthMarked(target="codex", reason="auth"), delegate("d1", role="judge"))
    found = play.delegation("d1")
    assert found.state == state
    assert (found.failure.detail if found.failure else None) == detail


def test_a_role_that_skips_says_so_and_when_to_come_back() -> None:
    play = of(role("validator", "codex", on_outage="skip"), "codex")
    play.when(HealthMarked(target="codex", reason="auth", ttl_s=700), delegate("d1", role="judge"))
    found = play.delegation("d1")
    assert found.failure is not None
    assert (found.state, found.failure.detail) == ("refused", "skipped")
    assert found.retry_at == T0 + 700


@pytest.mark.parametrize("reason", ["rate_limit", "usage_limit"])
def test_a_throttle_is_no_outage(reason: str) -> None:
    play = of(role("adversarial", "codex", "gemini"), "codex", "gemini")
    for _ in range(4):
        play.when(HealthMarked(target="codex", reason=reason))
    play.when(delegate("d1", role="judge")).then(starts("d1.1", "gemini"))


def test_three_failures_in_a_row_are_an_outage_and_one_trial_comes_after_five_minutes() -> None:
    play = of(role("adversarial", "svc"), "svc", max_fallback_depth=1)
    for number in range(3):
        name = f"u{number}"
        play.at(play.now + 200).when(delegate(name, backend="svc"))
        play.when(failed(f"{name}.1", fail(Reason.STALLED)))
    last = play.now
    play.at(last + 299).when(delegate("d1", role="judge"))
    assert play.delegation("d1").state == "awaiting_answer"
    play.at(last + 301)
    names = [f"n{number}" for number in range(10)]
    for name in names:
        play.when(delegate(name, role="judge"))
    made = [one for name in names for one in play.delegation(name).attempts]
    assert [one.trial for one in made] == [True]
    play.when(failed(made[0].attempt, fail(Reason.STALLED)))
    assert [play.delegation(name).state for name in names] == ["awaiting_answer"] * 10


def test_what_failed_less_often_is_left_without_a_question() -> None:
    play = of(role("adversarial", "codex", "gemini"), "codex", "gemini")
    play.when(delegate("d1", role="judge"), failed("d1.1", fail(Reason.STALLED)))
    assert play.delegation("d1").active == "gemini"


def test_an_outage_that_shows_itself_in_the_attempt_is_asked_about_too() -> None:
    play = of(role("adversarial", "codex", "gemini"), "codex", "gemini")
    play.when(delegate("d1", role="judge"), failed("d1.1", fail(Reason.AUTH)))
    assert choices(play)[0] == "use:gemini"
    play.when(choose("use:gemini"), succeeded("d1.2"))
    assert [one.trigger for one in play.delegation("d1").hops] == ["manual"]


def test_the_tiers_of_a_throttle_are_gone_through_although_one_of_them_is_out() -> None:
    made = role("validator", "primary", entry("api", tier="api"), "in-session")
    play = of(made, "primary", "api", Backend(id=BackendId("in-session"), kind=IN_SESSION_KIND))
    play.when(HealthMarked(target="api", reason="auth"), delegate("d1", role="judge"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT)))
    assert play.delegation("d1").state == "handed_back"


def test_nobody_else_writes_in_the_place_of_a_creative_role() -> None:
    made = role("creative", "claude", "codex", on_outage="ask")
    play = of(made, backend("claude", family="claude"), backend("codex", family="gpt"))
    play.when(delegate("d1", role="judge"), failed("d1.1", fail(Reason.RATE_LIMIT)))
    assert choices(play)[0] == "use:codex"


def test_the_same_family_may_write_for_a_creative_role() -> None:
    made = role("creative", "claude", "router")
    play = of(
        made,
        backend("claude", family="claude"),
        backend("router", model="anthropic/claude-opus-4"),
    )
    play.when(delegate("d1", role="judge"), failed("d1.1", fail(Reason.RATE_LIMIT)))
    assert play.delegation("d1").active == "router"


# --- families ----------------------------------------------------------------------------------

WRITERS = (backend("claude", family="claude"), backend("codex", family="gpt"))


def court(*chain: str | Entry, **more: Any) -> Playbook:
    """Somebody writes, and a judge who must not be of his family looks at it."""
    judge = role(
        "adversarial", *(chain or ("codex", "claude")), must_differ_from=("author",), **more
    )
    build = Role(name="build", kind="creative", chain=(entry("claude"),))
    everybody = (*WRITERS, "unknown", Backend(id=BackendId("in-session"), kind=IN_SESSION_KIND))
    play = Playbook(policy_of(*everybody, roles={"judge": judge, "build": build}))
    return play.when(delegate("w1", session="s", role="build"), succeeded("w1.1"))


def test_a_verdict_comes_from_another_family_than_the_work() -> None:
    play = court("claude", "codex").when(delegate("d1", session="s", role="judge"))
    found = play.delegation("d1")
    assert found.active == "codex"
    assert [one.verdict for one in found.verdicts] == ["must_differ", "chosen"]


@pytest.mark.parametrize(
    ("asked", "gives"),
    [
        ({}, "claude"),
        ({"lease": "l1"}, None),
        ({"session": "t"}, None),
        ({"session": "s"}, "codex"),
    ],
)
def test_without_a_conversation_there_is_no_author_but_for_whoever_makes_the_call(
    asked: dict[str, Any], gives: str | None
) -> None:
    play = court("claude", "codex").when(ResolveRequested(role="judge", **asked))
    found = play.decision.answer
    assert isinstance(found, Resolution)
    assert found.backend == gives


def test_a_judge_of_the_family_of_the_author_is_a_question_and_no_verdict() -> None:
    play = court().when(HealthMarked(target="codex", reason="rate_limit", ttl_s=9000))
    play.then_whatever()
    play.when(delegate("d1", session="s", role="judge")).then()
    assert question(play).kind == "must_differ"
    assert choices(play) == ["use:claude", "wait", "skip", "hand_back", "stop"]
    play.when(choose("use:claude")).then(starts("d1.1", "claude"))


def test_the_family_must_differ_at_every_tier() -> None:
    play = court("codex", entry("in-session", tier="in_session", model="opus"))
    play.when(HealthMarked(target="codex", reason="rate_limit", ttl_s=9000))
    play.when(delegate("d1", session="s", role="judge"))
    assert question(play).kind == "must_differ"
    assert choices(play) == ["wait", "skip", "hand_back", "stop"]


def test_an_unknown_family_differs_from_nobody() -> None:
    play = court("unknown").when(delegate("d1", session="s", role="judge"))
    assert question(play).kind == "must_differ"


def test_without_an_author_a_person_is_asked() -> None:
    play = court().when(delegate("d1", session="elsewhere", role="judge"))
    assert question(play).kind == "must_differ"
    assert "wait" not in choices(play)


def test_the_request_may_name_whom_to_differ_from() -> None:
    play = court().when(delegate("d1", session="elsewhere", role="judge", differs_from=("gpt",)))
    assert play.delegation("d1").active == "claude"
    play.when(delegate("d2", session="third", backend="codex", differs_from=("gpt",)))
    assert question(play, "d2").kind == "must_differ"


def offered(play: Playbook, choice: str) -> str:
    return next(one.text for one in question(play).options if one.choice == choice)


def test_the_question_about_an_outage_names_the_family_that_must_differ() -> None:
    play = court().when(HealthMarked(target="codex", reason="auth"))
    play.when(delegate("d1", session="s", role="judge"))
    assert question(play).kind == "outage"
    assert offered(play, "use:claude") == "let claude do it (of the author's family claude)"
    assert question(play).text.endswith(
        "By the rules they may not: claude is of the author's family claude."
    )


def test_the_question_about_an_outage_names_what_costs_money() -> None:
    made = role("validator", "codex", "met", "free")
    play = of(made, "codex", backend("met", cost="metered"), "free")
    play.when(HealthMarked(target="codex", reason="auth"), delegate("d1", role="judge"))
    assert question(play).kind == "outage"
    assert offered(play, "use:met") == "let met do it (metered)"
    assert offered(play, "use:free") == "let free do it"
    assert question(play).text.endswith("By the rules they may not: met is metered.")


@pytest.mark.parametrize(
    ("rules", "name", "said"),
    [
        ({"must_differ_from": ("gpt",)}, "codex2", "of the family gpt, which this role rules out"),
        ({"must_differ_from": ("gpt",)}, "dark", "of an unknown model family, perhaps that of"),
        ({"must_differ_from": ("author",)}, "codex2", "of the family gpt, perhaps that of the"),
        ({}, "codex2", "let codex2 do it"),
    ],
)
def test_each_choice_says_why_the_rules_forbid_it(
    rules: dict[str, Any], name: str, said: str
) -> None:
    made = role("adversarial", "codex", "codex2", "dark", **rules)
    play = of(made, "codex", backend("codex2", family="gpt"), "dark")
    play.when(HealthMarked(target="codex", reason="auth"), delegate("d1", role="judge"))
    assert said in offered(play, f"use:{name}")


# --- money -------------------------------------------------------------------------------------

PAID = (backend("plan", cost="subscription"), backend("paid", cost="metered"))


def purse(*, local: bool = False, **more: Any) -> Playbook:
    chain = ["paid", "local"] if local else ["paid"]
    play = Playbook(
        policy_of(*PAID, backend("local", cost="local"), chains={"plan": chain}, **more)
    )
    return play.when(HealthMarked(target="plan", reason="usage_limit", ttl_s=7200))


def test_a_plan_that_is_used_up_does_not_begin_to_cost_money_by_itself() -> None:
    play = purse().when(delegate("d1", backend="plan", mode="batch")).then(answers("d1"))
    found = play.delegation("d1")
    assert (found.state, found.attempts, found.retry_at) == ("refused", (), T0 + 7200)
    assert [one.verdict for one in found.verdicts] == ["rate_limited", "consent"]


def test_somebody_who_costs_nothing_is_used_instead() -> None:
    play = purse(local=True).when(delegate("d1", backend="plan"))
    assert play.delegation("d1").active == "local"


def test_the_consent_of_the_request_is_enough() -> None:
    play = purse(local=True).when(delegate("d1", backend="plan", allow_metered=True))
    assert play.delegation("d1").active == "paid"


def test_the_consent_of_the_role_is_enough() -> None:
    made = role(None, "plan", "paid", allow_metered=True)
    play = of(made, *PAID).when(HealthMarked(target="plan", reason="usage_limit"))
    play.when(delegate("d1", role="judge"))
    assert play.delegation("d1").active == "paid"


def test_who_asks_for_a_metered_backend_has_agreed() -> None:
    play = purse().when(delegate("d1", backend="paid"))
    assert play.delegation("d1").active == "paid"


def test_a_person_who_waits_for_the_answer_is_asked() -> None:
    play = purse().when(delegate("d1", backend="plan", mode="interactive"))
    assert question(play).kind == "consent"
    assert choices(play)[0] == "use:paid"
    play.when(choose("use:paid"), succeeded("d1.1"))
    assert play.delegation("d1").served_by == "paid"


# --- work that was begun -----------------------------------------------------------------------


def test_a_person_says_who_goes_on_where_files_were_changed() -> None:
    play = Playbook(policy_of("a", "b", chains={"a": ["b"]}))
    play.when(delegate("d1", backend="a", on_partial="ask"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT), effects="seen", changed_files=("x.py",)))
    assert question(play).kind == "partial"
    assert choices(play) == ["use:b", "skip", "hand_back", "stop"]
    play.then_whatever()
    play.when(choose("use:b")).then(starts("d1.2", "b"))


def test_what_changed_nothing_is_not_asked_about() -> None:
    play = Playbook(policy_of("a", "b", chains={"a": ["b"]}))
    play.when(delegate("d1", backend="a", on_partial="ask"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT)))
    assert play.delegation("d1").active == "b"


def test_a_question_below_ends_with_what_asked_for_it() -> None:
    play = Playbook(policy_of(*PAID, "top", chains={"plan": ["paid"]})).when(
        HealthMarked(target="plan", reason="usage_limit"), delegate("t1", backend="top")
    )
    play.when(delegate("d1", backend="plan", mode="interactive", parent="t1"))
    assert question(play).is_open
    play.when(succeeded("t1.1"))
    assert play.delegation("d1").state == "cancelled"
    assert play.delegation("t1").state == "succeeded"
    assert play.answered == ["d1", "t1"]


def test_the_clock_moves_the_deadline_of_a_question_with_it() -> None:
    play = adversary(question_timeout_s=60).when(delegate("d1", role="judge"))
    play.step_clock(5000)
    assert question(play).deadline_at == T0 + 5060


# --- callers that talk to providers themselves -------------------------------------------------


def test_who_asks_is_not_sent_past_a_service_that_is_out() -> None:
    play = adversary().when(ResolveRequested(role="judge"))
    found = play.decision.answer
    assert isinstance(found, Resolution)
    assert found.backend is None


def test_who_asks_is_told_whom_consent_and_family_forbid() -> None:
    play = purse().when(ResolveRequested(backend=BackendId("plan")))
    found = play.decision.answer
    assert isinstance(found, Resolution)
    assert (found.backend, [one.verdict for one in found.candidates]) == (
        None, ["rate_limited", "consent"])  # fmt: skip
    play.when(ResolveRequested(backend=BackendId("plan"), allow_metered=True))
    assert isinstance(play.decision.answer, Resolution)
    assert play.decision.answer.backend == "paid"
    play = court().when(ResolveRequested(role="judge", session=SessionId("s")))
    assert isinstance(play.decision.answer, Resolution)
    assert play.decision.answer.backend == "codex"


def test_a_question_stays_open_while_what_was_begun_inside_the_attempt_is_stopped() -> None:
    play = Playbook(policy_of("a", "b", chains={"*": ["a", "b"]}))
    play.when(delegate("d1", backend="a", on_partial="ask")).when(started("d1.1"))
    play.when(delegate("d2", backend="b", parent="d1", parent_attempt="d1.1"))
    play.when(failed("d1.1", fail(Reason.AUTH), effects="seen"))
    found = play.delegation("d1")
    assert (found.state, question(play).is_open) == ("awaiting_answer", True)
    play.when(Ticked())
    assert play.delegation("d1").state == "awaiting_answer"


def test_the_trial_of_a_service_that_was_out_is_no_way_to_write_in_the_place_of_another() -> None:
    writer = role("creative", "a", "b", on_outage="ask")
    play = of(writer, "a", "b")
    play.when(delegate("d0", backend="b")).when(failed("d0.1", fail(Reason.BILLING)))
    play.then_whatever()
    play.at(100_000)
    play.when(HealthMarked(target="a", reason="rate_limit", ttl_s=500))
    play.when(delegate("d2", role="judge"))
    found = play.delegation("d2")
    assert [one.backend for one in found.attempts] == []
    assert found.state == "awaiting_answer"
