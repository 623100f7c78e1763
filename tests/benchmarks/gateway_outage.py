"""
What a provider that is down gets from the gateway: calls while it is down, and at the end of that.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
from tests.benchmarks.gateway_wall import body_of, refuse
from tests.benchmarks.table import Row
from tests.support.daemon import running
from tests.support.gateway import free_port, listening

CALLS = 60
CALLERS = 50
OUT_S = 15.0
"""How long a backend is out of use after a failure: longer than the calls take."""
PAUSE_S = 1.0
"""A provider that is back takes so long to answer: all callers have come by then."""

CONFIG = """\
[gateway]
enabled = true
port = {at}
[policy.overloaded]
window_s = {out_s}
cooldown_s = 0
[backends.first]
kind = "openai-http"
base_url = "http://127.0.0.1:{port}/v1"
api_mode = "chat_completions"
model = "first"
cost = "local"
[backends.spare]
kind = "openai-http"
base_url = "http://localhost:{port}/v1"
api_mode = "chat_completions"
model = "spare"
cost = "local"
[chains]
team = ["first", "spare"]
"""

Ask = Callable[[], Awaitable[bool]]
"""One call; whether it was answered."""


class Flaky:
    """A provider of two models, of which the first may be down."""

    def __init__(self) -> None:
        self.port = 0
        self.is_down = True
        self.tries: Counter[str] = Counter()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (line := await reader.readline()).strip():
                body = await body_of(reader)
                if not line.startswith(b"POST") or not body:
                    await refuse(writer, 404, "only chat is here", None)
                    continue
                asked = json.loads(body)
                model = asked["model"]
                self.tries[model] += 1
                status, said = 200, answer(model)
                if model == "first":
                    if self.is_down:
                        status, said = 503, {"error": {"message": "the engine is overloaded"}}
                    else:
                        await asyncio.sleep(PAUSE_S)
                body = json.dumps(said).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n" % status)
                writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def answer(model: str) -> Mapping[str, object]:
    said = {"role": "assistant", "content": "done"}
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    fixed = {"id": "c", "object": "chat.completion", "created": 1}
    return {**fixed, "model": model, "choices": [choice], "usage": usage}


@asynccontextmanager
async def flaky() -> AsyncIterator[Flaky]:
    one = Flaky()
    server = await asyncio.start_server(one.connected, "127.0.0.1", 0, backlog=512)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()


async def outage(name: str, one: Flaky, ask: Ask) -> list[Row]:
    """Calls one after the other while it is down; then many at once, when it is back."""
    began_at = time.monotonic()
    answered = sum([await ask() for _ in range(CALLS)])
    took_s = time.monotonic() - began_at
    while_down = one.tries["first"]
    await anyio.sleep(max(0.0, OUT_S + 1 - took_s))
    one.is_down = False
    one.tries.clear()
    came: list[bool] = []

    async def call() -> None:
        came.append(await ask())

    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(call)
    note = "" if took_s < OUT_S else f", longer than the {OUT_S:g} s that it is out of use"
    return [
        Row(
            what=f"{name}: calls to a provider that is down, of {CALLS}",
            measured=str(while_down),
            beside=f"{answered} answered, in {took_s:.1f} s{note}",
            ratio=float(while_down),
            at_most=1.0,
        ),
        Row(
            what=f"{name}: … at its end, of {CALLERS} callers at once",
            measured=str(one.tries["first"]),
            beside=f"{sum(came)} answered",
            ratio=float(one.tries["first"]),
            at_most=1.0,
        ),
    ]


def asking(client: httpx2.AsyncClient, model: str, path: str = "/v1/chat/completions") -> Ask:
    messages = [{"role": "user", "content": "say done"}]

    async def ask() -> bool:
        body = {"model": model, "max_tokens": 9, "messages": messages}
        try:
            got = await client.post(path, json=body)
        except httpx2.HTTPError:
            return False
        return got.status_code == 200 and "done" in got.text

    return ask


def client_of(at: int, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{at}", headers=headers, timeout=60, trust_env=False
    )


async def measure(place: Path) -> list[Row]:
    at = free_port()
    async with flaky() as one:
        text = CONFIG.format(at=at, port=one.port, out_s=OUT_S)
        async with running(place / "outage", text) as daemon:
            await listening(at)
            token = (Path(daemon.state_dir) / "gateway.token").read_text().strip()
            async with client_of(at, {"authorization": f"Bearer {token}"}) as client:
                return await outage("gateway", one, asking(client, "team"))
