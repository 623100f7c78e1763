"""The MCP server with a real daemon: clients that die, restarts, work that begets work."""

import json
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.client.mcp.driver import STATELESS, Session, session
from tests.client.mcp.test_protocol import TOOLS
from tests.support.agents import ECHO, HANGING, THROTTLED, backend_script, chain, ok
from tests.support.daemon import HANG_S, ROOT, Daemon, running

COUNTED = """
    cat >/dev/null
    touch "$HOME/at-once/$$"; ls "$HOME/at-once" | wc -l >> "$HOME/counts"
    while [ ! -e "$HOME/goes" ]; do sleep 0.05; done
    rm "$HOME/at-once/$$"; echo done
    """
GATED = 'cat >/dev/null; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; echo late answer'


async def drive(daemon: Daemon, work: Callable[[Session], Any], **env: str) -> Any:
    """Run one session in a thread: its pipes block."""

    def run() -> Any:
        with session(daemon.socket, cwd=daemon.work_dir, HOME=str(daemon.home), **env) as s:
            s.initialize()
            return work(s)

    return await anyio.to_thread.run_sync(run)


async def one_delegation(daemon: Daemon, **wanted: object) -> Mapping[str, Any]:
    """The only one, as soon as it has these values."""
    with anyio.fail_after(HANG_S):
        while True:
            found = (await daemon.client.call("delegation.list"))["delegations"]
            if found and all(found[0].get(name) == value for name, value in wanted.items()):
                one: Mapping[str, Any] = found[0]
                assert len(found) == 1
                return one
            await anyio.sleep(0.02)


async def test_the_agent_reads_which_backend_answered_and_why(tmp_path: Path) -> None:
    config = (
        backend_script(tmp_path / "bin", "a", THROTTLED)
        + backend_script(tmp_path / "bin", "b", ok("answer of b"))
        + chain("a", "b")
    )
    async with running(tmp_path, config) as daemon:

        def work(s: Session) -> Any:
            first = s.call("delegate", prompt="x", backend="a")["structuredContent"]
            return first, s.call("explain", delegation=first["delegation"]), s.call("status")

        first, explained, status = await drive(daemon, work)
    assert first["text"].strip() == "answer of b"
    assert first["served_by"] == "b"
    assert first["fallback_from"] == "a"
    assert first["fallback_reason"].startswith("rate_limit")
    assert "a is rate-limited" in first["message"]
    assert "rate" in explained["structuredContent"]["explanation"]
    assert status["structuredContent"]["backends"]["a"]["state"] == "rate_limited"
    assert status["structuredContent"]["backends"]["b"]["state"] == "healthy"


async def test_every_tool_answers_in_both_eras(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "a", ECHO)) as daemon:

        def work(s: Session) -> list[Any]:
            found = []
            for meta in (None, STATELESS):
                one = s.call("delegate", meta, prompt="echo this", backend="a")
                same = {"delegation": one["structuredContent"]["delegation"]}
                found += [
                    one,
                    s.call("wait", meta, **same),
                    s.call("cancel", meta, **same),
                    s.call("status", meta),
                    s.call("health", meta, target="a"),
                    s.call("suggest", meta, goal="port it", size="small", complexity="high"),
                    s.call("explain", meta, **same),
                ]
            return found

        found = await drive(daemon, work)
    assert all(not one.get("isError") for one in found), found
    assert [one.get("resultType") for one in found] == [None] * 7 + ["complete"] * 7
    assert found[0]["structuredContent"]["text"].strip() == "echo this"
    assert found[1]["structuredContent"]["state"] == "succeeded"
    assert "a" in found[4]["content"][0]["text"]


async def test_health_is_changed_only_where_the_user_allows_it(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "a", ECHO)) as daemon:

        def work() -> Any:
            with session(daemon.socket, "--allow-health") as s:
                s.initialize()
                paused = s.call("health", action="pause", target="a")
                return paused, s.call("health", action="resume", target="a")

        paused, resumed = await anyio.to_thread.run_sync(work)
    assert paused["structuredContent"]["health"]["a"]["state"] == "paused"
    assert resumed["structuredContent"]["health"]["a"]["state"] == "healthy"


