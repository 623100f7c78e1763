"""Playbooks: admission, sessions, workspaces, places on the host, restarts."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.playbook import (
    T0,
    Playbook,
    answers,
    delegate,
    entry,
    fail,
    failed,
    policy_of,
    started,
    starts,
    stops,
    succeeded,
)

from fallbackd.core.authority import Authority
from fallbackd.core.decide import decide
from fallbackd.core.decision import StartAttempt, StopAttempt
from fallbackd.core.events import (
    CancelRequested,
    HealthCleared,
    HealthMarked,
    QuestionAnswered,
    SessionCompacted,
    SessionEnded,
    WorkspaceMoved,
)
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, SessionId
from fallbackd.core.policy import Backend, Entry, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation
from fallbackd.core.work.workspaces import is_nested

AB = policy_of("a", "b", "c", chains={"a": ["b", "c"]})


def rejected(play: Playbook) -> str | None:
    found = play.decision.rejection
    return None if found is None else found.kind


def test_an_unknown_backend_is_rejected_and_leaves_nothing() -> None:
    play = Playbook(AB).when(delegate("d1", backend="nobody")).then()
    assert rejected(play) == "unknown_backend"
    assert play.peek().active == {}


def test_a_role_or_nothing_without_any_candidate_is_rejected_with_the_key() -> None:
    play = Playbook(AB).when(delegate("d1", role="judge"))
    assert rejected(play) == "empty_chain"
    assert play.decision.rejection is not None
    assert "roles.judge" in play.decision.rejection.message
    assert rejected(play.when(delegate("d2"))) == "empty_chain"


def test_an_unknown_role_is_a_warning() -> None:
    play = Playbook(AB).when(delegate("d1", role="../x", backend="a"))
    assert "no role '../x'" in play.delegation("d1").warnings[0]
    assert [one.backend for one in play.delegation("d1").turn.candidates] == ["a", "b", "c"]


def test_requested_is_the_first_of_the_role_s_chain() -> None:
    policy = policy_of("a", "b", roles={"r": ["b", "a"]})
    play = Playbook(policy).when(delegate("d1", role="r")).then(starts("d1.1", "b"))
    assert play.delegation("d1").requested == "b"
    assert play.delegation("d1").hops == ()


def test_the_same_request_again_is_the_same_delegation() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", request_id="r", digest="x"))
    play.then(starts("d1.1", "a"))
    play.when(delegate("d2", backend="a", request_id="r", digest="x")).then()
    assert isinstance(play.decision.answer, Delegation)
    assert play.decision.answer.delegation == "d1"
    assert rejected(play.when(delegate("d3", backend="a", request_id="r", digest="y"))) == (
        "request_id"
    )
    play.when(succeeded("d1.1"))
    play.when(delegate("d4", backend="a", request_id="r", digest="x"))
    assert play.decision.answer.delegation == "d1"


def test_a_session_runs_one_delegation_until_its_answer() -> None:
    play = Playbook(AB).when(delegate("d1", session="s", backend="a"))
    assert rejected(play.when(delegate("d2", session="s", backend="b", queue=False))) == "busy"
    play.when(failed("d1.1", fail(Reason.AUTH)))
    assert rejected(play.when(delegate("d2", session="s", backend="b", queue=False))) == "busy"
    play.when(succeeded("d1.2"), delegate("d3", session="s", backend="b"))
    assert rejected(play) is None


def test_work_waits_in_turn_for_a_session_that_is_in_use() -> None:
    play = Playbook(AB).when(delegate("d1", session="s", backend="a"))
    play.when(delegate("d2", session="s", backend="b"), delegate("d3", session="s", backend="c"))
    play.then(starts("d1.1", "a"))
    assert [play.delegation(one).blocked_by for one in ("d2", "d3")] == ["d1", "d1"]
    assert play.session("s").running == "d1"
    play.when(succeeded("d1.1")).then(answers("d1"), starts("d2.1", "b"))
    assert play.delegation("d3").blocked_by == "d2"
    assert (play.session("s").running, play.session("s").original) == ("d2", "b")
    play.when(cancel("d2"), failed("d2.1", fail(Reason.CANCELLED))).then_whatever()
    assert play.delegation("d3").running is not None


@pytest.mark.parametrize(("first", "second"), [("/w", "/w"), ("/w/x", "/w"), ("/w", "/w/x")])
def test_work_waits_in_turn_for_a_directory_that_is_in_use(first: str, second: str) -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd=first))
    play.when(delegate("d2", backend="b", cwd=second), delegate("d3", backend="c", cwd=second))
    play.then(starts("d1.1", "a"))
    assert [play.delegation(one).state for one in ("d2", "d3")] == ["queued", "queued"]
    play.when(succeeded("d1.1")).then(answers("d1"), starts("d2.1", "b"))
    play.when(succeeded("d2.1")).then(answers("d2"), starts("d3.1", "c"))


def test_work_that_waits_for_a_directory_keeps_no_place_from_others() -> None:
    play = Playbook(policy_of("a", max_running=2)).when(delegate("d1", backend="a", cwd="/w"))
    play.when(delegate("d2", backend="a", cwd="/w"), delegate("d3", backend="a", cwd="/v"))
    play.then(starts("d1.1", "a"), starts("d3.1", "a"))


def test_blocked_work_is_cancelled_and_meets_its_deadline() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/w"))
    play.when(delegate("d2", backend="a", cwd="/w"))
    play.when(delegate("d3", backend="a", cwd="/w", timeout_s=5)).then_whatever()
    play.when(cancel("d2")).then(answers("d2"))
    play.at(5).then(answers("d3"))
    assert play.delegation("d3").state == "failed"


def test_nested_work_waits_for_a_directory_of_others_for_a_bounded_time() -> None:
    """Else two that work inside each other's attempts could wait for each other for ever."""
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/v"))
    play.when(delegate("d2", backend="b", cwd="/w"))
    play.when(delegate("k", backend="a", cwd="/w", parent="d1", mode="interactive"))
    play.then(starts("d1.1", "a"), starts("d2.1", "b"))
    assert play.delegation("k").blocked_by == "d2"
    play.at(AB.wait_threshold_s("interactive")).then(answers("k"))
    assert play.delegation("k").state == "refused"
    assert "in use by d2" in (play.delegation("k").message or "")


