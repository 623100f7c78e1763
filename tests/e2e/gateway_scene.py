"""
The scripted provider twice over in each of the four APIs, a daemon with its gateway before it, and
the real clients pointed at that.

    async with gateway_scene(tmp_path) as s:
        s.fail("429")                       # the first backend of each API
        done = await s.run("claude")
        assert done.answered
"""

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from msgspec import Struct
from tests.e2e import install
from tests.e2e.clis import MODELS, Home, build_home
from tests.e2e.scenes import HANG_S
from tests.support.daemon import ROOT, Daemon, running
from tests.support.gateway import free_port, listening
from tests.support.provider import Provider, provider
from tests.support.provider_frames import TEXT

SDK_PYTHON = ROOT / ".venv-sdk" / "bin" / "python"
SDKS = ("openai-chat", "openai-chat-whole", "openai-responses", "anthropic")
CLIS = ("claude", "codex", "gemini", "opencode-chat", "opencode-responses", "opencode-messages")
CLIENTS = (*CLIS, *SDKS)
APIS = {
    "chat": ("openai-http", "chat_completions", "/v1"),
    "responses": ("openai-http", "responses", "/v1"),
    "messages": ("anthropic-http", "messages", ""),
    "google": ("google-http", "generate_content", "/v1beta"),
}
API_OF = {
    "claude": "messages",
    "codex": "responses",
    "gemini": "google",
    "opencode-chat": "chat",
    "opencode-responses": "responses",
    "opencode-messages": "messages",
    "openai-chat": "chat",
    "openai-chat-whole": "chat",
    "openai-responses": "responses",
    "anthropic": "messages",
}
_SDKS_OF_OPENCODE = {"responses": "@ai-sdk/openai", "messages": "@ai-sdk/anthropic"}


class Ran(Struct, frozen=True, kw_only=True):
    status: int
    out: str
    err: str

    @property
    def answered(self) -> bool:
        return self.status == 0 and TEXT in self.out


class GatewayScene:
    def __init__(self, served: Provider, daemon: Daemon, port: int, base: Path) -> None:
        self.provider, self.daemon = served, daemon
        self.gate = f"http://127.0.0.1:{port}"
        self.token = (Path(daemon.state_dir) / "gateway.token").read_text().strip()
        self.home: Home = build_home(base, self, key=self.token)
        _three_sdks(self.home, self.gate, self.token)

    def url(self, route: str) -> str:
        """Of the gateway, whichever client asks."""
        return self.gate

    def fail(self, name: str, **knobs: Any) -> None:
        """The first backend of each API from now on."""
        for api in APIS:
            self.provider.behave(f"one-{api}", name, **knobs)

    def tries(self, api: str) -> tuple[int, int]:
        """Model calls that its first and its second backend got."""
        calls = self.provider.calls
        return len(calls(f"one-{api}")), len(calls(f"two-{api}"))

    async def run(self, client: str, prompt: str = "say pong", *options: str) -> Ran:
        if client in SDKS:
            argv = [str(SDK_PYTHON), str(ROOT / "tests/e2e/sdk_client.py"), client]
            argv += [self.gate, "team"]
            env = {"API_KEY": self.token, "PATH": os.environ["PATH"]}
        else:
            argv = self._argv(client, prompt, options)
            env = {**self.home.env, "IS_SANDBOX": "1"}

        def wait() -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                argv,
                env=env,
                cwd=self.home.work,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=HANG_S,
                check=False,
            )

        done = await anyio.to_thread.run_sync(wait)
        return Ran(status=done.returncode, out=done.stdout, err=done.stderr)

    def _argv(self, client: str, prompt: str, options: tuple[str, ...]) -> list[str]:
        """As a person calls them; the answer is on stdout."""
        name, _, api = client.partition("-")
        program = str(install.BIN / name)
        match name:
            case "codex":
                return [program, "exec", "-s", "workspace-write", prompt]
            case "opencode":
                return [program, "run", "--title", "t", "-m", f"through-{api}/m", prompt]
            case "gemini":
                return [program, "--yolo", "-m", MODELS["gemini"], "-p", prompt]
            case _:
                return [program, *options, "--allowedTools", "Bash", "-p", prompt]


def _three_sdks(home: Home, gate: str, token: str) -> None:
    """opencode speaks each API with a library of its own."""
    path = home.path / ".config" / "opencode" / "opencode.json"
    found = json.loads(path.read_text())
    plain = found["provider"].pop("scripted")
    for api in ("chat", "responses", "messages"):
        npm = _SDKS_OF_OPENCODE.get(api, plain["npm"])
        found["provider"][f"through-{api}"] = {
            **plain,
            "npm": npm,
            "options": {"baseURL": f"{gate}/v1", "apiKey": token},
        }
    found["model"] = found["small_model"] = "through-chat/m"
    path.write_text(json.dumps(found))


def config(served: Provider, port: int, *, hold: str, gateway: str) -> str:
    lines = ["[gateway]", "enabled = true", f"port = {port}", f'hold = "{hold}"', "hold_s = 20"]
    lines += [gateway]
    lines += ["[defaults]", "patience_s = 1"]
    names = []
    for api, (kind, mode, path) in APIS.items():
        for place, host in (("one", "127.0.0.1"), ("two", "localhost")):
            name = f"{place}-{api}"
            names.append(name)
            url = served.url(name).replace("127.0.0.1", host) + path
            lines += [f"[backends.{name}]", f'kind = "{kind}"', f'base_url = "{url}"']
            lines += [f'api_mode = "{mode}"', f'model = "model-of-{place}"', 'cost = "local"']
            lines += ["first_answer_s = 5"] if place == "one" else []
    # Longer than the clients take, one after the other.
    for reason in ("timeout", "overloaded", "network"):
        lines += [f"[policy.{reason}]", "window_s = 600"]
    lines += ["[chains]", f"team = {json.dumps(names)}"]
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def gateway_scene(
    tmp_path: Path, *, hold: str = "commit", gateway: str = ""
) -> AsyncIterator[GatewayScene]:
    """
    Args:
        gateway: Further lines of `[gateway]`.
    """
    port = free_port()
    with anyio.fail_after(4 * HANG_S):
        async with provider() as served:
            text = config(served, port, hold=hold, gateway=gateway)
            async with running(tmp_path, text) as daemon:
                await listening(port)
                yield GatewayScene(served, daemon, port, tmp_path / "clients")
