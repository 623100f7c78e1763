"""The records in memory."""

from tests.stores.records import NOW, a_delegation, a_note, a_session, an_ended, an_outage

from fallbackd.core.decision import Change, DropSession, PutDelegation, PutHealth, PutSession
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.records import Keys
from fallbackd.stores.mirror import Draft, Mirror


def mirror_with(*changes: Change, **limits: int) -> Mirror:
    mirror = Mirror(**limits)
    draft = Draft(mirror)
    draft.add(changes)
    mirror.apply(draft)
    return mirror


def test_a_draft_is_not_seen_before_it_is_applied() -> None:
    mirror = mirror_with(PutSession(a_session("s1")))
    before = mirror.peek()
    draft = Draft(mirror)
    draft.add((PutDelegation(a_delegation()), PutHealth(an_outage()), DropSession(SessionId("s1"))))
    assert mirror.peek() == before
    assert mirror.session(SessionId("s1")) is not None
    mirror.apply(draft)
    assert mirror.peek().session_count == 0
    assert set(mirror.peek().active) == {"d1"}


def test_a_draft_shows_each_decision_what_the_one_before_it_did() -> None:
    draft = Draft(mirror_with(PutSession(a_session("s1"))))
    draft.add((PutDelegation(a_delegation(request_id="r1")), PutSession(a_session("s2"))))
    shown = draft.snapshot(
        Keys(delegation=DelegationId("d1"), session=SessionId("s2"), request_id="r1")
    )
    assert shown.delegation == shown.same_request == a_delegation(request_id="r1")
    assert shown.session == a_session("s2")
    assert shown.session_count == 2


def test_an_earlier_snapshot_of_a_draft_is_not_changed_by_a_later_decision() -> None:
    draft = Draft(Mirror())
    before = draft.snapshot(Keys())
    draft.add((PutHealth(an_outage()), PutDelegation(a_delegation())))
    assert (before.health, before.active) == ({}, {})


def test_only_the_last_ended_delegations_stay_in_memory() -> None:
    ended = [an_ended(f"d{n}", request_id=f"r{n}") for n in range(5)]
    mirror = mirror_with(
        PutDelegation(a_delegation("running")), *map(PutDelegation, ended), max_ended=2
    )
    assert len(mirror.ended) == 5
    mirror.forget_surplus()
    assert set(mirror.ended) == {"d3", "d4"}
    assert set(mirror.requests) == {"r3", "r4"}
    assert set(mirror.active) == {"running"}


def test_only_the_end_of_the_journal_stays_in_memory() -> None:
    mirror = mirror_with(*(a_note("n", n=n) for n in range(10)), max_journal=3)
    assert mirror.last_seq == 10
    assert mirror.first_seq() == 8
    assert [one.seq for one in mirror.journal(after_seq=8, limit=9)] == [9, 10]


def test_a_request_id_that_was_used_again_means_the_later_delegation() -> None:
    mirror = mirror_with(
        PutDelegation(an_ended("d1", request_id="r")), PutDelegation(an_ended("d2", request_id="r"))
    )
    mirror.forget(DelegationId("d1"))
    found = Draft(mirror).request("r")
    assert found is not None
    assert found.delegation == "d2"


def test_sessions_of_the_same_instant_are_told_apart() -> None:
    mirror = mirror_with(*(PutSession(a_session(f"s{n}", at=NOW)) for n in (2, 0, 1)))
    draft = Draft(mirror)
    draft.add((DropSession(SessionId("s1")), PutSession(a_session("s0", at=NOW - 5))))
    mirror.apply(draft)
    assert [one.session for one in mirror.sessions(limit=9)] == ["s2", "s0"]
