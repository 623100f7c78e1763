"""Decisions on their way to the disk."""

from pathlib import Path

from tests.stores.records import NOW, a_note, a_session

from fallbackd.core.decision import Decision, PutSession
from fallbackd.core.records import Keys, Snapshot
from fallbackd.stores.database import Database
from fallbackd.stores.mirror import Draft, Mirror
from fallbackd.stores.sqlite import Commit, CommitRequest
from fallbackd.stores.writes import writes_of


def broken(_snapshot: Snapshot) -> Decision:
    raise ZeroDivisionError("a bug")


def test_a_decision_that_raises_leaves_the_draft_as_it_was() -> None:
    draft = Draft(Mirror())
    request = CommitRequest(Keys(), broken, must_keep=True)
    assert request.decide(draft) is None
    assert isinstance(request.error, ZeroDivisionError)
    assert request.is_done
    assert draft.last_seq == 0


def test_a_decision_that_cannot_be_stored_leaves_the_draft_as_it_was() -> None:
    draft = Draft(Mirror())
    unstorable = Decision(changes=(a_note(), PutSession(a_session("\udc80"))))
    request = CommitRequest(Keys(), lambda _: unstorable, must_keep=True)
    assert request.decide(draft) is None
    assert isinstance(request.error, UnicodeEncodeError)
    assert (draft.last_seq, draft.sessions) == (0, {})


def test_a_commit_is_written_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    database = Database(tmp_path / "fallbackd.db")
    database.open(now=NOW)
    commit = Commit([], Draft(Mirror()), writes_of((a_note(),), after_seq=0))
    commit.write(database)
    commit.write(database)
    assert commit.error is None
    assert [seq for seq, _ in database.journal(after_seq=0, limit=9)] == [1]
    database.close()


def test_a_commit_that_failed_says_why_and_is_not_tried_again(tmp_path: Path) -> None:
    database = Database(tmp_path / "fallbackd.db")
    database.open(now=NOW)
    database.close()
    commit = Commit([], Draft(Mirror()), writes_of((a_note(),), after_seq=0))
    commit.write(database)
    assert str(commit.error) == "it was closed"
    database.open(now=NOW)
    commit.write(database)
    assert database.journal(after_seq=0, limit=9) == []
    database.close()
