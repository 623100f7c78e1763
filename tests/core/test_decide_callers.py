"""Playbooks: callers that make the call themselves: resolve, lease, report."""

from typing import Any, Literal

import pytest
from tests.support.playbook import (
    T0,
    Playbook,
    answers,
    delegate,
    entry,
    fail,
    failed,
    policy_of,
    starts,
    succeeded,
)

from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import HealthMarked, Reported, ResolveRequested
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, BackendId, SessionId
from fallbackd.core.policy import Backend, Entry, Role
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason

ABC = policy_of("a", "b", "c", chains={"a": ["b", "c"]}, roles={"r": ["a", "b"]})


def resolved(play: Playbook, **asked: object) -> Resolution:
    asked.setdefault("backend", None if "role" in asked or "session" in asked else BackendId("a"))
    found = play.when(ResolveRequested(**asked)).decision.answer  # type: ignore[arg-type]
    assert isinstance(found, Resolution)
    return found


def report(play: Playbook, outcome: str = "failure", **said: object) -> ReportAnswer:
    said.setdefault("backend", BackendId("a"))
    if outcome == "failure":
        said.setdefault("failure", fail(Reason.RATE_LIMIT, at=play.now))
    found = play.when(Reported(outcome=outcome, **said)).decision.answer  # type: ignore[arg-type]
    assert isinstance(found, ReportAnswer)
    return found


def out(play: Playbook, name: str, failure: Failure) -> None:
    play.when(delegate(f"x{name}", backend=name, failover=False))
    play.when(failed(f"x{name}.1", failure)).then_whatever()


LEASE, OTHER = AttemptId("lease-1"), AttemptId("lease-2")
S = SessionId("s")


def test_resolve_tells_what_would_be_used_and_changes_nothing() -> None:
    play = Playbook(ABC)
    found = resolved(play)
    assert (found.backend, found.trigger, found.lease_id) == ("a", None, None)
    assert [one.backend for one in found.candidates] == ["a", "b", "c"]
    assert play.decision.changes == ()


def test_resolve_tells_a_redirect_and_who_is_back_first() -> None:
    play = Playbook(ABC)
    out(play, "a", fail(Reason.AUTH))
    assert (resolved(play).backend, resolved(play).trigger) == ("b", "preemptive")
    for name in "bc":
        out(play, name, fail(Reason.CRASH))
    found = resolved(play)
    assert (found.backend, found.retry_at) == (None, T0 + 60)


def test_an_unknown_backend_is_rejected() -> None:
    for event in (
        ResolveRequested(backend=BackendId("x")),
        Reported(outcome="success", backend=BackendId("x")),
    ):
        rejection = Playbook(ABC).when(event).decision.rejection
        assert rejection is not None
        assert rejection.kind == "unknown_backend"


def test_a_failure_that_is_reported_names_the_scope_that_it_has_marked() -> None:
    play = Playbook(policy_of("a"))
    reported = Reported(
        outcome="failure", backend=BackendId("a"), failure=fail(Reason.CRASH), luck=0.5
    )
    answer = play.when(reported).decision.answer
    assert isinstance(answer, ReportAnswer)
    assert answer.failure is not None
    assert answer.failure.scope == "backend:a"


def test_a_lease_is_given_where_a_trial_is_needed_and_only_one() -> None:
    play = Playbook(policy_of("a"))
    assert resolved(play, lease=LEASE).lease_id is None
    out(play, "a", fail(Reason.CRASH))
    play.at(61)
    first = resolved(play, lease=LEASE)
    assert (first.lease_id, first.lease_expires_at) == (LEASE, T0 + 61 + 600)
    assert resolved(play, lease=OTHER).backend is None


def test_a_lease_that_ran_out_neither_blocks_nor_misleads() -> None:
    play = Playbook(policy_of("a"))
    out(play, "a", fail(Reason.CRASH))
    first = resolved(play.at(61), lease=LEASE)
    second = resolved(play.at(61 + 601), lease=OTHER)
    assert second.lease_generation is not None
    assert first.lease_generation is not None
    assert second.lease_generation > first.lease_generation
    before = play.health("a")
    assert report(play, lease=LEASE).ignored
    assert report(play, attempt=LEASE).ignored
    assert play.health("a") == before
    report(play, "success", lease=OTHER)
    assert play.seen("a").state == "healthy"
    assert not play.seen("a").unproven


