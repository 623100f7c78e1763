"""
The least that a pass-through can be with the libraries of the gateway: no token, no choice, no
health, no look at the answer. `python -m tests.benchmarks.gateway_bare PORT` prints its own port.
"""

import asyncio
import sys
from collections.abc import Callable

import httptools

kept: list["Upstream"] = []


class Upstream(asyncio.Protocol):
    """A connection to the provider, for one answer at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, caller: asyncio.Transport, data: bytes) -> None:
        self.caller = caller
        self.parser = httptools.HttpResponseParser(self)
        self.fields: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.is_chunked = self.is_over = False
        self.transport.write(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))
        self.is_chunked = self.is_chunked or name.lower() == b"transfer-encoding"

    def on_headers_complete(self) -> None:
        head = b"".join(b"%s: %s\r\n" % one for one in self.fields)
        self.pieces.append(b"HTTP/1.1 %d OK\r\n%s\r\n" % (self.parser.get_status_code(), head))

    def on_body(self, data: bytes) -> None:
        self.pieces.append(b"%x\r\n%s\r\n" % (len(data), data) if self.is_chunked else data)

    def on_message_complete(self) -> None:
        self.is_over = True
        if self.is_chunked:
            self.pieces.append(b"0\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        self.caller.write(b"".join(self.pieces))
        self.pieces.clear()
        if self.is_over:
            kept.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in kept:
            kept.remove(self)


class Caller(asyncio.Protocol):
    def __init__(self, upstream: int, kind: type[Upstream] = Upstream) -> None:
        self.upstream = upstream
        self.kind = kind
        self.url = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def outgoing(self) -> bytes:
        """The request as it came; the next one begins."""
        head = b"".join(b"%s: %s\r\n" % one for one in self.fields)
        data = b"POST %s HTTP/1.1\r\n%s\r\n" % (self.url, head) + b"".join(self.pieces)
        self.fields, self.pieces = [], []
        return data

    def on_message_complete(self) -> None:
        data = self.outgoing()
        if kept:
            kept.pop().ask(self.transport, data)
        else:
            self.task = asyncio.ensure_future(self.ask_first(data))

    async def ask_first(self, data: bytes) -> None:
        (await self.connected()).ask(self.transport, data)

    async def connected(self) -> Upstream:
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(self.kind, "127.0.0.1", self.upstream)
        return line


async def serve(made: Callable[[], asyncio.Protocol]) -> None:
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(lambda: Caller(int(sys.argv[1]))))