async def test_a_daemon_that_is_restarted_in_mid_call_is_not_noticed(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "slow", GATED)) as daemon:
        found: list[Any] = []

        async def call() -> None:
            def work(s: Session) -> Any:
                return s.call("delegate", {"progressToken": 1}, prompt="x", backend="slow")

            found.append(await drive(daemon, work))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await one_delegation(daemon, state="running")
            await daemon.kill()
            await daemon.start()
            (daemon.home / "goes").touch()
        assert found[0]["structuredContent"]["text"].strip() == "late answer"
        done = await one_delegation(daemon, state="succeeded")
        assert len(done["attempts"]) == 1


async def test_a_server_that_is_killed_leaves_work_that_will_be_ended(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "slow", HANGING)) as daemon:

        def killed(s: Session) -> None:
            s.begin("delegate", {"progressToken": 1}, prompt="x", backend="slow")
            s.until("notifications/progress")
            s.process.send_signal(signal.SIGKILL)

        await drive(daemon, killed)
        one = await one_delegation(daemon, state="running")
        assert one["orphan_s"] == 60.0
        await daemon.client.call("delegation.cancel", {"delegation": one["delegation"]})


async def test_work_whose_handle_was_given_out_outlives_the_server(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "slow", GATED)) as daemon:

        def begun(s: Session) -> Any:
            return s.call("delegate", prompt="x", backend="slow", wait_s=0.2)

        shown = (await drive(daemon, begun))["structuredContent"]
        assert shown["state"] == "running"
        assert (await one_delegation(daemon))["orphan_s"] is None
        (daemon.home / "goes").touch()

        def collected(s: Session) -> Any:
            return s.call("wait", delegation=shown["delegation"])

        found = (await drive(daemon, collected))["structuredContent"]
        assert found["text"].strip() == "late answer"


async def test_a_cancelled_call_stops_the_agent(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "slow", HANGING)) as daemon:

        def work(s: Session) -> Any:
            number = s.begin("delegate", {"progressToken": 1}, prompt="x", backend="slow")
            s.until("notifications/progress")
            s.say(method="notifications/cancelled", params={"requestId": number})
            return s.request("ping")["result"]

        assert await drive(daemon, work) == {}
        done = await one_delegation(daemon, state="cancelled")
        assert done["attempts"][0]["state"] == "cancelled"


BOMB = """#!{python}
import json, os, subprocess, sys
sys.stdin.read()
with open(os.path.expanduser("~/started"), "a") as log:
    log.write("x\\n")
process = subprocess.Popen(
    [{python!r}, "-m", "fallbackd_client.cli.main", "--socket", {socket!r}, "mcp"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, {env}
)
def call(number, method, params):
    message = {{"jsonrpc": "2.0", "id": number, "method": method, "params": params}}
    process.stdin.write(json.dumps(message) + "\\n")
    process.stdin.flush()
    while True:
        found = json.loads(process.stdout.readline())
        if found.get("id") == number:
            return found["result"]
call(0, "initialize", {{"protocolVersion": "2025-11-25", "capabilities": {{}}}})
names = [one["name"] for one in call(1, "tools/list", {{}})["tools"]]
own = {{"prompt": "again", "backend": "bomb", "cwd": os.getcwd(), "wait_s": 600, **{more}}}
found = call(2, "tools/call", {{"name": "delegate", "arguments": own}})
print(json.dumps([names, found]))
"""


