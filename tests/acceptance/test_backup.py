"""Backups are a file copy: what a running daemon has on disk starts another one."""

import shutil
from pathlib import Path

from tests.support.agents import ECHO, backend_script
from tests.support.daemon import running


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
