"""
A daemon that is killed, and a user who presses Esc, at each call of a rescue: before the server has
done it, and after it.
"""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs
from tests.support import wires
from tests.support.opencode import OpencodeDouble, WhoseDouble
from tests.support.playbook import policy_of
from tests.support.running_engine import engine_in, settings, until
from tests.support.watching import NoFiles
from tests.support.wires import SecondLink, each_wire

from fallbackd.core.records import Session
from fallbackd.fronts.opencode.front import OpencodeFront
from fallbackd.ports.opencode import Called, Link
from fallbackd.stores.memory import MemoryStore

__all__ = ["each_wire"]
pytestmark = pytest.mark.usefixtures("each_wire")

URL = "http://127.0.0.1:4096"
SESSION = "ses_1"
FIRST = "msg_1f9b96055001aaaaaaaaaaaaaa"
SECOND = "msg_1f9b96056001bbbbbbbbbbbbbb"
THIRD = "msg_1f9b96057001cccccccccccccc"
MOST_CALLS = 60


class Calls:
    """Counts the calls of a rescue, and does something at one of them."""

    def __init__(self, server: OpencodeDouble, act: Callable[[], Awaitable[None]]) -> None:
        self.server = server
        self.act = act
        self.number = 0
        self.is_after = False
        self.at = 0
        self.is_on = False

    async def _count(self, *, is_after: bool) -> None:
        if not self.is_on or is_after is not self.is_after:
            return
        self.number += 1
        if self.number == self.at:
            self.is_on = False
            await self.act()

    def link(self) -> Link:
        link = wires.linked(self.server)
        if isinstance(link, SecondLink):

            async def before(_: str) -> None:
                await self._count(is_after=False)

            async def after(_: str) -> None:
                await self._count(is_after=True)

            link.face.before, link.face.after = before, after
            return link
        return _Counted(self.server, self._count)


class _Counted:
    """Version 1: its calls are those of the daemon."""

    is_inside = False
    pid = None

    def __init__(self, server: OpencodeDouble, count: Callable[..., Awaitable[None]]) -> None:
        self._server = server
        self._count = count
        self.url = server.url
        self.events = server.events

    async def aclose(self) -> None:
        pass

    async def call(self, method: str, path: str, **more: Any) -> Called:
        await self._count(is_after=False)
        called = await self._server.call(method, path, **more)
        await self._count(is_after=True)
        return called


@asynccontextmanager
async def daemon(
    place: Path, store: MemoryStore, link: Callable[[], Link]
) -> AsyncIterator[OpencodeFront]:
    config = structs.replace(settings(), policy=policy_of(roles={"build": ["b/m", "c/m"]}))
    async with engine_in(place, config, store=store) as engine:
        found = OpencodeFront(engine, lambda url, *, password: link(), NoFiles(), WhoseDouble())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.run, {URL: None})
            await until(lambda: found.states() and found.states()[0].is_up)
            yield found
            tasks.cancel_scope.cancel()


def begins(server: OpencodeDouble) -> None:
    """A message, and two that wait behind it, when the model is throttled."""
    for name, text in ((FIRST, "one"), (SECOND, "two"), (THIRD, "three")):
        parts = [{"type": "text", "text": text}]
        server.begins(SESSION, name, "a/m", parts=parts, is_asked=name == FIRST)
    server.retries(SESSION, "Too many requests")


def asked(server: OpencodeDouble) -> list[str]:
    """Texts of the user's messages, as they stand in the session."""
    return [
        "".join(part.get("text", "") for part in one["parts"])
        for one in server.messages[SESSION]
        if one["info"]["role"] == "user"
    ]


async def session_of(store: MemoryStore) -> Session:
    found = await store.session(SESSION)  # type: ignore[arg-type]
    assert found is not None
    return found


async def killed_at(place: Path, number: int, *, is_after: bool) -> bool:
    """Return whether the rescue had so many calls."""
    place.mkdir()
    server, store, dead = OpencodeDouble(URL), MemoryStore(), anyio.Event()

    async def die() -> None:
        dead.set()
        await anyio.sleep_forever()

    calls = Calls(server, die)
    calls.at, calls.is_after = number, is_after
    is_over = False
    async with daemon(place, store, calls.link), anyio.create_task_group() as tasks:
        calls.is_on = True
        begins(server)

        async def finish() -> None:
            nonlocal is_over
            while not await _is_over(store):
                await anyio.sleep(0)
            is_over = True
            dead.set()

        tasks.start_soon(finish)
        await dead.wait()
        tasks.cancel_scope.cancel()
    if not is_over:
        server.hear = lambda _: None
        async with daemon(place, store, lambda: wires.linked(server)):
            with anyio.fail_after(60):
                while not await _is_over(store):
                    await anyio.sleep(0)
    assert asked(server) == ["one", "two", "three"], number
    models = [one["model"]["providerID"] for one in server.prompts]
    assert models == ["b", "b", "b"], number
    assert (await session_of(store)).current == "b/m"
    return not is_over


async def _is_over(store: MemoryStore) -> bool:
    found = await store.session(SESSION)  # type: ignore[arg-type]
    return found is not None and found.rescue is None and found.current == "b/m"


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
async def test_a_daemon_that_is_killed_at_any_call_loses_nothing_and_repeats_nothing(
    tmp_path: Path, is_after: bool
) -> None:
    for number in itertools.count(1):
        assert number < MOST_CALLS
        if not await killed_at(tmp_path / str(number), number, is_after=is_after):
            break
    assert number > 10


async def stopped_at(place: Path, number: int, *, is_after: bool) -> bool:
    place.mkdir()
    server, store = OpencodeDouble(URL), MemoryStore()
    is_pressed = False

    async def press() -> None:
        nonlocal is_pressed
        is_pressed = True
        server.is_stopped(SESSION)

    calls = Calls(server, press)
    calls.at, calls.is_after = number, is_after
    async with daemon(place, store, calls.link):
        calls.is_on = True
        begins(server)
        with anyio.fail_after(60):
            while not (is_pressed or await _is_over(store)):
                await anyio.sleep(0)
            while is_pressed and not await _is_at_rest(store):
                await anyio.sleep(0)
        if is_pressed:
            assert server.statuses == {}, number
            assert asked(server) == ["one", "two", "three"], number
            assert "revert" not in server.sessions[SESSION], number
    return is_pressed


async def _is_at_rest(store: MemoryStore) -> bool:
    found = await store.session(SESSION)  # type: ignore[arg-type]
    if found is None or found.rescue is not None:
        return False
    return found.message is None or not found.message.running


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
async def test_esc_at_any_call_ends_the_rescue_and_nothing_runs_on(
    tmp_path: Path, is_after: bool
) -> None:
    for number in itertools.count(1):
        assert number < MOST_CALLS
        if not await stopped_at(tmp_path / str(number), number, is_after=is_after):
            break
    assert number > 10
