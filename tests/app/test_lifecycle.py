"""The daemon as a process: how it starts, stops, and what it leaves."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.support import agents
from tests.support.daemon import HANG_S, Daemon, DaemonDied, running

from fallbackd_client.aio import AsyncClient
from fallbackd_client.errors import RpcError


async def wait_for_event(daemon: Daemon, kind: str) -> None:
    with anyio.fail_after(HANG_S):
        async for event in daemon.client.events(since=0, kinds=[kind]):
            assert event["kind"] == kind
            return


def gate(path: Path) -> str:
    """Runs until the file is there."""
    return f"cat >/dev/null; echo begun; while [ ! -e {path} ]; do sleep 0.05; done; echo done"


async def test_a_daemon_without_a_configuration_serves_and_stops_with_0(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        pong = await daemon.client.call("daemon.ping")
        assert pong["pid"] == daemon.pid
        status = await daemon.client.call("status")
        assert status["daemon"]["state_dir"] == str(daemon.state_dir)
        assert status["daemon"]["config_errors"] == []
        assert next(iter(status["health"])) == "opencode"
        assert await daemon.stop() == 0
        assert not os.path.exists(daemon.socket)


async def test_its_directories_and_its_socket_are_private(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        modes = {
            path: stat.S_IMODE(os.lstat(path).st_mode)
            for path in (daemon.socket, os.path.dirname(daemon.socket), daemon.state_dir)
        }
        assert list(modes.values()) == [0o600, 0o700, 0o700]


async def test_work_that_falls_back_is_answered(tmp_path: Path) -> None:
    config = (
        agents.backend_script(tmp_path / "bin", "first", agents.THROTTLED)
        + agents.backend_script(tmp_path / "bin", "second", agents.ok("hello"))
        + agents.chain("first", "second")
    )
    async with running(tmp_path, config) as daemon:
        found = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "first", "wait": "finished"}
        )
        assert found["state"] == "succeeded", daemon.log()
        assert found["served_by"] == "second"
        assert found["text"].strip() == "hello"
        assert found["fallback_from"] == "first"
        assert found["fallback_reason"].startswith("rate_limit")
        health = await daemon.client.call("health", {"action": "list"})
        assert health["health"]["first"]["state"] == "rate_limited"
        assert health["health"]["first"]["ttl_seconds"] == pytest.approx(300)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_work_end_and_refuses_new_work(
    tmp_path: Path, number: signal.Signals
) -> None:
    open_gate = tmp_path / "open"
    config = agents.backend_script(tmp_path / "bin", "slow", gate(open_gate))
    async with running(tmp_path, config) as daemon:
        begun = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "slow", "settle_s": 60}
        )
        assert begun["state"] == "running"
        daemon.send(number)
        await wait_for_event(daemon, "daemon.draining")
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("delegate", {"prompt": "y", "backend": "slow"})
        assert refused.value.code == -32004
        open_gate.touch()
        assert await daemon.wait() == 0
        await daemon.start()
        found = await daemon.client.call("delegation.get", {"delegation": begun["delegation"]})
        assert found["state"] == "succeeded"
        assert found["text"].strip() == "begun\ndone"


async def test_a_second_signal_stops_the_work_at_once(tmp_path: Path) -> None:
    config = agents.backend_script(tmp_path / "bin", "stuck", agents.HANGING)
    async with running(tmp_path, config) as daemon:
        begun = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "stuck", "settle_s": 60}
        )
        pid = begun["attempts"][0]["pid"]
        daemon.send(signal.SIGTERM)
        await wait_for_event(daemon, "daemon.draining")
        daemon.send(signal.SIGTERM)
        assert await daemon.wait() == 0
        assert not os.path.exists(f"/proc/{pid}")


async def test_shutdown_by_a_caller_drains_and_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        assert (await daemon.client.call("daemon.shutdown"))["state"] == "draining"
        assert await daemon.wait() == 0


async def test_a_second_daemon_on_the_same_state_names_the_first(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        other = str(tmp_path / "other.sock")
        refused = await anyio.to_thread.run_sync(lambda: run_once(daemon, "--socket", other))
        assert refused.returncode == 78
        assert f"process {daemon.pid}" in refused.stderr
        assert (await daemon.client.call("daemon.ping"))["pid"] == daemon.pid


async def test_a_second_daemon_on_the_same_socket_names_the_first(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        other = str(tmp_path / "other")
        refused = await anyio.to_thread.run_sync(lambda: run_once(daemon, "--state-dir", other))
        assert refused.returncode == 78
        assert f"process {daemon.pid}" in refused.stderr
        assert (await daemon.client.call("daemon.ping"))["pid"] == daemon.pid


def run_once(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fallbackd", *arguments],
        env=daemon.env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


async def test_records_outlive_a_kill(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.client.call(
            "health", {"action": "mark", "target": "codex", "reason": "mine", "ttl_s": 5000}
        )
        await daemon.kill()
        await daemon.start()
        found = await daemon.client.call("health", {"action": "get", "target": "codex"})
        assert found["health"]["codex"]["state"] == "broken"
        assert found["health"]["codex"]["detail"] == "mine"


async def test_a_bad_configuration_at_the_start_leaves_the_built_in_one(tmp_path: Path) -> None:
    async with running(tmp_path, "this is = = no toml") as daemon:
        status = await daemon.client.call("status")
        assert status["daemon"]["config_errors"][0]["path"] == str(daemon.config_path)
        assert "codex" in status["health"]
        assert "config.rejected" in daemon.log()


async def test_a_good_change_is_taken_and_a_bad_one_keeps_the_last(tmp_path: Path) -> None:
    config = agents.backend_script(tmp_path / "bin", "one", agents.ECHO)
    async with running(tmp_path, config) as daemon:
        more = agents.backend_script(tmp_path / "bin", "two", agents.ECHO)
        daemon.config_path.write_text(config + more)
        await wait_for_event(daemon, "config.reloaded")
        assert "two" in (await daemon.client.call("health"))["health"]
        daemon.config_path.write_text("[[[")
        await wait_for_event(daemon, "config.rejected")
        status = await daemon.client.call("status")
        assert "two" in status["health"]
        assert status["daemon"]["config_errors"]
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("config.reload")
        assert refused.value.code == -32006


async def test_a_signal_reads_the_configuration_again(tmp_path: Path) -> None:
    async with running(tmp_path, "[defaults]\n") as daemon:
        daemon.config_path.write_text("[defaults]\nsettle_s = 1.5\n")
        daemon.send(signal.SIGHUP)
        await wait_for_event(daemon, "config.reloaded")
        found = await daemon.client.call("config.get")
        assert found["config"]["defaults"]["settle_s"] == 1.5


async def test_a_socket_that_was_deleted_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        os.unlink(daemon.socket)
        with anyio.fail_after(HANG_S):
            while not os.path.exists(daemon.socket):
                await anyio.sleep(0.05)
        async with AsyncClient(daemon.socket) as anew:
            assert (await anew.call("daemon.ping"))["pid"] == daemon.pid
        # Connections of before have not noticed.
        assert (await daemon.client.call("daemon.ping"))["pid"] == daemon.pid


async def test_a_socket_whose_place_is_taken_is_told_once_and_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        directory = os.path.dirname(daemon.socket)
        os.unlink(daemon.socket)
        os.symlink("/nowhere", daemon.socket)
        for _ in range(3):  # each look closes the directory again
            os.chmod(directory, 0o755)
            with anyio.fail_after(HANG_S):
                while stat.S_IMODE(os.stat(directory).st_mode) != 0o700:
                    await anyio.sleep(0.05)
        assert daemon.log().count("socket.lost") == 1
        os.unlink(daemon.socket)
        with anyio.fail_after(HANG_S):
            while not os.path.exists(daemon.socket):
                await anyio.sleep(0.05)
        async with AsyncClient(daemon.socket) as anew:
            assert (await anew.call("daemon.ping"))["pid"] == daemon.pid


HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "fallbackd"])
"""
# As the manager does it: the descriptor has number 3, and the pid is the daemon's own.


