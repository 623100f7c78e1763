"""The socket front over a scripted engine, and a peer that may misbehave."""

import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
from tests.support.engine import FakeHost, ScriptedEngine

from fallbackd.fronts.rpc.connection import ConnectionLimits
from fallbackd.fronts.rpc.discover import HANDLERS
from fallbackd.fronts.rpc.endpoint import SocketEndpoint
from fallbackd.fronts.rpc.server import RpcServer

HANG_S = 30.0


class Peer:
    """One raw connection."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, data: bytes | str) -> None:
        await self.stream.send(data.encode() if isinstance(data, str) else data)

    async def ask(self, request_id: Any, method: str, /, **params: Any) -> None:
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        await self.send(json.dumps(body) + "\n")

    async def line(self) -> Any:
        """The next message. Raises `anyio.EndOfStream` when the other side has closed."""
        with anyio.fail_after(HANG_S):
            while b"\n" not in self._buffer:
                try:
                    self._buffer += await self.stream.receive()
                except anyio.BrokenResourceError:
                    raise anyio.EndOfStream from None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def call(self, method: str, /, **params: Any) -> Any:
        await self.ask("call", method, **params)
        while True:
            found = await self.line()
            if found.get("id") == "call":
                return found

    async def is_closed(self) -> bool:
        """Waits until the other side has closed; what it still sent is dropped."""
        try:
            while True:
                await self.line()
        except anyio.EndOfStream:
            return True


class Front:
    def __init__(
        self, engine: ScriptedEngine, host: FakeHost, server: RpcServer, path: str
    ) -> None:
        self.engine = engine
        self.host = host
        self.server = server
        self.path = path

    @asynccontextmanager
    async def peer(self) -> AsyncIterator[Peer]:
        async with await anyio.connect_unix(self.path) as stream:
            yield Peer(stream)

    async def until(self, connections: int) -> None:
        """Wait until so many connections are open."""
        with anyio.fail_after(HANG_S):
            while self.server.connections != connections:
                await anyio.sleep(0.005)


@asynccontextmanager
async def front(
    limits: ConnectionLimits | None = None, *, allowed_uids: frozenset[int] | None = None
) -> AsyncIterator[Front]:
    directory = tempfile.mkdtemp(prefix="fbd-")
    path = os.path.join(directory, "control.sock")
    endpoint = SocketEndpoint.open(path)
    engine = ScriptedEngine()
    host = FakeHost()
    server = RpcServer(
        engine,  # type: ignore[arg-type]
        host,
        HANDLERS,
        limits=limits,
        allowed_uids=allowed_uids,
    )
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, endpoint.listener)
            yield Front(engine, host, server, path)
            tasks.cancel_scope.cancel()
    finally:
        endpoint.close()
        shutil.rmtree(directory)
