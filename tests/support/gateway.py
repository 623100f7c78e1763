"""A real daemon with its gateway before two backends of the scripted provider."""

import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.provider import Provider, provider

CONFIG = """
[gateway]
enabled = true
port = {port}
hold = "{hold}"
hold_s = {hold_s}
{gateway}

[defaults]
patience_s = {patience_s}
{defaults}

[backends.one]
kind = "{kind}"
base_url = "{one}{path}"
model = "model-of-one"
api_mode = "{mode}"
cost = "local"
{first}
[backends.two]
kind = "{kind}"
base_url = "{two}{path}"
model = "model-of-two"
api_mode = "{mode}"
cost = "{second_cost}"
{more}
[chains]
team = ["one", "two"]
{chains}
"""
KINDS = {
    "chat_completions": ("openai-http", "/v1"),
    "responses": ("openai-http", "/v1"),
    "messages": ("anthropic-http", ""),
    "generate_content": ("google-http", "/v1beta"),
}
ENDS = {
    "chat_completions": "data: [DONE]",
    "responses": "response.completed",
    "messages": "message_stop",
    "generate_content": '"finishReason"',
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Gate:
    def __init__(self, daemon: Daemon, api: Provider, port: int, mode: str) -> None:
        self.daemon, self.api, self.port, self.mode = daemon, api, port, mode
        self.client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=HANG_S, trust_env=False
        )

    @property
    def token(self) -> str:
        return (Path(self.daemon.state_dir) / "gateway.token").read_text().strip()

    def body(self, *, stream: bool = True) -> dict[str, object]:
        said = [{"role": "user", "content": "say it"}]
        match self.mode:
            case "responses":
                return {"model": "team", "input": said, "stream": stream}
            case "messages":
                return {"model": "team", "messages": said, "max_tokens": 99, "stream": stream}
            case "generate_content":
                return {"contents": [{"role": "user", "parts": [{"text": "say it"}]}]}
            case _:
                return {"model": "team", "messages": said, "stream": stream}

    def path(self, *, stream: bool = True) -> str:
        action = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return {
            "chat_completions": "/v1/chat/completions",
            "responses": "/v1/responses",
            "messages": "/v1/messages?beta=true",
            "generate_content": f"/v1beta/models/team:{action}",
        }[self.mode]

    async def health(self, name: str) -> dict[str, Any]:
        """What is known of a backend."""
        found = await self.daemon.client.call("health", {"action": "list"})
        return dict(found["health"][name])

    async def until_state(self, name: str, *states: str) -> None:
        with anyio.fail_after(HANG_S):
            while (await self.health(name))["state"] not in states:
                await anyio.sleep(0.05)

    async def unproven(self, name: str) -> None:
        """Returns when its window is over, and a trial has to show whether it works."""
        with anyio.fail_after(HANG_S):
            while not (await self.health(name))["unproven"]:
                await anyio.sleep(0.05)

    async def ask(self, *, stream: bool = True, **headers: str) -> httpx2.Response:
        return await self.client.post(
            self.path(stream=stream),
            json=self.body(stream=stream),
            headers={"authorization": f"Bearer {self.token}", **headers},
        )


@asynccontextmanager
async def gate(
    place: Path,
    *,
    mode: str = "chat_completions",
    hold: str = "commit",
    hold_s: float = 5,
    first: str = "",
    gateway: str = "",
    chains: str = "",
    more: str = "",
    second_cost: str = "local",
    patience_s: float = 1,
    defaults: str = "",
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[Gate]:
    """
    Two backends that speak one API, in a chain `team`, and the gateway before them.

    Args:
        first: Further lines of the first backend.
        gateway: Of `[gateway]`.
        defaults: Of `[defaults]`.
        more: Tables of further backends; `{url}` is the provider's address for them.
    """
    kind, path = KINDS[mode]
    async with provider() as api:
        port = free_port()  # the provider may be given the same one else
        for route in ("one", "two", "three"):
            api.behave(route, "ok")
        # Of another host: a network that fails is the failure of a host.
        two = api.url("two").replace("127.0.0.1", "localhost")
        text = CONFIG.format(
            port=port,
            hold=hold,
            hold_s=hold_s,
            first=first,
            gateway=gateway,
            chains=chains,
            more=more.replace("{url}", api.url("three")),
            second_cost=second_cost,
            patience_s=patience_s,
            defaults=defaults,
            kind=kind,
            path=path,
            mode=mode,
            one=api.url("one"),
            two=two,
        )
        async with running(place, config=text, env=env) as daemon:
            found = Gate(daemon, api, port, mode)
            await listening(port)
            try:
                yield found
            finally:
                await found.client.aclose()


def last_event(stream: str) -> dict[str, Any]:
    """Of a stream of the responses API."""
    events = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    return dict(json.loads(events[-1]))


async def read_into(got: bytearray, gate: Gate, path: str = "", **headers: str) -> None:
    async with gate.client.stream(
        "POST", path or gate.path(), json=gate.body(), headers={"x-api-key": gate.token, **headers}
    ) as answer:
        assert answer.status_code == 200, (answer.status_code, await answer.aread())
        async for piece in answer.aiter_raw():
            got += piece


async def over_http_1_0(
    gate: Gate, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[bytes, bytes]:
    """Head, in lower case, and body of what comes until the connection is closed."""
    lines = [f"{method} {path} HTTP/1.0", f"host: 127.0.0.1:{gate.port}"]
    lines += [f"x-api-key: {gate.token}", "content-type: application/json"]
    lines += [f"content-length: {len(body)}", *(f"{one}: {text}" for one, text in headers.items())]
    got = b""
    with anyio.fail_after(HANG_S):
        async with await anyio.connect_tcp("127.0.0.1", gate.port) as line:
            await line.send("\r\n".join([*lines, "", ""]).encode() + body)
            with suppress(anyio.EndOfStream):
                while True:
                    got += await line.receive()
    head, _, rest = got.partition(b"\r\n\r\n")
    return head.lower(), rest


async def listens(port: int) -> bool:
    try:
        async with await anyio.connect_tcp("127.0.0.1", port):
            return True
    except OSError:
        return False


async def listening(port: int) -> None:
    with anyio.fail_after(HANG_S):
        while not await listens(port):
            await anyio.sleep(0.02)
