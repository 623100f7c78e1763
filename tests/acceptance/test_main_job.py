"""The main job, as a caller sees it: over the socket, and with the command line."""

import time
from pathlib import Path
from typing import Any

import anyio
from tests.support.agents import THROTTLED, backend_script, chain, ok
from tests.support.clock import ManualClock
from tests.support.command import run_client
from tests.support.daemon import HANG_S, in_process, running
from tests.support.wire import next_events

from fallbackd.core.policy import REASONS, Backend, Defaults, Entry, Policy
from fallbackd.core.reasons import Reason, ReasonPolicy
from fallbackd.engine.ticker import tick

COUNTED = 'cat >/dev/null; echo >> "$HOME/{name}.runs"; '


def counted(name: str, body: str) -> str:
    return COUNTED.format(name=name) + body.replace("cat >/dev/null; ", "")


def runs(home: Path, name: str) -> int:
    path = home / f"{name}.runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def two(tmp_path: Path, first: str = THROTTLED, second: str = ok("done")) -> str:
    bin_dir = tmp_path / "bin"
    return (
        backend_script(bin_dir, "first", counted("first", first))
        + backend_script(bin_dir, "second", counted("second", second))
        + chain("first", "second")
    )


def short(config_free: dict[Reason, ReasonPolicy], *names: str) -> Policy:
    """A policy of plain programs whose windows are shorter than a file may ask for."""
    return Policy(
        defaults=Defaults(stop_grace_s=0.2, backoff_base_s=0.05),
        reasons={**REASONS, **config_free},
        backends={
            name: Backend(id=name, kind="generic-cli", plain_output=True)  # type: ignore[misc, arg-type]
            for name in names
        },
        chains={names[0]: tuple(Entry(backend=name) for name in names[1:])},  # type: ignore[arg-type]
    )


async def health_of(client: Any, name: str) -> dict[str, Any]:
    found = await client.call("health", {"action": "get", "target": name})
    entry: dict[str, Any] = found["health"][name]
    return entry


async def test_a_throttled_backend_is_left_and_the_next_one_answers(tmp_path: Path) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon:
        before_at = time.time()
        ran = await run_client(
            daemon.socket,
            *("--json", "delegate", "hello", "--backend", "first", "--wait", "finished"),
            cwd=str(daemon.work_dir),
        )
        after_at = time.time()
        assert ran.code == 0, ran.err
        done = ran.json
        assert (done["state"], done["text"]) == ("succeeded", "done")
        assert (done["requested"], done["active"], done["served_by"]) == (
            *("first", "second", "second"),
        )
        (hop,) = done["hops"]
        assert (hop["from"], hop["to"], hop["trigger"], hop["reason"]) == (
            *("first", "second", "reactive", "rate_limit"),
        )
        assert [one["backend"] for one in done["attempts"]] == ["first", "second"]
        assert done["attempts"][0]["failure"]["reason"] == "rate_limit"
        assert done["attempts"][0]["exit_code"] == 75
        assert done["fallback_from"] == "first"
        assert done["fallback_reason"].startswith("rate_limit")

        shown = await run_client(daemon.socket, "--json", "health")
        first = shown.json["health"]["first"]
        assert (first["state"], first["reason"], first["count"]) == (
            "rate_limited",
            "rate_limit",
            1,
        )
        assert before_at + 300 <= first["until_at"] <= after_at + 300
        assert first["until_at"] - first["since_at"] == 300
        assert shown.json["health"]["second"]["state"] == "healthy"

        again = await run_client(
            daemon.socket,
            *("--json", "delegate", "again", "--backend", "first"),
            cwd=str(daemon.work_dir),
        )
        assert [one["backend"] for one in again.json["attempts"]] == ["second"]
        assert again.json["hops"][0]["trigger"] == "preemptive"
        assert again.json["candidates"][0]["verdict"] == "rate_limited"
        assert runs(daemon.home, "first") == 1
        assert runs(daemon.home, "second") == 2


async def test_a_stated_time_is_the_end_of_the_window(tmp_path: Path) -> None:
    stated = "echo 'error: rate limit reached, try again in 20 minutes' >&2; exit 75"
    async with running(tmp_path, two(tmp_path, stated)) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "first", "wait": "finished"}
        )
        assert done["served_by"] == "second"
        first = await health_of(daemon.client, "first")
        assert abs(first["until_at"] - (done["attempts"][0]["ended_at"] + 1200)) < 30
        assert first["source"] == "provider"


async def test_the_state_walks_back_to_healthy_by_itself_and_is_announced(tmp_path: Path) -> None:
    policy = short(
        {Reason.RATE_LIMIT: ReasonPolicy(window_s=1.0, cooldown_s=1.0, max_window_s=9)},
        *("first", "second"),
    )
    async with in_process(tmp_path, two(tmp_path), policy=policy, tick_s=0.05) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "first", "wait": "finished"}
        )
        assert done["served_by"] == "second"
        with anyio.fail_after(HANG_S):
            while (await health_of(daemon.client, "first"))["state"] != "healthy":
                await anyio.sleep(0.05)
        assert (await health_of(daemon.client, "first"))["unproven"] is True
        events = await next_events(daemon.socket, 3, kinds=["health.moved"], since=0)
        moves = [(one["from"], one["to"]) for one in events if one["backend"] == "first"]
        assert moves == [
            ("healthy", "rate_limited"),
            ("rate_limited", "cooldown"),
            ("cooldown", "healthy"),
        ]


