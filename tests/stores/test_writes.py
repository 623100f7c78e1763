"""Decisions as rows."""

import pytest
from tests.stores.records import a_meter, a_note, a_session, a_story, an_ended, an_outage

from fallbackd.core.decision import DropSession, PutDelegation, PutHealth, PutMeter, PutSession
from fallbackd.core.ids import SessionId
from fallbackd.stores.writes import Writes, encode, writes_of


def test_each_change_becomes_its_row() -> None:
    ended = an_ended(request_id="r1")
    writes = writes_of(
        (
            PutHealth(an_outage()),
            PutMeter(a_meter()),
            PutSession(a_session("s1")),
            DropSession(SessionId("s2")),
            PutDelegation(ended),
            a_note("a"),
            a_story(),
            a_note("b"),
        ),
        after_seq=7,
    )
    assert set(writes.rows) == {
        ("health", "backend:codex"),
        ("meters", "codex"),
        ("sessions", "s1"),
        ("sessions", "s2"),
        ("delegations", "d1"),
    }
    assert writes.rows["sessions", "s2"] is None
    assert writes.rows["delegations", "d1"] == (
        "d1", "s1", "r1", ended.created_at, "succeeded", 1, ended.ended_at, encode(ended),
    )  # fmt: skip
    assert [seq for seq, _, _ in writes.notes] == [8, 9]
    assert writes.stories == [("d1", encode(a_story()))]
    assert writes.count("sessions") == 2


def test_a_later_row_takes_the_place_of_an_earlier_one() -> None:
    earlier = writes_of((PutSession(a_session(depth=1)), a_note("a")), after_seq=0)
    later = writes_of((DropSession(SessionId("s1")), a_note("b")), after_seq=1)
    both = earlier.joined(later)
    assert both.rows == {("sessions", "s1"): None}
    assert [seq for seq, _, _ in both.notes] == [1, 2]
    assert len(earlier.notes) == 1


def test_nothing_to_write_is_empty() -> None:
    assert Writes().is_empty
    assert not writes_of((a_note(),), after_seq=0).is_empty


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        writes_of((PutSession(a_session("\udc80")),), after_seq=0)
