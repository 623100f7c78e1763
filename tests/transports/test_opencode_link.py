"""Calls to an opencode server over real connections: what comes back whatever it does."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from fallbackd.ports.opencode import Heard
from fallbackd.transports.opencode.link import OpencodeLink

PLAIN = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
MOVED = b"HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def plain(status: int, body: bytes) -> bytes:
    return PLAIN % (status, len(body), body)


class Served:
    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self.answers = answers
        self.requests: list[bytes] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head)
            length = re.search(rb"(?i)content-length: (\d+)", head)
            self.bodies.append(await reader.readexactly(int(length[1]) if length else 0))
            path = head.split(b" ")[1].decode().partition("?")[0]
            answer = self.answers.get(path)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def link(
    answers: Mapping[str, bytes], *, password: str | None = None
) -> AsyncIterator[tuple[OpencodeLink, Served]]:
    served = Served(answers)
    server = await asyncio.start_server(served.connected, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    found = OpencodeLink(served.url + "/", password=password)
    try:
        yield found, served
    finally:
        await found.aclose()
        server.close()


async def heard(found: OpencodeLink) -> list[Heard]:
    return [one async for one in found.events()]


async def test_a_call_names_its_directory_and_carries_its_password() -> None:
    async with link({"/session": plain(200, b'{"id": "ses_1"}')}, password="pw") as (one, served):
        called = await one.call("POST", "/session", body={"a": 1}, directory="/a b")
        assert (called.status, called.body) == (200, {"id": "ses_1"})
        assert b"POST /session?directory=%2Fa+b " in served.requests[0]
        assert b"Authorization: Basic b3BlbmNvZGU6cHc=" in served.requests[0]
        assert "pw" not in repr(one)


PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html;x\r\nconnection: close\r\n\r\n<!doctype html>"
"""What version 2 answers where it does not know a path."""


PAGES = {"/global/health": PAGE, "/session": PAGE, "/global/event": PAGE, "/event": PAGE}


@pytest.mark.parametrize("path", ["/api/info", "/api/health"])
async def test_a_later_version_is_named_in_place_of_its_web_page(path: str) -> None:
    about = plain(200, b'{"version": "3.0.0"}')
    async with link({**PAGES, path: about}) as (one, _):
        for asked in ("/global/health", "/session/ses_1"):
            called = await one.call("GET", asked)
            assert (called.is_good, called.is_unsupported) == (False, asked[:2] == "/g")
        assert called.status == 0  # there is no page for it
        called = await one.call("GET", "/global/health")
        assert called.problem.startswith("opencode 3.0.0 is not supported yet")
        assert await heard(one) == []


@pytest.mark.parametrize(
    ("path", "version", "reply"),
    [("/api/health", "2.0.3", b'{"reply":"once"}'), ("/api/info", "2.1.4", b'{"decision":"once"}')],
)
async def test_a_server_of_version_2_is_asked_in_its_own_calls(
    path: str, version: str, reply: bytes
) -> None:
    event = b'data: {"type": "session.execution.succeeded", "data": {"sessionID": "ses_1"}}\n\n'
    asked = b'{"data": [{"id": "per_1", "sessionID": "ses_1", "action": "shell"}]}'
    answers = {
        **PAGES,
        path: plain(200, b'{"version": "%s"}' % version.encode()),
        "/api/session/active": plain(200, b'{"data": {"ses_1": {"type": "running"}}}'),
        "/api/session/ses_1/message": plain(200, b'{"data": []}'),
        "/api/permission/request": plain(200, asked),
        "/api/session/ses_1/permission/per_1/reply": b"HTTP/1.1 204 X\r\n\r\n",
        "/api/event": STREAM + b": heartbeat\n\n" + event,
    }
    async with link(answers) as (one, served):
        assert (await one.call("GET", "/global/health")).body["version"] == version
        called = await one.call("GET", "/session/status", directory="/w")
        assert called.body == {"ses_1": {"type": "busy"}}
        body = {"reply": "once"}
        assert (await one.call("POST", "/permission/per_1/reply", body=body)).is_good
        assert served.bodies[-1] == reply
        assert (await one.call("POST", "/instance/dispose")).status == 501
        kinds = [each.event["type"] for each in await heard(one)]
        assert kinds == ["session.status", "session.idle"]


async def test_a_server_of_another_version_at_the_same_address_is_asked_in_its_calls() -> None:
    answers = {**PAGES, "/api/info": plain(200, b'{"version": "2.1.4"}')}
    async with link(answers) as (one, served):
        assert (await one.call("GET", "/global/health")).body["version"] == "2.1.4"
        first = plain(200, b'{"healthy": true, "version": "1.18.33"}')
        served.answers = {"/global/health": first, "/session": plain(200, b"[]")}
        assert (await one.call("GET", "/global/health")).body["version"] == "1.18.33"
        assert (await one.call("GET", "/session")).body == []
        served.answers = answers
        assert (await one.call("GET", "/global/health")).body["version"] == "2.1.4"


async def test_a_later_version_that_knows_the_old_call_is_named_too() -> None:
    answer = plain(200, b'{"healthy": true, "version": "3.0.0"}')
    async with link({"/global/health": answer}) as (one, _):
        called = await one.call("GET", "/global/health")
        assert (called.is_good, called.is_unsupported) == (False, True)
        assert called.problem.startswith("opencode 3.0.0 is not supported yet")


async def test_a_web_page_of_a_server_that_says_no_version_is_no_answer() -> None:
    for more in ({}, {"/api/info": PAGE}, {"/api/health": plain(200, b'{"healthy": true}')}):
        async with link({"/global/health": PAGE, **more}) as (one, _):
            called = await one.call("GET", "/global/health")
            assert (called.status, called.is_unsupported) == (404, False)


async def test_whatever_goes_wrong_is_an_answer() -> None:
    answers = {
        "/no": plain(409, b'{"name": "SessionBusyError", "data": {"message": "busy"}}'),
        "/garbage": plain(200, b"<<<"),
        "/empty": b"HTTP/1.1 204 No Content\r\n\r\n",
        "/elsewhere": MOVED,
    }
    async with link(answers) as (one, _):
        assert (await one.call("GET", "/no")).problem == "HTTP 409: busy"
        garbage = await one.call("GET", "/garbage")
        assert not garbage.is_good
        assert (await one.call("GET", "/empty")).is_good
        assert (await one.call("GET", "/elsewhere")).status == 302
        assert (await one.call("GET", "/closed")).status == 0
    assert (await OpencodeLink("http://127.0.0.1:9", password=None).call("GET", "/")).status == 0


async def test_events_come_bare_with_their_directory_and_broken_ones_are_passed_over() -> None:
    body = (
        b'data: {"directory": "/w", "payload": {"type": "a", "properties": {}}}\n\n'
        b': a comment\n\ndata: not json\n\ndata: []\n\ndata: {}\n\ndata: {"type": "c"}\n\n'
        b'data: {"type": "b", "properties": {}}\n\n'
    )
    async with link({"/global/event": STREAM + body}) as (one, _):
        found = await heard(one)
        assert [(each.directory, each.event["type"]) for each in found] == [("/w", "a"), ("", "b")]


async def test_an_event_without_bound_is_skipped_and_the_next_one_read() -> None:
    def event(kind: str, size: int) -> bytes:
        text = b'"' + b"x" * size + b'"'
        whole = b'data: {"payload": {"type": "%s", "properties": {"text": %s}}}\n\n'
        return whole % (kind.encode(), text)

    body = event("large", 9 * 1024 * 1024) + event("huge", 33 * 1024 * 1024) + event("last", 1)
    async with link({"/global/event": STREAM + body}) as (one, _):
        found = [each.event["type"] for each in await heard(one)]
    assert found == ["large", "last"]


async def test_an_older_server_has_its_events_elsewhere() -> None:
    answers = {
        "/global/event": plain(404, b"{}"),
        "/event": STREAM + b'data: {"type": "a", "properties": {}}\n\n',
    }
    async with link(answers) as (one, _):
        assert [each.event["type"] for each in await heard(one)] == ["a"]


async def test_a_server_that_is_not_there_has_no_events() -> None:
    one = OpencodeLink("http://127.0.0.1:9", password=None)
    assert await heard(one) == []
    await one.aclose()