def test_a_lease_that_is_given_back_is_free() -> None:
    play = Playbook(policy_of("a"))
    out(play, "a", fail(Reason.CRASH))
    resolved(play.at(61), lease=LEASE)
    report(play, "released", lease=LEASE)
    assert resolved(play, lease=OTHER).lease_id == OTHER


def test_a_trial_is_over_when_its_provider_begins_to_answer_and_the_call_goes_on() -> None:
    play = Playbook(policy_of("a"))
    out(play, "a", fail(Reason.CRASH))
    resolved(play.at(61), lease=LEASE)
    report(play.at(62), "answered", lease=LEASE, started_at=T0 + 61)
    other = resolved(play, lease=OTHER)
    assert (other.backend, other.lease_id) == ("a", None)
    report(play.at(70), failure=fail(Reason.CRASH, at=70), started_at=T0 + 61)
    assert play.outage("a").count == 1
    assert resolved(play).backend is None


def test_the_beginning_of_an_answer_whose_lease_ran_out_proves_nothing() -> None:
    play = Playbook(policy_of("a"))
    out(play, "a", fail(Reason.CRASH))
    resolved(play.at(61), lease=LEASE)
    assert report(play.at(61 + 601), "answered", lease=LEASE, started_at=T0 + 61).ignored
    assert resolved(play, lease=OTHER).lease_id == OTHER


@pytest.mark.parametrize("credential", ["k1", "k2"])
def test_a_call_can_be_asked_for_with_one_credential_alone(credential: str) -> None:
    policy = policy_of(Backend(id=BackendId("a"), kind="k", credentials=("k1", "k2")))
    play = Playbook(policy)
    assert resolved(play, credential=credential, lease=LEASE).credential == credential
    limit = fail(Reason.USAGE_LIMIT, at=play.now)
    report(play, failure=limit, credential=credential)
    assert resolved(play, credential=credential).backend is None
    assert resolved(play).credential == {"k1": "k2", "k2": "k1"}[credential]


def test_a_failure_under_the_lease_counts() -> None:
    play = Playbook(policy_of("a"))
    out(play, "a", fail(Reason.CRASH))
    resolved(play.at(61), lease=LEASE)
    report(play, lease=LEASE, failure=fail(Reason.CRASH, at=61), started_at=T0 + 61)
    assert play.outage("a").count == 2


def test_a_delegation_waits_for_the_trial_of_a_caller() -> None:
    play = Playbook(policy_of("a"))
    out(play, "a", fail(Reason.CRASH))
    resolved(play.at(61), lease=LEASE)
    play.when(delegate("d1", backend="a")).then()
    report(play.at(65), "success", lease=LEASE)
    play.then(starts("d1.1", "a"))


def test_a_report_marks_and_names_the_next() -> None:
    play = Playbook(ABC)
    found = report(play, session=S)
    assert found.next is not None
    assert found.next.backend == "b"
    session = play.session("s")
    assert (session.original, session.current, session.depth) == ("a", "b", 1)
    assert play.seen("a").state == "rate_limited"
    assert play.noted("session.notice")[0].fields["to"] == "b"


def test_a_report_without_a_time_of_its_start_is_not_counted_twice() -> None:
    play = Playbook(ABC)
    for at in (0, 1, 2):
        report(play.at(at))
    assert play.outage("a").count == 1


def test_success_releases_a_window_early() -> None:
    play = Playbook(ABC)
    out(play, "a", fail(Reason.USAGE_LIMIT, wait_s=90_000))
    report(play.at(100), "success")
    assert play.health("a").outage is None


def test_success_of_a_call_from_before_the_mark_releases_nothing() -> None:
    play = Playbook(ABC)
    out(play.at(50), "a", fail(Reason.RATE_LIMIT, at=50))
    report(play.at(60), "success", started_at=T0 + 40)
    assert play.seen("a").state == "rate_limited"


