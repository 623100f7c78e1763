"""Work that was to end with its callers, and work that outlives them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from tests.support.agents import HANGING, backend_script
from tests.support.daemon import HANG_S, Daemon, running

from fallbackd.engine.timers import ABANDONED
from fallbackd_client.aio import AsyncClient

SHORT_S = 0.05
Found = Mapping[str, Any]


def config(tmp_path: Path) -> str:
    return backend_script(tmp_path / "bin", "slow", HANGING)


async def begin(client: AsyncClient, daemon: Daemon, **params: Any) -> Found:
    asked = {"prompt": "x", "backend": "slow", "cwd": str(daemon.work_dir), "wait": "accepted"}
    found: Found = await client.call("delegate", {**asked, **params})
    return found


async def caller_dies(daemon: Daemon, **params: Any) -> Found:
    """Work whose caller closes its connection at once."""
    async with AsyncClient(daemon.socket) as client:
        return await begin(client, daemon, **params)


async def ended(daemon: Daemon, one: Found) -> Found:
    """Asked for without following it: `delegation.wait` would be a caller."""
    with anyio.fail_after(HANG_S):
        while True:
            asked = {"delegation": one["delegation"]}
            found: Found = await daemon.client.call("delegation.get", asked)
            if found["ended_at"] is not None:
                return found
            await anyio.sleep(0.02)


async def test_work_ends_some_time_after_its_last_caller_has_gone(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        one = await caller_dies(daemon, orphan_s=SHORT_S)
        assert one["orphan_s"] == SHORT_S
        found = await ended(daemon, one)
        assert found["state"] == "cancelled"
        assert found["message"] == ABANDONED
        assert found["attempts"][0]["state"] == "cancelled"


async def test_it_goes_on_while_a_connection_is_left_that_waits_for_it(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon, AsyncClient(daemon.socket) as client:
        one = await begin(client, daemon, orphan_s=SHORT_S)
        async with AsyncClient(daemon.socket) as other:
            waited = {"delegation": one["delegation"], "timeout_s": 10 * SHORT_S}
            assert (await other.call("delegation.wait", waited))["wait_over"] is True
        assert (await client.call("delegation.wait", waited))["wait_over"] is True


async def test_work_that_was_asked_to_be_kept_outlives_its_callers(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        async with AsyncClient(daemon.socket) as client:
            one = await begin(client, daemon, orphan_s=SHORT_S)
            kept = await client.call("delegation.keep", {"delegation": one["delegation"]})
            assert kept["orphan_s"] is None
        other = await caller_dies(
            daemon, orphan_s=SHORT_S, session="of another", permissions="read"
        )
        assert (await ended(daemon, other))["state"] == "cancelled"
        asked = {"delegation": one["delegation"]}
        assert (await daemon.client.call("delegation.get", asked))["state"] == "running"
        await daemon.client.call("delegation.cancel", asked)  # else the daemon waits for its end


async def test_a_caller_that_only_lost_the_daemon_keeps_its_work(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        lost = await caller_dies(daemon, orphan_s=2.0, session="lost", permissions="read")
        params = {"orphan_s": 2.0, "request_id": "r1", "session": "mine", "permissions": "read"}
        one = await begin(daemon.client, daemon, **params)
        await daemon.kill()
        await daemon.start()
        again = await begin(daemon.client, daemon, **params)
        assert again["delegation"] == one["delegation"]
        assert (await ended(daemon, lost))["state"] == "cancelled"
        assert (await begin(daemon.client, daemon, **params))["state"] == "running"
        await daemon.client.call("delegation.cancel", {"delegation": one["delegation"]})
