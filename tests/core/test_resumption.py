"""Playbooks: an agent that was interrupted after its first tool continues its own conversation."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.playbook import (
    Playbook,
    answered,
    answers,
    delegate,
    fail,
    failed,
    policy_of,
    started,
    starts,
    stops,
    succeeded,
)

from fallbackd.core.decision import StartAttempt
from fallbackd.core.events import AttemptEnded, AttemptRetrying, ConversationSeen, HealthPaused
from fallbackd.core.failures import NO_CONVERSATION, Failure
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.reasons import Reason

ABC = policy_of("a", "b", "c", chains={"a": ["b", "c"]})
OVERLOADED = fail(Reason.OVERLOADED)


def talks(attempt: str, conversation: str = "talk-1") -> ConversationSeen:
    return ConversationSeen(attempt=AttemptId(attempt), conversation=conversation)


def broke_off(attempt: str, failure: Failure = OVERLOADED, **more: Any) -> AttemptEnded:
    """It had run a tool, and its provider failed."""
    return failed(attempt, failure, **{"effects": "possible", "answered": True, **more})


def at_work(policy: Policy = ABC, **asked: object) -> Playbook:
    """A delegation `d1` whose first attempt, on `a`, has a conversation and ran a tool."""
    asked.setdefault("backend", "a")
    play = Playbook(policy).when(delegate("d1", **asked), started("d1.1"))  # type: ignore[arg-type]
    return play.when(talks("d1.1"), answered("d1.1")).then(starts("d1.1", "a"))


def order(play: Playbook) -> StartAttempt:
    """The one start that was ordered since the last look."""
    (found,) = play.then_whatever()
    assert isinstance(found, StartAttempt)
    return found


@pytest.mark.parametrize(
    "reason", [Reason.OVERLOADED, Reason.SERVER_ERROR, Reason.NETWORK, Reason.CRASH]
)
@pytest.mark.parametrize("mode", ["interactive", "batch"])
def test_a_conversation_that_broke_off_is_resumed_by_the_same_agent(
    reason: Reason, mode: str
) -> None:
    play = at_work(mode=mode)
    play.at(60).when(broke_off("d1.1", fail(reason, at=60))).then()
    assert play.delegation("d1").state == "waiting"
    start = order(play.at(63))
    assert (start.attempt, start.backend, start.resume) == ("d1.2", "a", "talk-1")
    assert start.handoff is None
    play.when(started("d1.2"), talks("d1.2"), succeeded("d1.2")).then(answers("d1"))
    found = play.delegation("d1")
    assert (found.served_by, found.hops, found.attempts[1].resumes) == ("a", (), "d1.1")
    assert found.attempts[1].retry_of is None
    assert play.health("a").outage is None


def test_a_conversation_is_resumed_once_and_then_the_next_agent_gets_a_note() -> None:
    play = at_work()
    play.at(60).when(broke_off("d1.1", changed_files=("x.py",))).at(63)
    play.when(started("d1.2"), talks("d1.2")).then_whatever()
    play.at(64).when(failed("d1.2", fail(Reason.OVERLOADED, at=64)))
    start = order(play)
    assert (start.attempt, start.backend, start.resume) == ("d1.3", "b", None)
    assert start.handoff is not None
    assert start.handoff.count("It was a, and it ended with overloaded.") == 1
    assert "x.py" in start.handoff
    assert play.outage("a").count == 1
    found = play.delegation("d1")
    assert [one.effects for one in found.attempts] == ["possible", "possible", "none"]
    assert [one.reason for one in found.hops] == ["overloaded"]


@pytest.mark.parametrize("knobs", [{}, {"retries": 5}])
def test_a_resumption_is_never_repeated_from_the_beginning(knobs: dict[str, Any]) -> None:
    own = Backend(id=BackendId("a"), kind="codex", **knobs)
    play = at_work(policy_of(own, "b", chains={"a": ["b"]}))
    play.at(60).when(broke_off("d1.1")).at(63)
    play.then_whatever()
    play.when(started("d1.2"), failed("d1.2", fail(Reason.EMPTY_RESULT)))
    assert order(play).backend == "b"


@pytest.mark.parametrize(
    ("case", "ending"),
    [
        ("a reason that a few minutes do not change", broke_off("d1.1", fail(Reason.USAGE_LIMIT))),
        ("a wait beyond patience", broke_off("d1.1", fail(Reason.OVERLOADED, wait_s=303))),
    ],
)
def test_other_failures_after_effects_hop_at_once(case: str, ending: AttemptEnded) -> None:
    start = order(at_work().at(1).when(ending))
    assert (start.backend, start.resume) == ("b", None), case
    assert start.handoff is not None


def test_a_stated_wait_is_kept_before_a_conversation_is_resumed() -> None:
    play = at_work().at(1).when(broke_off("d1.1", fail(Reason.OVERLOADED, wait_s=40, at=1)))
    play.at(40.9).then().at(41)
    assert order(play).resume == "talk-1"


def test_an_agent_that_names_no_conversation_is_left_for_the_next() -> None:
    play = Playbook(ABC).when(delegate("d1", backend="a"), started("d1.1"), answered("d1.1"))
    play.then(starts("d1.1", "a")).at(1).when(broke_off("d1.1"))
    assert order(play).backend == "b"


def test_a_conversation_in_which_the_provider_never_answered_is_not_resumed() -> None:
    play = Playbook(ABC).when(delegate("d1", backend="a"), started("d1.1"), talks("d1.1"))
    play.then(starts("d1.1", "a")).at(1).when(broke_off("d1.1", answered=False))
    assert order(play).backend == "b"


def test_nothing_is_resumed_beside_an_attempt_that_is_not_proven_gone() -> None:
    play = at_work().at(1).when(broke_off("d1.1", gone=False)).then(answers("d1"))
    assert play.delegation("d1").state == "failed"


def test_nothing_is_resumed_behind_the_deadline() -> None:
    play = at_work(timeout_s=62.0).at(60).when(broke_off("d1.1"))
    assert order(play).backend == "b"


def test_nothing_is_resumed_for_trouble_of_this_machine() -> None:
    no_place = structs.replace(fail(Reason.CRASH), hop=False)
    play = at_work().at(60).when(broke_off("d1.1", no_place)).then(answers("d1"))
    assert play.delegation("d1").state == "failed"


def test_an_attempt_without_effects_is_repeated_and_not_resumed() -> None:
    play = at_work().at(1).when(broke_off("d1.1", effects="none")).at(4)
    start = order(play)
    assert (start.attempt, start.backend, start.resume) == ("d1.2", "a", None)


def test_a_backend_that_a_person_took_out_meanwhile_is_not_resumed() -> None:
    play = at_work().at(1).when(broke_off("d1.1"), HealthPaused(target="a"))
    start = order(play.at(4))
    assert (start.backend, start.resume) == ("b", None)
    assert start.handoff is not None


def test_an_attempt_that_patience_has_ended_is_resumed() -> None:
    play = at_work(mode="interactive").at(10)
    play.when(AttemptRetrying(attempt=AttemptId("d1.1"), failure=fail(Reason.OVERLOADED, at=10)))
    play.at(15).then(stops("d1.1"))
    play.at(16).when(broke_off("d1.1", fail(Reason.CRASH))).at(20)
    assert order(play).resume == "talk-1"


def test_a_program_that_begins_another_conversation_is_stopped_and_the_next_one_asked() -> None:
    play = at_work().at(1).when(broke_off("d1.1")).at(4)
    assert order(play).resume == "talk-1"
    play.when(started("d1.2"), talks("d1.2", "talk-2")).then(stops("d1.2"))
    play.at(5).when(failed("d1.2", fail(Reason.CRASH)))
    assert order(play).backend == "b"
    found = play.delegation("d1")
    assert [one.reason for one in found.hops] == ["overloaded"]
    assert play.outage("a").reason is Reason.OVERLOADED


def test_a_conversation_that_cannot_be_resumed_is_left_for_what_broke_it() -> None:
    play = at_work().at(1).when(broke_off("d1.1")).at(4)
    play.then_whatever()
    gone = fail(Reason.FORMAT_ERROR, detail=NO_CONVERSATION)
    play.when(started("d1.2"), failed("d1.2", gone))
    start = order(play)
    assert start.backend == "b"
    assert [one.reason for one in play.delegation("d1").hops] == ["overloaded"]


def test_a_new_daemon_orders_a_resumption_as_the_old_one_did() -> None:
    play = at_work().at(1).when(broke_off("d1.1")).at(4)
    before = order(play)
    play.restart().resume("d1")
    again = order(play)
    assert (again.resume, again.handoff, again.taken_up) == (before.resume, None, True)


def test_a_new_daemon_resumes_what_the_old_one_was_about_to() -> None:
    play = at_work().at(1).when(broke_off("d1.1"))
    play.restart().at(2).resume("d1").then()
    assert order(play.at(4)).resume == "talk-1"


def test_each_agent_of_a_walk_may_resume_its_own() -> None:
    play = at_work(policy_of("a", "b", "c", chains={"a": ["b", "c"]}))
    play.at(60).when(broke_off("d1.1")).at(63).then_whatever()
    play.when(started("d1.2"), talks("d1.2"), broke_off("d1.2")).then_whatever()
    play.when(started("d1.3"), talks("d1.3", "talk-b"), answered("d1.3"))
    play.at(70).when(broke_off("d1.3", fail(Reason.NETWORK, at=70))).at(73)
    start = order(play)
    assert (start.attempt, start.backend, start.resume) == ("d1.4", "b", "talk-b")