def test_reports_of_what_was_left_are_counted_and_ignored() -> None:
    play = Playbook(ABC)
    report(play, session=S)
    for number in range(20):
        found = report(play.at(5 + number), session=S, attempt=AttemptId(f"m{number}"))
        assert found.ignored
    session = play.session("s")
    assert (session.current, session.depth, session.ignored_reports) == ("b", 1, 20)
    assert play.health("b").outage is None


@pytest.mark.parametrize("attempt", [None, AttemptId("m1")])
def test_a_report_right_after_a_move_is_about_the_current_candidate(
    attempt: AttemptId | None,
) -> None:
    play = Playbook(ABC)
    report(play, session=S)
    found = report(play.at(1), session=S, backend=BackendId("b"), attempt=attempt)
    assert not found.ignored
    assert found.next is not None
    assert found.next.backend == "c"
    assert resolved(play, session=S).backend == "c"


@pytest.mark.parametrize(("at", "ignored"), [(1, True), (2.9, True), (3, False), (4, False)])
def test_a_report_that_may_be_about_either_model_of_a_backend_is_an_echo(
    at: float, ignored: bool
) -> None:
    chain = (Entry(backend=BackendId("a"), model="m2"), entry("b"))
    play = Playbook(policy_of("a", "b", chains={"a": list(chain)}))
    report(play, session=S, model="m1", failure=fail(Reason.OVERLOADED))
    assert report(play.at(at), session=S).ignored is ignored
    assert report(play, session=S, model="m2", attempt=AttemptId("x")).ignored is not ignored


def test_a_call_that_began_after_the_move_is_no_echo() -> None:
    play = Playbook(ABC)
    report(play, session=S)
    play.at(1000)
    assert report(play, session=S, started_at=T0 - 5).ignored
    assert not report(play, session=S, started_at=T0 + 999).ignored


def test_a_clock_that_was_set_back_does_not_silence_reports() -> None:
    play = Playbook(ABC)
    report(play.at(100_000), session=S)
    play.step_clock(-86_400)
    assert not report(play, session=S, backend=BackendId("b")).ignored


def test_going_back_to_the_original_resets_the_depth() -> None:
    play = Playbook(ABC)
    report(play, session=S)
    out(play, "b", fail(Reason.AUTH))
    report(play.at(1000), "success", session=S)
    session = play.session("s")
    assert (session.current, session.depth, session.notices_sent) == ("a", 0, ())


def test_nobody_left_is_no_next() -> None:
    play = Playbook(ABC)
    for name in "bc":
        out(play, name, fail(Reason.RATE_LIMIT, wait_s=7200))
    assert report(play, session=S, failure=fail(Reason.RATE_LIMIT, wait_s=7200)).next is None
    assert play.session("s").current == "a"


def test_a_role_s_reasons_decide_about_the_next() -> None:
    role = Role(name="r", chain=(entry("b"),), fallback_on=frozenset({Reason.RATE_LIMIT}))
    play = Playbook(policy_of("a", "b", roles={"r": role}))
    resolved(play, session=S, role="r", backend=BackendId("a"))
    assert report(play, session=S, failure=fail(Reason.BILLING)).next is None
    assert play.seen("a").state == "broken"
    assert report(play.at(9), session=S).next is not None


def test_a_failure_that_no_other_backend_cures_has_no_next() -> None:
    play = Playbook(ABC)
    assert report(play, session=S, failure=fail(Reason.TASK_FAILED)).next is None
    assert play.health("a").outage is None


def test_resolve_in_a_session_follows_where_it_went() -> None:
    play = Playbook(ABC)
    resolved(play, session=S, role="r")
    report(play, session=S)
    report(play, "success", session=S, backend=BackendId("b"))
    play.at(901)
    assert resolved(play, session=S, role="r").backend == "b"
    assert resolved(play, session=S, backend=BackendId("a")).backend == "a"
    assert play.session("s").depth == 0


def test_resolve_prefers_nobody_who_has_not_answered() -> None:
    play = Playbook(ABC)
    resolved(play, session=S, role="r")
    report(play, session=S)
    assert resolved(play.at(901), session=S, role="r").backend == "a"


