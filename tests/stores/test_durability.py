"""What is left when the process is killed, the disk is full, or both come and go."""

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.stores import committing
from tests.stores.contract import NONE
from tests.stores.hardship import no_file_beyond
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
    Change,
    DropSession,
    PutDelegation,
    PutHealth,
    PutMeter,
    PutSession,
)
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.records import Keys
from fallbackd.ports.store import Selection, Store, StoreUnwritable
from fallbackd.stores.database import Database
from fallbackd.stores.memory import MemoryStore
from fallbackd.stores.sqlite import open_sqlite
from fallbackd.stores.writes import Writes


async def test_killed_at_any_instant_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    before = 0
    for commits in (1, 40, 7, 150, 23):
        acknowledged = kill_after(commits, path, environment)
        assert acknowledged == list(range(before + 1, before + 1 + len(acknowledged)))
        store = await open_sqlite(path, now=NOW)
        journal = await store.journal(after_seq=0, limit=100_000)
        session = await store.session(committing.S1)
        await store.aclose()
        assert store.set_aside == ()
        assert store.last_seq >= acknowledged[-1]
        assert [one.seq for one in journal] == list(range(1, store.last_seq + 1))
        assert [one.note.fields["n"] for one in journal] == [one.seq for one in journal]
        assert session is not None
        assert session.ignored_reports == store.last_seq
        before = store.last_seq


