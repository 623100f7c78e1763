"""The daemon is killed while agents print: they and those who wait for them do not notice."""

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from tests.support.agents import backend_script
from tests.support.command import client_argv, client_environ
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.wire import next_events

LINES = 50
COUNTS = f"""cat >/dev/null
n=0
while [ $n -lt {LINES} ]; do n=$((n + 1)); echo "line $n"; sleep 0.1; done
exit """
PRINTED = "".join(f"line {number}\n" for number in range(1, LINES + 1))


class Running:
    """A command of the client under way, beside the test."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.out = ""
        self.err = ""

    async def end(self) -> int:
        def wait() -> tuple[str, str]:
            return self.process.communicate(timeout=HANG_S)

        self.out, self.err = await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)
        return self.process.returncode


@asynccontextmanager
async def command(daemon: Daemon, *arguments: str) -> AsyncIterator[Running]:
    process = subprocess.Popen(
        client_argv(*arguments),
        env=client_environ(daemon.socket),
        cwd=daemon.work_dir,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


async def lines_of(daemon: Daemon, delegation: str, count: int) -> None:
    """Wait until its attempt has printed so many, whoever reads them."""
    log = daemon.state_dir / "runs" / delegation / "1" / "output.log"
    with anyio.fail_after(HANG_S):
        while not log.exists() or log.read_bytes().count(b"\n") < count:
            await anyio.sleep(0.02)


async def begun_by(daemon: Daemon, request_id: str) -> str:
    """The delegation that a command has begun, once it is there."""
    with anyio.fail_after(HANG_S):
        while True:
            found = await daemon.client.call("delegation.list")
            for one in found["delegations"]:
                if one["request_id"] == request_id:
                    return str(one["delegation"])
            await anyio.sleep(0.02)


async def connected(daemon: Daemon, count: int) -> None:
    with anyio.fail_after(HANG_S):
        while (await daemon.client.call("status"))["daemon"]["connections"] < count:
            await anyio.sleep(0.02)


async def whole_log(daemon: Daemon, delegation: str) -> str:
    text, offset = "", 0
    while True:
        params = {"delegation": delegation, "offset": offset, "max_bytes": 64}
        part: dict[str, Any] = await daemon.client.call("delegation.log", params)
        text += part["text"]
        if part["next_offset"] == offset:
            return text
        offset = part["next_offset"]


async def test_no_line_is_lost_or_doubled_and_each_waiter_gets_the_answer(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "counts", COUNTS + "0") + backend_script(
        tmp_path / "bin", "breaks", COUNTS + "3"
    )
    async with running(tmp_path, config) as daemon:
        asked = {"prompt": "x", "backend": "breaks", "failover": False, "wait": "accepted"}
        broken = (await daemon.client.call("delegate", asked))["delegation"]
        found: dict[str, Any] = {}

        async def wait() -> None:
            found.update(await daemon.client.call("delegation.wait", {"delegation": broken}))

        delegate = ("delegate", "x", "--backend", "counts", "--request-id", "mine")
        async with (
            command(daemon, "--json", *delegate) as asker,
            anyio.create_task_group() as waiters,
        ):
            waiters.start_soon(wait)
            counted = await begun_by(daemon, "mine")
            kinds = ("--kinds", "delegation.ended", "--since", "0", "--count", "2")
            async with (
                command(daemon, "log", "-f", counted) as follower,
                command(daemon, "wait", counted) as waiter,
                command(daemon, "--json", "events", *kinds) as listener,
            ):
                await connected(daemon, 5)  # the four, and the test itself
                for count in (5, 20):
                    await lines_of(daemon, counted, count)
                    await daemon.kill()
                    await daemon.start()
                codes = [await one.end() for one in (asker, follower, waiter, listener)]
        assert codes == [0, 0, 0, 0], asker.err + follower.err + waiter.err + listener.err
        done = json.loads(asker.out)
        assert (done["state"], done["text"]) == ("succeeded", PRINTED.strip())
        assert [one["exit_code"] for one in done["attempts"]] == [0]
        assert follower.out == PRINTED
        assert waiter.out == PRINTED
        ends = [json.loads(line) for line in listener.out.splitlines()]
        assert sorted(one["delegation"] for one in ends) == sorted([broken, counted])

        assert found["state"] in ("failed", "refused")
        assert [one["exit_code"] for one in found["attempts"]] == [3]
        for delegation in (broken, counted):
            assert await whole_log(daemon, delegation) == PRINTED
        events = await next_events(daemon.socket, 2, kinds=["attempt.started"], since=0)
        assert {one["attempt"] for one in events} == {f"{broken}.1", f"{counted}.1"}