def test_a_report_counts_at_once_only_where_it_names_the_attempt_of_now() -> None:
    play = Playbook(ABC).when(delegate("d1", session="s", backend="a"))
    play.when(failed("d1.1", fail(Reason.AUTH)))
    of_b = {"session": S, "backend": BackendId("b")}
    for name in ("d1.1", "d9.9", "anything"):
        assert report(play.at(1), attempt=AttemptId(name), **of_b).ignored
    assert report(play, **of_b).ignored
    assert play.session("s").ignored_reports == 4
    assert not report(play, attempt=AttemptId("d1.2"), **of_b).ignored
    assert play.health("b").outage is not None


def test_a_caller_s_own_name_of_an_attempt_counts_once() -> None:
    play = Playbook(ABC)
    report(play, session=S, attempt=AttemptId("mine-1"))
    of_b = {"session": S, "backend": BackendId("b")}
    assert report(play.at(1), attempt=AttemptId("mine-1"), **of_b).ignored
    assert not report(play, attempt=AttemptId("mine-2"), **of_b).ignored


def test_a_held_lease_counts_also_right_after_a_fallback() -> None:
    play = Playbook(ABC)
    out(play, "b", fail(Reason.RATE_LIMIT))
    out(play, "c", fail(Reason.AUTH))
    play.at(400)
    report(play, session=S)
    assert resolved(play, backend=BackendId("b"), lease=LEASE).lease_id == LEASE
    found = report(play.at(401), session=S, backend=BackendId("b"), attempt=LEASE)
    assert not found.ignored


# --- the next one is found by what was asked of `resolve` --------------------------------------


def test_the_next_after_a_report_is_of_the_chain_that_was_resolved() -> None:
    play = Playbook(policy_of("oai", "resp", "other", chains={"oai": ["other"]}))
    chain = (entry("resp"),)
    assert [
        one.backend for one in resolved(play, backend=BackendId("oai"), chain=chain).candidates
    ] == [
        "oai",
        "resp",
    ]
    found = report(play, backend=BackendId("oai"), chain=chain)
    assert found.next is not None
    assert (found.next.backend, found.next.position) == ("resp", 1)
    assert report(play, backend=BackendId("resp"), chain=chain).next is None


def test_the_role_of_a_report_goes_before_that_of_its_session() -> None:
    judge = Role(name="judge", chain=(entry("a"), entry("c")))
    play = Playbook(policy_of("a", "b", "c", roles={"judge": judge, "r": ["a", "b"]}))
    resolved(play, session=S, role="r")
    found = report(play, session=S, role="judge")
    assert found.next is not None
    assert (found.next.backend, found.next.position) == ("c", 1)


def test_the_reasons_of_the_role_hold_without_a_session_too() -> None:
    role = Role(name="r", chain=(entry("a"), entry("b")), fallback_on=frozenset({Reason.BILLING}))
    play = Playbook(policy_of("a", "b", roles={"r": role}))
    assert report(play, role="r").next is None
    assert report(play, role="r", failure=fail(Reason.BILLING)).next is not None


def test_the_size_the_money_and_the_family_of_the_request_hold_for_the_next_too() -> None:
    backends = (
        Backend(id=BackendId("a"), kind="codex", family="gpt"),
        Backend(id=BackendId("small"), kind="codex", family="glm", context_tokens=10),
        Backend(id=BackendId("paid"), kind="codex", family="glm", cost="metered"),
        Backend(id=BackendId("alike"), kind="codex", family="gemini"),
        Backend(id=BackendId("last"), kind="codex", family="qwen"),
    )
    chain = tuple(entry(one.id) for one in backends)
    asked = {"chain": chain, "prompt_tokens": 5000, "differs_from": ("gemini",)}
    for is_agreed, name in ((False, "last"), (True, "paid")):
        found = report(Playbook(policy_of(*backends)), allow_metered=is_agreed, **asked)
        assert found.next is not None
        assert found.next.backend == name


# --- reports that come too late ----------------------------------------------------------------


