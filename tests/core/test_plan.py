"""Each rule of `plan` alone: what it says of a case, and that it says nothing of any other."""

import msgspec
import pytest
from msgspec import structs
from tests.support.playbook import (
    T0,
    Playbook,
    delegate,
    fail,
    failed,
    policy_of,
)

from fallbackd.core.case import Case
from fallbackd.core.health import Health, Outage
from fallbackd.core.ids import BackendId, DelegationId, ScopeId
from fallbackd.core.policy import Entry
from fallbackd.core.reasons import Reason
from fallbackd.core.records import (
    Delegation,
    Ending,
    Option,
    Question,
    Session,
    Snapshot,
    Turn,
    Waiting,
)
from fallbackd.core.work import plan as planning
from fallbackd.core.work.apply import apply
from fallbackd.core.work.plan import RULES, RULES_OF_CHAIN, plan, searched
from fallbackd.core.work.steps import Clear, End, Hold, Queue, Start, Wait, ended
from fallbackd.core.work.transitions import TRANSITIONS

D1 = DelegationId("d1")
BASE = Delegation(
    delegation=D1,
    session="s1",
    requested=BackendId("a"),
    turn=Turn(candidates=(Entry(backend=BackendId("a")), Entry(backend=BackendId("b")))),
    active=BackendId("a"),
    created_at=T0,
)
SESSION = Session(
    session="s1",
    original=BackendId("a"),
    current=BackendId("a"),
    created_at=T0,
    last_used_at=T0,
)


def case_of(*others: Delegation, health: tuple[Health, ...] = (), **fields: object) -> Case:
    one = structs.replace(BASE, **fields)
    return Case(
        Snapshot(
            health={record.scope: record for record in health},
            delegation=one,
            session=SESSION,
            active={each.delegation: each for each in (one, *others)},
        ),
        policy_of("a", "b"),
        now=T0 + 10,
    )


def out(backend: str, *, until_at: float | None = None, source: str = "policy") -> Health:
    return Health(
        scope=ScopeId(f"backend:{backend}"),
        outage=Outage(
            state="rate_limited",
            reason=Reason.USAGE_LIMIT,
            since_at=T0,
            until_at=T0 + 9000 if until_at is None else until_at,
            source=source,
        ),
    )


def nested(**fields: object) -> Delegation:
    below = structs.replace(BASE, delegation=DelegationId("d2"), session="s2", parent=D1)
    return structs.replace(below, **fields)


def question(**fields: object) -> Question:
    asked = Question(
        question="d1.q1",
        delegation=D1,
        session="s1",
        kind="consent",
        text="May it cost money?",
        options=(Option(choice="stop", text="cancel it"),),
        opened_at=T0,
    )
    return structs.replace(asked, **fields)


def waiting(**fields: object) -> Waiting:
    return structs.replace(Waiting(since_at=T0, until_at=T0 + 20, limit_at=T0 + 60), **fields)


def after_failure() -> Case:
    """A case whose first attempt has failed."""
    play = Playbook(policy_of("a", "b", "c")).when(delegate("d1", backend="a"))
    play.when(failed("d1.1", fail(Reason.USAGE_LIMIT)))
    one = play.delegation("d1")
    snapshot = structs.replace(
        play.peek(), delegation=structs.replace(one, attempts=one.attempts[:1]), session=SESSION
    )
    return Case(snapshot, play.policy, now=play.wall)


def test_the_rules_stand_in_the_order_of_the_specification() -> None:
    assert [one.__name__ for one in (*RULES, *RULES_OF_CHAIN)] == [
        "nested_first",
        "pending_end",
        "cancelled",
        "unproven",
        "past_deadline",
        "past_limit",
        "in_line",
        "open_question",
        "not_yet",
        "started_by_person",
        "forced_by_person",
        "due_retry",
        "other_credential",
        "no_failover",
        "out_of_budget",
        "service_out",
        "best_candidate",
        "worth_waiting",
        "forbidden",
        "rest_of_wait",
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda one: one.__name__)
def test_no_rule_before_the_chain_says_anything_of_plain_new_work(rule: object) -> None:
    assert callable(rule)
    assert rule(case_of()) is None


