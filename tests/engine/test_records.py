"""Records that outlive the engine, or cannot be written."""

import os
import sqlite3
from pathlib import Path

import anyio
import pytest
from tests.support.clock import ManualClock
from tests.support.running_engine import (
    HANG_S,
    Agent,
    Ear,
    agent,
    ended,
    engine_in,
    settings,
    state_of,
    tried,
    until,
    work,
)
from tests.support.scripts import runs_of, script

from fallbackd.engine import feedback
from fallbackd.engine.requests import Draining, NewWork
from fallbackd.engine.ticker import tick
from fallbackd.stores import open_store
from fallbackd.stores.memory import MemoryStore

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
LIMITED = "cat >/dev/null; echo too many >&2; exit 75"
GATED = """
    cat >/dev/null
    echo $$ > "$PLACE/a.pid"
    echo >> "$PLACE/a.runs"
    while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
    echo done
    """


def gated(place: Path) -> Agent:
    """Answers once the file `go` is there."""
    return agent("a", script(place, "a", GATED))


async def test_unwritable_records_refuse_new_work_and_finish_what_runs(tmp_path: Path) -> None:
    store = MemoryStore()
    async with engine_in(tmp_path, settings(gated(tmp_path)), store=store) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: runs_of(tmp_path, "a") == 1)
        store.unwritable = "the disk is full; make room"
        with pytest.raises(Draining, match="the disk is full; make room") as refused:
            await engine.delegate(NewWork(prompt="y", backend="a"))
        assert refused.value.kind == "store_unwritable"
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert done.state == "succeeded"
        assert await engine.text(done) == "done"
        assert len(list((tmp_path / "runs").iterdir())) == 1
        store.unwritable = None
        assert (await work(engine, backend="a")).state == "succeeded"


async def test_work_ends_on_record_once_the_records_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fallbackd.stores.opening.BUSY_TIMEOUT_S", 0.05)
    async with engine_in(tmp_path, settings(gated(tmp_path)), store="sqlite") as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: runs_of(tmp_path, "a") == 1)
        holder = sqlite3.connect(tmp_path / "records.sqlite", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")  # another program holds it
        with pytest.raises(Draining, match="cannot be written") as refused:
            await engine.delegate(NewWork(prompt="y", backend="a"))
        assert refused.value.kind == "store_unwritable"
        (tmp_path / "go").touch()
        assert (await ended(engine, begun)).state == "succeeded"
        assert engine.store.problem is not None
        holder.execute("ROLLBACK")
        on_record = "SELECT count(*) FROM finished"
        assert holder.execute(on_record).fetchone() == (0,)
        await tick(engine)
        assert engine.store.problem is None
        assert holder.execute(on_record).fetchone() == (1,)
        holder.close()
    async with engine_in(tmp_path, settings(gated(tmp_path)), store="sqlite") as engine:
        assert (await engine.delegation(begun.delegation)).state == "succeeded"


async def test_a_run_directory_that_cannot_be_made_refuses_new_work(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config) as engine:
        with pytest.raises(Draining, match="cannot be written") as refused:
            await engine.delegate(NewWork(prompt="x", backend="a"))
        assert refused.value.kind == "store_unwritable"
        assert engine.snapshot().active == {}


async def test_a_place_that_is_lost_between_attempts_marks_nobody(tmp_path: Path) -> None:
    clears = """
        cat >/dev/null
        rm -r "$PLACE"/runs/*
        exit 75
        """
    a = agent("a", script(tmp_path, "a", clears))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        assert done.state == "failed"
        assert done.message is not None
        assert "cannot be written" in done.message
        assert state_of(engine, "b") == "healthy"


async def test_an_answer_that_cannot_be_written_yet_is_written_later(
    tmp_path: Path,
) -> None:
    hides = """
        cat >/dev/null
        rm "$PWD/../answer.part"; mkdir "$PWD/../answer.part"
        echo the answer
        """
    a = agent("a", script(tmp_path, "a", hides))
    async with engine_in(tmp_path, settings(a)) as engine:
        done = await work(engine, backend="a")
        assert done.state == "succeeded"
        assert await engine.text(done) == "the answer"
        path = engine.runs.path(done.delegation)
        assert not (path / "answer").exists()
        (path / "answer.part").rmdir()
        await tick(engine)
        assert (path / "answer").read_text() == "the answer"
        assert await engine.text(done) == "the answer"


async def test_a_damaged_run_directory_keeps_no_daemon_from_starting(tmp_path: Path) -> None:
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite") as first:
        begun = await first.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: runs_of(tmp_path, "a") == 1)
    directory = tmp_path / "runs" / begun.delegation / "1"
    for path in directory.iterdir():
        path.unlink()
    (directory / "attempt.json").write_text("{}")
    async with engine_in(tmp_path, config, store="sqlite") as second:
        lost = await ended(second, begun.delegation)
        assert lost.state == "failed"
        assert "look for its processes" in (lost.message or "")
        await feedback.clear(second, "a")
        (tmp_path / "go").touch()
        assert (await work(second, backend="a")).state == "succeeded"


