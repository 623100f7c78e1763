"""Two machines, one server: what one has found the other one knows."""

from pathlib import Path
from typing import Any

import anyio
from tests.support.agents import THROTTLED, backend_script, chain, ok
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.redis_server import redis_server

SHARE = '[share]\ngroup = "home"\nurl_env = "SHARE_URL"\nmachine = "{name}"\n'


def machine(place: Path, name: str, first: str, *, more: str = "") -> str:
    bin_dir = place / "bin"
    plan = 'quota = "plan"\n'
    return (
        backend_script(bin_dir, "first", first, more=plan)
        + backend_script(bin_dir, "second", ok("done"))
        + chain("first", "second")
        + SHARE.format(name=name)
        + more
    )


async def until(daemon: Daemon, wanted: Any, *, target: str = "quota:plan") -> dict[str, Any]:
    """The health of a target, once it is as wanted."""
    with anyio.fail_after(HANG_S):
        while True:
            found = await daemon.client.call("health", {"action": "get", "target": target})
            entry: dict[str, Any] = found["health"][target]
            if wanted(entry):
                return entry
            await anyio.sleep(0.02)


async def connected(*daemons: Daemon) -> None:
    with anyio.fail_after(HANG_S):
        for one in daemons:
            while (await one.client.call("status", {}))["share"]["state"] != "connected":
                await anyio.sleep(0.02)


async def test_a_limit_that_one_machine_finds_is_known_on_the_other(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        env = {"SHARE_URL": server.url}
        a, b = tmp_path / "a", tmp_path / "b"
        async with (
            running(a, machine(a, "laptop", THROTTLED), env=env) as laptop,
            running(b, machine(b, "desktop", ok("never")), env=env) as desktop,
        ):
            await connected(laptop, desktop)
            limit = "cat >/dev/null; echo 'You have hit your usage limit.' >&2; exit 1"
            (laptop.bin_dir / "first").write_text(f"#!/bin/sh\n{limit}\n")
            work = {"backend": "first", "prompt": "x", "wait": "finished"}
            done = await laptop.client.call("delegate", work)
            assert done["served_by"] == "second"
            here = await until(laptop, lambda one: one["state"] == "rate_limited")
            there = await until(desktop, lambda one: one["state"] == "rate_limited")
            assert (there["reason"], there["seen_by"]) == (here["reason"], "laptop")
            assert abs(there["until_at"] - here["until_at"]) < 1.0
            done = await desktop.client.call("delegate", work)
            assert [one["backend"] for one in done["attempts"]] == ["second"]
            shown = await run_client(desktop.socket, "health", "get", "first")
            assert "seen by laptop" in shown.out
            shown = await run_client(desktop.socket, "share", "machines")
            assert "laptop" in shown.out
            assert "desktop" in shown.out