def test_nested_work_goes_before_what_waits_for_its_parent() -> None:
    play = Playbook(AB).when(delegate("p", backend="a", cwd="/w"))
    play.when(delegate("z", backend="b", cwd="/w"))
    play.when(delegate("k", backend="c", cwd="/w", parent="p"))
    play.then(starts("p.1", "a"), starts("k.1", "c"))


PAID = policy_of(
    "a",
    Backend(id=BackendId("paid"), kind="codex", cost="metered"),
    roles={"payer": Role(name="payer", chain=(entry("paid"),), allow_metered=True)},
)


@pytest.mark.parametrize("asked", [{"backend": "paid"}, {"role": "payer"}])
@pytest.mark.parametrize("consents", [False, True])
def test_from_inside_calls_are_billed_only_where_the_parent_may_make_such_calls(
    asked: dict[str, Any], consents: bool
) -> None:
    play = Playbook(PAID).when(delegate("p", backend="a", allow_metered=consents))
    play.when(delegate("k", parent="p", **asked))
    assert play.peek().active["p"].turn.allow_metered is consents
    begun = "k.1" in [one.attempt for one in play.decision.effects if isinstance(one, StartAttempt)]
    assert begun is consents


def test_work_from_inside_gets_no_more_by_being_repeated() -> None:
    roles = {"payer": Role(name="payer", chain=(entry("paid"),), allow_metered=True)}
    policy = structs.replace(PAID, roles=roles, may={"payer": ("answer",)})
    play = Playbook(policy)
    play.when(delegate("k", role="payer", inside=(DelegationId("p"),)))
    assert not [one for one in play.decision.effects if isinstance(one, StartAttempt)]
    play.when(delegate("own", role="payer"))
    assert play.peek().active["own"].may == ("answer",)


GENEROUS = structs.replace(
    AB,
    roles={
        "free": Role(name="free", chain=(entry("a"),), allow_metered=True, replay="external-ok")
    },
    may={"free": ("answer",)},
)


def test_work_from_inside_several_gets_what_each_of_them_may() -> None:
    both = tuple(map(DelegationId, ("p", "q")))
    play = Playbook(GENEROUS)
    play.when(delegate("p", role="free"), delegate("q", backend="a"))
    play.when(delegate("own", role="free", parent="p", inside=both[:1]))
    play.when(delegate("k", role="free", parent="p", inside=both))
    own, found = (play.peek().active[name] for name in ("own", "k"))
    assert (own.may, own.turn.allow_metered, own.above) == (("answer",), True, ("p",))
    assert (found.may, found.turn.allow_metered, found.above) == ((), False, ("p", "q"))
    assert Authority(who="attempt", inside=both).has_begun(found)
    assert not Authority(who="attempt", inside=both).has_begun(own)


def test_work_from_inside_several_of_which_one_has_ended_gets_nothing_of_its_role() -> None:
    play = Playbook(GENEROUS)
    play.when(delegate("p", role="free"))
    gone = tuple(map(DelegationId, ("p", "gone")))
    play.when(delegate("k", role="free", parent="p", inside=gone))
    found = play.peek().active["k"]
    assert (found.may, found.turn.allow_metered, found.replay) == ((), False, "ask")


def test_from_inside_a_session_that_was_begun_elsewhere_does_not_exist() -> None:
    play = Playbook(AB).when(delegate("p", backend="a", cwd="/w"), delegate("z", backend="b"))
    for session in ("s-p", "s-z"):
        inside = delegate("n", backend="c", session=session, parent="p")
        assert rejected(play.when(inside)) == "unknown_session"
    own = delegate("k", backend="c", cwd="/w", parent="p")
    play.when(own, started("k.1"), succeeded("k.1"))
    again = delegate("m", backend="c", cwd="/w", session="s-k", parent="p")
    assert rejected(play.when(again)) is None
    assert play.peek().active["m"].above == ("p",)


def test_work_from_inside_work_that_has_ended_is_refused() -> None:
    play = Playbook(AB).when(delegate("k", backend="c", parent="p"))
    assert rejected(play) == "busy"
    assert not play.peek().active


def test_a_session_in_which_a_person_asks_is_the_persons_from_then_on() -> None:
    play = Playbook(AB).when(delegate("p", backend="a", cwd="/w"))
    play.when(delegate("k", backend="c", parent="p"), started("k.1"), succeeded("k.1"))
    play.when(delegate("own", backend="c", session="s-k"), started("own.1"), succeeded("own.1"))
    again = delegate("m", backend="c", session="s-k", parent="p")
    assert rejected(play.when(again)) == "unknown_session"
    repeated = delegate("r", backend="c", session="s-k", inside=(DelegationId("p"),))
    assert rejected(play.when(repeated)) == "unknown_session"


