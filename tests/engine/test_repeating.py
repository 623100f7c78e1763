"""The same request once more: the work that it began, whatever has happened since."""

from pathlib import Path

import pytest
from tests.support.running_engine import agent, ended, engine_in, settings, work
from tests.support.scripts import runs_of, script

from fallbackd.engine.requests import NewWork, Refused

COUNTED = 'cat >/dev/null; echo >> "$PLACE/a.runs"; echo done'


async def test_a_repeated_request_is_known_while_the_daemon_drains(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", COUNTED)))) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", request_id="r"))
        engine.drain()
        again = await engine.delegate(NewWork(prompt="x", backend="a", request_id="r"))
        assert again.delegation == begun.delegation
        assert (await ended(engine, begun)).state == "succeeded"
        assert runs_of(tmp_path, "a") == 1


async def test_a_repeated_request_is_known_when_its_directory_is_gone(tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    asked = {"backend": "a", "cwd": str(place), "request_id": "r"}
    config = settings(agent("a", script(tmp_path, "a", COUNTED)))
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        done = await work(engine, "x", **asked)
        place.rmdir()
        again = await work(engine, "x", **asked)
        assert again == done
        assert runs_of(tmp_path, "a") == 1


async def test_how_long_a_caller_waits_makes_no_other_request(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", COUNTED)))) as engine:
        done = await work(engine, "x", backend="a", request_id="r", wait="accepted")
        for wait, queue in (("settled", True), ("finished", False), ("accepted", True)):
            again = await work(engine, "x", backend="a", request_id="r", wait=wait, queue=queue)
            assert again.delegation == done.delegation


async def test_the_name_of_another_request_is_refused_and_that_one_is_named(
    tmp_path: Path,
) -> None:
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", COUNTED)))) as engine:
        done = await work(engine, "x", backend="a", request_id="r")
        with pytest.raises(Refused) as refused:
            await engine.delegate(NewWork(prompt="y", backend="a", request_id="r"))
        assert refused.value.rejection.kind == "request_id"
        assert refused.value.rejection.data["delegation"] == done.delegation
