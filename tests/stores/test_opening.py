"""Opening a file in every state that it may be found in."""

import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stores.contract import NONE
from tests.stores.hardship import unprivileged
from tests.stores.records import NOW, a_note, a_session, an_ended, deciding

from fallbackd.core.decision import PutDelegation, PutSession
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.ports.store import StoreUnwritable
from fallbackd.stores import open_store
from fallbackd.stores.opening import SCHEMA_VERSION, StoreTooNew
from fallbackd.stores.sqlite import SqliteStore, open_sqlite

DATA = Path(__file__).parent / "data"


async def fill(path: Path, *, sessions: int = 200) -> None:
    store = await open_sqlite(path, now=NOW)
    await store.transact(
        NONE,
        deciding(
            *(PutSession(a_session(f"s{n}", at=NOW + n)) for n in range(sessions)),
            PutDelegation(an_ended()),
            a_note(),
        ),
    )
    await store.aclose()


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database " * 1000)


def cut_in_half(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + 100])


def overwritten_in_the_middle(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[4096:] = b"\xa5" * (len(whole) - 4096)
    path.write_bytes(whole)


def somebody_elses(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.commit()
    connection.close()


def no_version(path: Path) -> None:
    change(path, "DELETE FROM meta WHERE key = 'schema_version'")


def lost_table(path: Path) -> None:
    change(path, "DROP TABLE sessions")


def odd_place(path: Path) -> None:
    change(path, "REPLACE INTO meta (key, value) VALUES ('last_seq', 'many')")


def emptied_beside_its_log(path: Path) -> None:
    path.write_bytes(b"")
    Path(f"{path}-wal").write_bytes(b"frames" * 1000)


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        garbage,
        cut_in_half,
        overwritten_in_the_middle,
        somebody_elses,
        no_version,
        emptied_beside_its_log,
    ],
)
async def test_a_damaged_file_is_put_aside_and_a_new_one_is_made(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "fallbackd.db"
    await fill(path)
    damage(path)
    before = path.read_bytes()
    store = await open_sqlite(path, now=NOW + 60)
    aside = tmp_path / f"fallbackd.db.corrupt-{int(NOW + 60)}"
    assert store.set_aside[0] == str(aside)
    assert aside.read_bytes() == before
    assert store.problem is None
    assert store.peek().session_count == 0
    await store.transact(NONE, deciding(PutSession(a_session())))
    await store.aclose()
    store = await open_sqlite(path, now=NOW + 61)
    assert store.set_aside[0] == str(aside)  # also for those who come later
    assert store.peek().session_count == 1
    for one in store.set_aside:
        Path(one).unlink()
    assert store.set_aside == ()
    await store.aclose()


@pytest.mark.parametrize("damage", [lost_table, odd_place])
async def test_a_file_whose_pages_are_good_and_whose_records_are_not_is_put_aside_too(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "fallbackd.db"
    await fill(path)
    damage(path)
    store = await open_sqlite(path, now=NOW)
    assert store.set_aside == (f"{path}.corrupt-{int(NOW)}",)
    assert store.problem is None
    assert store.last_seq == 0
    await store.aclose()
    connection = sqlite3.connect(store.set_aside[0])
    assert connection.execute("SELECT delegation FROM delegations").fetchall() == [("d1",)]
    connection.close()


async def test_the_log_of_a_damaged_file_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    emptied_beside_its_log(path)
    store = await open_sqlite(path, now=NOW)
    aside = f"{path}.corrupt-{int(NOW)}"
    assert store.set_aside == (aside, f"{aside}-wal")
    assert Path(f"{aside}-wal").read_bytes() == b"frames" * 1000
    await store.aclose()


async def test_two_damaged_files_of_one_second_are_both_kept(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    for content in (b"first" * 500, b"second" * 500, b"third" * 500):
        path.write_bytes(content)
        store = await open_sqlite(path, now=NOW)
        await store.aclose()
        Path(f"{path}-wal").unlink(missing_ok=True)
        Path(f"{path}-shm").unlink(missing_ok=True)
    kept = {one.read_bytes()[:5] for one in tmp_path.glob("*.corrupt-*")}
    assert kept == {b"first", b"secon", b"third"}


async def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    path.touch()
    store = await open_sqlite(path, now=NOW)
    assert (store.set_aside, store.problem) == ((), None)
    await store.transact(NONE, deciding(a_note()))
    await store.aclose()


async def test_garbage_in_the_log_costs_nothing_that_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    await fill(path)
    Path(f"{path}-wal").write_bytes(b"\xff" * 50_000)
    store = await open_sqlite(path, now=NOW)
    assert store.peek().session_count == 200
    await store.transact(NONE, deciding(a_note()))
    assert store.problem is None
    await store.aclose()


async def test_records_that_cannot_be_read_are_kept_apart_and_said(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    await fill(path, sessions=3)
    change(path, "UPDATE sessions SET record = '{\"session\": 7}' WHERE session = 's1'")
    change(path, "INSERT INTO health (scope, record) VALUES ('backend:x', x'00ff')")
    change(
        path,
        "INSERT INTO delegations (delegation, session, state, is_ended, created_at, record)"
        " VALUES ('dx', 's1', 'running', 0, 1, '{')",
    )
    store = await open_sqlite(path, now=NOW)
    assert sorted(one.session for one in await store.sessions()) == ["s0", "s2"]
    assert store.peek().health == {}
    assert store.peek().active == {}
    assert store.set_aside == (
        f"{path}: health backend:x",
        f"{path}: sessions s1",
        f"{path}: delegations dx",
    )
    await store.aclose()
    connection = sqlite3.connect(path)
    kept = connection.execute("SELECT kind, key, record FROM damaged").fetchall()
    connection.close()
    assert kept == [
        ("health", "backend:x", b"\x00\xff"),
        ("sessions", "s1", '{"session": 7}'),
        ("delegations", "dx", "{"),
    ]
    store = await open_sqlite(path, now=NOW)
    assert store.set_aside == ()
    await store.aclose()


async def test_what_has_ended_and_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    await fill(path)
    change(path, "UPDATE delegations SET record = 'x'")
    change(path, "UPDATE journal SET record = 'x'")
    store = await open_sqlite(path, now=NOW)
    assert await store.delegation(DelegationId("d1")) is None
    assert list(await store.delegations()) == []
    assert list(await store.journal(after_seq=0)) == []
    assert store.last_seq == 1
    await store.aclose()


async def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    await fill(path, sessions=1)
    change(path, "UPDATE sessions SET record = json_set(record, '$.mood', json('[1, {}]'))")
    change(path, "UPDATE delegations SET record = json_set(record, '$.colour', 'red')")
    store = await open_sqlite(path, now=NOW)
    assert store.set_aside == ()
    assert await store.session(SessionId("s0")) == a_session("s0")
    assert await store.delegation(DelegationId("d1")) == an_ended()
    await store.aclose()


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    await fill(path)
    change(path, "UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match=r"written by a newer fallbackd .* 99"):
        await open_store(f"sqlite:{path}", now=NOW)
    assert path.read_bytes() == before
    assert list(tmp_path.glob("*.corrupt-*")) == []


async def test_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    await store.transact(NONE, deciding(a_note()))
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
    assert set(modes) == {"fallbackd.db", "fallbackd.db-wal", "fallbackd.db-shm"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.aclose()


async def test_a_file_that_others_may_read_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    await fill(path)
    path.chmod(0o644)
    store = await open_sqlite(path, now=NOW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await store.aclose()


async def test_a_place_that_cannot_exist_is_said_and_memory_serves(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = await open_sqlite(tmp_path / "file" / "fallbackd.db", now=NOW)
    assert store.problem is not None
    assert "move away the file" in store.problem
    with pytest.raises(StoreUnwritable, match="File exists"):
        await store.transact(NONE, deciding(a_note()))
    await store.transact(NONE, deciding(a_note(), PutDelegation(an_ended())), must_keep=False)
    assert [one.seq for one in await store.journal(after_seq=0)] == [1]
    assert list(await store.delegations()) == [an_ended()]
    assert await store.flush() is False
    (tmp_path / "file").unlink()
    assert await store.flush() is True
    assert store.problem is None
    await store.aclose()
    store = await open_sqlite(tmp_path / "file" / "fallbackd.db", now=NOW)
    assert store.last_seq == 1
    assert await store.delegation(DelegationId("d1")) == an_ended()
    await store.aclose()


async def test_a_read_only_directory_is_read_and_written_again_when_it_may_be() -> None:
    with unprivileged() as directory:
        path = directory / "fallbackd.db"
        await fill(path)
        path.chmod(0o400)
        directory.chmod(0o500)
        store = await open_sqlite(path, now=NOW)
        assert store.problem is not None
        assert "let this user write" in store.problem
        await refuses_but_serves(store)
        directory.chmod(0o700)
        path.chmod(0o600)
        assert await store.flush() is True
        assert store.problem is None
        await store.aclose()
        store = await open_sqlite(path, now=NOW)
        assert [one.note.kind for one in await store.journal(after_seq=1)] == ["kept"]
        await store.aclose()


async def test_a_database_that_was_killed_is_read_in_a_read_only_directory() -> None:
    with unprivileged() as directory:
        path = directory / "fallbackd.db"
        killed = await open_sqlite(path, now=NOW)
        await killed.transact(
            NONE, deciding(*(PutSession(a_session(f"s{n}")) for n in range(200)), a_note())
        )
        copy = directory / "copy"
        copy.mkdir()
        for suffix in ("", "-wal", "-shm"):
            (copy / f"fallbackd.db{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
            (copy / f"fallbackd.db{suffix}").chmod(0o400)
        await killed.aclose()
        copy.chmod(0o500)
        store = await open_sqlite(copy / "fallbackd.db", now=NOW)
        await refuses_but_serves(store, ended=False)
        copy.chmod(0o700)
        await store.aclose()


async def test_records_that_could_not_be_read_at_the_start_are_not_written_over() -> None:
    with unprivileged() as directory:
        path = directory / "fallbackd.db"
        await fill(path)
        path.chmod(0)
        directory.chmod(0o500)
        store = await open_sqlite(path, now=NOW)
        assert store.problem is not None
        assert "ermission denied" in store.problem
        assert store.peek().session_count == 0
        await store.transact(NONE, deciding(PutSession(a_session("new"))), must_keep=False)
        directory.chmod(0o700)
        path.chmod(0o600)
        assert await store.flush() is False
        assert "restart the daemon" in store.problem
        await store.aclose()
        store = await open_sqlite(path, now=NOW)
        assert store.peek().session_count == 200
        await store.aclose()


async def refuses_but_serves(store: SqliteStore, *, ended: bool = True) -> None:
    with pytest.raises(StoreUnwritable, match="cannot be written"):
        await store.transact(NONE, deciding(a_note("refused")))
    await store.transact(NONE, deciding(a_note("kept")), must_keep=False)
    assert store.peek().session_count == 200
    assert store.last_seq == 2
    assert [one.seq for one in await store.journal(after_seq=0)] == [1, 2]
    assert (await store.delegation(DelegationId("d1")) is not None) is ended
    dropped, _ = await store.prune(
        delegations_before_at=NOW + 1e9,
        journal_before_at=NOW + 1e9,
        max_journal=1_000_000,
        max_sessions=1000,
        sessions_before_at=NOW,
    )
    assert list(dropped) == []


async def test_a_database_of_the_first_version_loads(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    connection = sqlite3.connect(path)
    connection.executescript((DATA / "state_v1.sql").read_text())
    connection.close()
    store = await open_sqlite(path, now=NOW + 3600)
    assert store.set_aside == ()
    assert store.problem is None
    shown = store.peek()
    assert set(shown.health) == {"backend:codex", "quota:shared", "backend:claude"}
    assert set(shown.active) == {"d2"}
    assert set(shown.meters) == {"codex"}
    assert [one.session for one in await store.sessions()] == ["s1", "s2"]
    assert [one.delegation for one in await store.delegations()] == ["d2", "d1"]
    ended = await store.delegation(DelegationId("d1"))
    assert ended is not None
    assert [one.attempt for one in ended.attempts] == ["d1.1", "d1.2"]
    assert ended.attempts[0].failure is not None
    assert ended.attempts[0].failure.reason == "rate_limit"
    assert [(one.from_backend, one.to_backend) for one in ended.hops] == [("codex", "opencode")]
    (told,) = await store.story(DelegationId("d1"))
    assert [one.verdict for one in told.verdicts] == ["rate_limited", "chosen"]
    assert [one.note.kind for one in await store.journal(after_seq=0)] == [
        "delegation.started",
        "delegation.ended",
    ]
    assert await store.finished_counts() == {"succeeded": 1}
    assert await store.get_meta("boot") == "b1"
    _, notes = await store.transact(NONE, deciding(a_note()))
    assert [one.seq for one in notes] == [3]
    assert Path(f"{path}-wal").exists()
    await store.aclose()
    connection = sqlite3.connect(path)
    version = connection.execute("SELECT value FROM meta WHERE key='schema_version'").fetchone()
    connection.close()
    assert version == (str(SCHEMA_VERSION),)