def test_work_from_inside_that_waited_does_not_enter_a_session_that_became_a_persons() -> None:
    play = Playbook(AB).when(delegate("p", backend="a"))
    play.when(delegate("c", backend="c", session="new", parent="p"))
    play.when(started("c.1"), succeeded("c.1"))
    play.when(delegate("y", backend="b", cwd="/y"), delegate("z", backend="b", cwd="/z"))
    play.when(delegate("h", backend="c", cwd="/y", session="new"))
    play.when(delegate("k", backend="c", cwd="/z", session="new", parent="p"))
    play.when(started("y.1"), succeeded("y.1"), started("h.1"), succeeded("h.1"))
    assert play.peek().active["k"].blocked_by == "z"
    play.when(started("z.1"), succeeded("z.1"))
    assert play.peek().active.get("k") is None


def test_a_daemon_that_drains_takes_nothing_new() -> None:
    play = Playbook(AB)
    event = delegate("d1", backend="a")
    seen = structs.replace(play.memory.snapshot(event), draining=True)
    found = decide(seen, event, AB, now=T0)
    assert found.rejection is not None
    assert found.rejection.kind == "draining"


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("/w/x", "/w/x", "workspace"),
        ("/w/x", "/w/x/sub", "workspace"),
        ("/w/x/sub", "/w/x", "workspace"),
        ("/w", "/w/x/y/z", "workspace"),
        ("/w/x", "/w/xy", None),
        ("/w/x", "/w/y", None),
        ("/w/x", "", None),
        ("", "", None),
    ],
)
def test_one_writer_per_directory_and_what_is_in_it(
    first: str, second: str, kind: str | None
) -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd=first))
    assert rejected(play.when(delegate("d2", backend="a", cwd=second, queue=False))) == kind


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (("1:7", "1:2"), ("1:7", "1:3"), "workspace"),
        (("1:7", "1:2"), ("1:9", "1:7", "1:3"), "workspace"),
        (("1:9", "1:7", "1:2"), ("1:7", "1:3"), "workspace"),
        (("1:7", "1:2"), ("2:7", "1:2"), None),
        ((), ("1:7",), None),
    ],
)
def test_a_directory_is_the_same_one_by_another_name(
    first: tuple[str, ...], second: tuple[str, ...], kind: str | None
) -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/w", cwd_ids=first))
    assert (
        rejected(play.when(delegate("d2", backend="a", cwd="/v", cwd_ids=second, queue=False)))
        == kind
    )


def test_a_directory_that_was_moved_is_in_use_where_it_lies_now() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/w", cwd_ids=("1:7", "1:2")))
    play.when(WorkspaceMoved(delegation=DelegationId("d1"), cwd_ids=("1:7", "1:5")))
    above = delegate("d2", backend="a", cwd="/v", cwd_ids=("1:5", "1:2"), queue=False)
    assert rejected(play.when(above)) == "workspace"


def test_after_a_boot_a_directory_is_known_by_what_lies_at_its_path() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/w", cwd_ids=("1:7",), boot="one"))
    for boot, known in (("one", ("1:7",)), ("two", ("4:7",))):
        play.restart()
        play.resume("d1", boot=boot, cwd_ids=("4:7",))
        assert play.delegation("d1").cwd_ids == known


def test_readers_hold_no_directory_and_the_lock_can_be_off() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/w", permissions="read"))
    assert rejected(play.when(delegate("d2", backend="a", cwd="/w"))) is None
    assert rejected(play.when(delegate("d3", backend="a", cwd="/w", permissions="read"))) is None
    play = Playbook(policy_of("a", workspace_lock="off")).when(
        delegate("d1", backend="a", cwd="/w")
    )
    assert rejected(play.when(delegate("d2", backend="a", cwd="/w"))) is None


def test_a_program_that_cannot_be_held_to_reading_takes_the_directory() -> None:
    generic = Backend(id=BackendId("g"), kind="generic-cli")
    play = Playbook(policy_of(generic, "a")).when(delegate("d1", backend="a", cwd="/w"))
    reader = {"cwd": "/w", "permissions": "read", "queue": False}
    assert rejected(play.when(delegate("d2", backend="g", **reader))) == "workspace"
    assert rejected(play.when(delegate("d3", chain=(entry("a"),), **reader))) is None


@pytest.mark.parametrize(
    ("kernel", "confine", "is_held"),
    [("yes", None, True), ("yes", False, False), ("partly", None, False), ("no", None, False)],
)
def test_a_program_that_the_kernel_holds_to_reading_leaves_the_directory(
    kernel: Any, confine: bool | None, is_held: bool
) -> None:
    generic = Backend(id=BackendId("g"), kind="generic-cli", confine=confine)
    policy = structs.replace(policy_of(generic, "a"), kernel_confines=kernel)
    play = Playbook(policy).when(delegate("d1", backend="a", cwd="/w"))
    reader = {"cwd": "/w", "permissions": "read", "queue": False}
    expected = None if is_held else "workspace"
    assert rejected(play.when(delegate("d2", backend="g", **reader))) == expected
    writer = {**reader, "permissions": "workspace"}
    assert rejected(play.when(delegate("d3", backend="g", **writer))) == "workspace"


def test_the_directory_is_free_with_the_answer() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/w"), succeeded("d1.1"))
    assert rejected(play.when(delegate("d2", backend="a", cwd="/w"))) is None


def asking(*names: str, **more: Any) -> Playbook:
    """Each works in /w for a judge whose service is out: nothing is begun, a person is asked."""
    judge = Role(name="judge", kind="adversarial", chain=(entry("a"), entry("b")))
    play = Playbook(policy_of("a", "b", "c", roles={"judge": judge}))
    play.when(HealthMarked(target="a", reason="auth", ttl_s=100_000))
    for name in names:
        play.when(delegate(name, role="judge", cwd="/w", **more))
        assert play.delegation(name).state == "awaiting_answer"
    return play


def choose(question: str, choice: str) -> QuestionAnswered:
    name = DelegationId(question.rpartition(".")[0])
    return QuestionAnswered(question=question, delegation=name, choice=choice, uid=1)


