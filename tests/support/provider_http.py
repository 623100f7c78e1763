"""The HTTP/1.1 of the scripted provider: a request as a value, and a peer to answer."""

import asyncio
import gzip
import json
import re
import socket
import struct
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Literal

from msgspec import Struct
from tests.support.provider_refusals import Dialect

MAX_LINE_BYTES = 1 << 26
Family = Dialect | Literal["models", "count", "alive", "stored", "unknown"]
_STORED = re.compile(r".*/responses/[^/]+(?:/input_items|/cancel)?")


class Request(Struct, frozen=True, kw_only=True):
    method: str
    route: str
    path: str
    """What follows the route, without the query."""
    query: str
    family: Family
    kind: str
    model: str
    streams: bool
    credential: str
    upgrade: bool
    wanted_json: str | None
    """An answer that fits the schema which the request demands; None where it demands none."""
    body: dict[str, Any]


class Peer:
    """One connection. `on_status` runs when a status line has been written."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.on_status: Callable[[], None] = lambda: None

    async def request(self) -> Request | None:
        """The next request; None when the connection is closed."""
        self.on_status = lambda: None
        line = await self._reader.readline()
        if not line:
            return None
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (line := await self._reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw = await self._body(headers)
        if headers.get("content-encoding") == "gzip":
            raw = gzip.decompress(raw)
        return read_request(method, target, headers, raw)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "content-length" in headers:
            return await self._reader.readexactly(int(headers["content-length"]))
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return b""
        chunks = []
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            chunks.append(await self._reader.readexactly(size))
            await self._reader.readline()
        await self._reader.readline()
        return b"".join(chunks)

    async def send(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        """`body`: a string as it is, anything else as JSON."""
        is_text = isinstance(body, str)
        data = body.encode() if is_text else json.dumps(body).encode()
        kind = "text/html; charset=utf-8" if is_text else "application/json"
        fields = {"content-type": kind, **(headers or {}), "content-length": str(len(data))}
        self._write_head(status, fields)
        self._writer.write(data)
        await self._writer.drain()

    @property
    def has_left(self) -> bool:
        return self._writer.is_closing()

    async def raw(self, data: bytes, *, pause_s: float = 0) -> None:
        """Bytes as they are, the head of the response included."""
        if pause_s:
            await asyncio.sleep(pause_s)
        self._writer.write(data)
        self.on_status()
        await self._writer.drain()

    async def begin_stream(self) -> None:
        fields = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        self._write_head(200, fields)
        await self._writer.drain()

    async def event(self, text: str, *, pause_s: float = 0) -> None:
        if pause_s:
            await asyncio.sleep(pause_s)
        data = text.encode()
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._writer.drain()

    async def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def closed(self) -> None:
        """Says nothing more until the other side goes away."""
        while await self._reader.read(65536):
            pass

    def reset(self) -> None:
        """TCP RST in place of an orderly end."""
        linger = struct.pack("ii", 1, 0)
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    def _write_head(self, status: int, fields: Mapping[str, str]) -> None:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Overloaded"  # 529
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{k}: {v}" for k, v in fields.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        self.on_status()


def read_request(method: str, target: str, headers: Mapping[str, str], raw: bytes) -> Request:
    route, _, rest = target.lstrip("/").partition("/")
    path, _, query = f"/{rest}".partition("?")
    body = json.loads(raw) if raw else {}
    family = "alive" if method == "HEAD" or path == "/" else _family(method, path)
    named = re.search(r"/models/([^:/]+):", path)
    credential = (
        headers.get("x-api-key")
        or headers.get("x-goog-api-key")
        or headers.get("authorization", "").removeprefix("Bearer ")
    )
    schema = _schema(body)
    return Request(
        method=method,
        route=route,
        path=path,
        query=query,
        family=family,
        kind=_kind(body, has_schema=schema is not None),
        model=named.group(1) if named else str(body.get("model", "")),
        streams=":streamGenerateContent" in path or bool(body.get("stream")),
        credential=credential,
        upgrade=headers.get("upgrade", "").lower() == "websocket",
        wanted_json=None if schema is None else json.dumps(_example(schema)),
        body=body,
    )


def _family(method: str, path: str) -> Family:
    if path.endswith(("/count_tokens", ":countTokens")):
        return "count"
    if _STORED.fullmatch(path):
        return "stored"
    if method == "GET":
        return "models" if "/models" in path else "unknown"
    if path.endswith("/chat/completions"):
        return "chat"
    if path.endswith("/responses"):
        return "responses"
    if path.endswith("/messages"):
        return "anthropic"
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return "google"
    return "unknown"


def _kind(body: Mapping[str, Any], *, has_schema: bool) -> str:
    if "You are a title generator" in json.dumps(body.get("messages", ""))[:8000]:
        return "title"
    if has_schema:
        return "router"
    return "main" if body.get("tools") else "aux"


def _schema(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """gemini asks a model which model to use, and silently asks again if the shape is wrong."""
    wanted = body.get("generationConfig") or {}
    if wanted.get("responseMimeType") != "application/json":
        return None
    return wanted.get("responseJsonSchema") or wanted.get("responseSchema") or {}


def _example(schema: Mapping[str, Any]) -> Any:
    """The plainest value that fits a JSON schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    match str(schema.get("type", "")).lower():
        case "array":
            return []
        case "integer" | "number":
            return 10
        case "boolean":
            return False
        case "string":
            return "word"
        case _:
            return {name: _example(each) for name, each in schema.get("properties", {}).items()}
