"""What a killed daemon left half made is gone after the next start; nothing else is."""

from pathlib import Path

from tests.support.running_engine import agent, engine_in, settings, until, work
from tests.support.scripts import script

ANSWERS = "cat >/dev/null; echo answer"
DRAFT = "answer.part"


async def test_drafts_and_what_was_never_taken_on_are_removed_at_the_next_start(
    tmp_path: Path,
) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        kept = (await work(engine)).delegation
    runs = tmp_path / "runs"
    (runs / kept / DRAFT).touch()
    (runs / kept / "1" / ".exit.json.new").touch()
    for name in ("dempty", "dasked", "dworked"):
        (runs / name).mkdir()
    (runs / "dasked" / "prompt").touch()
    (runs / "dasked" / "request").touch()
    (runs / "dworked" / "work").mkdir()
    (runs / "dworked" / "work" / "made").touch()
    (runs / "file").touch()
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        await until(lambda: {each.name for each in runs.iterdir()} == {kept, "dworked", "file"})
        assert await engine.text(await engine.delegation(kept)) == "answer"
    assert not (runs / kept / DRAFT).exists()
    assert not (runs / kept / "1" / ".exit.json.new").exists()
    assert (runs / kept / "1" / "exit.json").exists()


async def test_where_records_were_damaged_no_directory_is_removed(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    runs = tmp_path / "runs"
    for name in ("dasked", "dlast"):
        (runs / name).mkdir(parents=True)
        (runs / name / "prompt").touch()
        (runs / name / DRAFT).touch()
    (tmp_path / "records.sqlite").write_bytes(b"no database" * 1000)
    async with engine_in(tmp_path, config, store="sqlite"):
        await until(lambda: not (runs / "dlast" / DRAFT).exists())  # they come in order
    assert (runs / "dasked" / "prompt").exists()