async def test_a_trial_of_a_dead_daemon_goes_on_and_blocks_nobody_behind_it(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", clock=clock, leaves=True) as first:
        await feedback.mark(first, "a", reason="timeout", ttl_s=None, note=None)
        clock.advance(120)
        begun = await first.delegate(NewWork(prompt="x", backend="a"))
        assert begun.attempts[0].trial
        await until(lambda: runs_of(tmp_path, "a") == 1)
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as second:
        trial = second.snapshot().health["backend:a"].trial  # type: ignore[index]
        assert trial is not None
        assert trial.attempt == begun.attempts[0].attempt
        (tmp_path / "go").touch()
        assert (await ended(second, begun)).state == "succeeded"
        assert second.snapshot().health["backend:a"].trial is None  # type: ignore[index]
        assert (await work(second, backend="a")).state == "succeeded"


async def test_health_outlives_the_engine(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", LIMITED))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b), store="sqlite") as engine:
        await work(engine, backend="a")
        before = engine.snapshot().health["backend:a"].outage  # type: ignore[index]
        await feedback.pause(engine, "b", note="by hand")
    async with engine_in(tmp_path, settings(a, b), store="sqlite") as engine:
        assert state_of(engine, "a") == "rate_limited"
        assert engine.snapshot().health["backend:a"].outage == before  # type: ignore[index]
        assert state_of(engine, "b") == "paused"
        done = await work(engine, backend="a")
        assert (done.state, done.attempts) == ("refused", ())
        assert [(one.verdict, one.reason) for one in done.verdicts] == [
            ("rate_limited", "rate_limit"),
            ("paused", "by hand"),
        ]


async def test_sessions_stay_with_who_answered_them_over_a_restart(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", LIMITED))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    clock = ManualClock()
    async with engine_in(tmp_path, settings(a, b), store="sqlite", clock=clock) as engine:
        await work(engine, session="s")
    async with engine_in(tmp_path, settings(a, b), store="sqlite", clock=clock) as engine:
        clock.advance(1000)  # a is healthy again, and the session is warm on b
        done = await work(engine, session="s")
        assert tried(done) == [("b", None)]
        session = await engine.session("s")
        assert (session.original, session.current) == ("a", "b")


async def test_events_of_many_are_on_record_before_they_are_told(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", ANSWERS))
    async with engine_in(tmp_path, settings(a), store="sqlite") as engine:
        ear = Ear(engine)
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(lambda: work(engine, backend="a"))
        told = [one.seq for one in ear.notes]
    reopened = await open_store(f"sqlite:{tmp_path}/records.sqlite", now=0)
    kept = [one.seq for one in await reopened.journal(after_seq=0)]
    await reopened.aclose()
    assert set(told) <= set(kept)
    assert len(told) == 8 * 4


async def test_room_for_an_answer_is_reserved_while_it_is_made(tmp_path: Path) -> None:
    """On a disk that becomes full meanwhile it is on record before its success is told."""
    gated = 'cat >/dev/null; echo said; while [ ! -e "$PLACE/goes" ]; do sleep 0.02; done; '
    config = settings(agent("a", script(tmp_path, "a", gated + '. "$PLACE/goes"')))
    for ending, answer in (("exit 0", "said"), ("exit 1", None)):
        async with engine_in(tmp_path, config) as engine:
            begun = await engine.delegate(NewWork(prompt="x", backend="a"))
            draft = engine.runs.path(begun.delegation) / "answer.part"
            assert draft.stat().st_blocks * 512 >= draft.stat().st_size == 65_536
            goes = tmp_path / "goes.part"
            goes.write_text(ending)
            goes.rename(tmp_path / "goes")
            done = await ended(engine, begun)
            assert not draft.exists()
            kept = draft.with_name("answer")
            assert (kept.read_text().strip() if kept.exists() else None) == answer
            assert (done.state == "succeeded") is (answer is not None)
            (tmp_path / "goes").unlink()


@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
async def test_what_lies_in_the_place_of_an_answer_is_not_written_to(
    tmp_path: Path, what: str
) -> None:
    config = settings(agent("a", script(tmp_path, "a", "cat >/dev/null; echo said")))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        draft = engine.runs.path(done.delegation) / "answer.part"
        other = tmp_path / "other"
        other.write_text("as it was")
        match what:
            case "link":
                draft.symlink_to(other)
            case "pipe":
                os.mkfifo(draft)
            case _:
                draft.mkdir()
        assert engine.runs.keep_answer(done.delegation, "again") is (what != "directory")
        assert other.read_text() == "as it was"
