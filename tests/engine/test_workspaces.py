"""One writer in each directory, by whatever name the directory is reached."""

from pathlib import Path

import pytest
from tests.support.running_engine import agent, ended, engine_in, settings, tried, until, work
from tests.support.scripts import runs_of, script

from fallbackd.engine.api import Engine
from fallbackd.engine.requests import NewWork, Refused

GATED = """
    cat >/dev/null
    echo >> "$PLACE/a.runs"
    while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
    echo done
    """
LIMITED = """
    cat >/dev/null
    while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
    echo 'rate limit reached' >&2; exit 75
    """
CONFIG = {"defaults": {"wait_threshold_s": {"interactive": 0.0, "batch": 0.0}}}


async def begun(engine: Engine, place: Path, cwd: Path) -> str:
    found = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(cwd)))
    await until(lambda: runs_of(place, "a") == 1)
    return found.delegation


async def refused(engine: Engine, cwd: Path) -> str:
    with pytest.raises(Refused) as caught:
        await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(cwd), queue=False))
    assert caught.value.rejection.kind == "workspace"
    return caught.value.rejection.message


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "second",
    ["there/moved", "there/moved/inside", "there", "."],
    ids=["itself", "below it", "above it", "above both"],
)
async def test_a_directory_that_is_renamed_while_somebody_works_in_it_is_in_use(
    tmp_path: Path, second: str, *, restarted: bool
) -> None:
    (tmp_path / "w" / "here" / "tree" / "inside").mkdir(parents=True)
    (tmp_path / "w" / "there").mkdir()
    config = settings(agent("a", script(tmp_path, "a", GATED)))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path, tmp_path / "w" / "here" / "tree")
        (tmp_path / "w" / "here" / "tree").rename(tmp_path / "w" / "there" / "moved")
        if not restarted:
            assert name in await refused(first, tmp_path / "w" / second)
    async with engine_in(tmp_path, config, store="sqlite") as later:
        assert name in await refused(later, tmp_path / "w" / second)
        (tmp_path / "go").touch()
        await ended(later, name)
        assert (await work(later, backend="a", cwd=str(tmp_path / "w" / second))).served_by == "a"


async def test_a_move_to_the_next_backend_starts_nothing_in_another_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "tree").mkdir()
    config = settings(
        agent("a", script(tmp_path, "a", LIMITED)),
        agent("b", script(tmp_path, "b", 'echo >> "$PLACE/b.runs"; cat')),
    )
    async with engine_in(tmp_path, config) as engine:
        found = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path / "tree")))
        await until(
            lambda: all(live.running is not None for live in engine._running._live.values())
        )
        (tmp_path / "tree").rename(tmp_path / "moved")
        (tmp_path / "tree").mkdir()
        (tmp_path / "go").touch()
        done = await ended(engine, found)
        assert tried(done) == [("a", "rate_limit"), ("b", "crash")]
        assert done.state == "failed"
        assert done.message is not None
        assert "is another directory now" in done.message
        assert runs_of(tmp_path, "b") == 0


async def test_a_move_to_the_next_backend_starts_nothing_beside_a_directory_that_was_moved_in(
    tmp_path: Path,
) -> None:
    """Both were admitted apart from each other; then the one was put into the other."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    config = settings(
        agent("a", script(tmp_path, "a", LIMITED)),
        agent("b", script(tmp_path, "b", 'echo >> "$PLACE/b.runs"; cat')),
        agent("c", script(tmp_path, "c", GATED.replace("go", "other"))),
    )
    async with engine_in(tmp_path, config) as engine:
        first = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path / "one")))
        second = await engine.delegate(NewWork(prompt="x", backend="c", cwd=str(tmp_path / "two")))
        await until(lambda: runs_of(tmp_path, "a") == 1)
        (tmp_path / "two").rename(tmp_path / "one" / "two")
        (tmp_path / "go").touch()
        done = await ended(engine, first)
        assert done.state == "failed"
        assert second.delegation in (done.message or "")
        assert runs_of(tmp_path, "b") == 0
        (tmp_path / "other").touch()
        assert (await ended(engine, second)).state == "succeeded"
