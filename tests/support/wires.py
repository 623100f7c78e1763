"""Runs a test with an opencode of each version: in version 2's own calls and events too."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
import pytest
from tests.support.opencode import DIRECTORY, OpencodeDouble
from tests.support.opencode2 import EARLY, LATER, SecondFace

from fallbackd.ports.opencode import INSIDE, Called, Heard
from fallbackd.transports.opencode.second import SecondWire

chosen = ""
"""Wire of the test that runs: empty for version 1, `second` or `early` for version 2."""


@pytest.fixture(params=["", "second"], ids=["version1", "version2"])
def each_wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.chosen", request.param)


only_version_1 = pytest.mark.parametrize("each_wire", [""], ids=["version1"], indirect=True)
"""Version 2 has nothing of the kind."""


class SecondLink:
    """A link to a double that answers and speaks as version 2 does."""

    def __init__(self, double: OpencodeDouble, wire: str) -> None:
        self.double = double
        self.face = SecondFace(self._first, version=EARLY if wire == "early" else LATER)
        self.wire = SecondWire(self._second, is_early=self.face.is_early)

    @property
    def url(self) -> str:
        return self.double.url

    @property
    def pid(self) -> int | None:
        return self.double.pid

    @property
    def is_inside(self) -> bool:
        return self.double.is_inside

    async def aclose(self) -> None:
        pass

    async def _first(self, method: str, path: str, place: str, body: Any) -> tuple[int, Any]:
        called = await self.double.call(method, path, body=body, directory=place or DIRECTORY)
        return called.status, called.body

    async def _second(
        self, method: str, path: str, *, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> Called:
        status, found = await self.face.answer(method, path, dict(query), body)
        if self.double.is_down:
            return Called(status=0, problem="ReadError")
        return Called(status=status, body=found, problem="" if status < 300 else f"HTTP {status}")

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        directory: str = "",
        limit_s: float = 15.0,
    ) -> Called:
        if path.startswith(INSIDE) or path == "/tui/show-toast":  # its plugin does these
            return await self.double.call(method, path, body=body, directory=directory)
        return await self.wire.call(method, path, body=body, directory=directory)

    async def translated(self, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = [await self.wire.heard(one) for one in self.face.events(dict(event))]
        return [one for each in found for one in each]

    async def events(self) -> AsyncGenerator[Heard, None]:
        async for heard in self.double.events():
            if heard.event["type"] == "server.connected":
                yield heard
                continue
            for one in await self.translated(heard.event):
                yield Heard(directory=heard.directory, event=one)


def linked(double: OpencodeDouble) -> OpencodeDouble | SecondLink:
    """A link to a double, on the wire of the test that runs."""
    return SecondLink(double, chosen) if chosen else double


class InOrder:
    """Hands on the events of a double, translated one after the other."""

    def __init__(self, link: SecondLink) -> None:
        self.waiting = 0
        self._link = link
        self._send, self._events = anyio.create_memory_object_stream[Mapping[str, Any]](10_000)

    def put(self, event: Mapping[str, Any]) -> None:
        self.waiting += 1
        self._send.send_nowait(event)

    async def run(self, hear: Any) -> None:
        with self._send, self._events:
            async for event in self._events:
                for one in await self._link.translated(event):
                    hear(one)
                self.waiting -= 1