def test_who_asks_before_anything_is_begun_holds_no_directory() -> None:
    play = asking("d1", "d2").when(delegate("d3", backend="c", cwd="/w/x"))
    play.then(starts("d3.1", "c"))


@pytest.mark.parametrize("choice", ["use:b", "wait"])
def test_an_answer_is_not_taken_while_another_one_writes_there(choice: str) -> None:
    play = asking("d1", "d2").when(delegate("d3", backend="c", cwd="/w/x"))
    play.then_whatever()
    assert rejected(play.when(choose("d1.q1", choice)).then()) == "workspace"
    rejection = play.decision.rejection
    assert rejection is not None
    assert "d3" in rejection.message
    assert play.delegation("d1").question is not None
    assert rejected(play.when(choose("d2.q1", "skip"))) is None
    play.when(succeeded("d3.1")).then_whatever()
    assert rejected(play.when(choose("d1.q1", choice))) is None
    assert rejected(play.when(delegate("d4", backend="c", cwd="/w", queue=False))) == "workspace"


def test_of_two_that_ask_for_one_directory_only_one_is_let_go_on() -> None:
    play = asking("d1", "d2").when(choose("d1.q1", "use:b")).then(starts("d1.1", "b"))
    assert rejected(play.when(choose("d2.q1", "use:b")).then()) == "workspace"
    play.when(succeeded("d1.1"), choose("d2.q1", "use:b")).then(answers("d1"), starts("d2.1", "b"))


def test_who_only_reads_is_answered_beside_a_writer() -> None:
    play = asking("d1", permissions="read").when(delegate("d3", backend="c", cwd="/w"))
    play.then_whatever()
    play.when(choose("d1.q1", "use:b")).then(starts("d1.1", "b"))


def test_who_asks_inside_of_an_attempt_goes_on_in_the_directory_of_that_one() -> None:
    judge = Role(name="judge", kind="adversarial", chain=(entry("a"), entry("b")))
    play = Playbook(policy_of("a", "b", "c", roles={"judge": judge}))
    play.when(HealthMarked(target="a", reason="auth", ttl_s=100_000))
    play.when(delegate("p", backend="c", cwd="/w"))
    play.when(delegate("k", role="judge", cwd="/w", parent="p")).then_whatever()
    play.when(choose("k.q1", "use:b")).then(starts("k.1", "b"))


def test_who_asks_after_files_were_changed_keeps_the_directory_and_says_how_to_go_on() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", cwd="/w", on_partial="ask"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT), effects="seen"))
    assert play.delegation("d1").state == "awaiting_answer"
    assert rejected(play.when(delegate("d2", backend="c", cwd="/w", queue=False))) == "workspace"
    rejection = play.decision.rejection
    assert rejection is not None
    assert "`fallbackd-client answer d1.q1 CHOICE`" in rejection.message


def test_a_call_over_http_holds_no_directory_and_waits_for_none() -> None:
    http = Backend(id=BackendId("h"), kind="openai-http", is_http=True)
    play = Playbook(policy_of(http, "c", chains={"both": ["h", "c"]}))
    play.when(delegate("d1", backend="h", cwd="/w"), delegate("d2", backend="c", cwd="/w"))
    play.when(delegate("d3", backend="h", cwd="/w"))
    play.then(starts("d1.1", "h"), starts("d2.1", "c"), starts("d3.1", "h"))
    mixed = delegate("d4", backend="h", chain=(entry("c"),), cwd="/w", queue=False)
    assert rejected(play.when(mixed)) == "workspace"


def test_nested_paths() -> None:
    assert is_nested("/w", "/")
    assert is_nested("/w/x", "/w/")
    assert not is_nested("/w", "/w/x")


# --- nested delegations ------------------------------------------------------------------------


def test_a_child_shares_workspace_deadline_budget_and_what_was_tried() -> None:
    play = Playbook(AB).when(delegate("p", backend="a", cwd="/w", timeout_s=100))
    play.when(failed("p.1", fail(Reason.FORMAT_ERROR))).then(starts("p.1", "a"), starts("p.2", "b"))
    play.at(5).when(delegate("k", backend="c", cwd="/w/x", parent="p", chain=(entry("a"),)))
    found = play.delegation("k")
    assert (found.nesting, found.parent) == (1, "p")
    assert found.deadline_at == T0 + 100
    assert found.turn.budget == 6
    play.when(failed("k.1", fail(Reason.FORMAT_ERROR)))
    assert play.delegation("k").state == "failed"  # `a` was tried by its parent
    assert [one.verdict for one in play.delegation("k").verdicts] == ["tried", "tried"]


def test_nesting_has_a_bound() -> None:
    play = Playbook(AB).when(delegate("d0", backend="a", cwd="/w"))
    for level in (1, 2):
        play.when(delegate(f"d{level}", backend="a", cwd="/w", parent=f"d{level - 1}"))
        assert rejected(play) is None
        assert play.delegation(f"d{level}").nesting == level
    assert rejected(play.when(delegate("d3", backend="a", parent="d2"))) == "nesting"


def test_strangers_still_wait_for_the_directory_of_a_family() -> None:
    play = Playbook(AB).when(delegate("p", backend="a", cwd="/w"))
    play.when(delegate("k", backend="a", cwd="/w/x", parent="p"))
    assert rejected(play.when(delegate("z", backend="a", cwd="/w/x", queue=False))) == "workspace"


# --- places on the host ------------------------------------------------------------------------


def test_more_than_the_host_may_run_is_queued_and_follows() -> None:
    play = Playbook(policy_of("a", max_running=2))
    for number in range(4):
        play.when(delegate(f"d{number}", backend="a"))
    play.then(starts("d0.1", "a"), starts("d1.1", "a"))
    assert play.delegation("d3").state == "queued"
    play.when(succeeded("d0.1")).then(answers("d0"), starts("d2.1", "a"))
    play.when(CancelRequested(delegation=DelegationId("d3"))).then(answers("d3"))


