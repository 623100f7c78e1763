"""An HTTP API that refuses every request, with the key that it was given in its words."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def echoing_api() -> AsyncIterator[str]:
    """Its base URL. The key is in the body and in a header, as it is and as base64."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.lower().split("\r\n")[1:] if line)
        original = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        await reader.readexactly(int(fields.get("content-length", "0")))
        given = next(v for k, v in original.items() if k.lower() == "authorization")
        key = given.removeprefix("Bearer ")
        encoded = base64.b64encode(f"user:{key}".encode()).decode()
        message = f"Incorrect API key provided: {key} (sent as {encoded}). Find yours at /keys"
        body = json.dumps({"error": {"message": message, "code": "invalid_api_key"}}).encode()
        writer.write(
            f"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\n"
            f"x-echo: {key}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.close()
        await server.wait_closed()
