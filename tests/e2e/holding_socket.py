"""
Stands between a program and a daemon, and holds what the daemon says.

    async with holding_socket(path, daemon_path) as held:
        held.hold("/abort")              # the next line of the daemon with these words waits
        await held.reached()
        held.release()
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

HANG_S = 240.0
MAX_LINE_BYTES = 64 * 1024 * 1024


class HoldingSocket:
    def __init__(self, target: str) -> None:
        self._target = target
        self._words = b""
        self._reached = asyncio.Event()
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def hold(self, words: str) -> None:
        self._words = words.encode()
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def reached(self) -> None:
        async with asyncio.timeout(HANG_S):
            await self._reached.wait()

    def release(self) -> None:
        self._words = b""
        self._released.set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_unix_connection(self._target, limit=MAX_LINE_BYTES)
            said = asyncio.ensure_future(self._pass_back(back, writer))
            try:
                while piece := await reader.read(65536):
                    there.write(piece)
                    await there.drain()
            finally:
                said.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # either side has closed
        finally:
            self._tasks.discard(task)
            writer.close()
            if there is not None:
                there.close()

    async def _pass_back(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while line := await back.readline():
                if self._words and self._words in line:
                    self._reached.set()
                    await self._released.wait()
                writer.write(line)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def holding_socket(path: Path, target: str) -> AsyncIterator[HoldingSocket]:
    held = HoldingSocket(target)
    server = await asyncio.start_unix_server(held.connected, path, limit=MAX_LINE_BYTES)
    try:
        yield held
    finally:
        server.close()
        await held.close()