def test_an_attempt_lends_its_place_to_one_delegation_from_inside_it() -> None:
    play = Playbook(policy_of("a", max_running=1)).when(delegate("d0", backend="a"))
    play.when(delegate("d1", backend="a", session="s1", parent="d0"))
    play.when(delegate("d2", backend="a", session="s2", parent="d0"))
    play.then(starts("d0.1", "a"), starts("d1.1", "a"))
    assert play.delegation("d2").state == "queued"
    play.when(succeeded("d1.1")).then(answers("d1"), starts("d2.1", "a"))


def test_work_that_waits_for_its_place_holds_its_session() -> None:
    play = Playbook(policy_of("a", max_running=1)).when(delegate("d0", backend="a"))
    play.when(delegate("d1", session="s", backend="a"))
    assert play.delegation("d1").state == "queued"
    assert play.session("s").running == "d1"


def test_a_queued_delegation_ends_at_its_deadline() -> None:
    play = Playbook(policy_of("a", max_running=1))
    play.when(delegate("d0", backend="a"), delegate("d1", backend="a", timeout_s=5)).then_whatever()
    play.at(5).then(answers("d1"))
    assert play.delegation("d1").state == "failed"


def test_a_retry_waits_for_a_place_too() -> None:
    play = Playbook(policy_of("a", "b", max_running=1))
    play.when(delegate("d0", backend="a"), delegate("d1", backend="b"))
    play.when(failed("d0.1", fail(Reason.OVERLOADED)))
    play.then(starts("d0.1", "a"), starts("d1.1", "b"))
    play.at(10).then()
    assert play.delegation("d0").state == "queued"
    play.when(succeeded("d1.1")).then(answers("d1"), starts("d0.2", "a"))


# --- stated times at admission -----------------------------------------------------------------


def limited(first_s: float, second_s: float) -> Playbook:
    """`a` and `b` are out by stated times."""
    play = Playbook(policy_of("a", "b", chains={"a": ["b"]}))
    for name, wait_s in (("a", first_s), ("b", second_s)):
        play.when(delegate(f"x{name}", backend=name, failover=False, mode="interactive"))
        play.when(failed(f"x{name}.1", fail(Reason.RATE_LIMIT, wait_s=wait_s), effects="possible"))
    play.then_whatever()
    return play


def test_the_earliest_stated_time_within_the_threshold_is_waited_for() -> None:
    play = limited(20, 400).when(delegate("d1", backend="a", mode="interactive")).then()
    assert play.delegation("d1").state == "waiting"
    play.at(19.9).then()
    play.at(20).then(starts("d1.1", "a"))
    play.at(21).when(succeeded("d1.1")).then(answers("d1"))
    assert play.delegation("d1").hops == ()


def test_a_stated_time_beyond_the_threshold_is_refused_with_the_earliest() -> None:
    play = limited(600, 400).when(delegate("d1", backend="a", mode="interactive"))
    play.then(answers("d1"))
    found = play.delegation("d1")
    assert (found.state, found.attempts) == ("refused", ())
    assert found.retry_at == T0 + 400
    assert [one.verdict for one in found.verdicts] == ["rate_limited", "rate_limited"]


def test_the_stated_time_of_the_second_is_waited_for_as_well() -> None:
    play = limited(600, 10).when(delegate("d1", backend="a", mode="interactive")).then()
    play.at(10).then(starts("d1.1", "b"))
    assert play.delegation("d1").hops[0].trigger == "preemptive"


# --- sessions ----------------------------------------------------------------------------------


def roled() -> Playbook:
    """`primary` is out for half an hour, `a` has failed over to `b` in session s."""
    policy = policy_of("primary", "a", "b", roles={"r": ["primary", "a", "b"]})
    play = Playbook(policy)
    play.when(delegate("x", backend="primary", failover=False))
    play.when(failed("x.1", fail(Reason.RATE_LIMIT, wait_s=1800)))
    play.when(delegate("d1", session="s", role="r"), failed("d1.1", fail(Reason.AUTH)))
    play.when(succeeded("d1.2")).then_whatever()
    return play


def test_a_session_stays_on_the_backend_that_answered_it() -> None:
    play = roled()
    assert play.session("s").current == "b"
    play.when(HealthCleared(target="a"), delegate("d2", session="s", role="r"))
    play.then(starts("d2.1", "b"))


def test_it_returns_to_its_first_choice_when_it_was_idle_for_an_hour() -> None:
    play = roled()
    play.at(3599).when(delegate("d2", session="s", role="r"), succeeded("d2.1"))
    play.then(starts("d2.1", "b"), answers("d2"))
    play.at(3599 + 3600).when(delegate("d3", session="s", role="r")).then(starts("d3.1", "primary"))
    assert play.delegation("d3").hops == ()


def test_a_role_that_never_returns_within_a_session_stays() -> None:
    role = Role(name="r", chain=tuple(entry(one) for one in "ab"), return_policy="new_session")
    play = Playbook(policy_of("a", "b", roles={"r": role}))
    play.when(delegate("d1", session="s", role="R"), failed("d1.1", fail(Reason.CRASH)))
    play.when(succeeded("d1.2")).then_whatever()
    play.at(9000).when(delegate("d2", session="s", role="R")).then(starts("d2.1", "b"))
    play.when(delegate("d3", session="t", role="R")).then(starts("d3.1", "a"))


