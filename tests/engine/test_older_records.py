"""Run directories know more than the database: it is an older one, or it is lost."""

import shutil
from pathlib import Path

import anyio
import pytest
from tests.support.running_engine import agent, ended, engine_in, settings, tried, until, work
from tests.support.scripts import runs_of, script

from fallbackd.engine.environment import Settings
from fallbackd.engine.requests import NewWork

LIMITED = """
    cat >/dev/null
    while [ ! -e "$PLACE/a.goes" ]; do sleep 0.02; done
    echo "429 Too Many Requests" >&2; exit 1
    """
ANSWERS = """
    cat >/dev/null
    echo >> "$PLACE/b.runs"
    while [ ! -e "$PLACE/b.goes" ]; do sleep 0.02; done
    echo answer of b
    """
DATABASE = "records.sqlite"


def two(place: Path) -> Settings:
    a = agent("a", script(place, "a", LIMITED))
    return settings(a, agent("b", script(place, "b", ANSWERS)))


def put_back(place: Path, backup: Path) -> None:
    for one in place.glob(f"{DATABASE}*"):
        one.unlink()
    for one in backup.glob(f"{DATABASE}*"):
        shutil.copy(one, place)


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_attempt_that_the_database_does_not_know_is_taken_up_or_answered(
    tmp_path: Path, is_done: bool
) -> None:
    config = two(tmp_path)
    backup = tmp_path / "backup"
    backup.mkdir()
    asked = NewWork(prompt="x", backend="a", session="s", request_id="r")
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as engine:
        begun = await engine.delegate(asked)
        await until(lambda: engine.snapshot().active[begun.delegation].attempts[0].pid)
        for one in tmp_path.glob(f"{DATABASE}*"):
            shutil.copy(one, backup)
        (tmp_path / "a.goes").touch()
        await until(lambda: runs_of(tmp_path, "b") == 1)
        if is_done:
            (tmp_path / "b.goes").touch()
            await ended(engine, begun)
    put_back(tmp_path, backup)
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        assert (await engine.delegate(asked)).delegation == begun.delegation
        (tmp_path / "b.goes").touch()
        found = await ended(engine, begun)
        assert (found.state, found.served_by) == ("succeeded", "b")
        assert tried(found) == [("a", "rate_limit"), ("b", None)]
        assert await engine.text(found) == "answer of b"
        assert "run directory" in found.warnings[0]
        assert (await engine.session("s")).running is None
        after = await work(engine, backend="b", session="s")
        assert after.state == "succeeded"
    assert runs_of(tmp_path, "b") == 2


async def test_a_lost_database_runs_no_request_twice(tmp_path: Path) -> None:
    config = two(tmp_path)
    asked = NewWork(prompt="x", backend="b", session="s", request_id="r")
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as engine:
        for place in ("a.goes", "b.goes"):
            (tmp_path / place).touch()
        done = await ended(engine, await engine.delegate(asked))
        (tmp_path / "b.goes").unlink()
        other = await engine.delegate(NewWork(prompt="y", backend="b", request_id="r2"))
        await until(lambda: runs_of(tmp_path, "b") == 2)
    put_back(tmp_path, tmp_path / "nothing")
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        again = await engine.delegate(asked)
        assert (again.delegation, again.state) == (done.delegation, "succeeded")
        (tmp_path / "b.goes").touch()
        found = await ended(engine, other)
        assert (found.state, await engine.text(found)) == ("succeeded", "answer of b")
    assert runs_of(tmp_path, "b") == 2


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_success_whose_answer_was_in_memory_alone_is_read_from_its_attempt(
    tmp_path: Path, is_lost: bool
) -> None:
    config = two(tmp_path)
    backup = tmp_path / "backup"
    backup.mkdir()
    asked = NewWork(prompt="x", backend="b", request_id="r")
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as engine:
        begun = await engine.delegate(asked)
        await until(lambda: engine.snapshot().active[begun.delegation].attempts[0].pid)
        for one in tmp_path.glob(f"{DATABASE}*") if not is_lost else ():
            shutil.copy(one, backup)
        in_the_way = engine.runs.path(begun.delegation) / "answer"
        in_the_way.mkdir()
        (tmp_path / "b.goes").touch()
        found = await ended(engine, begun)
        assert found.state == "succeeded"
        assert engine.runs.is_held(begun.delegation)
    put_back(tmp_path, backup)
    in_the_way.rmdir()
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        found = await ended(engine, await engine.delegate(asked))
        assert (found.delegation, found.state) == (begun.delegation, "succeeded")
        assert await engine.text(found) == "answer of b"
    assert runs_of(tmp_path, "b") == 1


async def test_an_attempt_without_any_record_is_ended_before_its_work_continues(
    tmp_path: Path,
) -> None:
    """As of a version that wrote no record into run directories."""
    config = two(tmp_path)
    backup = tmp_path / "backup"
    backup.mkdir()
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: engine.snapshot().active[begun.delegation].attempts[0].pid)
        for one in tmp_path.glob(f"{DATABASE}*"):
            shutil.copy(one, backup)
        (tmp_path / "a.goes").touch()
        await until(lambda: runs_of(tmp_path, "b") == 1)
    put_back(tmp_path, backup)
    (tmp_path / "runs" / begun.delegation / "record").unlink()
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        await until(lambda: runs_of(tmp_path, "b") == 2)
        (tmp_path / "b.goes").touch()
        found = await ended(engine, begun)
        assert tried(found) == [("a", "rate_limit"), ("b", None)]
        assert await engine.text(found) == "answer of b"


async def test_a_record_that_is_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    config = two(tmp_path)
    (tmp_path / "b.goes").touch()
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        done = await work(engine, backend="b")
        path = tmp_path / "runs" / done.delegation / "record"
        with path.open("ab") as file:
            file.write(b'{"delegation":"' + b"x" * 100)
        found = await anyio.to_thread.run_sync(engine.runs.noted_record, done.delegation)
        assert found is not None
        assert found.state == "succeeded"
        path.write_bytes(b"\xff\xfe no record\n[]\n")
        assert engine.runs.noted_record(done.delegation) is None
