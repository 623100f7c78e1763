"""The database file, as the worker thread sees it."""

import sqlite3
from pathlib import Path

import pytest
from tests.stores.records import NOW, a_note, a_session, an_ended

from fallbackd.core.decision import PutDelegation, PutSession
from fallbackd.stores.database import PRUNED_AT_ONCE, Database
from fallbackd.stores.opening import CHECK_ALL_BYTES
from fallbackd.stores.writes import writes_of


def opened(path: Path) -> Database:
    database = Database(path)
    _, trouble = database.open(now=NOW)
    assert trouble is None
    return database


def test_a_transaction_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    database = opened(tmp_path / "fallbackd.db")
    database.write(writes_of((a_note(),), after_seq=0))
    with pytest.raises(sqlite3.IntegrityError):
        database.write(writes_of((PutSession(a_session()), a_note()), after_seq=0))
    database.write(writes_of((a_note(),), after_seq=1))
    database.close()
    loaded, _ = (again := Database(tmp_path / "fallbackd.db")).open(now=NOW)
    assert loaded.sessions == []
    assert loaded.last_seq == 2
    again.close()


def test_much_is_pruned_in_several_goes(tmp_path: Path) -> None:
    database = opened(tmp_path / "fallbackd.db")
    total = PRUNED_AT_ONCE + 10
    ended = (PutDelegation(an_ended(f"d{n}", at=NOW + n)) for n in range(total))
    database.write(writes_of(tuple(ended), after_seq=0))
    first, is_more = database.prune_delegations(before_at=NOW + 10 * total)
    assert (len(first), is_more) == (PRUNED_AT_ONCE, True)
    second, is_more = database.prune_delegations(before_at=NOW + 10 * total)
    assert (len(second), is_more) == (10, False)
    database.close()


def test_a_start_reads_nothing_that_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    database = opened(path)
    ended = (PutDelegation(an_ended(f"d{n}", cwd="x" * 1000)) for n in range(50))
    database.write(writes_of(tuple(ended), after_seq=0))
    database.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE delegations SET record = 'no record'")
    connection.commit()
    connection.close()
    loaded, _ = (again := Database(path)).open(now=NOW)
    assert loaded.active == []
    assert again.set_aside == ()
    again.close()


def test_a_large_file_is_checked_where_a_start_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    database = opened(path)
    database.write(writes_of((PutSession(a_session()), a_note()), after_seq=0))
    database.close()
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO damaged VALUES ('padding', 'x', zeroblob(?))", (CHECK_ALL_BYTES + 1,)
    )
    connection.commit()
    connection.close()
    assert path.stat().st_size > CHECK_ALL_BYTES
    loaded, trouble = (again := Database(path)).open(now=NOW)
    assert trouble is None
    assert [one.session for one in loaded.sessions] == ["s1"]
    again.close()
