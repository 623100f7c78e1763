"""Run directories are kept within a size, and those that belong to nothing go."""

import os
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.running_engine import Agent, agent, engine_in, settings, work
from tests.support.scripts import script

from fallbackd.core.ids import DelegationId
from fallbackd.engine.api import Engine
from fallbackd.engine.runs import Runs
from fallbackd.engine.ticker import tick

ANSWERS = "cat >/dev/null; echo answer"
MIB = 1024 * 1024
GATED = 'cat >/dev/null; echo begun; while [ ! -e "$PLACE/go" ]; do sleep 0.02; done; echo done'


def of(place: Path, name: str, body: str) -> Agent:
    return agent(name, script(place, name, body))


def aged(directory: Path, at: float) -> None:
    """As if nothing in it had changed since then."""
    for place, _, names in os.walk(directory):
        for path in (place, *(f"{place}/{name}" for name in names)):
            os.utime(path, (at, at), follow_symlinks=False)


def directories(engine: Engine) -> list[str]:
    return sorted(one.name for one in engine.runs.root.iterdir())


def test_a_directory_is_measured_with_all_that_is_in_it_and_no_link_is_followed(
    tmp_path: Path,
) -> None:
    runs = Runs(tmp_path / "runs")
    assert runs.measure() == []
    name = DelegationId("d1")
    runs.create(name, "prompt", b"{}")
    (empty,) = runs.measure()
    (runs.path(name) / "work").mkdir()
    (runs.path(name) / "work" / "large").write_bytes(os.urandom(300_000))
    (tmp_path / "other").write_bytes(os.urandom(900_000))
    (runs.path(name) / "work" / "link").symlink_to(tmp_path / "other")
    (runs.root / "a file").touch()
    (full,) = runs.measure()
    assert 300_000 <= full.size_bytes - empty.size_bytes < 400_000
    aged(runs.path(name), 1000.0)
    assert runs.measure()[0].changed_at == 1000.0


async def test_the_oldest_ended_directories_go_when_all_together_are_too_large(
    tmp_path: Path,
) -> None:
    config = settings(
        of(tmp_path, "a", ANSWERS), of(tmp_path, "b", GATED), defaults={"max_runs_bytes": 3 * MIB}
    )
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        done = [await work(engine, backend="a", session=f"s{n}") for n in range(4)]
        for number, one in enumerate(done):
            (engine.runs.path(one.delegation) / "work" / "x").write_bytes(os.urandom(MIB))
            aged(engine.runs.path(one.delegation), 1000.0 + number)
        await tick(engine, prune=True)
        assert directories(engine) == sorted(one.delegation for one in done[2:])
        # What became of it is known still, and that its answer is not.
        found = await engine.delegation(done[0].delegation)
        assert found.state == "succeeded"
        assert await engine.text(found) is None
        assert await engine.text(done[3]) == "answer"
        assert len(await engine.story(done[0].delegation)) > 0


async def test_what_runs_is_never_removed_however_large_it_is(tmp_path: Path) -> None:
    from fallbackd.engine.requests import NewWork

    config = settings(of(tmp_path, "b", GATED), defaults={"max_runs_bytes": MIB})
    async with engine_in(tmp_path, config, environ={"PLACE": str(tmp_path)}) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="b"))
        directory = engine.runs.path(begun.delegation)
        (directory / "large").write_bytes(os.urandom(2 * MIB))
        aged(directory, 1000.0)
        await tick(engine, prune=True)
        assert directory.is_dir()
        (tmp_path / "go").touch()
        ended, _ = await engine.wait(begun.delegation, until="finished", timeout_s=None)
        assert ended.state == "succeeded"


@pytest.mark.parametrize(("age_s", "stays"), [(3000.0, True), (4000.0, False)])
async def test_a_directory_without_a_record_goes_after_an_hour(
    age_s: float, stays: bool, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with engine_in(tmp_path, settings(of(tmp_path, "a", ANSWERS)), clock=clock) as engine:
        done = await work(engine, backend="a")
        orphan = engine.runs.root / "d000000"
        (orphan / "1").mkdir(parents=True)
        aged(orphan, clock.now() - age_s)
        aged(engine.runs.path(done.delegation), clock.now() - age_s)
        await tick(engine, prune=True)
        assert orphan.exists() is stays
        assert engine.runs.path(done.delegation).exists()


async def test_after_the_loss_of_records_no_directory_is_taken_for_nobodys(
    tmp_path: Path,
) -> None:
    (tmp_path / "records.sqlite").write_bytes(b"no database" * 1000)
    clock = ManualClock()
    config = settings(of(tmp_path, "a", ANSWERS))
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as engine:
        assert engine.store.set_aside
        orphan = engine.runs.root / "d000000"
        orphan.mkdir(parents=True)
        aged(orphan, clock.now() - 10_000)
        await tick(engine, prune=True)
        assert orphan.exists()


async def test_answers_outlive_a_damaged_database_also_after_the_next_start(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    config = settings(of(tmp_path, "a", ANSWERS))
    records = tmp_path / "records.sqlite"
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as engine:
        answer = engine.runs.path((await work(engine, backend="a")).delegation)
    (answer / "record").unlink()  # as of a version that wrote none: it comes back with its record
    records.write_bytes(b"no database" * 1000)
    for _ in range(3):
        async with engine_in(tmp_path, config, store="sqlite", clock=clock) as engine:
            aged(answer, clock.now() - 10_000)
            await tick(engine, prune=True)
            assert answer.exists()
            aside = engine.store.set_aside
    for one in aside:
        Path(one).unlink()
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as engine:
        await tick(engine, prune=True)
        assert not answer.exists()