@pytest.mark.parametrize("name", [{"lease": LEASE}, {"attempt": LEASE}])
def test_a_success_under_a_lease_that_is_not_held_clears_nothing(
    name: dict[str, AttemptId],
) -> None:
    play = Playbook(ABC)
    resolved(play, session=S, role="r")
    out(play, "a", fail(Reason.BILLING))
    before = play.health("a")
    assert report(play.at(5), "success", session=S, started_at=T0 + 4, **name).ignored
    assert play.health("a") == before
    assert play.session("s").ignored_reports == 1


def test_a_failure_under_a_lease_that_is_not_held_marks_nobody_and_names_the_next() -> None:
    play = Playbook(ABC)
    resolved(play, session=S, role="r")
    found = report(play, session=S, lease=LEASE, next_lease=OTHER)
    assert found.ignored
    assert found.next is not None
    assert found.next.backend == "b"
    assert play.health("a").outage is None
    session = play.session("s")
    assert (session.current, session.depth, session.ignored_reports) == ("a", 0, 1)


# --- one rule for whom a session stays with --------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "after_s", "expected"),
    [("idle", 1, "b"), ("idle", 5, "a"), ("new_session", 5, "b"), ("new_session", 5000, "b")],
)
def test_a_session_stays_by_the_rule_of_its_role_whoever_asks(
    policy: Literal["idle", "new_session"], after_s: float, expected: str
) -> None:
    role = Role(name="r", chain=(entry("a"), entry("b")), idle_s=2, return_policy=policy)
    play = Playbook(policy_of("a", "b", roles={"r": role}))
    play.when(HealthMarked(target="a", reason="rate_limit", ttl_s=10))
    play.when(delegate("d1", session="s", role="r")).when(succeeded("d1.1"))
    play.when(HealthMarked(target="a", ttl_s=0)).at(after_s)
    assert resolved(play, session=S, role="r").backend == expected
    play.then_whatever()
    play.when(delegate("d2", session="s", role="r")).then(starts("d2.1", expected))


def test_a_look_changes_nothing() -> None:
    role = Role(name="r", chain=(entry("a"), entry("b")), idle_s=100)
    play = Playbook(policy_of("a", "b", roles={"r": role}))
    play.when(HealthMarked(target="a", reason="rate_limit", ttl_s=10))
    play.when(delegate("d1", session="s", role="r")).when(succeeded("d1.1")).then_whatever()
    play.when(HealthMarked(target="a", ttl_s=0)).at(99)
    before = play.session("s")
    assert resolved(play, session=S, role="r").backend == "b"
    assert play.decision.changes == ()
    assert play.session("s") == before
    play.at(101).when(delegate("d2", session="s", role="r")).then(starts("d2.1", "a"))


def test_who_is_passed_over_for_the_one_that_the_session_knows_is_told() -> None:
    play = Playbook(policy_of("a", "b", roles={"r": ["a", "b"]}))
    play.when(HealthMarked(target="a", reason="rate_limit", ttl_s=10))
    play.when(delegate("d1", session="s", role="r")).when(succeeded("d1.1")).then_whatever()
    play.when(HealthMarked(target="a", ttl_s=0)).at(20)
    play.when(delegate("d2", session="s", role="r")).then(starts("d2.1", "b"))
    first, second = play.delegation("d2").verdicts
    assert (first.verdict, second.verdict) == ("affinity", "chosen")
    assert first.reason == "the session stays with b, which answered it last"
    assert play.delegation("d2").hops == ()


# --- what calls have used --------------------------------------------------------------------


def test_usage_is_charged_to_the_backend_of_each_call() -> None:
    play = Playbook(ABC)
    failing, fine = Usage(input_tokens=1000, output_tokens=50), Usage(input_tokens=7)
    report(play, session=S, usage=failing)
    report(play, "success", session=S, backend=BackendId("b"), usage=fine)
    assert dict(play.session("s").usage) == {"a": failing, "b": fine}