def test_plain_new_work_starts_on_the_best_candidate() -> None:
    step = plan(case_of())
    assert isinstance(step, Start)
    assert step.choice.backend.id == "a"


def test_planning_changes_nothing() -> None:
    case = case_of(cancelling=False, waiting=waiting())
    before = msgspec.msgpack.encode((case.delegation, case.session, case.health))
    plan(case)
    assert msgspec.msgpack.encode((case.delegation, case.session, case.health)) == before
    assert case.finish().changes == ()
    assert case.finish().effects == ()


def test_what_was_delegated_from_inside_is_waited_for_at_any_depth() -> None:
    assert planning.nested_first(case_of(nested())) == Hold(is_nested=True)
    elsewhere = nested(parent=DelegationId("d9"))
    assert planning.nested_first(case_of(elsewhere)) is None


def test_an_end_that_was_put_off_comes_first_of_all_but_that() -> None:
    outcome = Ending(state="cancelled", message="enough")
    assert planning.pending_end(case_of(outcome=outcome)) == End(outcome=outcome)
    assert plan(case_of(nested(), outcome=outcome)) == Hold(is_nested=True)


def test_cancelled_work_ends_with_the_words_of_its_caller() -> None:
    step = planning.cancelled(case_of(cancelling=True, message="not wanted"))
    assert step == ended("cancelled", "not wanted")
    assert planning.cancelled(case_of(cancelling=True)) == ended(
        "cancelled", "cancelled by the caller"
    )


def test_nothing_is_started_beside_what_may_still_run() -> None:
    step = planning.unproven(case_of(unstopped=("pid 7",)))
    assert isinstance(step, End)
    assert step.outcome.state == "failed"


def test_work_past_its_deadline_fails_with_a_timeout() -> None:
    assert planning.past_deadline(case_of(deadline_at=T0 + 11)) is None
    step = planning.past_deadline(case_of(deadline_at=T0 + 10))
    assert isinstance(step, End)
    assert step.outcome.failure is not None
    assert step.outcome.failure.reason is Reason.TIMEOUT


def test_queued_work_stays_behind_what_has_its_session() -> None:
    holder = structs.replace(BASE, delegation=DelegationId("d0"), created_at=T0 - 1)
    step = planning.in_line(case_of(holder, blocked_by=holder.delegation))
    assert isinstance(step, Queue)
    assert step.behind == "d0"
    assert planning.in_line(case_of(blocked_by=holder.delegation)) == Clear(what="line")


def test_queued_work_that_has_waited_too_long_is_refused() -> None:
    holder = structs.replace(BASE, delegation=DelegationId("d0"), created_at=T0 - 1)
    over = waiting(limit_at=T0 + 10)
    step = planning.in_line(case_of(holder, blocked_by=holder.delegation, waiting=over))
    assert isinstance(step, End)
    assert step.outcome.state == "refused"


def test_an_open_question_holds_until_its_time_is_over() -> None:
    case = case_of(questions=(question(deadline_at=T0 + 11),))
    assert planning.open_question(case) == Hold(until_at=T0 + 11)
    step = planning.open_question(case_of(questions=(question(deadline_at=T0 + 10),)))
    assert isinstance(step, End)
    assert step.outcome.state == "refused"


def test_a_question_about_an_outage_is_cleared_once_the_service_is_proven() -> None:
    asked = question(kind="outage")
    step = planning.open_question(case_of(questions=(asked,)))
    assert isinstance(step, Clear)
    assert step.what == "question"
    still_out = planning.open_question(case_of(questions=(asked,), health=(out("a"), out("b"))))
    assert still_out == Hold()


