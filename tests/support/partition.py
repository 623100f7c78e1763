"""A proxy in front of a server that passes, drops, delays or resets, as a network may."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

Mode = Literal["pass", "drop", "delay", "reset"]


class Partition:
    def __init__(self, socket_path: str) -> None:
        self._upstream = socket_path
        self.mode: Mode = "pass"
        self.delay_s = 0.0
        self.port = 0
        self.tried = 0
        """How often somebody has connected."""
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def set(self, mode: Mode, *, delay_s: float = 0.0) -> None:
        """From now on, for connections that are open too."""
        self.mode, self.delay_s = mode, delay_s
        if mode == "reset":
            for writer in list(self._open):
                _reset(writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tried += 1
        self._open.add(writer)
        up: asyncio.StreamWriter | None = None
        try:
            if self.mode == "reset":
                _reset(writer)
                return
            answers, up = await asyncio.open_unix_connection(self._upstream)
            self._open.add(up)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry(reader, up))
                tasks.create_task(self._carry(answers, writer))
        except* OSError:
            pass
        finally:
            for one in (writer, up):
                if one is not None:
                    self._open.discard(one)
                    one.close()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if self.mode == "drop":
                continue  # what was lost on the way is lost: both ends wait
            if self.mode == "delay":
                await asyncio.sleep(self.delay_s)
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError("one end has closed")


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def partition(socket_path: str) -> AsyncIterator[Partition]:
    one = Partition(socket_path)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        for writer in list(one._open):
            writer.transport.abort()
        await asyncio.sleep(0)
