"""A later version finds what earlier ones have written, and a migration is whole or not at all."""

import sqlite3
from pathlib import Path

import pytest
from tests.stores.contract import NONE
from tests.stores.records import NOW, a_note, deciding

from fallbackd.core.ids import AttemptId, BackendId, DelegationId, ScopeId, SessionId
from fallbackd.core.policy import Entry
from fallbackd.core.reasons import Reason
from fallbackd.core.records import MadeMark, Message, Tried, Turn
from fallbackd.stores import opening
from fallbackd.stores.opening import MIGRATIONS, StoreTooNew
from fallbackd.stores.sqlite import open_sqlite

DATA = Path(__file__).parent / "data"
NEXT = (
    "CREATE TABLE tags (session TEXT PRIMARY KEY, tag TEXT NOT NULL)",
    "INSERT INTO tags SELECT session, 'from the first version' FROM sessions",
    "ALTER TABLE journal ADD COLUMN size INTEGER NOT NULL DEFAULT 0",
)
"""What a change of a later version may look like."""


def oldest(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript((DATA / "state_v1.sql").read_text())
    connection.close()


def later(monkeypatch: pytest.MonkeyPatch, *steps: tuple[str, ...]) -> int:
    """Be a version that knows these steps beyond those of today. Returns its number."""
    known = (*MIGRATIONS, *steps)
    monkeypatch.setattr(opening, "MIGRATIONS", known)
    monkeypatch.setattr(opening, "SCHEMA_VERSION", len(known))
    return len(known)


def select(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def version(path: Path) -> object:
    return select(path, "SELECT value FROM meta WHERE key = 'schema_version'")[0][0]


async def test_a_database_of_the_first_version_is_brought_to_a_later_one_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fallbackd.db"
    oldest(path)
    newest = later(monkeypatch, NEXT, ("CREATE TABLE more (x)",))
    store = await open_sqlite(path, now=NOW + 3600)
    assert (store.problem, store.set_aside) == (None, ())
    assert await store.session(SessionId("s1")) is not None
    await store.transact(NONE, deciding(a_note("later")))
    await store.aclose()
    assert version(path) == str(newest)
    assert select(path, "SELECT session, tag FROM tags ORDER BY session") == [
        ("s1", "from the first version"),
        ("s2", "from the first version"),
    ]
    store = await open_sqlite(path, now=NOW + 7200)
    assert store.problem is None
    await store.aclose()


async def test_a_migration_that_fails_leaves_the_old_version_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fallbackd.db"
    oldest(path)
    later(monkeypatch, (*NEXT, "INSERT INTO nowhere VALUES (1)"))
    store = await open_sqlite(path, now=NOW + 3600)
    assert store.problem is not None
    await store.aclose()
    assert version(path) == "1"
    assert select(path, "SELECT name FROM sqlite_master WHERE name = 'tags'") == []
    monkeypatch.undo()
    store = await open_sqlite(path, now=NOW + 3600)
    assert (store.problem, store.set_aside) == (None, ())
    assert await store.session(SessionId("s1")) is not None
    await store.aclose()


async def test_an_earlier_version_leaves_the_records_of_a_later_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fallbackd.db"
    later(monkeypatch, NEXT)
    store = await open_sqlite(path, now=NOW)
    await store.aclose()
    monkeypatch.undo()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="newer fallbackd"):
        await open_sqlite(path, now=NOW)
    assert path.read_bytes() == before


def with_turns(path: Path) -> None:
    """As the first version, with records that are in the middle of a chain."""
    oldest(path)
    delegation, session, at_rest = (DATA / "turns_v1.jsonl").read_text().splitlines()
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO delegations VALUES ('d9', 's9', 'waiting', 0, NULL, ?, NULL, ?)",
        (NOW, delegation.encode()),
    )
    for name, record in (("s9", session), ("s8", at_rest), ("s7", "no JSON")):
        connection.execute("INSERT INTO sessions VALUES (?, ?)", (name, record.encode()))
    connection.commit()
    connection.close()


A, B = Entry(backend=BackendId("a")), Entry(backend=BackendId("b"))


async def test_what_a_delegation_was_asked_before_the_upgrade_is_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    with_turns(path)
    store = await open_sqlite(path, now=NOW + 60)
    one = await store.delegation(DelegationId("d9"))
    await store.aclose()
    assert one is not None
    assert (one.role, one.state, one.cwd) == ("writer", "waiting", "/\udc80")
    assert one.turn == Turn(
        candidates=(A, Entry(backend=BackendId("b"), model="m", tier="model")),
        role="writer",
        creative=True,
        on_outage="ask",
        allow_metered=False,
        differs_from=("gpt", "?"),
        fallback_on=("auth", "rate_limit"),
        max_hops=2,
        budget=5,
        prompt_tokens=7,
        inherited_tried=("x|y",),
        marks=(MadeMark(scope=ScopeId("backend:a"), since_at=NOW + 1.5, before=None),),
    )


async def test_the_turns_of_a_session_are_found_after_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    with_turns(path)
    store = await open_sqlite(path, now=NOW + 60)
    one, at_rest = [await store.session(SessionId(name)) for name in ("s9", "s8")]
    assert len(store.set_aside) == 1, "the record that is not JSON"
    await store.aclose()
    assert one is not None
    assert at_rest is not None
    turn = Turn(
        candidates=(A, B),
        tried=(Tried(backend=A.backend, reason=Reason.AUTH),),
        hops=1,
        backend=B.backend,
        at=3.0,
    )
    assert one.turn == turn
    assert one.message == Message(
        id="m1",
        backend=B.backend,
        began_at=2.5,
        turn=turn,
        is_marked=True,
        lease=AttemptId("lease1"),
    )
    assert one.rescue is not None
    assert (one.rescue.id, one.rescue.turn) == ("r1", turn)
    assert (at_rest.turn, at_rest.message, at_rest.rescue) == (None, None, None)


def test_every_version_has_its_checked_in_database() -> None:
    """A new version adds `state_v<number>.sql`, dumped from a database that it has written."""
    assert {one.name for one in DATA.glob("state_v*.sql")} == {
        f"state_v{number}.sql" for number in range(1, len(MIGRATIONS) + 1)
    }
