"""Two machines, one server: what one has found the other one knows."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from tests.support.agents import THROTTLED, backend_script, chain, ok
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.redis_server import RedisServer, redis_server
from tests.support.saying import say

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
            said = await run_client(laptop.socket, "health", "pause", "second", "--everywhere")
            assert said.code == 0, said.err
            await until(desktop, lambda one: one["state"] == "paused", target="second")
            assert (await run_client(desktop.socket, "share", "test")).code == 0
            assert "share connected" in (await run_client(desktop.socket, "status")).out
            shown = await run_client(desktop.socket, "share", "machines")
            assert "laptop" in shown.out
            assert "desktop" in shown.out


LIMIT = "cat >/dev/null; echo 'You have hit your usage limit.' >&2; exit 1"
SHORT = "[policy.usage_limit]\nwindow_s = 10\ncooldown_s = 0\n"
WORK = {"backend": "first", "prompt": "x", "wait": "finished"}
LEASE_S = 60.0
SLACK_S = 30.0
"""What a busy machine may take beyond it."""


def is_tried(entry: dict[str, Any]) -> bool:
    return any(one["trial"] for one in entry["scopes"])


async def test_the_trial_of_a_machine_that_is_killed_is_anothers_when_its_lease_is_over(
    tmp_path: Path,
) -> None:
    with redis_server(tmp_path / "redis") as server:
        env = {"SHARE_URL": server.url}
        a, b = tmp_path / "a", tmp_path / "b"
        async with (
            running(a, machine(a, "laptop", LIMIT, more=SHORT), env=env) as laptop,
            running(b, machine(b, "desktop", ok("done"), more=SHORT), env=env) as desktop,
        ):
            await connected(laptop, desktop)
            await laptop.client.call("delegate", WORK)
            (laptop.bin_dir / "first").write_text("#!/bin/sh\nexec sleep 1000\n")
            for one in (laptop, desktop):
                await until(one, lambda entry: entry["unproven"])
            held = await laptop.client.call("delegate", {**WORK, "wait": "accepted"})
            began = time.monotonic()
            await until(desktop, is_tried, target="first")
            assert (await desktop.client.call("delegate", WORK))["served_by"] == "second"
            await laptop.kill()
            with anyio.fail_after(LEASE_S + SLACK_S):
                while (await desktop.client.call("delegate", WORK))["served_by"] != "first":
                    await anyio.sleep(0.5)
            say(f"\nthe next trial began {time.monotonic() - began:.1f} s after the first")
            await laptop.start()
            await laptop.client.call("delegation.cancel", {"delegation": held["delegation"]})


async def test_a_trial_without_the_server_says_that_nobody_was_asked(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        config = machine(tmp_path, "laptop", LIMIT, more=SHORT)
        async with running(tmp_path, config, env={"SHARE_URL": server.url}) as laptop:
            await connected(laptop)
            await laptop.client.call("delegate", WORK)
            (laptop.bin_dir / "first").write_text(f"#!/bin/sh\n{ok('done')}\n")
            await until(laptop, lambda entry: entry["unproven"])
            server.freeze()
            try:
                done = await laptop.client.call("delegate", WORK)
            finally:
                server.thaw()
            assert done["served_by"] == "first"
            shown = await run_client(laptop.socket, "explain", "-v", done["delegation"])
            assert "arbiter away" in shown.out
            shown = await run_client(laptop.socket, "share", "status")
            assert "last probe without the server:" in shown.out
            assert "(quota:plan)" in shown.out


CANARY = "canary-of-the-prompt"
CANARY_KEY = "sk-canary-0123456789abcdef0123456789"
API = """
[backends.api]
kind = "openai-http"
base_url = "https://api.example.com/v1"
model = "m"
credentials = [{ label = "work", env = "KEY" }]
"""


@contextmanager
def monitored(server: RedisServer, path: Path) -> Iterator[Path]:
    """Everything that is said to the server, in a file."""
    with socket.socket(socket.AF_UNIX) as ear, path.open("wb") as file:
        ear.connect(server.socket)
        ear.sendall(b"MONITOR\r\n")

        def listen() -> None:
            with suppress(OSError):
                while data := ear.recv(1 << 16):
                    file.write(data)
                    file.flush()

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield path
        finally:
            ear.shutdown(socket.SHUT_RDWR)
            thread.join()


async def test_ten_machines_hit_one_wall_once_and_say_no_secret(tmp_path: Path) -> None:
    """Ten daemons in processes of their own; the program of all of them counts in one file."""
    hits, wall = tmp_path / "hits", tmp_path / "wall"
    wall.touch()
    first = (
        f"cat >/dev/null; echo begins >> {hits}; if [ -e {wall} ]; then "
        f"echo 'You have hit your usage limit.' >&2; exit 1; fi; sleep 3; echo ends >> {hits}; "
        "echo done"
    )
    more = (
        f'group_secret_env = "SECRET"\n{API}\n[policy.usage_limit]\nwindow_s = 20\ncooldown_s = 0\n'
    )
    work = {"backend": "first", "prompt": CANARY, "wait": "finished"}
    env = {"SECRET": f"{CANARY_KEY}-of-the-group", "KEY": CANARY_KEY}
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server(tmp_path / "redis"))
        wire = stack.enter_context(monitored(server, tmp_path / "wire"))
        machines = []
        for number in range(10):
            place = tmp_path / f"m{number}"
            place.mkdir()
            text = machine(place, f"m{number}", first, more=more).replace(
                'writable = ["~/"]', f'writable = ["~/", "{tmp_path}"]'
            )
            one = running(place, text, env={**env, "SHARE_URL": server.url})
            machines.append(await stack.enter_async_context(one))
        await connected(*machines)
        await machines[0].client.call("delegate", work)
        began = time.monotonic()
        for one in machines:
            await until(one, lambda entry: entry["state"] == "rate_limited")
        say(f"\nknown to ten machines, asked in turn, after {time.monotonic() - began:.2f} s")
        served: list[str] = []

        async def delegate(one: Daemon) -> None:
            served.append((await one.client.call("delegate", work))["served_by"])

        async with anyio.create_task_group() as tasks:
            for one in machines:
                tasks.start_soon(delegate, one)
        assert served == ["second"] * 10
        assert hits.read_text() == "begins\n"
        wall.unlink()
        for one in machines:
            await until(one, lambda entry: entry["unproven"])
        async with anyio.create_task_group() as tasks:
            for one in machines:
                tasks.start_soon(delegate, one)
        before_the_first_end = hits.read_text().splitlines()[1:].index("ends")
        say(f"{before_the_first_end} trials of 10 callers on 10 machines")
        assert 1 <= before_the_first_end <= 10  # one, where the arbiter answers within its limit
        seen = wire.read_bytes()
    assert b"evalsha" in seen.lower()
    assert b"credential:api.example.com/" in seen
    for secret in (CANARY, CANARY_KEY, str(tmp_path / "m"), "hit your usage limit"):
        assert secret.encode() not in seen
