"""The real agent CLIs with the MCP server installed in them, and what their models are told."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
from tests.e2e.scenes import HANG_S, Scene

from fallbackd_client.mcp.install import CLIENTS as AGENTS

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


async def configure(s: Scene, tables: str) -> None:
    """Add to the daemon's configuration while it runs."""
    path = s.daemon.config_path
    path.write_text(f"{path.read_text()}\n{tables}")
    await s.daemon.client.call("config.reload")