def kill_after(commits: int, path: Path, environment: dict[str, str]) -> list[int]:
    """Returns every place in the journal that was acknowledged before the end."""
    with subprocess.Popen(
        [sys.executable, committing.__file__, str(path)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(commits)]
        process.kill()
        lines += process.stdout.readlines()
    return [int(line) for line in lines if line.endswith(b"\n")]


async def test_a_full_disk_refuses_new_work_and_keeps_what_must_go_on(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    await store.transact(NONE, deciding(PutSession(a_session()), a_note("before")))
    with no_file_beyond(Path(f"{path}-wal").stat().st_size + 5_000):
        big = a_session("big", hops=(), notices_sent=tuple(f"{n:090}" for n in range(1000)))
        with pytest.raises(StoreUnwritable, match=r"fallbackd\.db cannot be written: .*; look at"):
            await store.transact(NONE, deciding(PutSession(big), a_note("refused")))
        assert store.problem is not None
        assert store.peek().session_count == 1
        assert store.last_seq == 1

        ended = an_ended("d1", warnings=tuple(f"{n:090}" for n in range(1000)))
        _, notes = await store.transact(
            NONE,
            deciding(PutDelegation(ended), a_note("kept"), a_story("d1"), PutHealth(an_outage())),
            must_keep=False,
        )
        assert [one.seq for one in notes] == [2]
        assert not store.is_kept(ended.delegation)
        assert await store.delegation(ended.delegation) == ended
        assert list(await store.delegations(Selection(state="succeeded"))) == [ended]
        assert list(await store.delegations(Selection(state="running"))) == []
        assert list(await store.story(ended.delegation)) == [a_story("d1")]
        assert [one.note.kind for one in await store.journal(after_seq=0)] == ["before", "kept"]
        assert await store.finished_counts() == {"succeeded": 1}
        assert len(store.peek().health) == 1
        await store.set_meta("boot", "b1")
        assert await store.get_meta("boot") == "b1"
        assert await store.flush() is False
        refused = deciding(PutSession(big))
        with pytest.raises(StoreUnwritable):
            await store.transact(NONE, refused)

    assert await store.flush() is True
    assert store.problem is None
    await store.transact(NONE, deciding(a_note("after")))
    await store.aclose()
    store = await open_sqlite(path, now=NOW)
    assert store.set_aside == ()
    assert [(one.seq, one.note.kind) for one in await store.journal(after_seq=0)] == [
        (1, "before"),
        (2, "kept"),
        (3, "after"),
    ]
    assert await store.delegation(ended.delegation) == ended
    assert list(await store.story(ended.delegation)) == [a_story("d1")]
    assert store.peek().session_count == 1
    assert await store.get_meta("boot") == "b1"
    await store.aclose()


async def test_the_next_decision_brings_what_was_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    with no_file_beyond(100):
        await store.transact(NONE, deciding(a_note("left behind")), must_keep=False)
    assert store.problem is not None
    await store.transact(NONE, deciding(a_note("next")))
    assert store.problem is None
    await store.aclose()
    store = await open_sqlite(path, now=NOW)
    journal = await store.journal(after_seq=0)
    assert [one.note.kind for one in journal] == ["left behind", "next"]
    await store.aclose()


async def test_a_disk_that_is_full_at_the_start_serves_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    await store.transact(NONE, deciding(PutSession(a_session()), a_note()))
    await store.aclose()
    with no_file_beyond(100):
        store = await open_sqlite(path, now=NOW)
        assert store.set_aside == ()
        assert store.problem is not None
        assert await store.session(SessionId("s1")) == a_session()
        assert [one.seq for one in await store.journal(after_seq=0)] == [1]
        await store.transact(NONE, deciding(a_note("kept")), must_keep=False)
    assert await store.flush() is True
    assert store.problem is None
    await store.aclose()
    store = await open_sqlite(path, now=NOW)
    assert [one.seq for one in await store.journal(after_seq=0)] == [1, 2]
    await store.aclose()


async def test_a_file_that_was_taken_away_is_said_and_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnwritable, match="removed or replaced"):
        await store.transact(NONE, deciding(a_note()))
    (tmp_path / "elsewhere").rename(path)
    assert await store.flush() is True
    await store.transact(NONE, deciding(a_note()))
    await store.aclose()


class Unreliable(Database):
    is_full = False

    def write(self, writes: Writes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(writes)


LATER = NOW + 1000
names = st.integers(0, 5)
instants = st.integers(0, 50).map(lambda n: NOW + n)


changes = st.one_of(
    st.builds(lambda n, at: PutSession(a_session(f"s{n}", at=at)), names, instants),
    st.builds(lambda n: DropSession(SessionId(f"s{n}")), names),
    st.builds(lambda n, at: PutHealth(an_outage(f"backend:{n}", at=at)), names, instants),
    st.builds(lambda n, t: PutMeter(a_meter(f"b{n}", tokens=t)), names, names),
    st.builds(lambda at, n: a_note("n", at=at, n=n), instants, names),
    st.builds(lambda n, e: a_story(f"d{n}", event=str(e)), names, names),
)


class Asked(NamedTuple):
    """One decision: about a delegation that it has read, as every decision is."""

    delegation: int
    at: float
    state: str | None
    others: list[Change]
    must_keep: bool

    def changes(self) -> list[Change]:
        if self.state is None:
            return self.others
        made = a_delegation if self.state == "running" else an_ended
        fields = {"at": self.at, "state": self.state, "request_id": f"r{self.delegation}"}
        return [PutDelegation(made(f"d{self.delegation}", **fields)), *self.others]


asked = st.builds(
    Asked,
    names,
    instants,
    st.sampled_from([None, "running", "succeeded", "failed"]),
    st.lists(changes, max_size=3),
    st.booleans(),
)
groups = st.lists(asked, min_size=1, max_size=5)
steps = st.one_of(
    groups,
    st.sampled_from(["fill the disk", "make room", "flush", "reopen"]),
    st.tuples(st.just("prune"), instants, st.integers(0, 6)),
)


async def shown(store: Store) -> Any:
    """Everything that can be seen of a store from outside, but the age of its health."""
    seen = store.peek()
    everybody = [DelegationId(f"d{n}") for n in range(6)]
    health = {scope: structs.replace(one, loaded_at=None) for scope, one in seen.health.items()}
    return (
        health,
        seen.active,
        seen.meters,
        seen.session_count,
        list(await store.sessions()),
        list(await store.delegations()),
        list(await store.delegations(Selection(session=SessionId("s1"), state="failed"), limit=2)),
        [await store.delegation(one) for one in everybody],
        [list(await store.story(one)) for one in everybody],
        list(await store.journal(after_seq=0)),
        await store.finished_counts(),
        store.last_seq,
    )


async def put_together(store: Store, group: Sequence[Asked]) -> list[int]:
    """Returns which of the decisions were refused."""
    refused: list[int] = []

    async def put(number: int, one: Asked) -> None:
        keys = Keys(delegation=DelegationId(f"d{one.delegation}"), request_id=f"r{one.delegation}")
        try:
            await store.transact(keys, deciding(*one.changes()), must_keep=one.must_keep)
        except StoreUnwritable:
            refused.append(number)

    async with anyio.create_task_group() as tasks:
        for number, one in enumerate(group):
            tasks.start_soon(put, number, one)
    return refused


async def both_do(history: Sequence[Any], path: Path) -> None:
    database = Unreliable(path)
    store = await open_sqlite(path, now=NOW, database=database)
    model = MemoryStore()
    for step in history:
        match step:
            case "fill the disk":
                database.is_full, model.unwritable = True, "full"
            case "make room":
                database.is_full, model.unwritable = False, None
            case "flush":
                assert await store.flush() is (store.problem is None)
            case "reopen":
                if database.is_full:
                    continue
                await store.aclose()
                database = Unreliable(path)
                store = await open_sqlite(path, now=LATER, database=database)
            case ("prune", before_at, max_sessions):
                limits = {
                    "delegations_before_at": before_at,
                    "journal_before_at": before_at,
                    "max_journal": 1_000_000,
                    "max_sessions": max_sessions,
                    "sessions_before_at": before_at,
                }
                if database.is_full:
                    continue
                pruned = await store.prune(**limits)
                expected = await model.prune(**limits)
                assert [sorted(one) for one in pruned] == [sorted(one) for one in expected]
            case _:
                assert await put_together(store, step) == await put_together(model, step)
        assert await shown(store) == await shown(model)
    database.is_full = False
    await store.aclose()
    assert store.problem is None
    store = await open_sqlite(path, now=LATER)
    assert await shown(store) == await shown(model)
    await store.aclose()


@settings(max_examples=25, database=None)
@given(st.lists(steps, max_size=12))
def test_after_any_history_it_shows_what_a_store_in_memory_shows(history: list[Any]) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(both_do(history, Path(directory) / "fallbackd.db"))
