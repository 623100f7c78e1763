"""The real agent CLIs call `delegate` of the MCP server and read another backend's answer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.e2e.scenes import HANG_S, Scene, scene
from tests.support.daemon import ROOT

CLIENTS = ("claude", "codex", "opencode", "gemini")
HELPER = {"claude": "codex", "codex": "opencode", "opencode": "codex", "gemini": "codex"}
"""Who is asked for the answer."""
ANSWER = "ANSWER-OF-THE-OTHER-BACKEND"
SERVER = "fallbackd"


def server(s: Scene) -> list[str]:
    return [sys.executable, "-m", "fallbackd_client.cli.main", "--socket", s.daemon.socket, "mcp"]


def configure(name: str, s: Scene) -> list[str]:
    """Write the client's configuration; further arguments of its command line."""
    command, *arguments = server(s)
    env = {"PYTHONPATH": str(ROOT / "client")}
    home = s.home.path
    match name:
        case "claude":
            path = home / "mcp.json"
            entry = {"command": command, "args": arguments, "env": env}
            path.write_text(json.dumps({"mcpServers": {SERVER: entry}}))
            return ["--mcp-config", str(path), "--allowedTools", f"mcp__{SERVER}__delegate"]
        case "codex":
            path = home / ".codex" / "config.toml"
            lines = [
                f"\n[mcp_servers.{SERVER}]",
                f"command = {json.dumps(command)}",
                f"args = {json.dumps(arguments)}",
                'default_tools_approval_mode = "approve"',
                f"[mcp_servers.{SERVER}.env]",
                f"PYTHONPATH = {json.dumps(env['PYTHONPATH'])}",
            ]
            path.write_text(path.read_text() + "\n".join(lines) + "\n")
        case "opencode":
            path = home / ".config" / "opencode" / "opencode.json"
            found = json.loads(path.read_text())
            found["mcp"] = {
                SERVER: {"type": "local", "command": server(s), "environment": env, "enabled": True}
            }
            path.write_text(json.dumps(found))
        case "gemini":
            path = home / ".gemini" / "settings.json"
            found = json.loads(path.read_text())
            entry = {"command": command, "args": arguments, "env": env, "trust": True}
            found["mcpServers"] = {SERVER: entry}
            path.write_text(json.dumps(found))
    return []


async def run_client(name: str, s: Scene, prompt: str = "have it reviewed") -> str:
    """One headless run of a client that is no backend here; its output."""
    extra = configure(name, s)
    argv = s.home.argv(name, prompt)
    if name == "claude":
        at = argv.index("--allowedTools")
        argv[at : at + 2] = extra

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
        arguments: dict[str, Any] = {"prompt": "review this", "backend": helper}
        s.provider.behave(name, "tool", call="delegate", arguments=arguments, text="done")
        output = await run_client(name, s)
        assert ANSWER in told_model(s, name), output + s.daemon.log()
        (done,) = (await s.daemon.client.call("delegation.list"))["delegations"]
        assert done["served_by"] == helper
        assert done["session"].startswith("mcp/")
