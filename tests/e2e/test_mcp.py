"""The real agent CLIs call `delegate` of the MCP server and read another backend's answer."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.e2e.scenes import HANG_S, Scene, scene

from fallbackd_client.mcp.install.clients import CLIENTS as AGENTS

CLIENTS = ("claude", "codex", "opencode", "gemini")
HELPER = {"claude": "codex", "codex": "opencode", "opencode": "codex", "gemini": "codex"}
"""Who is asked for the answer."""
ANSWER = "ANSWER-OF-THE-OTHER-BACKEND"
PROGRAM = str(Path(sys.executable).with_name("fallbackd-client"))


def install(name: str, s: Scene) -> None:
    """As a person does it. Nothing else is told to the client."""
    command = [PROGRAM, "--socket", s.daemon.socket, "mcp", "install", name, "--yes"]
    subprocess.run(command, env=dict(s.home.env), check=True, capture_output=True)


def command_of(name: str, s: Scene, *, timed: bool = True) -> list[str]:
    """One headless run of a client that has the server; or has it without a time-out of its own."""
    install(name, s)
    if not timed:
        without_time_out(name, s)
    argv = s.home.argv(name, "have it reviewed")
    if name == "claude":
        at = argv.index("--allowedTools")
        del argv[at : at + 2]
    return argv


async def run_client(name: str, s: Scene, *, timed: bool = True) -> str:
    """Its output."""
    argv = command_of(name, s, timed=timed)

    def run() -> str:
        done = subprocess.run(
            argv,
            cwd=s.home.work,
            env={**s.home.env, "IS_SANDBOX": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=3 * HANG_S,
            check=False,
        )
        return done.stdout + done.stderr

    return await anyio.to_thread.run_sync(run)


def told_model(s: Scene, name: str) -> str:
    """What the model of the client was sent last."""
    return json.dumps(s.provider.calls(name, kind="main")[-1].body)


TIMES = re.compile(r'"timeout": \d+,?|tool_timeout_sec = \d+')


def without_time_out(name: str, s: Scene) -> None:
    """Leave the client to what it does by itself."""
    path = Path(AGENTS[name].file(s.home.env))
    text = TIMES.sub("", path.read_text())
    assert text != path.read_text()
    path.write_text(text)


def delegating(s: Scene, name: str, **more: Any) -> None:
    """The model of this client calls `delegate` once, then is done."""
    arguments = {"prompt": "review this", "backend": HELPER[name], "wait_s": 2 * HANG_S, **more}
    s.provider.behave(name, "tool", call="delegate", arguments=arguments, text="done")


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_reads_the_answer_of_another_backend(tmp_path: Path, name: str) -> None:
    helper = HELPER[name]
    async with scene(tmp_path) as s:
        s.provider.behave(helper, "ok", text=ANSWER)
        delegating(s, name)
        output = await run_client(name, s)
        assert ANSWER in told_model(s, name), output + s.daemon.log()
        (done,) = (await s.daemon.client.call("delegation.list"))["delegations"]
        assert done["served_by"] == helper
        assert done["session"].startswith("mcp/")


LONG_S = 170.0


async def test_work_of_nearly_three_minutes_is_no_silence_to_any_client(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        sleeps = f"cat >/dev/null; sleep {LONG_S:.0f}; echo {ANSWER}"
        table = f'\n[backends.slow]\nkind = "generic-cli"\ncommand = ["sh", "-c", "{sleeps}"]\n'
        s.daemon.config_path.write_text(s.daemon.config_path.read_text() + table)
        await s.daemon.client.call("config.reload")
        outputs: dict[str, str] = {}

        async def run(name: str) -> None:
            delegating(s, name, backend="slow", permissions="read", session=f"of {name}")
            outputs[name] = await run_client(name, s, timed=False)

        async with anyio.create_task_group() as tasks:
            for name in CLIENTS:
                tasks.start_soon(run, name)
        for name in CLIENTS:
            assert ANSWER in told_model(s, name), (name, outputs[name])


async def test_a_client_that_is_interrupted_leaves_nothing_running(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.provider.behave("codex", "hang")
        delegating(s, "claude")
        process = subprocess.Popen(
            command_of("claude", s),
            cwd=s.home.work,
            env={**s.home.env, "IS_SANDBOX": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await s.provider.called("codex")
        process.send_signal(signal.SIGINT)
        await anyio.to_thread.run_sync(process.wait)
        with anyio.fail_after(HANG_S):
            while True:
                (one,) = (await s.daemon.client.call("delegation.list"))["delegations"]
                if one["ended_at"] is not None:
                    break
                await anyio.sleep(0.2)
        assert one["state"] == "cancelled"
        assert one["attempts"][-1]["state"] == "cancelled"