def test_a_backend_that_the_caller_names_overrides_affinity() -> None:
    play = roled().when(HealthCleared())
    play.when(delegate("d2", session="s", backend="primary")).then(starts("d2.1", "primary"))
    assert play.session("s").depth == 0
    play.when(succeeded("d2.1")).then_whatever()
    assert play.session("s").current == "primary"


def test_a_named_other_backend_becomes_the_original_and_keeps_its_own_chain() -> None:
    policy = policy_of("p", "q", "z", chains={"p": ["z"], "q": ["z"]})
    play = Playbook(policy).when(delegate("d1", session="s", backend="p"), succeeded("d1.1"))
    play.when(delegate("d2", session="s", backend="q"), failed("d2.1", fail(Reason.RATE_LIMIT)))
    play.when(succeeded("d2.2"))
    found = play.delegation("d2")
    assert (found.requested, found.served_by) == ("q", "z")
    assert play.session("s").original == "q"


def test_depth_counts_hops_and_ends_with_the_return() -> None:
    play = roled()
    assert play.session("s").depth == 1
    play.at(2000).when(delegate("d2", session="s", backend="primary"), succeeded("d2.1"))
    assert play.session("s").depth == 0
    assert play.session("s").notices_sent == ()


def test_notices_are_sent_once_per_pair_and_hops_each_time() -> None:
    play = Playbook(policy_of("a", "b", chains={"a": ["b"]}))
    play.when(delegate("x", backend="a", failover=False))
    play.when(failed("x.1", fail(Reason.RATE_LIMIT, wait_s=7200)))
    for number in range(15):
        play.at(40 * number).when(delegate(f"d{number}", session="s", backend="a"))
        play.when(succeeded(f"d{number}.1"))
        assert play.delegation(f"d{number}").served_by == "b"
    assert len(play.noted("delegation.hopped")) == 15
    (notice,) = play.noted("session.notice")
    assert (notice.fields["from"], notice.fields["to"]) == ("a", "b")
    play.at(8000).when(delegate("d15", session="s", backend="a"), succeeded("d15.1"))
    play.when(delegate("x2", backend="a", failover=False), failed("x2.1", fail(Reason.AUTH)))
    play.when(delegate("d16", session="s", backend="a"))
    assert len(play.noted("session.notice")) == 2


def test_compaction_keeps_models_depth_and_lock() -> None:
    play = roled().when(delegate("d2", session="s", role="r"))
    before = play.session("s")
    assert before.hops
    play.when(SessionCompacted(session=SessionId("s")))
    after = play.session("s")
    assert (after.hops, after.notices_sent) == ((), ())
    assert (after.original, after.current, after.depth, after.running, after.role) == (
        before.original,
        before.current,
        before.depth,
        "d2",
        before.role,
    )


def test_an_ended_session_is_gone_and_starts_anew() -> None:
    play = roled().when(SessionEnded(session=SessionId("s")))
    assert play.memory.mirror.session(SessionId("s")) is None
    play.when(delegate("d2", session="s", role="r"))
    assert play.session("s").depth == 0


def test_work_of_an_ended_session_holds_it_until_the_answer_and_does_not_bring_it_back() -> None:
    play = Playbook(AB).when(delegate("d1", session="s", backend="a"))
    play.when(SessionEnded(session=SessionId("s")))
    assert rejected(play.when(delegate("d2", session="s", backend="a", queue=False))) == "busy"
    play.when(failed("d1.1", fail(Reason.AUTH))).when(succeeded("d1.2"))
    assert play.delegation("d1").state == "succeeded"
    assert play.memory.mirror.session(SessionId("s")) is None


# --- restarts and clocks -----------------------------------------------------------------------


def resume(play: Playbook, *names: str, boot: str = "") -> Playbook:
    """What the engine does at its start for each unfinished delegation."""
    play.then_whatever()
    play.restart()
    return play.resume(*names, boot=boot)


def taken_up(play: Playbook) -> list[StartAttempt]:
    return [one for one in play.decision.effects if isinstance(one, StartAttempt)]


def test_an_attempt_of_an_earlier_daemon_is_looked_for_and_keeps_what_it_holds() -> None:
    play = Playbook(AB)
    play.when(delegate("x", backend="a", failover=False), failed("x.1", fail(Reason.CRASH)))
    play.at(100).when(delegate("d1", session="s", backend="a", cwd="/w"), started("d1.1"))
    resume(play, "d1")
    (order,) = taken_up(play)
    assert (order.attempt, order.taken_up, order.was_started) == ("d1.1", True, True)
    assert play.health("a").trial is not None
    assert play.session("s").running == "d1"
    assert (
        rejected(play.when(delegate("d2", session="t", backend="b", cwd="/w", queue=False)))
        == "workspace"
    )
    play.then_whatever()
    play.when(failed("d1.1", fail(Reason.AUTH))).then(starts("d1.2", "b"))
    assert play.health("a").trial is None


def test_one_that_was_only_ordered_may_be_started_now() -> None:
    play = resume(Playbook(AB).when(delegate("d1", backend="a")), "d1")
    (order,) = taken_up(play)
    assert (order.taken_up, order.was_started, order.rebooted) == (True, False, False)


def test_one_of_an_earlier_boot_is_not_started_again() -> None:
    play = resume(Playbook(AB).when(delegate("d1", backend="a", boot="x")), "d1", boot="y")
    (order,) = taken_up(play)
    assert order.rebooted


def test_one_whose_boot_is_not_known_any_more_may_run_still() -> None:
    play = resume(Playbook(AB).when(delegate("d1", backend="a", boot="x")), "d1", boot="")
    (order,) = taken_up(play)
    assert not order.rebooted
    assert play.delegation("d1").boot == "x"


