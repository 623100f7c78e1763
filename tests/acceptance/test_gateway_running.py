"""Calls of the gateway that are under way when its configuration changes, or the daemon ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.support.daemon import HANG_S
from tests.support.gateway import ENDS, Gate, gate, last_event, read_into


@asynccontextmanager
async def under_way(g: Gate) -> AsyncIterator[bytearray]:
    """A stream that has begun; it is over behind the block."""
    g.api.behave("one", "slow", pause_s=0.3)
    got = bytearray()
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_into, got, g)
            while not got:
                await anyio.sleep(0.02)
            assert ENDS[g.mode].encode() not in got
            yield got


async def configured(g: Gate, old: str, new: str) -> None:
    text = g.daemon.config_path.read_text()
    assert old in text
    g.daemon.config_path.write_text(text.replace(old, new))
    await g.daemon.client.call("config.reload", {})


async def test_a_change_of_its_rules_leaves_calls_and_makers_alone(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        async with under_way(g) as got:
            await configured(g, "hold_s = 5", "hold_s = 6\nmax_body_mb = 1")
        assert ENDS[g.mode].encode() in got
        name = last_event(got.decode())["response"]["id"]
        known = await g.client.get(f"/v1/responses/{name}", headers={"x-api-key": g.token})
        assert known.status_code == 200, known.text
        long = {**g.body(), "instructions": "x" * 1024 * 1024}
        refused = await g.client.post(g.path(), json=long, headers={"x-api-key": g.token})
        assert refused.status_code == 413


async def test_a_backend_that_becomes_the_gateway_itself_is_asked_no_more(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        await configured(g, g.api.url("one"), f"http://127.0.0.1:{g.port}")
        answer = await g.ask()
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert answer.headers["x-fallbackd-attempts"] == "1"
        name = answer.headers["x-fallbackd-exchange"]
        told = await g.daemon.client.call("explain", {"delegation": name})
        verdicts = {one["backend"]: one for one in told["decisions"][0]["candidates"]}
        assert verdicts["one"]["verdict"] == "not_configured"
        assert "its address is that of the gateway" in verdicts["one"]["reason"]


async def test_what_was_made_is_known_when_it_is_enabled_again(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        name = (await g.ask(stream=False)).json()["id"]
        await configured(g, "enabled = true", "enabled = false")
        await configured(g, "enabled = false", "enabled = true")
        with anyio.fail_after(HANG_S):
            while True:
                try:
                    headers = {"x-api-key": g.token}
                    known = await g.client.get(f"/v1/responses/{name}", headers=headers)
                    break
                except OSError:
                    await anyio.sleep(0.02)
        assert known.status_code == 200, known.text


@pytest.mark.parametrize("method", ["daemon.drain", "daemon.shutdown"])
async def test_calls_are_waited_for_and_counted(tmp_path: Path, method: str) -> None:
    async with gate(tmp_path) as g:
        async with under_way(g) as got:
            assert (await g.daemon.client.call(method, {}))["calls"] == 1
        assert ENDS[g.mode].encode() in got
        if method == "daemon.drain":
            assert (await g.daemon.client.call(method, {}))["calls"] == 0


async def test_with_the_work_its_calls_are_stopped(tmp_path: Path) -> None:
    got = bytearray()
    is_cut = False

    async def read(g: Gate) -> None:
        nonlocal is_cut
        try:
            await read_into(got, g)
        except httpx2.RemoteProtocolError:
            is_cut = True

    async with gate(tmp_path) as g:
        g.api.behave("one", "hang_mid")
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, g)
                while not got:
                    await anyio.sleep(0.02)
                await g.daemon.client.call("daemon.shutdown", {"stop_work": True})
            assert await g.daemon.wait() == 0
    assert is_cut
