"""Too much of everything: a clear refusal, nobody else disturbed, and recovery by itself."""

import resource
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agents import ECHO, backend_script
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.wire import wire

from fallbackd_client.errors import RpcError

DESCRIPTORS = 64
"""More than an idle daemon has open, and fewer than as many callers need."""
WAITS = 'cat >/dev/null; echo begun; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; echo end'


async def delegate(daemon: Daemon, **params: Any) -> dict[str, Any]:
    call = {"prompt": "hello", "backend": "echo", "wait": "finished", **params}
    found: dict[str, Any] = await daemon.client.call("delegate", call)
    return found


async def test_more_unfinished_work_than_is_allowed_is_refused_until_some_ends(
    tmp_path: Path,
) -> None:
    config = (
        "[defaults]\nmax_running = 1\nmax_unfinished = 3\n"
        + backend_script(tmp_path / "bin", "echo", ECHO)
        + backend_script(tmp_path / "bin", "slow", WAITS)
    )
    async with running(tmp_path, config) as daemon:
        begun = [await delegate(daemon, backend="slow", wait="accepted") for _ in range(3)]
        with pytest.raises(RpcError) as refused:
            await delegate(daemon)
        assert refused.value.code == -32004
        assert refused.value.data["kind"] == "limit"
        assert refused.value.data["limit"] == 3
        counts = (await daemon.client.call("status"))["delegations"]
        assert (counts["running"], counts["queued"]) == (1, 2)
        (daemon.home / "goes").touch()
        for one in begun:
            ended = await daemon.client.call("delegation.wait", {"delegation": one["delegation"]})
            assert ended["state"] == "succeeded"
        assert (await delegate(daemon))["text"] == "hello"


async def test_without_descriptors_callers_wait_work_is_refused_and_all_recovers(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "echo", ECHO)) as daemon:
        assert (await delegate(daemon))["text"] == "hello"
        _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
        peers = [await anyio.connect_unix(daemon.socket) for _ in range(DESCRIPTORS)]
        try:
            with anyio.fail_after(HANG_S):
                while "connection.postponed" not in daemon.log():
                    await anyio.sleep(0.05)
            with pytest.raises(RpcError) as refused:
                await delegate(daemon)
            assert refused.value.code == -32004
            assert refused.value.data["kind"] == "shortage"
            assert "file descriptors" in refused.value.message
            (trouble,) = (await daemon.client.call("status"))["daemon"]["troubles"]
            assert trouble["kind"] == "shortage"
            # Silent ones make room: a caller that asks is served.
            async with wire(daemon.socket) as line:
                assert (await line.call("daemon.ping"))["result"]["pid"] == daemon.pid
        finally:
            for peer in peers:
                await peer.aclose()
        with anyio.fail_after(HANG_S):
            while (await daemon.client.call("status"))["daemon"]["troubles"]:
                await anyio.sleep(0.05)
        assert (await delegate(daemon))["text"] == "hello"
        assert daemon.log().count("connection.postponed") == 1
        assert "Traceback" not in daemon.log()


LONG = """cat >/dev/null; i=0
while [ $i -lt 150 ]; do head -c 65535 /dev/zero | tr '\\0' 'x'; echo; i=$((i + 1)); done"""
LINE = "cat >/dev/null; head -c 9000000 /dev/zero | tr '\\0' 'x'"


async def test_a_very_long_answer_comes_in_part_and_says_where_all_of_it_is(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "echo", LONG)
    async with running(tmp_path, config) as daemon:
        found = await delegate(daemon)
        assert found["state"] == "succeeded"
        assert found["text_truncated"]
        assert len(found["text"]) == 8 * 1024 * 1024
        whole = Path(found["text_path"]).read_text()
        assert len(whole) == 150 * 65_536 - 1
        assert whole.startswith(found["text"])
        again = await daemon.client.call("delegation.get", {"delegation": found["delegation"]})
        assert again["text_truncated"]
        assert any(found["text_path"] in one for one in again["warnings"])


async def test_a_line_beyond_the_limit_is_said_to_be_cut(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "echo", LINE)
    async with running(tmp_path, config) as daemon:
        found = await delegate(daemon)
        assert found["state"] == "succeeded"
        assert any("611392 bytes were left out" in one for one in found["warnings"])


async def test_metadata_is_bounded_and_a_list_too(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "echo", ECHO)
    async with running(tmp_path, config) as daemon:
        with pytest.raises(RpcError) as refused:
            await delegate(daemon, metadata={"x": "y" * 70_000})
        assert refused.value.code == -32602
        assert "64 KiB" in refused.value.message
        assert (await delegate(daemon, metadata={"x": "y" * 60_000}))["state"] == "succeeded"
        found = await daemon.client.call("delegation.list")
        assert (len(found["delegations"]), found["truncated"]) == (1, False)