def test_what_waited_over_a_boot_goes_on_in_the_new_one() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a", mode="batch", boot="x"))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT, wait_s=30)))
    assert play.delegation("d1").state == "waiting"
    resume(play, "d1", boot="y").then()
    play.at(31).then(starts("d1.2", "a"))
    resume(play, "d1", boot="y")
    assert [one.rebooted for one in taken_up(play)] == [False]


def test_a_stop_that_was_ordered_is_ordered_again() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a"), started("d1.1"), cancel("d1"))
    resume(play, "d1")
    assert any(isinstance(one, StopAttempt) for one in play.decision.effects)
    play.when(failed("d1.1", fail(Reason.CRASH)))
    assert play.delegation("d1").state == "cancelled"


def test_the_handoff_note_is_the_same_as_before() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a"), started("d1.1"))
    play.when(failed("d1.1", fail(Reason.AUTH), effects="seen", changed_files=("x.py",)))
    first = next(one for one in play.decision.effects if isinstance(one, StartAttempt))
    resume(play, "d1")
    (order,) = taken_up(play)
    assert order.handoff == first.handoff
    assert "x.py" in (order.handoff or "")


@pytest.mark.parametrize("by_s", [86_400.0, -86_400.0])
def test_a_clock_that_is_set_moves_windows_waits_and_deadlines(by_s: float) -> None:
    play = Playbook(AB)
    play.when(delegate("x", backend="b", failover=False))
    play.when(failed("x.1", fail(Reason.RATE_LIMIT, wait_s=1000)))
    play.when(delegate("d1", backend="a", timeout_s=500), started("d1.1"))
    play.when(delegate("d2", backend="a"), failed("d2.1", fail(Reason.OVERLOADED)))
    play.then_whatever()
    play.step_clock(by_s)
    assert play.seen("b").until_at == T0 + 1000 + by_s
    assert play.delegation("d1").deadline_at == T0 + 500 + by_s
    play.at(2 + by_s).then()
    play.at(3 + by_s).then(starts("d2.2", "a"))
    play.at(250 + by_s).when(succeeded("d2.2")).then_whatever()
    play.at(299 + by_s).then()
    assert play.seen("b").state == "rate_limited"
    play.at(1001 + by_s)
    assert play.seen("b").state == "cooldown"


def test_a_clock_step_does_not_keep_the_marks_of_poison_work() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a"))
    play.at(1).when(failed("d1.1", fail(Reason.CRASH, at=1, confidence="exit_code")))
    play.step_clock(5000)
    play.at(5002).when(failed("d1.2", fail(Reason.CRASH, at=5002, confidence="exit_code")))
    assert play.delegation("d1").state == "failed"
    assert play.health("a").outage is None


def test_a_backend_that_leaves_the_configuration_is_walked_past() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a")).then(starts("d1.1", "a"))
    play.policy = policy_of("a", "c", chains={"a": ["c"]})
    play.when(failed("d1.1", fail(Reason.AUTH))).then(starts("d1.2", "c"))
    assert play.delegation("d1").verdicts[1].verdict == "not_configured"


def test_an_attempt_of_a_backend_that_is_gone_still_ends() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a")).then(starts("d1.1", "a"))
    play.policy = policy_of("b")
    play.when(started("d1.1"), succeeded("d1.1")).then(answers("d1"))
    assert play.delegation("d1").state == "succeeded"


def test_two_models_of_one_backend_are_two_candidates_on_one_account() -> None:
    role = Role(
        name="r",
        chain=(
            Entry(backend=AB.backends["a"].id, model="x"),  # type: ignore[index]
            Entry(backend=AB.backends["a"].id, model="y"),  # type: ignore[index]
            entry("b"),
        ),
    )
    quota = structs.replace(AB.backends["a"], quota="q")  # type: ignore[index]
    play = Playbook(policy_of(quota, "b", roles={"r": role}))
    play.when(delegate("d1", role="r"), failed("d1.1", fail(Reason.USAGE_LIMIT, wait_s=7200)))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"))
    play = Playbook(policy_of(quota, "b", roles={"r": role}))
    play.when(delegate("d1", role="r"), failed("d1.1", fail(Reason.MODEL_NOT_FOUND)))
    play.then(starts("d1.1", "a"), starts("d1.2", "a"))
    assert play.health("model:a/x").outage is not None


def test_every_decision_is_in_the_story() -> None:
    play = Playbook(AB).when(delegate("d1", backend="a"), failed("d1.1", fail(Reason.AUTH)))
    play.when(succeeded("d1.2"))
    told = [one.outcome for one in play.memory.stories]
    assert [one.split(" ")[0] for one in told] == ["starts", "leaves", "starts", "succeeded"]


# --- work from inside an attempt ends with it -------------------------------------------------


def cancel(name: str) -> CancelRequested:
    return CancelRequested(delegation=DelegationId(name))


def nested() -> Playbook:
    """`p` runs on a, and from inside it `k` on c; both write in one place."""
    play = Playbook(AB).when(delegate("p", backend="a", cwd="/w"), started("p.1"))
    play.when(delegate("k", backend="c", cwd="/w/x", parent="p", chain=(entry("c"),)))
    return play.then(starts("p.1", "a"), starts("k.1", "c"))


def test_nobody_is_hopped_to_before_nested_work_is_gone() -> None:
    play = nested().when(failed("p.1", fail(Reason.AUTH))).then(stops("k.1"))
    assert play.delegation("p").state == "waiting"
    play.when(failed("k.1", fail(Reason.CRASH)))
    play.then(answers("k"), starts("p.2", "b"))
    assert play.delegation("k").state == "cancelled"
    assert "the attempt of p that asked for it has ended" in (play.delegation("k").message or "")
    assert play.delegation("p").hops[0].reason == "auth"


