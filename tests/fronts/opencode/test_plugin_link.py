"""An opencode that is reached through its plugin: calls, answers in pieces, events."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.fronts.opencode.test_front import URL, front
from tests.support.opencode import DIRECTORY, OpencodeDouble
from tests.support.running_engine import until
from tests.support.wires import each_wire

from fallbackd.fronts.opencode.front import LOST, OpencodeFront, PluginLink
from fallbackd.stores.memory import MemoryStore

__all__ = ["each_wire"]

NAME = f"plugin:77:{DIRECTORY}"


async def test_an_answer_comes_in_pieces_and_in_any_order() -> None:
    asked: list[Mapping[str, Any]] = []
    link = PluginLink(NAME, asked.append)
    async with anyio.create_task_group() as tasks:
        found = {}

        async def ask(path: str) -> None:
            found[path] = await link.call("GET", path, directory=DIRECTORY)

        tasks.start_soon(ask, "/one")
        tasks.start_soon(ask, "/two")
        await until(lambda: len(asked) == 2)
        numbers = {one["path"]: one["call"] for one in asked}
        link.answered(numbers["/two"], status=200, text='{"a":', more=True)
        link.answered(numbers["/one"], status=404, text='{"name":"NotFound"}', more=False)
        link.answered(numbers["/two"], status=200, text="1}", more=False)
        link.answered(numbers["/two"], status=500, text="", more=False)
        link.answered(99, status=200, text="", more=False)
    assert (found["/two"].status, found["/two"].body) == (200, {"a": 1})
    assert (found["/one"].status, found["/one"].problem) == (404, "HTTP 404")


async def test_calls_and_events_end_with_the_connection() -> None:
    link = PluginLink(NAME, lambda _: None)
    heard = []

    async def hear() -> None:
        heard.extend([one.event["type"] async for one in link.events()])

    async def ask() -> None:
        heard.append((await link.call("GET", "/x")).problem)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear)
        tasks.start_soon(ask)
        await until(lambda: link._events is not None)
        link.hear({"type": "session.idle"}, directory=DIRECTORY)
        link.close()
    assert sorted(heard) == ["server.connected", "session.idle", LOST]
    assert (await link.call("GET", "/y")).problem == LOST


async def test_what_cannot_be_read_is_no_answer() -> None:
    numbers: list[int] = []
    link = PluginLink(NAME, lambda one: numbers.append(one["call"]))

    async def answer() -> None:
        await until(lambda: numbers)
        link.answered(numbers[0], status=200, text="<html>", more=False)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        called = await link.call("GET", "/x")
    assert (called.status, called.is_good) == (502, False)


def attach(f: OpencodeFront, server: OpencodeDouble, connection: int) -> PluginLink:
    """A plugin that makes the calls at a server."""

    def serve(call: Mapping[str, Any]) -> None:
        async def run() -> None:
            called = await server.call(
                call["method"], call["path"], body=call["body"], directory=call["directory"]
            )
            text = "" if called.body is None else msgspec.json.encode(called.body).decode()
            link.answered(call["call"], status=called.status, text=text, more=False)

        assert f._tasks is not None
        f._tasks.start_soon(run)

    f.attach(NAME, connection, serve, directory=DIRECTORY)
    link = f.attached(connection)
    assert link is not None
    server.hear = lambda event: link.hear(event, directory=DIRECTORY)
    return link


async def test_sessions_behind_a_plugin_are_rescued_and_told(tmp_path: Path) -> None:
    async with front(tmp_path) as (f, _, _):
        server = OpencodeDouble(NAME)
        attach(f, server, 1)
        await until(lambda: f.states() and f.states()[0].is_up)
        server.begins("ses_1", "msg_1f9b96055001aaaaaaaaaaaaaa", "a/m")
        server.retries("ses_1", "Too many requests")
        await until(lambda: server.prompts and server.toasts)
        assert [one["model"]["providerID"] for one in server.prompts] == ["b"]
        assert server.toasts == ["switched from m [a] to m [b] (rate_limit)"]


async def test_a_plugin_that_connects_anew_takes_its_place_and_is_not_remembered(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    async with front(tmp_path, store) as (f, _, _):
        server = OpencodeDouble(NAME)
        attach(f, server, 1)
        attach(f, server, 2)
        f.detach(NAME, 1)
        await until(lambda: f.states() and f.states()[0].is_up)
        assert [one.url for one in f.states()] == [NAME]
        await f.forget()
        f.detach(NAME, 2)
        assert f.states() == []
    async with front(tmp_path, store) as (f, _, _):
        await anyio.sleep(0)
        assert f.states() == []


async def test_a_subagent_of_a_server_with_an_address_is_moved_where_its_plugin_is_there_too(
    tmp_path: Path,
) -> None:
    told: list[Mapping[str, Any]] = []

    def plugin(call: Mapping[str, Any]) -> None:
        told.append(call)
        link = f.attached(1)
        assert link is not None
        link.answered(call["call"], status=200, text="true", more=False)

    async with front(tmp_path) as (f, servers, _):
        await f.announce(URL, password=None)
        assert f.enter(URL, 1, plugin)
        assert not f.enter(URL, 1, plugin)
        await until(lambda: f.states() and f.states()[0].is_up)
        server = servers[URL]
        server.open("ses_child", parent="ses_1")
        server.statuses["ses_1"] = {"type": "busy"}
        server.begins("ses_child", "msg_1f9b96055001aaaaaaaaaaaaaa", "a/m")
        server.retries("ses_child", "Too many requests")
        await until(lambda: server.prompts)
        assert [(one["path"], one["body"]["state"]) for one in told] == [
            ("/fallbackd/child", "moving")
        ]
        assert server.calls[0][1] == "/session/ses_child/abort"
        f.detach(URL, 1)
        assert f.states()[0].is_up


def refusal(session: str, **headers: str) -> dict[str, Any]:
    properties = {"sessionID": session, "status": 429, "headers": headers}
    return {"type": "fallbackd.response", "properties": properties}


@pytest.mark.usefixtures("each_wire")
async def test_a_reset_that_stands_in_headers_alone_is_handed_on_by_the_plugin_for_one_failure(
    tmp_path: Path,
) -> None:
    async with front(tmp_path) as (f, servers, engine):
        await f.announce(URL, password=None)
        assert f.enter(URL, 1, lambda _: None)
        await until(lambda: f.states() and f.states()[0].is_up)
        plugin = f.attached(1)
        assert plugin is not None
        plugin.hear(refusal("ses_1", **{"Retry-After": "7200"}), directory=DIRECTORY)
        plugin.hear({"type": "fallbackd.response", "properties": {"headers": 7}}, directory="")
        server = servers[URL]
        server.begins("ses_1", "msg_1f9b96055001aaaaaaaaaaaaaa", "a/m")
        server.fails("ses_1", 429, "Too many requests")
        await until(lambda: server.prompts)
        server.fails("ses_1", 429, "Too many requests")
        await until(lambda: "backend:b/m" in engine.snapshot().health)
        health = engine.snapshot().health
        first, second = (health[f"backend:{name}"].outage for name in ("a/m", "b/m"))  # type: ignore[index]
        assert first is not None
        assert second is not None
        assert (first.until_at or 0) - f.watched.now == pytest.approx(7200, abs=5)
        assert (second.until_at or 0) - f.watched.now < 3700
