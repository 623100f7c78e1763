"""A bare line echo on an asyncio protocol: the least that Python does. `PATH` is its argument."""

import asyncio
import sys


class Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self.pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            self.transport.write(line + b"\n")


async def main(path: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(Echo, path, backlog=512)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