def test_a_retry_waits_for_nested_work_too() -> None:
    play = nested().when(failed("p.1", fail(Reason.OVERLOADED))).then(stops("k.1"))
    play.at(30).then()
    play.when(failed("k.1", fail(Reason.CRASH)))
    play.then(answers("k"), starts("p.2", "a"))


def test_no_hop_without_proof_that_nested_work_is_gone() -> None:
    play = nested().when(failed("p.1", fail(Reason.AUTH)))
    play.when(failed("k.1", fail(Reason.CRASH), gone=False))
    play.then(stops("k.1"), answers("k"), answers("p"))
    assert play.delegation("p").state == "failed"
    assert "k.1 on c could not be stopped" in (play.delegation("p").message or "")


def test_the_answer_waits_for_nested_work() -> None:
    play = nested().when(succeeded("p.1")).then(stops("k.1"))
    assert play.delegation("p").served_by is None
    assert play.session("s-p").running == "p"
    play.when(cancel("p")).then()
    play.when(failed("k.1", fail(Reason.CRASH))).then(answers("k"), answers("p"))
    assert play.delegation("p").state == "succeeded"
    assert play.delegation("p").served_by == "a"
    assert play.session("s-p").running is None


def test_an_answer_says_what_nested_work_may_still_run() -> None:
    play = nested().when(succeeded("p.1"), failed("k.1", fail(Reason.CRASH), gone=False))
    assert play.delegation("p").state == "succeeded"
    assert "k.1 on c could not be stopped" in play.delegation("p").warnings[0]


def test_cancelling_stops_all_that_was_begun_inside() -> None:
    play = nested()
    play.when(delegate("g", backend="b", cwd="/w/x/y", parent="k", chain=(entry("b"),)))
    play.when(delegate("r", backend="b", parent="p", permissions="read", chain=(entry("b"),)))
    play.then(starts("g.1", "b"), starts("r.1", "b"))
    play.when(cancel("p")).then(stops("p.1"), stops("k.1"), stops("r.1"), stops("g.1"))
    play.when(failed("p.1", fail(Reason.CRASH)), failed("r.1", fail(Reason.CRASH)))
    play.then(answers("r"))
    play.when(failed("k.1", fail(Reason.CRASH))).then()
    play.when(failed("g.1", fail(Reason.CRASH))).then(answers("g"), answers("k"), answers("p"))
    assert {play.delegation(name).state for name in "pkgr"} == {"cancelled"}


def test_nested_work_that_waits_is_cancelled_with_its_parent() -> None:
    play = Playbook(AB).when(delegate("p", backend="a"), started("p.1"))
    play.when(delegate("k", backend="c", parent="p", chain=(entry("c"),)))
    play.when(failed("k.1", fail(Reason.RATE_LIMIT, wait_s=20)))
    assert play.delegation("k").state == "waiting"
    play.then(starts("p.1", "a"), starts("k.1", "c"))
    play.when(failed("p.1", fail(Reason.AUTH, at=0))).then(answers("k"), starts("p.2", "b"))


def test_what_comes_from_an_attempt_that_has_ended_is_not_started() -> None:
    play = Playbook(AB).when(delegate("p", backend="a", cwd="/w"), started("p.1"), cancel("p"))
    assert (
        rejected(play.when(delegate("k", backend="c", cwd="/w", parent="p", queue=False))) == "busy"
    )
    play = Playbook(AB).when(delegate("p", backend="a", cwd="/w"), started("p.1"))
    play.when(failed("p.1", fail(Reason.AUTH)), started("p.2"))
    late = delegate("k", backend="c", cwd="/w", parent="p", parent_attempt=AttemptId("p.1"))
    assert rejected(play.when(late)) == "busy"


def test_nested_work_is_stopped_with_its_parent_also_after_a_restart() -> None:
    play = resume(nested(), "p", "k")
    play.then_whatever()
    play.when(failed("p.1", fail(Reason.AUTH))).then(stops("k.1"))
    assert play.delegation("p").state == "waiting"
    resume(play, "p", "k").then_whatever()
    play.when(failed("k.1", fail(Reason.CRASH)))
    play.then(answers("k"), starts("p.2", "b"))


def test_affinity_is_for_the_one_that_answered() -> None:
    chains: dict[str, list[str]] = {"*": ["a", "b", "c"]}
    play = Playbook(policy_of("a", "b", "c", chains=chains))
    play.when(delegate("d1", session="s"), failed("d1.1", fail(Reason.RATE_LIMIT)))
    play.when(failed("d1.2", fail(Reason.TASK_FAILED)))
    play.then(starts("d1.1", "a"), starts("d1.2", "b"), answers("d1"))
    play.at(901).when(delegate("d2", session="s")).then(starts("d2.1", "a"))
    play.when(failed("d2.1", fail(Reason.RATE_LIMIT, at=901)), succeeded("d2.2"))
    play.then(starts("d2.2", "b"), answers("d2"))
    play.at(2000).when(delegate("d3", session="s")).then(starts("d3.1", "b"))


def test_what_this_run_has_started_is_not_taken_up_as_if_it_were_of_the_run_before() -> None:
    """The end of one that is read back makes a place for another that is read back after it."""
    play = Playbook(AB)
    play.when(delegate("d1", backend="a", session="s", timeout_s=50, chain=(entry("a"),)))
    play.when(failed("d1.1", fail(Reason.RATE_LIMIT, wait_s=20)))
    play.when(delegate("d2", backend="b", session="s"))
    assert [play.delegation(name).state for name in ("d1", "d2")] == ["waiting", "queued"]
    play.then_whatever()
    play.restart().now += 60
    play.resume("d1", "d2")
    orders = [one for one in play.then_whatever() if isinstance(one, StartAttempt)]
    assert [(one.attempt, one.taken_up) for one in orders] == [("d2.1", False)]
