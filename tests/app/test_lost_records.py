"""A database that is lost while run directories are there is said, and nothing is pruned."""

import os
import time
from pathlib import Path

import pytest
from tests.support.running_engine import engine_in, settings

from fallbackd.app.places import find_places
from fallbackd.app.wiring import open_records
from fallbackd.engine.ticker import tick


@pytest.mark.parametrize("how", ["deleted", "emptied"])
async def test_it_is_said_at_each_start_until_a_person_takes_the_mark_away(
    tmp_path: Path, how: str
) -> None:
    places = find_places({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    store, _ = await open_records(places)
    assert store.set_aside == (), "nothing is lost at a first start"
    await store.aclose()
    old = Path(places.runs) / "d1"
    old.mkdir(parents=True)
    (old / "answer").write_text("what was asked for")
    for path in (old / "answer", old):
        os.utime(path, (time.time() - 1e6,) * 2)
    for path in Path(places.state_dir).glob("fallbackd.db*"):
        path.unlink()
    if how == "emptied":
        Path(places.database).touch()
    for _ in range(2):
        store, clock = await open_records(places)
        (mark,) = store.set_aside
        assert ".lost-" in mark
        config = settings()
        async with engine_in(
            tmp_path, config, store=store, clock=clock, runs_root=Path(places.runs)
        ) as engine:
            await tick(engine, prune=True)
        await store.aclose()
        assert (old / "answer").exists()
    Path(mark).unlink()
    store, _ = await open_records(places)
    assert store.set_aside == ()
    await store.aclose()