def test_usage_of_a_report_that_comes_too_late_is_spent_all_the_same() -> None:
    play = Playbook(ABC)
    resolved(play, session=S, role="r")
    spent = Usage(input_tokens=9)
    report(play, "success", session=S, lease=LEASE, usage=spent)
    assert dict(play.session("s").usage) == {"a": spent}


# --- the bounds of a chain -------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason",
    [
        Reason.CONTENT_POLICY,
        Reason.FORMAT_ERROR,
        Reason.PROVIDER_POLICY,
        Reason.CONTEXT_OVERFLOW,
        Reason.PAYLOAD_TOO_LARGE,
    ],
)
@pytest.mark.parametrize("knows", ["session", "turn", "role"])
def test_a_failure_that_marks_nobody_ends_with_the_chain(reason: Reason, knows: str) -> None:
    play = Playbook(policy_of("a", "b", roles={"r": ["a", "b"]}))
    said: dict[str, Any] = {"session": S} if knows == "session" else {"role": "r"}
    found = report(play, failure=fail(reason), **said | {"role": "r"})
    assert found.next is not None
    assert found.next.backend == "b"
    again = {"turn": found.turn} if knows == "turn" else {}
    found = report(play.at(1), backend=BackendId("b"), failure=fail(reason, at=1), **said | again)
    assert found.next is None
    assert found.halt is not None
    assert play.memory.mirror.health == {}


def test_the_maximum_of_hops_holds_for_reports_and_is_named() -> None:
    names = [f"b{number}" for number in range(6)]
    play = Playbook(policy_of(*names, roles={"r": names}))
    resolved(play, session=S, role="r", lease=LEASE)
    for number, name in enumerate(names[:4]):
        found = report(
            play.at(number), session=S, backend=BackendId(name), failure=fail(Reason.AUTH)
        )
    assert found.next is None
    assert found.halt is not None
    assert (found.halt.bound, "max_fallback_depth" in found.halt.why) == (
        "max_fallback_depth",
        True,
    )
    fifth = found.candidates[4]
    assert (fifth.verdict, "max_fallback_depth" in (fifth.reason or "")) == ("healthy", True)
    assert resolved(play.at(10), session=S, role="r").backend == "b4"


def test_the_tier_api_is_reported_to_once() -> None:
    api = [Entry(backend=BackendId(name), tier="api") for name in "bc"]
    play = Playbook(policy_of("a", "b", "c", roles={"r": Role(name="r", chain=(entry("a"), *api))}))
    assert report(play, session=S, role="r", failure=fail(Reason.AUTH)).next is not None
    found = report(play, session=S, backend=BackendId("b"), failure=fail(Reason.AUTH))
    assert found.next is None
    assert [one.verdict for one in found.candidates] == ["tried", "tried", "tried"]


# --- a role that is switched off ---------------------------------------------------------------


def switched_off() -> Playbook:
    chain = tuple(Entry(backend=BackendId(name)) for name in "ab")
    off = Role(name="off", chain=chain, enabled=False)
    return Playbook(policy_of("a", "b", "c", chains={"*": ["c"]}, roles={"off": off}))


@pytest.mark.parametrize("backend", [None, "b"])
def test_a_role_that_is_switched_off_stays_with_its_first_or_with_the_named_backend(
    backend: str | None,
) -> None:
    play, first = switched_off(), backend or "a"
    play.when(delegate("d1", backend=backend, role="off")).then(starts("d1.1", first))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT))).then(answers("d1"))
    done = play.delegation("d1")
    assert (done.state, done.requested, done.hops) == ("refused", first, ())
    asked = {} if backend is None else {"backend": BackendId(backend)}
    found = resolved(play, role="off", **asked)
    assert (found.backend, [one.backend for one in found.candidates]) == (None, [first])


def test_a_caller_in_a_role_that_is_switched_off_is_sent_to_no_other_backend() -> None:
    assert report(switched_off(), role="off").next is None
    assert report(switched_off(), role="off", backend=BackendId("b")).next is None
    play = switched_off()
    assert resolved(play, role="off", session=SessionId("s")).backend == "a"
    assert report(play, session=SessionId("s")).next is None
    assert report(play, session=SessionId("s"), backend=BackendId("b")).next is None