def test_a_persons_choice_starts_there_and_one_that_is_out_is_dropped() -> None:
    step = planning.forced_by_person(case_of(forced=BackendId("b")))
    assert isinstance(step, Start)
    assert step.choice.backend.id == "b"
    gone = planning.forced_by_person(case_of(forced=BackendId("b"), health=(out("b"),)))
    assert isinstance(gone, Clear)
    assert gone.what == "forced"


def test_a_retry_holds_until_it_is_due_and_then_starts_the_same_candidate() -> None:
    again = waiting(retry=Entry(backend=BackendId("a")), retry_of="d1.1")
    assert planning.due_retry(case_of(waiting=again)) == Hold(until_at=T0 + 20)
    step = planning.due_retry(case_of(waiting=structs.replace(again, until_at=T0 + 10)))
    assert isinstance(step, Start)
    assert (step.choice.backend.id, step.retry_of, step.event) == ("a", "d1.1", "waited")


def test_a_wait_without_a_candidate_is_no_retry() -> None:
    assert planning.due_retry(case_of(waiting=waiting(until_at=T0))) is None


def test_without_failover_the_first_failure_ends_the_work() -> None:
    case = after_failure()
    case.update(failover=False)
    step = planning.no_failover(case)
    assert isinstance(step, End)
    assert "no failover" in step.why


def test_the_budget_of_attempts_ends_the_work() -> None:
    case = after_failure()
    assert planning.out_of_budget(case) is None
    case.update(turn=structs.replace(BASE.turn, budget=1))
    step = planning.out_of_budget(case)
    assert isinstance(step, End)
    assert "max_attempts" in step.why


def test_a_full_host_queues_what_could_start() -> None:
    running = Playbook(policy_of("a")).when(delegate("d9", backend="a")).delegation("d9")
    case = case_of(running)
    case.policy = structs.replace(
        case.policy, defaults=structs.replace(case.policy.defaults, max_running=1)
    )
    step = planning.best_candidate(case, searched(case))
    assert isinstance(step, Queue)
    assert step.behind is None


def test_a_stated_return_within_the_threshold_is_waited_for() -> None:
    soon = T0 + 15
    case = case_of(health=tuple(out(name, until_at=soon, source="provider") for name in ("a", "b")))
    step = planning.worth_waiting(case, searched(case))
    assert isinstance(step, Wait)
    assert step.waiting.until_at == soon
    later = case_of(health=(out("a", source="provider"), out("b", source="provider")))
    assert planning.worth_waiting(later, searched(later)) is None


def test_an_exhausted_chain_is_refused_with_the_earliest_return() -> None:
    step = plan(case_of(health=(out("a"), out("b", until_at=T0 + 8000))))
    assert isinstance(step, End)
    assert (step.outcome.state, step.outcome.retry_at) == ("refused", T0 + 8000)


# --- apply -----------------------------------------------------------------------------------


def test_an_ended_delegation_moves_nowhere() -> None:
    for state in ("succeeded", "failed", "refused", "cancelled", "handed_back"):
        assert TRANSITIONS[state] == frozenset()
        with pytest.raises(AssertionError, match="in no table"):
            apply(case_of(state=state), ended("cancelled"), event="test")


def test_an_open_question_is_left_through_waiting_or_the_end_only() -> None:
    case = case_of(state="awaiting_answer", questions=(question(),))
    step = planning.best_candidate(case, searched(case))
    assert isinstance(step, Start)
    with pytest.raises(AssertionError, match="awaiting_answer -> running"):
        apply(case, step, event="test")


def test_the_state_of_a_delegation_is_changed_by_enter_alone() -> None:
    with pytest.raises(AssertionError, match="only `enter`"):
        case_of().update(state="failed")


def test_an_end_waits_for_what_was_delegated_from_inside() -> None:
    case = case_of(nested())
    apply(case, ended("cancelled", "enough"), event="test")
    assert case.delegation.state == "waiting"
    assert case.delegation.outcome == Ending(state="cancelled", message="enough")
