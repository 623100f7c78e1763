"""
An opencode that listens on no port, reached through its plugin.

The plugin sends the events of its opencode over the connection on which it announced it, and
makes our calls there with its own client. A call and its answer carry a number; an answer comes
in pieces, as a line is shorter than what a long session holds.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectSendStream

from fallbackd.lib import foreign_json
from fallbackd.ports.opencode import INSIDE, Called, Heard, Link

MAX_WAITING_EVENTS = 10_000
MAX_ANSWER_CHARS = 256 * 1024 * 1024
LOST = "the connection to its plugin was lost"

TellPlugin = Callable[[Mapping[str, Any]], None]
"""Sends one call to the plugin: `{call, method, path, directory, body}`."""


class _Call:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.chars = 0
        self.answer: Called | None = None
        self.is_over = anyio.Event()


class PluginLink:
    is_inside = True

    def __init__(self, name: str, tell: TellPlugin, *, pid: int | None = None) -> None:
        self.url = name
        self.pid = pid
        self._tell = tell
        self._calls: dict[int, _Call] = {}
        self._last = 0
        self._is_open = True
        self._events: MemoryObjectSendStream[Heard] | None = None

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        self._is_open = False
        for waiting in self._calls.values():
            waiting.is_over.set()
        self._end_events()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        directory: str = "",
        limit_s: float = 15.0,
    ) -> Called:
        if not self._is_open:
            return Called(status=0, problem=LOST)
        self._last += 1
        number, waiting = self._last, _Call()
        self._calls[number] = waiting
        try:
            self._tell(
                {
                    "call": number,
                    "method": method,
                    "path": path,
                    "directory": directory,
                    "body": body,
                }
            )
            with anyio.fail_after(limit_s):
                await waiting.is_over.wait()
        except TimeoutError:
            return Called(status=0, problem=f"no answer within {limit_s:g} s")
        finally:
            del self._calls[number]
        return waiting.answer or Called(status=0, problem=LOST)

    def answered(self, call: int, *, status: int, text: str, more: bool) -> None:
        """Take one piece of an answer; the call may have been given up."""
        waiting = self._calls.get(call)
        if waiting is None or waiting.is_over.is_set():
            return
        waiting.pieces.append(text)
        waiting.chars += len(text)
        if waiting.chars > MAX_ANSWER_CHARS:
            waiting.answer = Called(status=502, problem="an answer that is too long")
        elif more:
            return
        else:
            waiting.answer = _called(status, "".join(waiting.pieces))
        waiting.is_over.set()

    def hear(self, event: Mapping[str, Any], *, directory: str) -> None:
        if self._events is None:
            return
        try:
            self._events.send_nowait(Heard(directory=directory, event=event))
        except anyio.WouldBlock:
            self._end_events()  # what is missed then is looked up
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._events = None

    async def events(self) -> AsyncGenerator[Heard, None]:
        if not self._is_open:
            return
        self._end_events()
        send, receive = anyio.create_memory_object_stream[Heard](MAX_WAITING_EVENTS)
        self._events = send
        yield Heard(directory="", event={"type": "server.connected", "properties": {}})
        async with receive:
            async for heard in receive:
                yield heard

    def _end_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()


class LinkWithPlugins:
    """A server that has an address, and plugins that do what can only be done inside of it."""

    def __init__(self, link: Link, plugins: Callable[[], Sequence[PluginLink]]) -> None:
        self._link = link
        self._plugins = plugins
        """One for each directory that it works in."""

    @property
    def url(self) -> str:
        return self._link.url

    @property
    def pid(self) -> int | None:
        return self._link.pid

    @property
    def is_inside(self) -> bool:
        return bool(self._plugins())

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        directory: str = "",
        limit_s: float = 15.0,
    ) -> Called:
        if not path.startswith(INSIDE):
            return await self._link.call(
                method, path, body=body, directory=directory, limit_s=limit_s
            )
        found = Called(status=0, problem=LOST)
        for plugin in self._plugins():
            called = await plugin.call(
                method, path, body=body, directory=directory, limit_s=limit_s
            )
            found = called if called.is_good or not found.is_good else found
        return found

    def events(self) -> AsyncGenerator[Heard, None]:
        return self._link.events()

    async def aclose(self) -> None:
        await self._link.aclose()


def _called(status: int, text: str) -> Called:
    try:
        body = foreign_json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError):
        body = None
        if 200 <= status < 300:
            return Called(status=502, problem="an answer that cannot be read")
    if 200 <= status < 300:
        return Called(status=status, body=body)
    return Called(status=status, body=body, problem=f"HTTP {status}" if status else text or LOST)
