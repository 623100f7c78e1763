"""
A chat provider that fails in sixteen ways: the model's name says how.

Each fault has an address of loopback to itself, since a network that fails is the failure of a
host. A whole answer is the same sixty words, so that a short one is seen.
"""

import asyncio
import json
import socket
import struct
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

WORDS = [f"word{number}" for number in range(60)]
ANSWER = " ".join(WORDS)
FAULTS = tuple(f"S{number:02d}" for number in range(1, 17))
DOWN_S = 60.0
"""How long the provider that flaps is down."""
SILENT_S = 120.0
SLOW_S = 20.0
STALL_S = 30.0


def host_of(fault: str) -> str:
    return f"127.0.0.{int(fault[1:]) + 10}"


class Wall:
    def __init__(self) -> None:
        self.tries: dict[str, list[float]] = defaultdict(list)
        self.prefilled: set[str] = set()
        self.began_at = time.monotonic()
        self.port = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (line := await reader.readline()).strip():
                body = await body_of(reader)
                if not line.startswith(b"POST") or not body:
                    await refuse(writer, 404, "only chat is here", None)
                    continue
                asked = json.loads(body)
                if not await self._answer(asked, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, asked: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """False when the connection is over."""
        model = str(asked["model"])
        tries = self.tries[model]
        tries.append(time.monotonic())
        if asked["messages"][-1]["role"] == "assistant":
            self.prefilled.add(model)
            return await refuse(writer, 400, "prefill is not supported", "invalid_prefill")
        is_down = time.monotonic() - self.began_at < DOWN_S
        match model:
            case "S01" if len(tries) == 1:
                said = "rate_limit_exceeded"
                return await refuse(writer, 429, "rate limit reached", said, retry_after_s=2)
            case "S02":
                return await refuse(writer, 429, "rate limit reached", "rate_limit_exceeded")
            case "S03" if len(tries) == 1:
                return await refuse(writer, 500, "the server had an error", None)
            case "S04" | "S16":
                return await refuse(writer, 503, "the engine is overloaded", "overloaded")
            case "S15" if is_down:
                return await refuse(writer, 503, "the engine is overloaded", "overloaded")
            case "S05" if len(tries) == 1:
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            case "S06":
                await silent(reader, SILENT_S)
                return False
            case "S12":
                text = "this model's maximum context length is 8192 tokens"
                return await refuse(writer, 400, text, "context_length_exceeded")
            case "S13":
                text = "rejected by our safety system"
                return await refuse(writer, 400, text, "content_policy_violation")
        return await stream(model, reader, writer)


async def body_of(reader: asyncio.StreamReader) -> bytes:
    """Of a request whose first line is read: with its length or in chunks, as clients like."""
    size = 0
    is_chunked = False
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").lower().partition(":")
        size = int(value) if name.strip() == "content-length" else size
        is_chunked = is_chunked or (name.strip() == "transfer-encoding" and "chunked" in value)
    if not is_chunked:
        return await reader.readexactly(size)
    found = b""
    while size := int(await reader.readline(), 16):
        found += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return found


async def silent(reader: asyncio.StreamReader, seconds: float) -> None:
    """Until the other side has gone, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        pass


async def refuse(
    writer: asyncio.StreamWriter,
    status: int,
    message: str,
    code: str | None,
    *,
    retry_after_s: int | None = None,
) -> bool:
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    more = "" if retry_after_s is None else f"retry-after: {retry_after_s}\r\n"
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return True


async def stream(model: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    writer.write(head)

    async def event(text: str) -> None:
        data = f"data: {text}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()

    async def piece(delta: dict[str, str], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        await event(json.dumps({"id": "c", "model": model, "choices": [choice]}))

    if model == "S07":
        await writer.drain()
        await silent(reader, SLOW_S)
    await piece({"role": "assistant", "content": ""})
    for number, word in enumerate(WORDS):
        if model in ("S08", "S14") and number == 40:
            return False
        if model == "S09" and number == 20:
            await silent(reader, STALL_S)
            return False
        if model == "S10" and number == 10:
            await event('{"id": "c", "choices": [{"delta": {"content": ')
        await piece({"content": word if number == 0 else " " + word})
        await asyncio.sleep(0.01)
    await piece({}, "stop")
    usage = {"prompt_tokens": 20, "completion_tokens": len(WORDS), "total_tokens": 80}
    await event(json.dumps({"id": "c", "model": model, "choices": [], "usage": usage}))
    if model != "S11":
        await event("[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


@asynccontextmanager
async def wall() -> AsyncIterator[Wall]:
    one = Wall()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        one.port = int(free.getsockname()[1])
    hosts = ["127.0.0.1", *(host_of(fault) for fault in FAULTS)]
    server = await asyncio.start_server(one.connected, hosts, one.port)
    try:
        yield one
    finally:
        server.close()