async def test_fifty_at_the_end_of_a_window_put_exactly_one_on_the_backend(tmp_path: Path) -> None:
    clock = ManualClock()
    policy = short(
        {Reason.RATE_LIMIT: ReasonPolicy(window_s=30, cooldown_s=0, max_window_s=9)},
        *("first", "second"),
    )
    config = two(tmp_path)
    async with in_process(tmp_path, config, policy=policy, clock=clock) as daemon:
        home = tmp_path / "home"
        call = {"prompt": "x", "backend": "first", "wait": "finished"}
        await daemon.client.call("delegate", call)
        assert runs(home, "first") == 1
        clock.advance(31)
        await daemon.engine.look_at_clock()
        assert (await health_of(daemon.client, "first"))["state"] == "healthy"
        found: list[dict[str, Any]] = []

        async def one() -> None:
            found.append(await daemon.client.call("delegate", call))

        async with anyio.create_task_group() as callers:
            for _ in range(50):
                callers.start_soon(one)
        assert runs(home, "first") == 2
        assert {each["state"] for each in found} == {"succeeded"}
        assert {each["served_by"] for each in found} == {"second"}
        on_first = [a for each in found for a in each["attempts"] if a["backend"] == "first"]
        assert [one["trial"] for one in on_first] == [True]
        assert (await health_of(daemon.client, "first"))["count"] == 2


async def test_ten_parallel_failures_count_as_one(tmp_path: Path) -> None:
    together = counted(
        "first",
        'while [ "$(wc -l < "$HOME/first.runs")" -lt 10 ]; do sleep 0.05; done; exit 75',
    )
    bin_dir = tmp_path / "bin"
    config = (
        backend_script(bin_dir, "first", together)
        + backend_script(bin_dir, "second", ok("done"))
        + chain("first", "second")
    )
    async with running(tmp_path, config) as daemon:
        found: list[dict[str, Any]] = []

        async def one() -> None:
            call = {"prompt": "x", "backend": "first", "wait": "finished"}
            found.append(await daemon.client.call("delegate", call))

        async with anyio.create_task_group() as callers:
            for _ in range(10):
                callers.start_soon(one)
        assert [each["attempts"][0]["failure"]["reason"] for each in found] == ["rate_limit"] * 10
        first = await health_of(daemon.client, "first")
        assert (first["state"], first["count"]) == ("rate_limited", 1)
        assert first["until_at"] - first["since_at"] == 300


async def test_a_success_that_began_before_the_mark_clears_nothing(tmp_path: Path) -> None:
    slow = 'cat >/dev/null; echo begun; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; echo end'
    async with running(tmp_path, two(tmp_path, slow)) as daemon:
        call = {"prompt": "x", "backend": "first", "settle_s": 60}
        begun = await daemon.client.call("delegate", call)
        await daemon.client.call(
            "health", {"action": "mark", "target": "first", "reason": "rate_limit"}
        )
        (daemon.home / "goes").touch()
        done = await daemon.client.call("delegation.wait", {"delegation": begun["delegation"]})
        assert (done["state"], done["served_by"]) == ("succeeded", "first")
        first = await health_of(daemon.client, "first")
        assert (first["state"], first["reason"]) == ("rate_limited", "rate_limit")


async def test_a_prompt_that_makes_every_program_exit_1_leaves_all_healthy(tmp_path: Path) -> None:
    fails = "cat >/dev/null; echo 'cannot do that' >&2; exit 1"
    bin_dir = tmp_path / "bin"
    names = ("first", "second", "third")
    config = "".join(backend_script(bin_dir, name, fails) for name in names)
    async with running(tmp_path, config + chain(*names)) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "bad", "backend": "first", "wait": "finished"}
        )
        assert done["state"] == "failed"
        for name in names:
            assert (await health_of(daemon.client, name))["state"] == "healthy"


async def test_no_tick_is_needed_for_a_right_decision(tmp_path: Path) -> None:
    clock = ManualClock()
    policy = short({}, "first", "second")
    async with in_process(tmp_path, two(tmp_path), policy=policy, clock=clock) as daemon:
        call = {"prompt": "x", "backend": "first", "wait": "finished"}
        await daemon.client.call("delegate", call)
        clock.advance(3600)
        resolved = await daemon.client.call("resolve", {"backend": "first"})
        assert resolved["backend"] == "first"
        await tick(daemon.engine)
        *_, last = await next_events(daemon.socket, 2, kinds=["health.moved"], since=0)
        assert (last["from"], last["to"], last["unproven"]) == ("rate_limited", "healthy", True)