@pytest.mark.parametrize("environment", ["kept", "scrubbed"])
async def test_an_agent_that_delegates_to_itself_ends_at_the_second_level(
    tmp_path: Path, environment: str
) -> None:
    config = backend_script(tmp_path / "bin", "bomb", ECHO)
    async with running(tmp_path, config) as daemon:
        path = str(ROOT / "client")
        kept = f'env={{**os.environ, "PYTHONPATH": {path!r}}}'
        scrubbed = f'env={{"HOME": os.environ["HOME"], "PYTHONPATH": {path!r}}}'
        body = BOMB.format(
            python=sys.executable,
            socket=daemon.socket,
            env=kept if environment == "kept" else scrubbed,
            more={},
        )
        (tmp_path / "bin" / "bomb").write_text(body)
        asked = {"prompt": "go", "backend": "bomb", "cwd": str(daemon.work_dir)}
        done = await daemon.client.call(
            "delegate", {**asked, "wait": "finished", "failover": False}, timeout_s=HANG_S
        )
        assert done["state"] == "succeeded", done
        started = (daemon.home / "started").read_text().splitlines()
        assert len(started) == 3  # levels 0, 1 and 2
        assert json.loads(done["text"])[0] == TOOLS
        assert "2 levels deep at most" in done["text"]


@pytest.mark.parametrize("asked", [{}, {"permissions": "read"}, {"permissions": "full"}])
async def test_an_agent_that_may_only_read_delegates_with_that_alone(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    config = backend_script(tmp_path / "bin", "outer", ECHO)
    config += backend_script(tmp_path / "bin", "bomb", ok("inner answer"))
    async with running(tmp_path, config) as daemon:
        environment = f'env={{"HOME": os.environ["HOME"], "PYTHONPATH": {str(ROOT / "client")!r}}}'
        body = BOMB.format(python=sys.executable, socket=daemon.socket, env=environment, more=asked)
        (tmp_path / "bin" / "outer").write_text(body)
        done = await daemon.client.call(
            "delegate",
            {
                "prompt": "go",
                "backend": "outer",
                "cwd": str(daemon.work_dir),
                "permissions": "read",
                "wait": "finished",
            },
            timeout_s=HANG_S,
        )
        names, found = json.loads(done["text"])
        assert names == TOOLS
        said = found["content"][0]["text"]
        if asked.get("permissions") == "read":
            assert "inner answer" in said
        else:
            wanted = asked.get("permissions", "workspace")
            assert found["isError"]
            assert f"`{wanted}`" in said
            assert "`read`" in said


async def test_fifty_calls_at_once_run_no_more_agents_than_the_host_may(tmp_path: Path) -> None:
    config = "[defaults]\nmax_running = 3\n" + backend_script(tmp_path / "bin", "a", COUNTED)
    async with running(tmp_path, config) as daemon:
        (daemon.home / "at-once").mkdir()
        places = [daemon.work_dir / str(number) for number in range(50)]
        for place in places:
            place.mkdir()
        found: list[Any] = []

        def work(s: Session, half: list[Path]) -> None:
            for place in half:
                s.begin("delegate", prompt="x", backend="a", cwd=str(place))
            answers: list[Any] = []
            while len(answers) < len(half):
                if "method" not in (told := s.read()):
                    answers.append(told["result"]["structuredContent"]["state"])
            found.extend(answers)

        async def states() -> list[str]:
            listed = (await daemon.client.call("delegation.list", {"limit": 60}))["delegations"]
            return sorted(one["state"] for one in listed)

        async with anyio.create_task_group() as tasks:
            for half in (places[:25], places[25:]):  # a server takes 32 calls at once
                tasks.start_soon(drive, daemon, partial(work, half=half))
            with anyio.fail_after(HANG_S):
                while await states() != ["queued"] * 47 + ["running"] * 3:
                    await anyio.sleep(0.02)
                while not (told := daemon.home / "counts").exists() or "3" not in told.read_text():
                    await anyio.sleep(0.02)
            (daemon.home / "goes").touch()
        assert found == await states() == ["succeeded"] * 50
        counts = [int(one) for one in (daemon.home / "counts").read_text().split()]
        assert (len(counts), max(counts)) == (50, 3)
