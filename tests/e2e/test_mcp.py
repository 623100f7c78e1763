"""The real agent CLIs call `delegate` of the MCP server and read another backend's answer."""

import json
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.e2e.scenes import HANG_S, Scene, scene

CLIENTS = ("claude", "codex", "opencode", "gemini")
HELPER = {"claude": "codex", "codex": "opencode", "opencode": "codex", "gemini": "codex"}
"""Who is asked for the answer."""
ANSWER = "ANSWER-OF-THE-OTHER-BACKEND"
PROGRAM = str(Path(sys.executable).with_name("fallbackd-client"))


def install(name: str, s: Scene) -> None:
    """As a person does it. Nothing else is told to the client."""
    command = [PROGRAM, "--socket", s.daemon.socket, "mcp", "install", name, "--yes"]
    subprocess.run(command, env=dict(s.home.env), check=True, capture_output=True)


async def run_client(name: str, s: Scene, prompt: str = "have it reviewed") -> str:
    """One headless run of a client that is no backend here; its output."""
    install(name, s)
    argv = s.home.argv(name, prompt)
    if name == "claude":
        at = argv.index("--allowedTools")
        del argv[at : at + 2]

    def run() -> str:
        done = subprocess.run(
            argv,
            cwd=s.home.work,
            env={**s.home.env, "IS_SANDBOX": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        return done.stdout + done.stderr

    return await anyio.to_thread.run_sync(run)


def told_model(s: Scene, name: str) -> str:
    """What the model of the client was sent last."""
    return json.dumps(s.provider.calls(name, kind="main")[-1].body)


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_reads_the_answer_of_another_backend(tmp_path: Path, name: str) -> None:
    helper = HELPER[name]
    async with scene(tmp_path) as s:
        s.provider.behave(helper, "ok", text=ANSWER)
        arguments = {"prompt": "review this", "backend": helper, "wait_s": HANG_S}
        s.provider.behave(name, "tool", call="delegate", arguments=arguments, text="done")
        output = await run_client(name, s)
        assert ANSWER in told_model(s, name), output + s.daemon.log()
        (done,) = (await s.daemon.client.call("delegation.list"))["delegations"]
        assert done["served_by"] == helper
        assert done["session"].startswith("mcp/")
