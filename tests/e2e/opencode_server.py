"""
A running `opencode serve` of a user, with three models that the scripted provider serves.

    async with opencode(home, provider) as server:
        session = await server.session()
        await server.prompt(session, "a/m")

The models `a/m`, `b/m` and `c/m` call the provider on the routes `a`, `b` and `c`.
"""

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
from tests.e2e import install
from tests.e2e.clis import KEY, Home
from tests.support.provider import Provider

HANG_S = 240.0
LOOK_S = 0.02
MODELS = ("a", "b", "c")
BUDGET_MS = 20_000
"""How long the plugin waits for the daemon: on a busy machine its own 50 ms are too short."""


class Server:
    def __init__(
        self, home: Home, env: Mapping[str, str], log_path: Path, *, hostname: str
    ) -> None:
        self.hostname = hostname
        self.home = home
        self.env = env
        self.log_path = log_path
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.client = httpx2.AsyncClient(trust_env=False, timeout=HANG_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """On the port of the last time, if there was one."""
        if not self.port:
            self.port = _free_port()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(install.BIN / "opencode"),
                    "serve",
                    *("--hostname", self.hostname),
                    *("--port", str(self.port)),
                ],
                cwd=self.home.work,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with anyio.fail_after(HANG_S):
            while not await self._is_up():
                await anyio.sleep(0.1)

    async def _is_up(self) -> bool:
        # What reaches the socket in its first moment is never answered.
        try:
            found = await self.client.get(f"{self.url}/global/health", timeout=1.0)
        except httpx2.HTTPError:
            return False
        return found.is_success

    async def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            await anyio.to_thread.run_sync(process.wait)

    async def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        answer = await self.client.request(
            method,
            f"{self.url}{path}",
            params={"directory": str(self.home.work), **query},
            json=body,
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    async def session(self) -> str:
        found = await self.call("POST", "/session", {"title": "t"})
        return str(found["id"])

    async def prompt(
        self, session: str, model: str, text: str = "say pong", **more: object
    ) -> None:
        provider, _, name = model.partition("/")
        await self.call(
            "POST",
            f"/session/{session}/prompt_async",
            {
                "model": {"providerID": provider, "modelID": name},
                "agent": "build",
                "parts": [{"type": "text", "text": text}],
                **more,
            },
        )

    async def messages(self, session: str) -> list[dict[str, Any]]:
        found = await self.call("GET", f"/session/{session}/message")
        assert isinstance(found, list)
        return found

    async def until(
        self, session: str, is_so: Callable[[list[dict[str, Any]]], Any]
    ) -> list[dict[str, Any]]:
        with anyio.fail_after(HANG_S):
            while not is_so(found := await self.messages(session)):
                await anyio.sleep(LOOK_S)
        return found


def said(messages: list[dict[str, Any]], role: str) -> list[tuple[str, str]]:
    """(model, text) of each message of a role."""
    found = []
    for one in messages:
        info = one["info"]
        if info["role"] != role:
            continue
        model = info.get("model") or info
        texts = [part["text"] for part in one["parts"] if part["type"] == "text"]
        found.append((f"{model['providerID']}/{model['modelID']}", "".join(texts)))
    return found


def settings_of(provider: Provider, *, plugin: Sequence[Any] = ()) -> dict[str, Any]:
    """What its configuration file says."""
    return {
        "autoupdate": False,
        "share": "disabled",
        "disabled_providers": ["opencode"],
        "model": "a/m",
        "small_model": "c/m",
        "provider": {
            name: {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": provider.url(name) + "/v1", "apiKey": KEY},
                "models": {"m": {"limit": {"context": 128000, "output": 4096}}},
            }
            for name in MODELS
        },
        **({"plugin": list(plugin)} if plugin else {}),
    }


@asynccontextmanager
async def opencode(
    home: Home,
    provider: Provider,
    *,
    plugin: Path | None = None,
    hostname: str = "127.0.0.1",
    **env: str,
) -> AsyncIterator[Server]:
    plugins = [] if plugin is None else [[plugin.as_uri(), {"budgetMs": BUDGET_MS}]]
    settings = settings_of(provider, plugin=plugins)
    place = home.path / ".config" / "opencode" / "opencode.json"
    place.write_text(json.dumps(settings, indent=2))
    # With a plugin it waits until the types of plugins are installed, or cannot be.
    offline = {"npm_config_fetch_retries": "0"}
    server = Server(
        home, {**home.env, **offline, **env}, home.path / "opencode-serve.log", hostname=hostname
    )
    try:
        await server.start()
        yield server
    finally:
        await server.client.aclose()
        await server.kill()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
