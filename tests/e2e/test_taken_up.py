"""The daemon dies under the real opencode and its private server: the next one goes on."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from tests.e2e.processes import Process, appear, matching, runs
from tests.e2e.scenes import HANG_S, Scene, scene
from tests.support.provider_frames import TEXT


def servers_of(s: Scene) -> Callable[[Process], bool]:
    wanted, home = runs("serve", "--hostname"), f"HOME={s.home.path}"
    return lambda process: wanted(process) and home in process.env


async def has_server(s: Scene) -> None:
    """A machine at its limits may not start it in time: then a prompt is run without it."""
    while not matching(servers_of(s)):
        assert (await s.delegate("opencode", permissions="full"))["text"] == TEXT


async def begin(s: Scene, request_id: str) -> dict[str, Any]:
    return await s.begin("opencode", permissions="full", request_id=request_id)


async def finished(s: Scene, request_id: str) -> dict[str, Any]:
    """What a caller does that has lost its connection: it asks again."""
    with anyio.fail_after(HANG_S):
        return await s.delegate("opencode", permissions="full", request_id=request_id)


def log_of(s: Scene, delegation: str) -> list[dict[str, Any]]:
    """The events of the first attempt, each byte of which the index tells of."""
    directory = s.daemon.state_dir / "runs" / delegation / "1"
    data = (directory / "output.log").read_bytes()
    ends = [0]
    for line in (directory / "output.idx").read_text().splitlines():
        _, _, length, end = line.split()
        assert int(end) == ends[-1] + int(length)
        ends.append(int(end))
    assert ends[-1] == len(data)
    return [json.loads(line) for line in data.splitlines()]


def check(s: Scene, done: dict[str, Any], begun: dict[str, Any]) -> None:
    assert done["state"] == "succeeded", (done, s.daemon.log())
    assert done["delegation"] == begun["delegation"]
    assert done["text"] == TEXT
    assert [one["state"] for one in done["attempts"]] == ["succeeded"]
    kinds = [event["type"] for event in log_of(s, done["delegation"])]
    assert kinds.count("fallbackd.session") == kinds.count("fallbackd.final") == 1
    assert kinds[-1] == "fallbackd.final"


async def test_prompts_on_the_private_server_outlive_the_daemon(tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    async with scene(tmp_path, patience_s=60) as s:
        try:
            await kill_again_and_again(s, fifo)
        finally:
            for left in matching(servers_of(s)):  # of a run that failed
                os.kill(left.pid, signal.SIGTERM)


async def kill_again_and_again(s: Scene, fifo: Path) -> None:
    await has_server(s)

    # A tool runs when the daemon dies, and goes on under the next one.
    s.provider.log.clear()
    s.provider.behave("opencode", "tool", command=f"cat {fifo}")
    begun = await begin(s, "r1")
    await appear(runs("cat", str(fifo)))
    (server,) = matching(servers_of(s))
    await s.daemon.kill()
    await s.daemon.start()
    await release(fifo)
    check(s, await finished(s, "r1"), begun)
    assert len(s.provider.calls("opencode")) == 2, "the tool call and the answer"

    # The turn ends while there is no daemon.
    s.provider.log.clear()
    begun = await begin(s, "r2")
    await appear(runs("cat", str(fifo)))
    await s.daemon.kill()
    await release(fifo)
    await s.provider.called("opencode", 2)
    await s.daemon.start()
    check(s, await finished(s, "r2"), begun)
    assert len(s.provider.calls("opencode")) == 2

    # It streams.
    s.provider.log.clear()
    s.provider.behave("opencode", "slow", pause_s=0.5)
    begun = await begin(s, "r3")
    await s.provider.called("opencode")
    await s.daemon.kill()
    await s.daemon.start()
    check(s, await finished(s, "r3"), begun)
    assert len(s.provider.calls("opencode")) == 1

    # It waits for its provider.
    s.provider.log.clear()
    s.provider.behave("opencode", "429", "ok", retry_after_s=3)
    begun = await begin(s, "r4")
    await s.provider.called("opencode", where=lambda call: call.has_failed)
    await s.daemon.kill()
    await s.daemon.start()
    check(s, await finished(s, "r4"), begun)
    assert len(s.provider.calls("opencode")) == 2

    # A tool is ended by the daemon that took it up.
    s.provider.behave("opencode", "tool", command=f"cat {fifo}")
    begun = await begin(s, "r5")
    await appear(runs("cat", str(fifo)))
    await s.daemon.kill()
    await s.daemon.start()
    assert (await s.cancel(begun))["state"] == "cancelled", s.daemon.log()
    assert matching(runs("cat", str(fifo))) == []

    # All of them on one server, which ends with the last daemon.
    assert [each.pid for each in matching(servers_of(s))] == [server.pid]
    await s.daemon.stop()
    assert matching(servers_of(s)) == []


async def release(fifo: Path) -> None:
    """Let the tool end that reads from it."""
    await anyio.to_thread.run_sync(lambda: fifo.write_text("go\n"))
