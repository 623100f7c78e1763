"""An HTTP API that refuses every request, with the key that it was given in its words."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def echoing_api(*, begins_well: bool = False) -> AsyncIterator[str]:
    """
    Its base URL. The key is in the body and in a header, as it is and as base64.

    Args:
        begins_well: With status 200, and as an event where a stream is asked for.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.lower().split("\r\n")[1:] if line)
        original = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        asked = await reader.readexactly(int(fields.get("content-length", "0")))
        given = next(v for k, v in original.items() if k.lower() == "authorization")
        key = given.removeprefix("Bearer ")
        encoded = base64.b64encode(f"user:{key}".encode()).decode()
        message = f"Incorrect API key provided: {key} (sent as {encoded}). Find yours at /keys"
        body = json.dumps({"error": {"message": message, "code": "invalid_api_key"}}).encode()
        status = "200 OK" if begins_well else "401 Unauthorized"
        if begins_well and b'"stream":true' in asked:
            body = b"data: " + body + b"\n\n"
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
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
