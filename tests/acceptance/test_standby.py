"""Work that waits until a backend is available: over a `kill -9`, and by the command line."""

from pathlib import Path

import anyio
from tests.support.agents import backend_script
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running

COUNT = 100
GATED = """
read -r x
echo "$x" >> "$HOME/runs"
while [ ! -e "$HOME/open" ]; do sleep 0.05; done
echo done
"""


def runs(daemon: Daemon) -> list[str]:
    path = daemon.home / "runs"
    return path.read_text().splitlines() if path.exists() else []


async def on_standby(daemon: Daemon) -> list[str]:
    shown = await run_client(daemon.socket, "standby", "--json")
    return [one["delegation"] for one in shown.json["standby"]]


async def test_a_hundred_outlive_a_kill_and_go_after_one_trial_each_once(tmp_path: Path) -> None:
    config = "[defaults]\nmax_running = 4\n" + backend_script(tmp_path / "bin", "planned", GATED)
    out = {"action": "mark", "target": "planned", "reason": "usage_limit"}
    async with running(tmp_path, config) as daemon:
        await daemon.client.call("health", {**out, "ttl_s": 3600})
        asked = {"backend": "planned", "wait": "accepted", "wait_for_s": 7200}
        names = []
        for number in range(COUNT):
            one = await daemon.client.call("delegate", {**asked, "prompt": f"p{number}\n"})
            assert one["state"] == "waiting"
            names.append(one["delegation"])
        await daemon.kill()
        await daemon.start()
        assert await on_standby(daemon) == names
        await daemon.client.call("delegation.standby", {"delegation": names[70], "priority": 9})
        await daemon.client.call("health", {**out, "ttl_s": 1})
        with anyio.fail_after(HANG_S):
            while not runs(daemon):
                await anyio.sleep(0.02)
        assert len(await on_standby(daemon)) == COUNT - 1
        assert runs(daemon) == ["p70"]
        (daemon.home / "open").touch()
        with anyio.fail_after(HANG_S * 3):
            for name in names:
                found = await daemon.client.call("delegation.wait", {"delegation": name})
                assert found["state"] == "succeeded"
        assert sorted(runs(daemon)) == sorted(f"p{number}" for number in range(COUNT))


async def test_a_person_delegates_for_later_and_changes_it(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "planned", GATED)
    async with running(tmp_path, config) as daemon:
        (daemon.home / "open").touch()
        begun = await run_client(
            daemon.socket, "delegate", "--wait", "accepted", "--backend", "planned",
            "--not-before", "3h", "--until", "8h", "do it",
        )  # fmt: skip
        name = begun.out.strip()
        listed = await run_client(daemon.socket, "standby")
        assert "planned" in listed.out
        moved = await run_client(daemon.socket, "standby", "move", name, "--until", "2h")
        assert moved.code == 2
        assert "the wait ends before that" in moved.err
        moved = await run_client(daemon.socket, "standby", "move", name, "--priority", "3")
        assert moved.code == 0
        started = await run_client(daemon.socket, "standby", "start", name)
        assert started.code == 0
        done = await run_client(daemon.socket, "wait", name)
        assert (done.code, done.out) == (0, "done\n")
        again = await run_client(daemon.socket, "standby", "start", name)
        assert "does not wait for a backend" in again.err


async def test_a_request_for_later_that_is_sent_again_is_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "planned", GATED)) as daemon:
        words = (
            "delegate",
            "--wait",
            "accepted",
            "--request-id",
            "r1",
            "--not-before",
            "3h",
            "do it",
        )
        one, again = [await run_client(daemon.socket, *words) for _ in range(2)]
        assert (one.code, again.code, again.out) == (0, 0, one.out)


async def test_a_wait_that_cannot_be_begins_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "planned", GATED)) as daemon:
        for flags, said in (
            (("--until", "yesterday"), "neither a duration nor a time"),
            (("--until", "2020-01-01 10:00"), "is over"),
            (("--until", "1000000000h"), "wait_for_s"),
            (("--until", "-5h"), "expected one argument"),
            (("--not-before", "9h", "--until", "8h"), "the wait ends before that"),
            (("--priority", "3"), "when_available"),
            (("--when-available", "--priority", "1000"), "priority"),
        ):
            found = await run_client(daemon.socket, "delegate", *flags, "do it")
            assert found.code == 2, (flags, found)
            assert said in found.err, (flags, found.err)
        listed = await daemon.client.call("delegation.list", {})
        assert listed["delegations"] == []


async def test_a_daemon_ends_without_waiting_for_what_is_on_standby(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "planned", GATED)) as daemon:
        asked = {"prompt": "x\n", "backend": "planned", "wait": "accepted"}
        await daemon.client.call("health", {"action": "pause", "target": "planned"})
        one = await daemon.client.call("delegate", {**asked, "when_available": True})
        assert one["standby"]["expects_at"] is None
        await daemon.restart()
        (daemon.home / "open").touch()
        await daemon.client.call("health", {"action": "resume", "target": "planned"})
        given = {"delegation": one["delegation"], "timeout_s": HANG_S}
        assert (await daemon.client.call("delegation.wait", given))["state"] == "succeeded"
