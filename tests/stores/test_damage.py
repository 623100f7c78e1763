"""Bytes that were lost or overwritten: no start fails, nothing is deleted, records go on."""

import shutil
import sqlite3
from pathlib import Path
from random import Random

import pytest
from tests.stores.contract import NONE
from tests.stores.records import NOW, a_note, a_session, an_ended, deciding

from fallbackd.core.decision import PutDelegation, PutSession
from fallbackd.stores.sqlite import open_sqlite

PAGE_BYTES = 4096
SESSIONS = 40


@pytest.fixture
async def whole(tmp_path: Path) -> Path:
    """A database with a log beside it, as a daemon that was killed leaves it."""
    path = tmp_path / "whole" / "fallbackd.db"
    path.parent.mkdir()
    store = await open_sqlite(path, now=NOW)
    for number in range(SESSIONS):
        await store.transact(
            NONE,
            deciding(
                PutSession(a_session(f"s{number}", at=NOW + number)),
                PutDelegation(an_ended(f"d{number}")),
                a_note(),
            ),
        )
    kept = tmp_path / "kept"
    kept.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", kept / f"fallbackd.db{suffix}")
    await store.aclose()
    shutil.copy(path, kept / "closed.db")
    return kept


async def sessions_after_the_start(path: Path) -> int:
    """It starts, says what it lost, and takes new records."""
    before = path.read_bytes()
    store = await open_sqlite(path, now=NOW)
    assert store.problem is None
    await store.transact(NONE, deciding(a_note("after")))
    found = store.peek().session_count
    if store.set_aside and any(".corrupt-" in one for one in store.set_aside):
        assert Path(store.set_aside[0]).read_bytes() == before  # put aside as it was
    elif not store.set_aside:
        assert store.last_seq == (await store.journal(after_seq=0, limit=10_000))[-1].seq
    aside = [one for one in store.set_aside if ".corrupt-" in one]
    await store.aclose()
    store = await open_sqlite(path, now=NOW)
    assert (store.problem, list(store.set_aside)) == (None, aside)  # nothing more is damaged
    await store.aclose()
    return found


@pytest.mark.parametrize("seed", range(40))
async def test_any_bytes_of_its_first_page_may_be_others(
    whole: Path, tmp_path: Path, seed: int
) -> None:
    """The page with the schema: names that are no text, statements that are none."""
    luck = Random(seed)
    path = tmp_path / "fallbackd.db"
    damaged = bytearray((whole / "closed.db").read_bytes())
    for _ in range(6):
        damaged[luck.randrange(100, PAGE_BYTES)] = luck.randrange(128, 256)
    path.write_bytes(damaged)
    await sessions_after_the_start(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE meta SET value = '0' WHERE key = 'schema_version'",
        "ALTER TABLE journal RENAME COLUMN record TO recorf",
        "ALTER TABLE sessions RENAME TO sessionz",
        "ALTER TABLE meta RENAME COLUMN value TO walue",
        "DROP TABLE stories",
    ],
)
async def test_a_database_of_another_shape_is_put_aside(
    whole: Path, tmp_path: Path, statement: str
) -> None:
    path = tmp_path / "fallbackd.db"
    shutil.copy(whole / "closed.db", path)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()
    assert await sessions_after_the_start(path) == 0
    assert list(tmp_path.glob("fallbackd.db.corrupt-*"))


async def test_any_page_may_be_zeroed(whole: Path, tmp_path: Path) -> None:
    data = (whole / "closed.db").read_bytes()
    pages = len(data) // PAGE_BYTES
    assert pages > 10
    outcomes = set()
    for page in range(pages):
        path = tmp_path / f"{page}" / "fallbackd.db"
        path.parent.mkdir()
        changed = bytearray(data)
        changed[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
        path.write_bytes(changed)
        outcomes.add(await sessions_after_the_start(path))
    assert outcomes <= {0, SESSIONS}


async def test_the_file_may_end_anywhere(whole: Path, tmp_path: Path) -> None:
    data = (whole / "closed.db").read_bytes()
    for number, size in enumerate([1, 99, 100, 4095, 4096, 5000, len(data) // 2, len(data) - 1]):
        path = tmp_path / f"{number}" / "fallbackd.db"
        path.parent.mkdir()
        path.write_bytes(data[:size])
        # The last byte of a page may be unused, or the end of one record.
        is_cut = size < len(data) - 1
        left = (0,) if is_cut else (0, SESSIONS - 1, SESSIONS)
        assert await sessions_after_the_start(path) in left


async def test_the_log_may_end_anywhere_and_what_came_before_is_there(
    whole: Path, tmp_path: Path
) -> None:
    log = (whole / "fallbackd.db-wal").read_bytes()
    assert len(log) > 20 * PAGE_BYTES
    found = []
    for number in range(12):
        path = tmp_path / f"{number}" / "fallbackd.db"
        path.parent.mkdir()
        shutil.copy(whole / "fallbackd.db", path)
        Path(f"{path}-wal").write_bytes(log[: len(log) * number // 11])
        found.append(await sessions_after_the_start(path))
    assert found == sorted(found)
    assert found[-1] == SESSIONS
    assert len(set(found)) > 3


async def test_overwritten_bytes_of_the_log_cost_what_follows_them_alone(
    whole: Path, tmp_path: Path
) -> None:
    log = bytearray((whole / "fallbackd.db-wal").read_bytes())
    middle = len(log) // 2
    log[middle : middle + 10] = b"0123456789"
    path = tmp_path / "fallbackd.db"
    shutil.copy(whole / "fallbackd.db", path)
    Path(f"{path}-wal").write_bytes(log)
    assert 0 < await sessions_after_the_start(path) < SESSIONS
