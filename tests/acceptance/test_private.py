"""What only its owner may see and change, seen from outside of a real daemon."""

import json
import os
import resource
import stat
from pathlib import Path

import anyio
import pytest
from tests.support.agents import ECHO, backend_script
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, DaemonDied, running
from tests.support.wire import wire

from fallbackd_client.errors import RpcError

KEY = "a plain-looking pass phrase"
LEAKS = f"cat >/dev/null; echo \"401 Unauthorized: the key '{KEY}' is wrong\" >&2; exit 1"


async def until_work_is_refused(daemon: Daemon) -> RpcError:
    with anyio.fail_after(HANG_S):
        while True:
            try:
                await daemon.client.call("delegate", {"prompt": "x", "backend": "echo"})
            except RpcError as error:
                return error
            await anyio.sleep(0.1)


async def until_work_is_taken(daemon: Daemon) -> None:
    with anyio.fail_after(HANG_S):
        while True:
            try:
                await daemon.client.call("delegate", {"prompt": "x", "backend": "echo"})
            except RpcError as error:
                if error.code != -32004:
                    raise
                await anyio.sleep(0.1)
            else:
                return


async def test_a_state_directory_for_everybody_is_refused_with_the_command(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.stop()
        daemon.state_dir.chmod(0o777)
        with pytest.raises(DaemonDied) as died:
            await daemon.start()
        assert "exit status 78" in str(died.value)
        assert f"chmod 700 {daemon.state_dir}" in str(died.value)
        assert stat.S_IMODE(daemon.state_dir.stat().st_mode) == 0o777
        daemon.state_dir.chmod(0o700)
        (daemon.state_dir / "runs").mkdir(exist_ok=True)
        (daemon.state_dir / "runs").chmod(0o777)
        with pytest.raises(DaemonDied, match=f"chmod 700 {daemon.state_dir}/runs"):
            await daemon.start()
        (daemon.state_dir / "runs").chmod(0o700)
        await daemon.start()


async def test_a_socket_directory_for_everybody_is_refused_with_the_command(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as daemon:
        await daemon.stop()
        directory = Path(daemon.socket).parent
        directory.chmod(0o777)
        with pytest.raises(DaemonDied) as died:
            await daemon.start()
        assert f"chmod 700 {directory}" in str(died.value)
        directory.chmod(0o700)
        await daemon.start()


async def test_places_that_an_agent_opens_are_closed_again_and_work_goes_on(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "echo", ECHO)) as daemon:
        places = (daemon.state_dir, Path(daemon.socket).parent)
        for place in places:
            place.chmod(0o777)
        with anyio.fail_after(HANG_S):
            while any(stat.S_IMODE(place.stat().st_mode) != 0o700 for place in places):
                await daemon.client.call("delegate", {"prompt": "x", "backend": "echo"})
        assert (await daemon.client.call("status"))["daemon"]["troubles"] == []
        assert "place.closed" in daemon.log()


async def test_a_link_in_place_of_a_file_stops_new_work_until_it_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "echo", ECHO)) as daemon:
        daemon.config_path.chmod(0o600)
        key = daemon.state_dir / "digest.key"
        kept = key.rename(daemon.state_dir / "kept")
        key.symlink_to(kept)
        refused = await until_work_is_refused(daemon)
        assert refused.code == -32004
        assert refused.data["kind"] == "exposed"
        assert f"rm {key}" in refused.message
        (trouble,) = (await daemon.client.call("status"))["daemon"]["troubles"]
        assert (trouble["fix"], trouble["stops_work"]) == (f"rm {key}", True)
        shown = await run_client(daemon.socket, "status")
        assert f"$ rm {key}" in shown.out
        assert "place.exposed" in daemon.log()
        kept.rename(key)
        await until_work_is_taken(daemon)
        assert (await daemon.client.call("status"))["daemon"]["troubles"] == []


async def test_a_key_that_a_program_prints_is_nowhere_but_in_its_own_log(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "leaks", LEAKS)
    async with running(tmp_path, config, env={"ACME_API_KEY": KEY}) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "the prompt itself", "backend": "leaks", "wait": "finished"}
        )
        assert done["failure"]["reason"] == "auth"
        events = await wire_events(daemon)
        story = await daemon.client.call("explain", {"delegation": done["delegation"]})
        for told in (done, events, story, await daemon.client.call("status")):
            assert KEY not in json.dumps(told)
        assert KEY in Path(done["attempts"][0]["log_path"]).read_text()
        await daemon.stop()
        assert KEY not in daemon.log()
        assert "the prompt itself" not in daemon.log()
        for path in daemon.state_dir.rglob("*"):
            assert path.is_symlink() or stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
            if path.is_file() and path.name.startswith("fallbackd.db"):
                kept = path.read_bytes()
                assert KEY.encode() not in kept
                assert b"the prompt itself" not in kept


async def wire_events(daemon: Daemon) -> list[object]:
    """The journal from its beginning to the end of the work."""
    told: list[object] = []
    with anyio.fail_after(HANG_S):
        async for event in daemon.client.events(since=0):
            told.append(event)
            if event["kind"] == "delegation.ended":
                break
    return told


async def test_the_daemon_leaves_no_core_and_its_programs_keep_the_users_limit(
    tmp_path: Path,
) -> None:
    config = backend_script(tmp_path / "bin", "limits", "cat >/dev/null; ulimit -c")
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    wanted = 4096 if hard in (resource.RLIM_INFINITY,) or hard >= 4096 else hard
    resource.setrlimit(resource.RLIMIT_CORE, (wanted, hard))
    try:
        async with running(tmp_path, config) as daemon:
            assert resource.prlimit(daemon.pid, resource.RLIMIT_CORE)[0] == 0
            done = await daemon.client.call(
                "delegate", {"prompt": "x", "backend": "limits", "wait": "finished"}
            )
            shown = subprocess_limit(wanted)
            assert done["text"].strip() == shown
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def subprocess_limit(soft: int) -> str:
    """As a shell shows it under this limit."""
    import subprocess

    ran = subprocess.run(["sh", "-c", "ulimit -c"], capture_output=True, text=True, check=True)
    assert soft == resource.getrlimit(resource.RLIMIT_CORE)[0]
    return ran.stdout.strip()


async def test_an_http_request_does_nothing_and_disturbs_nobody(tmp_path: Path) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "delegate", "params": {"prompt": "x"}})
    async with running(tmp_path, backend_script(tmp_path / "bin", "echo", ECHO)) as daemon:
        async with wire(daemon.socket) as line:
            head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            await line.stream.send((head + body + "\n").encode())
            assert (await line.line())["error"]["code"] == -32600
            with pytest.raises(anyio.EndOfStream):
                await line.line()
        assert (await daemon.client.call("delegation.list"))["delegations"] == []
        async with wire(daemon.socket) as line:
            await line.stream.send(os.urandom(100_000) + b"\n")
            assert "error" in await line.line()
        assert (await daemon.client.call("daemon.ping"))["pid"] == daemon.pid
        assert "Traceback" not in daemon.log()
