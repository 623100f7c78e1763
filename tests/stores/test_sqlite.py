"""The store in a SQLite file."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.stores.contract import NONE, StoreContract, look
from tests.stores.records import (
    NOW,
    a_delegation,
    a_meter,
    a_note,
    a_session,
    a_story,
    an_ended,
    an_outage,
    deciding,
)

from fallbackd.core.decision import (
    Decision,
    DropSession,
    PutDelegation,
    PutHealth,
    PutMeter,
    PutSession,
)
from fallbackd.core.health import Trial
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, SessionId
from fallbackd.core.records import Attempt, Keys, Snapshot
from fallbackd.ports.store import Selection
from fallbackd.stores.database import Database
from fallbackd.stores.sqlite import MAX_ENDED, MAX_JOURNAL, SqliteStore, open_sqlite
from fallbackd.stores.writes import Writes

HANG_S = 60.0


class TestSqliteStore(StoreContract):
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path / 'state' / 'fallbackd.db'}"


def on_disk(path: Path, select: str) -> list[Any]:
    """Read by a program of its own."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(select).fetchall()
    finally:
        connection.close()


class Counted(Database):
    """A database that counts what it is asked, and can be held up."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commits: list[Writes] = []
        self.reads = 0
        self.gate: threading.Event | None = None
        self.started = threading.Event()

    def write(self, writes: Writes) -> None:
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(HANG_S)
        super().write(writes)
        self.commits.append(writes)

    def delegations_by_key(self, *args: Any) -> Any:
        self.reads += 1
        return super().delegations_by_key(*args)


async def open_counted(path: Path) -> tuple[SqliteStore, Counted]:
    database = Counted(path)
    return await open_sqlite(path, now=NOW, database=database), database


async def wait_until(is_true: Callable[[], bool]) -> None:
    with anyio.fail_after(HANG_S):
        while not is_true():
            await anyio.lowlevel.checkpoint()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    running = a_delegation("d1", request_id="r1", metadata={"any": [1, None, {"x": "ü"}]})
    ended = an_ended("d2", at=NOW + 1, request_id="r2")
    session = a_session(running=running.delegation, depth=3)
    await store.transact(
        NONE,
        deciding(
            PutDelegation(running),
            PutDelegation(ended),
            PutSession(session),
            PutMeter(a_meter()),
            a_story("d2"),
            a_note("one"),
            a_note("two", n=2),
        ),
    )
    await store.set_meta("boot", "b1")
    await store.aclose()

    store = await open_sqlite(path, now=NOW + 5)
    assert store.peek() == Snapshot(
        active={running.delegation: running}, meters={"codex": a_meter()}, session_count=1
    )
    shown = await look(store, Keys(delegation=ended.delegation, session=session.session))
    assert (shown.delegation, shown.session) == (ended, session)
    assert (await look(store, Keys(request_id="r2"))).same_request == ended
    assert (await look(store, Keys(request_id="r1"))).same_request == running
    assert list(await store.delegations()) == [ended, running]
    assert list(await store.story(ended.delegation)) == [a_story("d2")]
    assert [(one.seq, one.note) for one in await store.journal(after_seq=0)] == [
        (1, a_note("one")),
        (2, a_note("two", n=2)),
    ]
    assert await store.finished_counts() == {"succeeded": 1}
    assert await store.get_meta("boot") == "b1"
    _, notes = await store.transact(NONE, deciding(a_note()))
    assert [one.seq for one in notes] == [3]
    await store.aclose()


async def test_health_of_an_earlier_run_says_so_and_holds_no_lease(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    trial = Trial(attempt=AttemptId("d1.1"), generation=1, leased_at=NOW)
    await store.transact(NONE, deciding(PutHealth(an_outage(trial=trial))))
    await store.aclose()
    store = await open_sqlite(path, now=NOW + 30)
    (health,) = store.peek().health.values()
    assert health.loaded_at == NOW + 30
    assert health.trial is None
    assert health.outage == an_outage().outage
    await store.aclose()


async def test_the_trial_of_an_attempt_that_runs_still_is_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    attempt = Attempt(
        attempt=AttemptId("d1.1"), backend=BackendId("codex"), started_at=NOW, state="running"
    )
    trial = Trial(attempt=attempt.attempt, generation=1, leased_at=NOW)
    work = PutDelegation(a_delegation(attempts=(attempt,)))
    await store.transact(NONE, deciding(PutHealth(an_outage(trial=trial)), work))
    await store.aclose()
    store = await open_sqlite(path, now=NOW + 30)
    (health,) = store.peek().health.values()
    assert health.trial == trial
    await store.aclose()


async def test_a_store_that_was_never_closed_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    await store.transact(NONE, deciding(PutSession(a_session()), a_note()))
    other = await open_sqlite(path, now=NOW)
    assert await other.session(SessionId("s1")) == a_session()
    assert other.last_seq == 1
    await other.aclose()
    await store.aclose()


async def test_a_pruned_journal_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    await store.transact(NONE, deciding(a_note(), a_note()))
    await TestSqliteStore().prune_all(store)
    await store.aclose()
    store = await open_sqlite(path, now=NOW)
    assert store.last_seq == 2
    await store.aclose()


async def test_more_than_fits_in_memory_is_read_from_disk(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "fallbackd.db", now=NOW)
    total = max(MAX_ENDED, MAX_JOURNAL) + 50
    for start in range(0, total, 100):
        numbers = range(start, min(start + 100, total))
        await store.transact(
            NONE,
            deciding(
                *(
                    PutDelegation(an_ended(f"d{n:05}", at=NOW + n, request_id=f"r{n}"))
                    for n in numbers
                ),
                *(a_note("n", n=n) for n in numbers),
            ),
        )
    oldest = an_ended("d00000", at=NOW, request_id="r0")
    assert await store.delegation(oldest.delegation) == oldest
    assert (await look(store, Keys(request_id="r0"))).same_request == oldest
    assert len(await store.delegations(limit=total + 1)) == total
    journal = await store.journal(after_seq=0, limit=total + 1)
    assert [one.seq for one in journal] == list(range(1, total + 1))
    assert [one.note.fields["n"] for one in journal] == list(range(total))
    dropped, _ = await store.prune(
        delegations_before_at=NOW + total - 9,
        journal_before_at=NOW,
        max_journal=1_000_000,
        max_sessions=1,
        sessions_before_at=NOW,
    )
    assert len(dropped) == total - 10
    assert [one.created_at - NOW for one in await store.delegations(limit=total)] == list(
        range(total - 1, total - 11, -1)
    )
    await store.aclose()


async def test_nothing_is_acknowledged_or_shown_before_it_is_on_disk(tmp_path: Path) -> None:
    store, database = await open_counted(tmp_path / "fallbackd.db")
    database.gate = threading.Event()
    async with anyio.create_task_group() as asked:
        asked.start_soon(store.transact, NONE, deciding(PutSession(a_session()), a_note()))
        await wait_until(database.started.is_set)
        assert store.peek().session_count == 0
        assert await store.session(SessionId("s1")) is None
        assert store.last_seq == 0
        database.gate.set()
    assert store.peek().session_count == 1
    assert store.last_seq == 1
    await store.aclose()


async def test_decisions_that_wait_for_the_disk_are_written_together(tmp_path: Path) -> None:
    store, database = await open_counted(tmp_path / "fallbackd.db")
    database.gate = threading.Event()
    async with anyio.create_task_group() as asked:
        asked.start_soon(store.transact, NONE, deciding(a_note("first")))
        await wait_until(database.started.is_set)
        for number in range(20):
            asked.start_soon(store.transact, NONE, deciding(a_note("later", n=number)))
        await wait_until(lambda: len(store._waiting) == 21)
        database.gate.set()
    assert [len(one.notes) for one in database.commits] == [1, 20]
    journal = await store.journal(after_seq=0)
    assert [one.note.fields.get("n") for one in journal] == [None, *range(20)]
    await store.aclose()


async def test_what_could_be_decided_at_once_waits_behind_what_is_being_written(
    tmp_path: Path,
) -> None:
    store, database = await open_counted(tmp_path / "fallbackd.db")
    database.gate = threading.Event()

    def too_early(_snapshot: Snapshot) -> Decision:
        raise AssertionError("it was decided before its turn")

    async with anyio.create_task_group() as asked:
        asked.start_soon(store.transact, NONE, deciding(a_note("first")))
        await wait_until(database.started.is_set)
        assert store.transact_now(NONE, too_early) is None
        database.gate.set()
    assert store.transact_now(NONE, deciding(a_note("second"))) is not None
    assert [one.note.kind for one in await store.journal(after_seq=0)] == ["first", "second"]
    await store.aclose()


async def test_a_cancelled_caller_leaves_memory_and_disk_the_same(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store, database = await open_counted(path)
    database.gate = threading.Event()
    async with anyio.create_task_group() as asked:
        asked.start_soon(store.transact, NONE, deciding(PutSession(a_session())))
        await wait_until(database.started.is_set)
        asked.cancel_scope.cancel()
        database.gate.set()
    assert on_disk(path, "SELECT session FROM sessions") == [("s1",)]
    assert await store.session(SessionId("s1")) == a_session()
    await store.aclose()


async def test_a_killed_task_leaves_its_commit_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store, database = await open_counted(path)
    database.gate = threading.Event()
    async with asyncio.TaskGroup() as tasks:
        killed = tasks.create_task(store.transact(NONE, deciding(a_note("killed"))))
        await wait_until(database.started.is_set)
        waiting = tasks.create_task(store.transact(NONE, deciding(a_note("waiting"))))
        await wait_until(lambda: len(store._waiting) == 2)
        killed.cancel()
        await wait_until(killed.done)
        database.gate.set()
    assert killed.cancelled()
    _, notes = waiting.result()
    assert [(one.seq, one.note.kind) for one in notes] == [(2, "waiting")]
    assert on_disk(path, "SELECT seq FROM journal") == [(1,), (2,)]
    assert [one.note.kind for one in await store.journal(after_seq=0)] == ["killed", "waiting"]
    await store.aclose()


@pytest.mark.parametrize("sessions", [10, 3000])
async def test_a_decision_writes_what_it_changed_and_reads_nothing(
    tmp_path: Path, sessions: int
) -> None:
    store, database = await open_counted(tmp_path / "fallbackd.db")
    await store.transact(
        NONE, deciding(*(PutSession(a_session(f"s{n}", at=NOW + n)) for n in range(sessions)))
    )
    await store.transact(NONE, deciding(PutDelegation(a_delegation())))
    database.commits.clear()
    database.reads = 0
    statements: list[str] = []
    assert database._connection is not None
    database._connection.set_trace_callback(statements.append)
    await store.transact(
        Keys(session=SessionId("s5"), delegation=DelegationId("d1")),
        deciding(PutSession(a_session("s5", at=NOW + 9)), PutDelegation(a_delegation())),
    )
    assert database.reads == 0
    assert [set(one.rows) for one in database.commits] == [
        {("sessions", "s5"), ("delegations", "d1")}
    ]
    written = ["PRAGMA", "BEGIN", "UPDATE", "UPDATE", "COMMIT"]
    assert [one.split()[0] for one in statements] == written
    await store.aclose()


async def test_no_question_to_the_disk_looks_at_every_row(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store, database = await open_counted(path)
    statements: list[str] = []
    assert database._connection is not None
    database._connection.set_trace_callback(statements.append)
    await look(store, Keys(delegation=DelegationId("d1"), request_id="r1"))
    await store.delegations()
    await store.delegations(Selection(session=SessionId("s1")))
    await store.delegations(Selection(state="failed"))
    behind = (NOW, DelegationId("d1"))
    await store.delegations(Selection(is_ended=True, since_at=NOW, before=behind))
    await store.delegations(Selection(is_ended=False))
    await store.story(DelegationId("d1"))
    await TestSqliteStore().prune_all(store)
    await store.aclose()
    asked = [one for one in statements if one.startswith(("SELECT", "DELETE"))]
    assert len(asked) >= 7
    for statement in asked:
        plan = on_disk(path, f"EXPLAIN QUERY PLAN {statement}")
        assert not [
            row[3]
            for row in plan
            if row[3].startswith("SCAN") and "INDEX" not in row[3] and "journal" not in row[3]
        ], statement
        # The right part of an order is sorted among those that ended in the same instant.
        assert not [row[3] for row in plan if "TEMP B-TREE FOR ORDER" in row[3]], statement


async def test_a_key_that_cannot_be_stored_is_refused_alone(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "fallbackd.db", now=NOW)
    with pytest.raises(UnicodeEncodeError):
        await store.transact(NONE, deciding(PutSession(a_session("bad \udc80"))))
    await store.transact(NONE, deciding(a_note()))
    assert store.problem is None
    assert store.peek().session_count == 0
    await store.aclose()


async def test_a_directory_whose_name_is_no_text_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    odd = a_delegation(cwd="/srv/caf\udce9")
    await store.transact(NONE, deciding(PutDelegation(odd)))
    await store.aclose()
    store = await open_sqlite(path, now=NOW)
    assert store.peek().active == {odd.delegation: odd}
    await store.aclose()


async def test_a_request_that_was_dropped_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    await store.transact(NONE, deciding(PutSession(a_session())))
    await store.transact(NONE, deciding(DropSession(SessionId("s1"))))
    await store.aclose()
    store = await open_sqlite(path, now=NOW)
    assert await store.session(SessionId("s1")) is None
    await store.aclose()


async def test_a_closed_store_says_that_it_is_closed(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "fallbackd.db", now=NOW)
    await store.aclose()
    await store.aclose()
    decision = Decision(changes=(a_note(),))
    with pytest.raises(Exception, match="it was closed"):
        await store.transact(NONE, lambda _: decision)


async def test_what_ends_with_the_machine_is_written_without_waiting_for_the_disk(
    tmp_path: Path,
) -> None:
    store, database = await open_counted(tmp_path / "fallbackd.db")
    statements: list[str] = []
    assert database._connection is not None
    database._connection.set_trace_callback(statements.append)
    await store.transact(NONE, deciding(a_note("started")), outlives="process")
    await store.transact(NONE, deciding(a_note("ended")))
    ways = [one for one in statements if one.startswith("PRAGMA")]
    assert ways == ["PRAGMA synchronous = NORMAL", "PRAGMA synchronous = FULL"]
    # Another process sees both: nothing of it lay in this one's memory.
    with closing(sqlite3.connect(tmp_path / "fallbackd.db")) as other:
        assert other.execute("SELECT count(*) FROM journal").fetchone() == (2,)
    await store.aclose()


async def test_what_outlives_nothing_is_seen_at_once_and_written_with_what_follows(
    tmp_path: Path,
) -> None:
    store, _ = await open_counted(tmp_path / "fallbackd.db")

    def on_disk() -> int:
        with closing(sqlite3.connect(tmp_path / "fallbackd.db")) as other:
            return int(other.execute("SELECT count(*) FROM journal").fetchone()[0])

    await store.transact(NONE, deciding(a_note("first")), outlives="nothing")
    assert [one.note.kind for one in await store.journal(after_seq=0)] == ["first"]
    assert on_disk() == 0
    await store.transact(NONE, deciding(a_note("second")))
    assert on_disk() == 2
    await store.transact(NONE, deciding(a_note("third")), outlives="nothing")
    assert await store.flush()
    assert on_disk() == 3
    await store.transact(NONE, deciding(a_note("fourth")), outlives="nothing")
    await store.aclose()
    assert on_disk() == 4
