"""A bare connection to the socket: bytes out, lines in."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
from tests.support.daemon import HANG_S


class Wire:
    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream
        self._rest = b""

    async def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            await self.stream.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def line(self) -> Any:
        """
        The next whole message.

        Raises:
            anyio.EndOfStream: The other side has closed.
        """
        with anyio.fail_after(HANG_S):
            while b"\n" not in self._rest:
                try:
                    self._rest += await self.stream.receive()
                except anyio.BrokenResourceError as error:
                    raise anyio.EndOfStream from error
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """The whole answer; only where nothing else is on its way."""
        await self.send({"id": 1, "method": method, "params": params or {}})
        return await self.line()

    async def events(self, **params: Any) -> AsyncIterator[dict[str, Any]]:
        """Subscribe, then every event as it comes."""
        answer = await self.call("events.subscribe", params)
        assert "result" in answer, answer
        while True:
            message = await self.line()
            assert message["method"] == "event"
            yield message["params"]


@asynccontextmanager
async def wire(socket: str) -> AsyncIterator[Wire]:
    async with await anyio.connect_unix(socket) as stream:
        yield Wire(stream)


async def next_events(socket: str, count: int, **params: Any) -> list[dict[str, Any]]:
    """The next `count` events; with `since` from the journal."""
    found: list[dict[str, Any]] = []
    async with wire(socket) as line:
        async for event in line.events(**params):
            found.append(event)
            if len(found) == count:
                break
    return found
