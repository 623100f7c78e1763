"""A disk without space, a directory without rights, a second daemon, a clock that jumps."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support.agents import ECHO, THROTTLED, backend_script, chain
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, DaemonDied, in_process, running

from fallbackd.lib.clock import SystemClock
from fallbackd_client.errors import RpcError

DAY_S = 86_400.0
WAITS = 'cat >/dev/null; echo begun; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; echo end'

AS_A_USER = (
    sys.executable,
    "-c",
    "import ctypes, os, sys; c = ctypes.CDLL(None); c.prctl(24, 1, 0, 0, 0);"
    " c.prctl(24, 2, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Modes of files apply to whoever runs the tests: PR_CAPBSET_DROP of the rights to pass them by."""


def config_of(tmp_path: Path) -> str:
    bin_dir = tmp_path / "bin"
    return backend_script(bin_dir, "echo", ECHO) + backend_script(bin_dir, "slow", WAITS)


async def delegate(daemon: Daemon, **params: Any) -> dict[str, Any]:
    call = {"prompt": "hello", "backend": "echo", "wait": "finished", **params}
    found: dict[str, Any] = await daemon.client.call("delegate", call)
    return found


async def until_work_is_taken(daemon: Daemon) -> dict[str, Any]:
    with anyio.fail_after(HANG_S):
        while True:
            try:
                return await delegate(daemon)
            except RpcError as error:
                if error.code != -32004:
                    raise
            await anyio.sleep(0.1)


async def test_a_full_disk_refuses_new_work_and_recovers_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        before = await delegate(daemon)
        begun = await delegate(daemon, backend="slow", wait="settled", settle_s=60)
        assert begun["state"] == "running"
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, hard))
        with pytest.raises(RpcError) as refused:
            await delegate(daemon)
        assert refused.value.code == -32004
        assert "space" in refused.value.message or "disk" in refused.value.message
        ran = await run_client(daemon.socket, "delegate", "x", "--backend", "echo", cwd="/tmp")
        assert ran.code in (69, 75)
        assert "no new work" in ran.err

        kept = await daemon.client.call("delegation.get", {"delegation": before["delegation"]})
        assert (kept["state"], kept["text"]) == ("succeeded", "hello")
        assert (await daemon.client.call("health"))["health"]["echo"]["state"] == "healthy"
        status = await daemon.client.call("status")
        assert status["delegations"]["running"] == 1
        (daemon.home / "goes").touch()
        ended = await daemon.client.call("delegation.wait", {"delegation": begun["delegation"]})
        assert (ended["state"], ended["text"]) == ("succeeded", "begun\nend")
        [warning] = ended["warnings"]
        assert warning.startswith("its end is not on record")
        ran = await run_client(daemon.socket, "wait", begun["delegation"])
        assert "its end is not on record" in ran.err

        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (soft, hard))
        after = await until_work_is_taken(daemon)
        assert after["text"] == "hello"
        await daemon.kill()
        await daemon.start()
        for one in (before, ended, after):
            found = await daemon.client.call("delegation.get", {"delegation": one["delegation"]})
            assert (found["state"], found["text"]) == ("succeeded", one["text"]), found
            assert found["warnings"] == []


async def test_a_state_directory_below_a_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DaemonDied) as died:
        async with running(tmp_path, arguments=("--state-dir", f"{tmp_path}/file/state")):
            raise AssertionError("it has started")
    assert "--state-dir" in str(died.value)
    assert "Traceback" not in str(died.value)


async def test_a_socket_below_a_long_home_is_reached_by_every_client(tmp_path: Path) -> None:
    place = f"{tmp_path}/{'long-' * 40}/fallbackd/control.sock"
    async with running(tmp_path, config_of(tmp_path), env={"FALLBACKD_SOCKET": place}) as daemon:
        assert (await delegate(daemon))["text"] == "hello"
        ran = await run_client(place, "delegate", "hello", "--backend", "echo", cwd="/tmp")
        assert (ran.code, ran.out) == (0, "hello\n"), ran.err
        os.unlink(place)
        with anyio.fail_after(HANG_S):
            while not os.path.exists(place):
                await anyio.sleep(0.05)
        await daemon.kill()  # what is left over is known as such
        await daemon.start()
        assert (await delegate(daemon))["text"] == "hello"
        await daemon.stop()
        assert not os.path.exists(place)
        ran = await run_client(place, "status", cwd="/tmp")
        assert ran.code == 69
        assert "AF_UNIX" not in ran.err


