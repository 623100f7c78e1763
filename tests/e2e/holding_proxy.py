"""
Stands between a daemon and a server, and holds what a test wants to be interrupted.

    async with holding_proxy(port) as proxy:
        proxy.hold("/revert")            # the next request whose line ends so is not passed on
        await proxy.held()               # … it is here now
        proxy.release()
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

HANG_S = 240.0


class HoldingProxy:
    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self._wanted = b""
        self._reached = asyncio.Event()
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hold(self, ending: str) -> None:
        self._wanted = ending.encode()
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def held(self) -> None:
        async with asyncio.timeout(HANG_S):
            await self._reached.wait()

    def release(self) -> None:
        self._wanted = b""
        self._released.set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self.target_port)
            answers = asyncio.ensure_future(_pass_on(back, writer))
            try:
                while piece := await reader.read(65536):
                    if self._wanted and self._is_wanted(piece):
                        self._reached.set()
                        await self._released.wait()
                    there.write(piece)
                    await there.drain()
            finally:
                answers.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # either side is gone
        finally:
            self._tasks.discard(task)
            writer.close()
            if there is not None:
                there.close()

    def _is_wanted(self, piece: bytes) -> bool:
        line = piece.partition(b"\r\n")[0].split(b" ")
        path = line[1].partition(b"?")[0] if len(line) == 3 else b""
        return path.endswith(self._wanted)

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def holding_proxy(target_port: int) -> AsyncIterator[HoldingProxy]:
    proxy = HoldingProxy(target_port)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
