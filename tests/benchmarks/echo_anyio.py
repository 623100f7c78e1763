"""A bare line echo on anyio: what the daemon's RPC is measured against. `PATH` is its argument."""

import sys

import anyio
import anyio.abc


async def serve(stream: anyio.abc.ByteStream) -> None:
    pending = b""
    async with stream:
        while True:
            try:
                data = await stream.receive(65_536)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                await stream.send(line + b"\n")


async def main(path: str) -> None:
    listener = await anyio.create_unix_listener(path, backlog=512)
    print("ready", flush=True)
    await listener.serve(serve)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
