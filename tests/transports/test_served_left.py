"""Helper servers that outlive the daemon: the next one uses them, or ends them."""

import sys
from pathlib import Path

import pytest
from tests.support.served import doubles_end, leave, lives, notes, serving, until

from fallbackd.core.protocol import CommandLine
from fallbackd.transports.process.transport import ProcessTransport

__all__ = ["doubles_end"]
pytestmark = pytest.mark.usefixtures("doubles_end")


async def test_warm_server_is_used_again_and_ends_when_nobody_does(tmp_path: Path) -> None:
    async with serving(tmp_path, leaves=True) as place:
        await place.ask("say one")
    (started,) = place.notes("start")
    assert lives(started["pid"])
    async with serving(tmp_path, leaves=True) as place:
        assert (await place.ask("say two")).text == "two"
        assert len(place.notes("start")) == 1
    async with serving(tmp_path, idle_s=0.05) as place:
        await until(lambda: not lives(started["pid"]))
        await until(lambda: list((tmp_path / "servers").iterdir()) == [])


async def test_server_of_another_environment_gets_no_new_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, leaves=True) as place:
        await place.ask("say one")
    (started,) = place.notes("start")
    monkeypatch.setenv("JAVA_HOME", "/another")
    async with serving(tmp_path) as place:
        assert (await place.ask("say two")).text == "two"
        assert len(place.notes("start")) == 2
        await until(lambda: not lives(started["pid"]))


async def test_server_ends_with_a_prompt_that_nobody_asks_for_any_more(tmp_path: Path) -> None:
    await leave(tmp_path, "begin", "tool", shown="message.part.updated")
    (started,) = notes(tmp_path, "start")
    async with serving(tmp_path, stray_s=0.05):
        await until(lambda: not lives(started["pid"]))
    assert list((tmp_path / "servers").iterdir()) == []


async def test_password_is_in_no_file(tmp_path: Path) -> None:
    await leave(tmp_path, "begin", shown="message.part.updated")
    (started,) = notes(tmp_path, "start")
    environment = Path(f"/proc/{started['pid']}/environ").read_bytes().split(b"\0")
    password = next(
        each.partition(b"=")[2]
        for each in environment
        if each.startswith(b"OPENCODE_SERVER_PASSWORD=")
    )
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert any(each.name == "served.json" for each in files)
    assert not [each for each in files if password in each.read_bytes()]
    private = [each for each in files if each.name in ("served.json", "server.json", "d1.1")]
    assert {each.stat().st_mode & 0o777 for each in private} == {0o600}
    async with serving(tmp_path):
        pass
    assert not lives(started["pid"])


async def test_server_of_a_daemon_that_kept_no_record_is_ended(tmp_path: Path) -> None:
    directory = tmp_path / "servers" / "old" / "0"
    directory.mkdir(parents=True)
    before = ProcessTransport()
    command = CommandLine(
        argv=(sys.executable, "-c", "import time; time.sleep(600)"), cwd=str(tmp_path)
    )
    running = await before.open(command, attempt="server:k", directory=str(directory), env={})
    assert running.pid is not None
    await before.detach()
    assert lives(running.pid)
    async with serving(tmp_path):
        await until(lambda: not lives(running.pid or 0))
        await until(lambda: not (tmp_path / "servers" / "old").exists())