async def test_a_state_directory_without_rights_is_refused_with_what_to_do(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o500)
    with pytest.raises(DaemonDied) as died:
        async with running(tmp_path, arguments=("--state-dir", str(state)), wrapper=AS_A_USER):
            raise AssertionError("it has started")
    assert str(state) in str(died.value)
    assert "Traceback" not in str(died.value)


async def test_a_state_directory_that_loses_its_rights_takes_no_new_work(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path), wrapper=AS_A_USER) as daemon:
        before = await delegate(daemon)
        runs = daemon.state_dir / "runs"
        for directory in (runs, daemon.state_dir):
            directory.chmod(0o500)
        try:
            with pytest.raises(RpcError) as refused:
                await delegate(daemon)
            assert refused.value.code == -32004
            assert "Traceback" not in refused.value.message
            kept = await daemon.client.call("delegation.get", {"delegation": before["delegation"]})
            assert kept["text"] == "hello"
            assert (await daemon.client.call("health"))["health"]["echo"]["state"] == "healthy"
        finally:
            for directory in (daemon.state_dir, runs):
                directory.chmod(0o700)
        assert (await until_work_is_taken(daemon))["text"] == "hello"


async def test_a_second_daemon_names_the_first_and_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        begun = await delegate(daemon, backend="slow", wait="settled", settle_s=60)
        second = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                [sys.executable, "-m", "fallbackd"],
                env=daemon.env,
                capture_output=True,
                text=True,
                timeout=HANG_S,
                check=False,
            )
        )
        assert second.returncode == 78
        assert str(daemon.pid) in second.stderr
        assert "Traceback" not in second.stderr
        (daemon.home / "goes").touch()
        ended = await daemon.client.call("delegation.wait", {"delegation": begun["delegation"]})
        assert ended["state"] == "succeeded"


class Wall:
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        self.set_by_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.set_by_s


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S], ids=["ahead", "back"])
async def test_a_clock_that_jumps_by_a_day_moves_the_windows_with_it(
    jump_s: float, tmp_path: Path
) -> None:
    wall = Wall()
    config = (
        backend_script(tmp_path / "bin", "first", THROTTLED)
        + config_of(tmp_path)
        + chain("first", "echo")
    )
    clock = SystemClock(wall=wall)
    async with in_process(tmp_path, config, clock=clock) as daemon:
        call = {"prompt": "hello", "backend": "first", "wait": "finished"}
        await daemon.client.call("delegate", call)
        before = (await daemon.client.call("health"))["health"]["first"]
        slow = {"prompt": "x", "backend": "slow", "timeout_s": 3000, "settle_s": 60}
        begun = await daemon.client.call("delegate", slow)
        wall.set_by_s = jump_s
        await daemon.engine.look_at_clock()
        after = (await daemon.client.call("health"))["health"]["first"]
        assert after["state"] == "rate_limited"
        assert after["until_at"] - before["until_at"] == pytest.approx(jump_s, abs=5)
        assert 0 < after["seconds_remaining"] <= before["seconds_remaining"]
        again = await daemon.client.call("delegate", call)
        assert [one["backend"] for one in again["attempts"]] == ["echo"]
        assert again["created_at"] == pytest.approx(time.time() + jump_s, abs=60)
        found = await daemon.client.call("delegation.get", {"delegation": begun["delegation"]})
        assert found["state"] == "running"
        (tmp_path / "home" / "goes").touch()
        ended = await daemon.client.call("delegation.wait", {"delegation": begun["delegation"]})
        assert ended["state"] == "succeeded"
        assert os.path.isdir(daemon.state_dir)