async def test_a_socket_of_the_service_manager_is_used_and_left_in_place(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.stop()
        path = str(daemon.runtime_dir / "handed.sock")
        with socket.socket(socket.AF_UNIX) as handed:
            handed.bind(path)
            handed.listen()
            started = subprocess.Popen(
                [sys.executable, "-c", HAND_OVER, str(handed.fileno())],
                env=daemon.env,
                pass_fds=[handed.fileno()],
            )
            try:
                async with AsyncClient(path, timeout_s=HANG_S) as client:
                    status = await client.call("status")
                assert status["daemon"]["socket"] == path
                assert not os.path.exists(daemon.socket)
                started.terminate()
                assert await anyio.to_thread.run_sync(started.wait) == 0
            finally:
                started.kill()
                started.wait()
            assert os.path.exists(path)


async def test_a_state_directory_that_others_use_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    (shared / "somebody's").touch()
    with pytest.raises(DaemonDied) as died:
        async with running(tmp_path, arguments=("--state-dir", str(shared))):
            pass
    assert "chmod 700" in str(died.value)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


async def test_health_is_exported_for_voice_agents(tmp_path: Path) -> None:
    target = tmp_path / "voice-platform-health.json"
    async with running(tmp_path, f'export_voice_health = "{target}"\n') as daemon:
        await daemon.client.call("health", {"action": "mark", "target": "codex", "reason": "x"})
        with anyio.fail_after(HANG_S):
            while not target.exists() or "codex" not in target.read_text():
                await anyio.sleep(0.05)
        assert '"ttl_seconds": 600' in target.read_text()
