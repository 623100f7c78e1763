"""Health is shared with voice agents by a file: read at the start, kept up to date."""

import json
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.daemon import HANG_S, Daemon, running

NAME = "voice-platform-health.json"
WORDS = "rate_limit: 429 from openai.com"


def backend(name: str, body: str = "cat > /dev/null; echo fine") -> str:
    command = json.dumps(["/bin/sh", "-c", body])
    return f'[backends.{name}]\nkind = "generic-cli"\ncommand = {command}\n'


TWO = backend("codex") + backend("gemini")
OTHERS_OFF = "".join(
    f"[backends.{name}]\nenabled = false\n" for name in ("opencode", "numasec", "claude")
)


async def health(daemon: Daemon, **params: Any) -> dict[str, Any]:
    found: dict[str, Any] = await daemon.client.call("health", params)
    return found


async def written(path: Path, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the file holds as soon as it is so. At any instant it is whole."""
    with anyio.fail_after(HANG_S):
        while True:
            if path.exists():
                content: dict[str, Any] = json.loads(path.read_text())
                if is_so(content):
                    return content
            await anyio.sleep(0.02)


@pytest.mark.parametrize("shape", ["documented", "coded"])
async def test_marks_of_a_file_are_taken_over_at_the_start(shape: str, tmp_path: Path) -> None:
    since_at = round(time.time() - 44, 1)
    entry = {
        "documented": {"marked_broken_at": since_at, "reason": WORDS, "ttl_seconds": 600},
        "coded": {
            "reason": WORDS,
            "marked_at": since_at,
            "expires_at": since_at + 600,
            "ttl_seconds": 600,
        },
    }[shape]
    place = tmp_path / NAME
    place.write_text(json.dumps({"codex": entry}))
    async with running(tmp_path, f'import = ["{place}"]\n' + TWO) as daemon:
        codex = (await health(daemon, action="get", target="codex"))["health"]["codex"]
        assert (codex["state"], codex["reason"], codex["detail"]) == ("broken", "manual", WORDS)
        assert codex["since_at"] == pytest.approx(since_at)
        assert codex["until_at"] == pytest.approx(since_at + 600)
        assert codex["ttl_seconds"] == pytest.approx(600)
        assert 0 < codex["seconds_remaining"] <= 556
    assert json.loads(place.read_text()) == {"codex": entry}, "files of others are not changed"


async def test_a_mark_that_was_cleared_does_not_come_back_with_the_next_start(
    tmp_path: Path,
) -> None:
    place = tmp_path / NAME
    place.write_text(json.dumps({"codex": {"marked_at": time.time(), "reason": "r"}}))
    async with running(tmp_path, f'import = ["{place}"]\n' + TWO) as daemon:
        assert (await health(daemon, action="clear", target="codex"))["cleared"] == ["codex"]
        await daemon.restart()
        codex = (await health(daemon, action="get", target="codex"))["health"]["codex"]
        assert codex["state"] == "healthy"


async def test_a_file_that_says_nothing_usable_is_said_and_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / NAME
    place.write_text("[1, 2")
    async with running(tmp_path, f'import = ["{place}", "{tmp_path}/gone/{NAME}"]\n') as daemon:
        assert "import.questioned" in daemon.log()
        assert "import.failed" in daemon.log()
        assert (await daemon.client.call("daemon.ping"))["pid"] == daemon.pid


@pytest.mark.parametrize("damaged", ["", '{"codex": {"mark', "[]"])
async def test_a_file_that_is_being_written_withdraws_no_mark(tmp_path: Path, damaged: str) -> None:
    place = tmp_path / NAME
    whole = json.dumps({"codex": {"marked_at": time.time(), "reason": "r"}})
    place.write_text(whole)
    async with running(tmp_path, f'import = ["{place}"]\n' + TWO) as daemon:
        place.write_text(damaged)
        config = daemon.config_path.read_text()
        daemon.config_path.write_text(config + "# read again\n")
        await daemon.client.call("config.reload")
        codex = (await health(daemon, action="get", target="codex"))["health"]["codex"]
        assert codex["state"] == "broken"
        place.write_text("{}")
        with anyio.fail_after(HANG_S):
            while (await health(daemon, action="get", target="codex"))["health"]["codex"][
                "state"
            ] == "broken":
                await anyio.sleep(0.02)


async def test_the_export_follows_every_change_and_is_private(tmp_path: Path) -> None:
    place = tmp_path / "hermes" / "voice.json"
    config = f'export_voice_health = "{place}"\n' + TWO + OTHERS_OFF
    async with running(tmp_path, config) as daemon:
        await written(place, lambda found: found == {})
        await health(daemon, action="mark", target="codex", reason="x" * 400, ttl_s=300)
        await health(daemon, action="mark", target="gemini", reason="rate_limit")
        found = await written(place, lambda found: len(found) == 2)
        codex = found["codex"]
        assert codex["reason"] == "x" * 280
        assert codex["ttl_seconds"] == pytest.approx(300)
        assert codex["marked_broken_at"] == codex["marked_at"]
        assert codex["expires_at"] == pytest.approx(codex["marked_at"] + 300)
        assert found["gemini"]["reason"] == "rate_limit"
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert os.listdir(place.parent) == ["voice.json"]
        cleared = await health(daemon, action="clear", target="codex")
        assert cleared["cleared"] == ["codex"]
        await written(place, lambda found: list(found) == ["gemini"])
        assert (await health(daemon, action="clear"))["cleared"] == ["gemini"]
        await written(place, lambda found: found == {})


async def test_the_export_is_complete_when_the_daemon_has_stopped(tmp_path: Path) -> None:
    place = tmp_path / "voice.json"
    config = f'export_voice_health = "{place}"\n' + TWO + OTHERS_OFF
    async with running(tmp_path, config) as daemon:
        await health(daemon, action="mark", target="codex", reason="down")
        assert await daemon.stop() == 0
        assert json.loads(place.read_text())["codex"]["reason"] == "down"


async def test_an_acknowledged_mark_is_exported_by_the_next_daemon(tmp_path: Path) -> None:
    place = tmp_path / "voice.json"
    config = f'export_voice_health = "{place}"\n' + TWO + OTHERS_OFF
    async with running(tmp_path, config) as daemon:
        await written(place, lambda found: found == {})
        await health(daemon, action="mark", target="codex", reason="down")
        daemon.send(signal.SIGKILL)
        await daemon.wait()
        left = json.loads(place.read_text())
        assert left == {} or left["codex"]["reason"] == "down"
        await daemon.start()
        codex = (await health(daemon, action="get", target="codex"))["health"]["codex"]
        assert codex["state"] == "broken"
        await written(place, lambda found: list(found) == ["codex"])


async def test_an_export_that_cannot_be_written_is_said_once_and_changes_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    login = "cat > /dev/null; exit 76"
    config = (
        f'export_voice_health = "{tmp_path}/file/voice.json"\n'
        + backend("codex", login)
        + backend("opencode", login)
        + backend("gemini", login)
        + '[chains]\ncodex = ["opencode", "gemini"]\n'
    )
    async with running(tmp_path, config) as daemon:
        found = await daemon.client.call(
            "delegate", {"prompt": "test", "backend": "codex", "wait": "finished"}
        )
        assert found["state"] == "refused"
        assert [one["backend"] for one in found["attempts"]] == ["codex", "opencode", "gemini"]
        marked = (await health(daemon, action="list"))["health"]
        for name in ("codex", "opencode", "gemini"):
            assert (marked[name]["state"], marked[name]["reason"]) == ("broken", "auth")
        await health(daemon, action="clear")
        assert await daemon.stop() == 0
        assert daemon.log().count("export.failed") == 1


async def test_a_changed_configuration_moves_the_export_and_imports(tmp_path: Path) -> None:
    old, new, theirs = (tmp_path / name for name in ("old.json", "new.json", NAME))
    theirs.write_text(json.dumps({"gemini": {"marked_at": time.time(), "reason": "theirs"}}))
    tables = TWO + OTHERS_OFF
    async with running(tmp_path, f'export_voice_health = "{old}"\n' + tables) as daemon:
        await health(daemon, action="mark", target="codex", reason="ours")
        await written(old, lambda found: list(found) == ["codex"])
        daemon.config_path.write_text(
            f'import = ["{theirs}"]\nexport_voice_health = "{new}"\n' + tables
        )
        found = await written(new, lambda found: len(found) == 2)
        assert {name: entry["reason"] for name, entry in found.items()} == {
            "codex": "ours",
            "gemini": "theirs",
        }
        assert list(json.loads(old.read_text())) == ["codex"]


async def test_two_callers_at_the_same_time_both_have_their_mark(tmp_path: Path) -> None:
    async with running(tmp_path, TWO) as daemon:
        async with anyio.create_task_group() as callers:
            for name in ("codex", "gemini"):
                callers.start_soon(
                    lambda name=name: health(daemon, action="mark", target=name, reason="down")
                )
        await daemon.restart()
        marked = (await health(daemon, action="list", only="unhealthy"))["health"]
        assert (marked["codex"]["state"], marked["gemini"]["state"]) == ("broken", "broken")


def foreign(since_at: float, reason: str = "theirs") -> dict[str, Any]:
    return {"marked_at": since_at, "expires_at": since_at + 600, "reason": reason}


async def state_of(daemon: Daemon, backend: str) -> tuple[str, str | None]:
    entry = (await health(daemon, action="get", target=backend))["health"][backend]
    return entry["state"], entry["detail"]


async def becomes(daemon: Daemon, backend: str, wanted: tuple[str, str | None]) -> None:
    with anyio.fail_after(HANG_S):
        while await state_of(daemon, backend) != wanted:
            await anyio.sleep(0.05)


async def test_a_mark_that_another_program_writes_while_the_daemon_runs_counts(
    tmp_path: Path,
) -> None:
    place = tmp_path / NAME
    place.write_text("{}")
    async with running(tmp_path, f'import = ["{place}"]\n' + TWO) as daemon:
        marked = {"codex": foreign(time.time()), "gemini": foreign(time.time(), "also")}
        place.write_text(json.dumps(marked))
        await becomes(daemon, "codex", ("broken", "theirs"))
        del marked["codex"]
        place.write_text(json.dumps(marked))
        await becomes(daemon, "codex", ("healthy", None))
        assert await state_of(daemon, "gemini") == ("broken", "also")


async def test_one_file_for_import_and_export_keeps_the_newer_mark_of_each_backend(
    tmp_path: Path,
) -> None:
    place = tmp_path / NAME
    config = f'import = ["{place}"]\nexport_voice_health = "{place}"\n' + TWO + OTHERS_OFF
    async with running(tmp_path, config) as daemon:
        await health(daemon, action="mark", target="codex", reason="ours")
        await written(place, lambda found: list(found) == ["codex"])
        both = {"codex": foreign(time.time() - 300), "gemini": foreign(time.time())}
        place.write_text(json.dumps(both))
        await becomes(daemon, "gemini", ("broken", "theirs"))
        assert await state_of(daemon, "codex") == ("broken", "ours")
        found = await written(place, lambda found: len(found) == 2 and "source" in found["gemini"])
        assert {name: one["reason"] for name, one in found.items()} == {
            "codex": "ours",
            "gemini": "theirs",
        }
        place.write_text(json.dumps({**found, "codex": foreign(time.time() + 1, "newer")}))
        await becomes(daemon, "codex", ("broken", "newer"))


async def test_the_file_can_be_imported_by_command(tmp_path: Path) -> None:
    place = tmp_path / NAME
    place.write_text(json.dumps({"codex": foreign(time.time())}))
    async with running(tmp_path, TWO) as daemon:
        found = await daemon.client.call("config.import", {"path": str(place), "write": True})
        assert [one["what"] for one in found["taken"]] == [str(place), "codex"]
        await becomes(daemon, "codex", ("broken", "theirs"))
        assert "[backends.codex]" in daemon.config_path.read_text()
