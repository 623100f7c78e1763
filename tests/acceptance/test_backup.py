"""Backups are a file copy: what a running daemon has on disk starts another one."""

import shutil
from pathlib import Path

import anyio.to_thread
import pytest
from tests.support.agents import ECHO, backend_script
from tests.support.daemon import Daemon, running

from fallbackd_client.cli.main import main


async def test_a_daemon_starts_on_a_copy_of_the_files_of_a_running_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    config = backend_script(one / "bin", "echo", ECHO)
    async with running(one, config) as daemon:
        call = {"prompt": "hello", "backend": "echo", "wait": "finished", "request_id": "mine"}
        done = await daemon.client.call("delegate", call)
        await daemon.client.call("health", {"action": "mark", "target": "codex", "reason": "x"})
        state = two / "home" / ".local" / "state" / "fallbackd"
        state.mkdir(parents=True)
        state.chmod(0o700)
        for name in ("fallbackd.db", "fallbackd.db-wal"):
            shutil.copy(daemon.state_dir / name, state / name)
        shutil.copytree(daemon.state_dir / "runs", state / "runs")
        async with running(two, config) as restored:
            again = await restored.client.call("delegate", call)
            assert again["delegation"] == done["delegation"]
            assert (again["state"], again["text"]) == ("succeeded", "hello")
            health = await restored.client.call("health", {"action": "get", "target": "codex"})
            assert health["health"]["codex"]["state"] == "broken"
            assert "set_aside" not in restored.log()
        assert (await daemon.client.call("daemon.ping"))["pid"] == daemon.pid


async def restore(daemon: Daemon, backup: Path) -> int:
    argv = ["restore", str(backup), "--state-dir", str(daemon.state_dir)]
    return await anyio.to_thread.run_sync(main, argv)


async def test_a_restored_backup_is_reconciled_with_what_was_done_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    async with running(tmp_path, backend_script(tmp_path / "bin", "echo", ECHO)) as daemon:
        call = {"prompt": "one", "backend": "echo", "wait": "finished", "request_id": "1"}
        one = await daemon.client.call("delegate", call)
        for name in ("fallbackd.db", "fallbackd.db-wal"):
            shutil.copy(daemon.state_dir / name, backup / name)
        shutil.copytree(daemon.state_dir / "runs", backup / "runs")
        later = {**call, "prompt": "two", "request_id": "2"}
        two = await daemon.client.call("delegate", later)
        assert await restore(daemon, backup) == 2
        assert "stop it first" in capsys.readouterr().err

        await daemon.stop()
        shutil.rmtree(daemon.state_dir / "runs" / one["delegation"])
        assert await restore(daemon, backup) == 0
        told = capsys.readouterr().out
        assert "run directories that were missing: 1" in told
        assert "fallbackd.db.before-" in told
        assert list(daemon.state_dir.glob("fallbackd.db.before-*"))
        await daemon.start()
        for known, asked in ((one, call), (two, later)):
            again = await daemon.client.call("delegate", asked)
            assert again["delegation"] == known["delegation"]
            assert (again["state"], again["text"]) == ("succeeded", known["text"])


@pytest.mark.parametrize("what", ["nothing", "no database"])
async def test_only_a_database_is_restored(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backup, state = tmp_path / "backup", tmp_path / "state"
    backup.mkdir()
    state.mkdir()
    if what == "no database":
        (backup / "fallbackd.db").write_text("no database")
    (state / "fallbackd.db").write_text("as it was")
    argv = ["restore", str(backup), "--state-dir", str(state)]
    assert await anyio.to_thread.run_sync(main, argv) == 2
    assert "name the directory" in capsys.readouterr().err
    assert (state / "fallbackd.db").read_text() == "as it was"
