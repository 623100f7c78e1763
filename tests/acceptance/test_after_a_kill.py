"""A daemon that was killed at any instant: what was acknowledged is there when it is back."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agents import ECHO, THROTTLED, backend_script, chain, ok
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.wire import next_events, wire

HANGS = """cat >/dev/null
setsid sh -c 'trap "" TERM; echo $$ > "$HOME/far.pid"; while :; do sleep 1; done' &
echo $$ > "$HOME/self.pid"
while [ ! -s "$HOME/far.pid" ]; do sleep 0.05; done
echo begun
while :; do sleep 1; done"""


def config_of(tmp_path: Path) -> str:
    bin_dir = tmp_path / "bin"
    return (
        "[defaults]\nstop_grace_s = 0.3\n"
        + backend_script(bin_dir, "first", THROTTLED)
        + backend_script(bin_dir, "hangs", HANGS)
        + backend_script(bin_dir, "works", ok("done"))
        + chain("first", "works")
    )


async def get(daemon: Daemon, delegation: str) -> dict[str, Any]:
    found: dict[str, Any] = await daemon.client.call("delegation.get", {"delegation": delegation})
    return found


async def test_unfinished_work_goes_on_and_everything_else_is_as_it_was(tmp_path: Path) -> None:
    """With case 004-684."""
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        hopped = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "first", "session": "s1", "wait": "finished"}
        )
        assert hopped["served_by"] == "works"
        await daemon.client.call("health", {"action": "pause", "target": "works", "note": "mine"})
        begun = await daemon.client.call(
            "delegate",
            {
                "prompt": "x",
                "backend": "hangs",
                "session": "s2",
                "settle_s": 60,
                "request_id": "r2",
            },
        )
        assert begun["state"] == "running"
        before = (await daemon.client.call("health"))["health"]
        pids = [(daemon.home / f"{name}.pid").read_text().strip() for name in ("self", "far")]
        await daemon.kill()
        for pid in pids:
            assert Path(f"/proc/{pid}").exists(), "the work outlives the daemon"
        await daemon.start()

        found = await get(daemon, begun["delegation"])
        assert found["state"] == "running"
        assert found["request_id"] == "r2"
        assert [one["state"] for one in found["attempts"]] == ["running"]
        assert found["attempts"][0]["pid"] == begun["attempts"][0]["pid"]
        ended = await daemon.client.call("delegation.cancel", {"delegation": begun["delegation"]})
        assert ended["state"] == "cancelled"
        for pid in pids:
            assert not Path(f"/proc/{pid}").exists()

        after = (await daemon.client.call("health"))["health"]
        assert after["first"]["state"] == "rate_limited"
        for field in ("since_at", "until_at", "count", "reason"):
            assert after["first"][field] == before["first"][field]
        assert (after["works"]["state"], after["works"]["note"]) == ("paused", "mine")
        assert after["hangs"]["state"] == "healthy", "a crash of the daemon marks nobody"

        kept = await get(daemon, hopped["delegation"])
        assert (kept["state"], kept["text"]) == ("succeeded", "done")
        assert kept["hops"] == hopped["hops"]
        session = await daemon.client.call("session.get", {"session": "s1"})
        assert (session["original"], session["current"]) == ("first", "works")
        assert [one["to"] for one in session["hops"]] == ["works"]
        story = await run_client(daemon.socket, "explain", "-v", hopped["delegation"])
        assert story.code == 0
        assert "rate_limit" in story.out
        log = await daemon.client.call(
            "delegation.log", {"delegation": hopped["delegation"], "attempt": 1}
        )
        assert "rate limited" in log["text"]

        await daemon.client.call("health", {"action": "resume", "target": "works"})
        again = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "works", "session": "s2", "wait": "finished"}
        )
        assert again["state"] == "succeeded", "the session is free again"
        same = await daemon.client.call(
            "delegate",
            {
                "prompt": "x",
                "backend": "hangs",
                "session": "s2",
                "settle_s": 60,
                "request_id": "r2",
            },
        )
        assert same["delegation"] == begun["delegation"]


async def test_marks_of_two_clients_at_the_same_time_are_both_kept(tmp_path: Path) -> None:
    """Case 000-024."""
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        async with anyio.create_task_group() as callers:
            for target in ("codex", "gemini"):
                callers.start_soon(
                    run_client, daemon.socket, "health", "mark", target, "--reason", "down"
                )
        await daemon.restart()
        found = (await daemon.client.call("health"))["health"]
        assert [found[name]["state"] for name in ("codex", "gemini")] == ["broken", "broken"]


@pytest.mark.parametrize("is_acknowledged", [True, False])
async def test_a_mark_is_whole_or_absent_after_a_kill(
    is_acknowledged: bool, tmp_path: Path
) -> None:
    """Case 000-025."""
    place = tmp_path / "voice.json"
    config = f'export_voice_health = "{place}"\n' + config_of(tmp_path)
    async with running(tmp_path, config) as daemon:
        with anyio.fail_after(HANG_S):
            while not place.exists():
                await anyio.sleep(0.02)
        async with wire(daemon.socket) as line:
            params = {"action": "mark", "target": "works", "reason": "down"}
            await line.send({"id": 1, "method": "health", "params": params})
            if is_acknowledged:
                assert "result" in await line.line()
            await daemon.kill()
        left = json.loads(place.read_text())
        assert "works" not in left or left["works"]["reason"] == "down"
        await daemon.start()
        found = (await daemon.client.call("health"))["health"]["works"]
        if is_acknowledged:
            assert found["state"] == "broken"
        if found["state"] == "broken":
            assert (found["reason"], found["detail"]) == ("manual", "down")
        else:
            assert found["state"] == "healthy"


async def test_the_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "works", "wait": "finished"}
        )
        kinds = ["delegation.accepted", "attempt.started", "attempt.ended", "delegation.ended"]
        before = await next_events(daemon.socket, 4, kinds=kinds, since=0)
        assert [one["kind"] for one in before] == kinds
        await daemon.kill()
        await daemon.start()
        await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "works", "wait": "finished"}
        )
        after = await next_events(daemon.socket, 8, kinds=kinds, since=0)
        assert after[:4] == [{**one, "subscription": after[0]["subscription"]} for one in before]
        assert after[4]["seq"] > before[-1]["seq"]


@pytest.mark.parametrize("is_old", [False, True])
async def test_work_that_no_record_knows_of_is_ended_before_any_other_begins(
    tmp_path: Path, *, is_old: bool
) -> None:
    """
    The database was damaged, or is an older copy of it, and an earlier version wrote no record
    into run directories: with one, the work is resumed.
    """
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        database = daemon.state_dir / "fallbackd.db"
        await daemon.stop()
        kept = {path: path.read_bytes() for path in daemon.state_dir.glob("fallbackd.db*")}
        await daemon.start()
        begun = await daemon.client.call(
            "delegate",
            {"prompt": "x", "backend": "hangs", "cwd": str(tmp_path), "settle_s": 60},
        )
        assert begun["state"] == "running"
        pids = [(daemon.home / f"{name}.pid").read_text().strip() for name in ("self", "far")]
        await daemon.kill()
        (daemon.state_dir / "runs" / begun["delegation"] / "record").unlink()
        for path in daemon.state_dir.glob("fallbackd.db*"):
            path.unlink()
        if is_old:
            for path, content in kept.items():
                path.write_bytes(content)
                path.chmod(0o600)
        else:
            database.write_bytes(b"no database at all" * 1000)
            database.chmod(0o600)
        await daemon.start()
        done = await daemon.client.call(
            "delegate",
            {"prompt": "x", "backend": "works", "cwd": str(tmp_path), "wait": "finished"},
        )
        assert done["state"] == "succeeded"
        for pid in pids:
            assert not Path(f"/proc/{pid}").exists()


async def test_work_whose_runner_was_killed_keeps_no_later_daemon_from_new_work(
    tmp_path: Path,
) -> None:
    """Its own end is not proven, so that work has failed; nothing of it is found any more."""
    config = backend_script(tmp_path / "bin", "long", "cat >/dev/null; exec sleep 1000")
    config += backend_script(tmp_path / "bin", "echo", ECHO)
    async with running(tmp_path, config) as daemon:
        asked = {"prompt": "x", "backend": "long", "failover": False, "wait": "settled"}
        begun = (await daemon.client.call("delegate", {**asked, "settle_s": 0}))["delegation"]
        record = daemon.state_dir / "runs" / begun / "1" / "attempt.json"
        with anyio.fail_after(HANG_S):
            while not record.exists():
                await anyio.sleep(0.02)
        os.kill(json.loads(record.read_text())["runner"], signal.SIGKILL)
        ended = await daemon.client.call("delegation.wait", {"delegation": begun})
        assert ended["state"] == "failed"
        for _ in range(2):
            await daemon.restart()
            work = {"prompt": "hello", "backend": "echo", "wait": "finished"}
            assert (await daemon.client.call("delegate", work))["text"] == "hello"
