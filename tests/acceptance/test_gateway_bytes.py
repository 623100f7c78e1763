"""What reaches the provider is what the caller wrote, and what comes back is what it said."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from msgspec import Struct, field
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.gateway import free_port, listening
from tests.support.loopback import listening as serving

CONFIG = """
[gateway]
enabled = true
port = {at}
[backends.one]
kind = "anthropic-http"
base_url = "http://127.0.0.1:{port}"
model = "claude-sonnet-4-5"
cost = "local"
"""
SIGNED = base64.b64encode(bytes(range(256)) * 4).decode()
SAID = [
    ("message_start", {"message": {"id": "m1", "role": "assistant", "content": [], "usage": {}}}),
    ("content_block_start", {"index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "thinking_delta", "thinking": "é…"}}),
    (
        "content_block_delta",
        {"index": 0, "delta": {"type": "signature_delta", "signature": SIGNED}},
    ),
    ("content_block_stop", {"index": 0}),
    (
        "content_block_start",
        {
            "index": 1,
            "content_block": {"type": "tool_use", "id": "toolu_1", "name": "t0", "input": {}},
        },
    ),
    (
        "content_block_delta",
        {"index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    ),
    ("content_block_stop", {"index": 1}),
    ("message_delta", {"delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}}),
    ("message_stop", {}),
]
ANSWER = b"".join(
    f"event: {name}\ndata: {json.dumps({'type': name, **data}, ensure_ascii=False)}\n\n".encode()
    for name, data in SAID
)


class Seen(Struct, kw_only=True):
    """What has reached the provider."""

    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    holds: anyio.Event | None = None
    """Set: an answer stops in its middle until then."""


@asynccontextmanager
async def recording(seen: Seen) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            named = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            named = {name.lower(): value for name, value in named.items()}
            seen.heads.append({"": head.split("\r\n")[0], **named})
            seen.bodies.append(await reader.readexactly(int(named["content-length"])))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            writer.write(b"transfer-encoding: chunked\r\n\r\n")
            middle = len(ANSWER) * 2 // 3
            for piece in (ANSWER[:middle], ANSWER[middle:]):
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
                if seen.holds is not None:
                    await seen.holds.wait()
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    async with serving(serve) as port:
        seen.port = port
        yield


def turn(number: int, *, model: str) -> bytes:
    """As a program may write it: its own spaces and order, escapes, numbers with many digits."""
    image = {"type": "base64", "media_type": "image/png", "data": SIGNED}
    tools = [
        {"name": f"t{one}", "input_schema": {"type": "object", "x": 1.10}} for one in range(100)
    ]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image", "source": image}]},
        {"role": "system", "content": "said in between"},
    ]
    if number:
        calls = [
            {"type": "tool_use", "id": f"toolu_{one}", "name": "t0", "input": {"model": "other"}}
            for one in range(3)
        ]
        messages += [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "é…", "signature": SIGNED},
                    *calls,
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": one["id"], "content": '\u2028 \\ "'}
                    for one in calls
                ],
            },
        ]
    body = {
        "tools": tools,
        "messages": messages,
        "model": model,
        "max_tokens": 128000,
        "temperature": 1.0,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "stream": True,
        "unknown": {"big": 12345678901234567890},
    }
    return json.dumps(body, indent=number or None, ensure_ascii=bool(number)).encode()


BETAS = "claude-code-20250219,context-management-2025-06-27,interleaved-thinking-2025-05-14"
HEADERS = {
    "content-type": "application/json",
    "anthropic-version": "2026-10-21",
    "anthropic-beta": BETAS,
    "x-unknown": "goes on",
    "user-agent": "a-program/1.0",
}


@asynccontextmanager
async def gateway(place: Path, seen: Seen) -> AsyncIterator[tuple[Daemon, int]]:
    async with recording(seen):
        at = free_port()  # once the provider has its own: it may be given the same one else
        async with running(place, CONFIG.format(at=at, port=seen.port)) as daemon:
            await listening(at)
            yield daemon, at


def token_of(daemon: Daemon) -> str:
    return (Path(daemon.state_dir) / "gateway.token").read_text().strip()


def client_of(at: int, token: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{at}",
        headers={**HEADERS, "x-api-key": token},
        timeout=HANG_S,
        trust_env=False,
    )


@pytest.mark.parametrize(
    ("asked", "sent"),
    [("claude-sonnet-4-5", "claude-sonnet-4-5"), ("one", "claude-sonnet-4-5")],
)
async def test_two_turns_with_signed_thoughts_arrive_as_they_were_written(
    tmp_path: Path, asked: str, sent: str
) -> None:
    seen = Seen()
    async with (
        gateway(tmp_path, seen) as (daemon, at),
        client_of(at, token_of(daemon)) as client,
    ):
        for number in range(2):
            body = turn(number, model=asked)
            more = [(b"x-words", "équipe".encode()), (b"x-old-words", "équipe".encode("latin-1"))]
            answer = await client.post("/v1/messages?beta=true", content=body, headers=more)
            assert answer.status_code == 200
            assert hashlib.sha256(answer.content).digest() == hashlib.sha256(ANSWER).digest()
            expected = hashlib.sha256(turn(number, model=sent)).digest()
            assert hashlib.sha256(seen.bodies[number]).digest() == expected
            head = seen.heads[number]
            assert head[""] == "POST /v1/messages?beta=true HTTP/1.1"
            assert {name: head[name] for name in HEADERS} == HEADERS
            assert head["x-words"].encode("latin-1") == "équipe".encode()
            assert head["x-old-words"] == "équipe"
            assert token_of(daemon) not in json.dumps(head)


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("key=TOKEN", ""),
        ("a=b&key=TOKEN&&c=%64&k%65y=TOKEN", "?a=b&&c=%64"),
        ("keys=1&a=key", "?keys=1&a=key"),
    ],
)
async def test_a_key_in_the_query_goes_to_no_provider_and_the_rest_as_it_is(
    tmp_path: Path, query: str, sent: str
) -> None:
    seen = Seen()
    async with (
        gateway(tmp_path, seen) as (daemon, at),
        client_of(at, token := token_of(daemon)) as client,
    ):
        path = "/v1/messages?" + query.replace("TOKEN", token)
        assert (await client.post(path, content=turn(0, model="one"))).status_code == 200
        assert seen.heads[0][""] == f"POST /v1/messages{sent} HTTP/1.1"


async def read_until_killed(client: httpx2.AsyncClient, daemon: Daemon, got: bytearray) -> None:
    body = turn(0, model="one")
    async with client.stream("POST", "/v1/messages", content=body) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw():
            got += piece
            if daemon.process is not None:
                await daemon.kill()


async def test_a_daemon_that_is_killed_in_the_middle_leaves_no_good_end_and_comes_back_as_it_was(
    tmp_path: Path,
) -> None:
    seen = Seen(holds=anyio.Event())
    async with gateway(tmp_path, seen) as (daemon, at):
        token = token_of(daemon)
        got = bytearray()
        async with client_of(at, token) as client:
            with pytest.raises(httpx2.TransportError):
                await read_until_killed(client, daemon, got)
        assert ANSWER.startswith(got)
        assert b"message_stop" not in got
        assert seen.holds is not None
        seen.holds.set()
        await daemon.start()
        await listening(at)
        assert token_of(daemon) == token
        async with client_of(at, token) as client:
            answer = await client.post("/v1/messages", content=turn(0, model="one"))
            assert answer.content == ANSWER
