"""HTTP towards callers who are slow, silent, too long, or gone."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from tests.support.daemon import HANG_S

from fallbackd.core.authority import PERSON
from fallbackd.fronts.gateway import room, server
from fallbackd.fronts.gateway import server as caller_line
from fallbackd.fronts.gateway.answers import AnswerHead
from fallbackd.fronts.gateway.incoming import HeadIn
from fallbackd.fronts.gateway.patience import Bounds
from fallbackd.fronts.gateway.server import CallerLine, GatewayServer, RequestLine

POST = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
OFFERS = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
"""As Java's client does with each request before it knows the server."""


class Asked:
    """A front of which a test knows what it was asked."""

    def __init__(self) -> None:
        self.heads: list[HeadIn] = []
        self.bodies: list[bytes | None] = []
        self.begun = anyio.Event()
        self.left = anyio.Event()
        self.keeps_silent = False
        self.floods = False

    def knows(self, request: HeadIn) -> bool:
        return b"/denied" not in request.path.encode()

    async def answer(self, request: HeadIn, line: RequestLine) -> None:
        self.line = line
        self.heads.append(request)
        self.bodies.append(await line.body(100))
        self.begun.set()
        try:
            if self.keeps_silent:
                await anyio.sleep_forever()
            await line.begin(AnswerHead(status=200, headers=[]))
            while self.floods:
                await line.send(b"x" * 65536)
            await line.send(b"said")
        finally:
            self.left.set()


@asynccontextmanager
async def serving(asked: Asked, path: Path | None = None) -> AsyncIterator[int]:
    """
    Yields:
        The port; 0 for a Unix socket.
    """
    listener = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
    listener.bind(("127.0.0.1", 0) if path is None else str(path))
    listener.listen()
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            gateway = GatewayServer(asked.answer, allows=lambda _: PERSON, knows=asked.knows)
            tasks.start_soon(gateway.serve, listener)
            yield listener.getsockname()[1] if path is None else 0
            tasks.cancel_scope.cancel()


async def everything(stream: anyio.abc.ByteReceiveStream) -> bytes:
    """To the end of the connection."""
    found = b""
    try:
        while True:
            found += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return found


async def said_by(stream: anyio.abc.ByteReceiveStream) -> None:
    """Returns at the end of an answer, behind which the connection is kept."""
    got = b""
    while b"said\r\n0\r\n\r\n" not in got:
        got += await stream.receive()


async def read_by(peer: socket.socket) -> bytes:
    """To the end of the connection."""
    found = b""
    try:
        while data := await asyncio.get_running_loop().sock_recv(peer, 65536):
            found += data
    except ConnectionError:
        pass
    return found


async def test_a_connection_is_kept_for_the_next_request() -> None:
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        for number in (1, 2):
            await peer.send(POST)
            await said_by(peer)
            assert len(asked.heads) == number


async def test_connections_without_a_request_make_room_for_further_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    asked = Asked()
    async with serving(asked) as port, AsyncExitStack() as open_ones:
        peers = []
        for _ in range(4):
            peer = await open_ones.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
            await peer.send(POST)
            await said_by(peer)
            peers.append(peer)
        for peer in peers[:2]:
            assert await everything(peer) == b""


FULL = b"too many open connections"


@pytest.mark.parametrize("sent", [b"", b"P", POST.replace(b"/v1/messages", b"/denied")])
async def test_connections_of_strangers_make_room_the_oldest_first(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "MAX_STRANGERS", 3)
    monkeypatch.setattr(server, "HEAD_LIMIT_S", HANG_S * 9)
    asked = Asked()
    async with serving(asked) as port, AsyncExitStack() as open_ones:

        async def connected() -> anyio.abc.SocketStream:
            return await open_ones.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))

        known = await connected()
        await known.send(POST)
        await said_by(known)
        strangers = []
        for _ in range(3):
            peer = await connected()
            if sent:
                await peer.send(sent)
            strangers.append(peer)
        await anyio.wait_all_tasks_blocked()
        for one in strangers:
            peer = await connected()
            assert (await everything(one)).endswith((FULL + b"; try again later.", b"0\r\n\r\n"))
            if sent:
                await peer.send(sent)
        await known.send(POST)
        await said_by(known)


async def test_strangers_at_a_port_take_no_place_at_the_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server, "MAX_STRANGERS", 1)
    monkeypatch.setattr(server, "HEAD_LIMIT_S", HANG_S * 9)
    path = tmp_path / "s"
    gateway = GatewayServer(Asked().answer, allows=lambda _: PERSON)
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(path))
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                for listener in (tcp, unix):
                    listener.listen()
                    tasks.start_soon(gateway.serve, listener)
                async with (
                    await anyio.connect_unix(path) as peer,
                    await anyio.connect_tcp("127.0.0.1", tcp.getsockname()[1]) as first,
                    await anyio.connect_tcp("127.0.0.1", tcp.getsockname()[1]),
                ):
                    assert FULL in await everything(first)
                    await peer.send(POST)
                    await said_by(peer)
                tasks.cancel_scope.cancel()


async def test_a_request_that_is_arriving_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as first:
        await first.send(POST + POST[:20])
        got = b""
        while b"said\r\n0\r\n\r\n" not in got:
            got += await first.receive()
        async with await anyio.connect_tcp("127.0.0.1", port) as second:
            await second.send(POST)
            await everything(second)
            assert asked.heads[-1].is_one_too_many
        await first.send(POST[20:])
        assert b"said" in await first.receive()
        assert not asked.heads[-1].is_one_too_many


async def test_many_offers_in_one_packet_are_all_declined() -> None:
    asked = Asked()
    get = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(get * 1000 + last)
        assert (await everything(peer)).count(b"said") == 1001


async def test_where_all_places_have_a_request_a_further_one_is_told_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    asked = Asked()
    asked.keeps_silent = True
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as first:
        await first.send(POST)
        await asked.begun.wait()
        asked.keeps_silent = False
        async with await anyio.connect_tcp("127.0.0.1", port) as second:
            await second.send(POST)
            assert b"connection: close" in await everything(second)
        assert [one.is_one_too_many for one in asked.heads] == [False, True]


async def test_the_room_of_a_body_is_given_back_with_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "Bounds", lambda: Bounds(max_memory_bytes=3))
    monkeypatch.setattr(room, "FREE_BYTES", 0)
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        for _ in range(3):
            await peer.send(POST[:-2])
            await anyio.wait_all_tasks_blocked()
            await peer.send(b"{}")
            await said_by(peer)
    assert asked.bodies == [b"{}"] * 3


async def test_nothing_of_a_connection_is_kept_behind_it() -> None:
    gc.collect()
    gc.disable()
    try:
        asked = Asked()
        async with serving(asked) as port:
            async with await anyio.connect_tcp("127.0.0.1", port) as peer:
                await peer.send(POST.replace(b"host: x", b"host: x\r\nconnection: close"))
                await everything(peer)
            del asked.line
            while any(isinstance(one, CallerLine) for one in gc.get_objects()):
                await anyio.sleep(0.01)
    finally:
        gc.enable()


async def test_a_request_that_comes_before_the_answer_waits_for_its_turn() -> None:
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(POST + POST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert (await everything(peer)).count(b"said") == 2


@pytest.mark.parametrize("size", [1, 7, 60, 4096])
@pytest.mark.parametrize(
    "body",
    [b"content-length: 2\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"],
)
async def test_a_post_that_offers_an_upgrade_is_answered_and_its_connection_is_kept(
    body: bytes, size: int
) -> None:
    asked = Asked()
    offering = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n" + OFFERS + body
    last = POST.replace(b"host: x", b"host: x\r\nconnection: close")
    sent = POST + offering + POST + offering + last
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        for at in range(0, len(sent), size):
            await peer.send(sent[at : at + size])
        assert (await everything(peer)).count(b"said\r\n0\r\n\r\n") == 5
    assert asked.bodies == [b"{}"] * 5
    assert dict(asked.heads[1].headers)["http2-settings"] == "AAMAAABkAAQ"


async def test_a_get_that_offers_an_upgrade_says_which_and_keeps_its_connection() -> None:
    asked = Asked()
    get = b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\n"
    get += b"upgrade: websocket\r\n\r\n"
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(get + POST.replace(b"host: x", b"host: x\r\nconnection: close"))
        assert (await everything(peer)).count(b"said") == 2
    assert dict(asked.heads[0].headers)["upgrade"] == "websocket"


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        (b"http://127.0.0.1:41411/v1/messages?a=b", "/v1/messages", "a=b", "127.0.0.1:41411"),
        (b"HTTP://LocalHost:41411/v1/x", "/v1/x", "", "LocalHost:41411"),
        (b"http://127.0.0.1:41411", "/", "", "127.0.0.1:41411"),
        (b"http://127.0.0.1:41411?a=b", "/", "a=b", "127.0.0.1:41411"),
        (b"http://x@evil.example/v1/x", "/v1/x", "", "x@evil.example"),
        (b"https://127.0.0.1:41411/v1/x", "https://127.0.0.1:41411/v1/x", "", "here"),
        (b"/http://evil.example/v1/x", "/http://evil.example/v1/x", "", "here"),
        (b"/v1/x", "/v1/x", "", "here"),
    ],
)
async def test_a_target_with_a_host_is_its_path_and_the_host_counts(
    target: bytes, path: str, query: str, host: str
) -> None:
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(b"GET %b HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n" % target)
        await everything(peer)
    (head,) = asked.heads
    assert (head.path, head.query) == (path, query)
    assert [value for name, value in head.headers if name == "host"] == [host]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("x-fallbackd-chain: équipe".encode(), "équipe"),
        ("X-Fallbackd-Chain: équipe".encode("latin-1"), "équipe"),
        ("x-other: équipe".encode(), "équipe".encode().decode("latin-1")),
    ],
)
async def test_headers_for_the_gateway_are_utf_8_and_others_the_bytes_that_came(
    field: bytes, text: str
) -> None:
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%b\r\n\r\n" % field)
        await everything(peer)
    assert asked.heads[0].headers[-1][1] == text


async def test_a_tunnel_is_answered_and_what_follows_in_it_is_not_read() -> None:
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(b"CONNECT a.example:443 HTTP/1.1\r\nhost: x\r\n\r\n" + POST)
        assert (await everything(peer)).count(b"HTTP/1.1 ") == 1
    assert [one.method for one in asked.heads] == ["CONNECT"]


async def test_a_caller_of_http_1_0_is_not_told_to_continue() -> None:
    asked = Asked()
    head, body = POST.replace(b"/1.1\r\n", b"/1.0\r\nexpect: 100-continue\r\n").split(b"{")
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(head)
        while not asked.heads:
            await anyio.lowlevel.checkpoint()
        await peer.send(b"{" + body)
        assert (await everything(peer)).startswith(b"HTTP/1.1 200 ")


async def test_a_request_has_one_answer_at_most() -> None:
    async def twice(request: HeadIn, line: RequestLine) -> None:
        await line.body(100)
        for status in (200, 503):
            await line.begin(AnswerHead(status=status, headers=[("content-length", "4")]))
            await line.send(b"said")

    asked = Asked()
    asked.answer = twice  # type: ignore[method-assign]
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(POST)
        assert (await everything(peer)).count(b"HTTP/1.1 ") == 1


async def test_a_head_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_LIMIT_S", 0.2)
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(POST[:30])
        assert await everything(peer) == b""
    assert asked.heads == []


@pytest.mark.parametrize("begins", ["apart", "behind a body"])
async def test_a_later_head_that_does_not_end_is_left_as_soon_as_the_first(
    monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    monkeypatch.setattr(server, "IDLE_S", HANG_S * 9)
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(POST[:-1])
        while not asked.heads:
            await anyio.lowlevel.checkpoint()
        monkeypatch.setattr(server, "HEAD_LIMIT_S", 0.2)
        if begins == "apart":
            await peer.send(POST[-1:])
            await asked.left.wait()
            await peer.send(POST[:3])
        else:
            await peer.send(POST[-1:] + POST[:3])
        assert (await everything(peer)).count(b"HTTP/1.1 200 ") == 1
    assert len(asked.heads) == 1


async def test_a_head_of_more_than_64_kib_is_refused() -> None:
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 70_000)
        assert (await everything(peer)).startswith(b"HTTP/1.1 431 ")
    assert asked.heads == []


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: odd\r\n\r\n{}",
        b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_what_may_be_read_in_two_ways_is_refused(head: bytes) -> None:
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(head)
        got = await everything(peer)
        assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert asked.heads == []


async def test_a_length_beside_chunks_does_not_count() -> None:
    asked = Asked()
    body = b"2\r\n{}\r\n0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n"
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(head + b"content-length: 40\r\n\r\n" + body)
        await everything(peer)
    assert asked.bodies in ([], [b"{}"])


async def test_a_body_that_is_longer_than_allowed_is_not_read_to_its_end() -> None:
    asked = Asked()
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n" + b"x" * 200
        )
        assert (await everything(peer)).startswith(b"HTTP/1.1 200 ")
    assert asked.bodies == [None]


async def test_a_caller_who_hangs_up_ends_its_request() -> None:
    asked = Asked()
    asked.keeps_silent = True
    async with serving(asked) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as peer:
            await peer.send(POST)
            await asked.begun.wait()
        with anyio.fail_after(1):
            await asked.left.wait()


LONG = POST.replace(b"length: 2", b"length: 30000")[:-2] + b" " * 30_000


@pytest.mark.parametrize("most", [caller_line.MAX_AHEAD_BYTES, 100])
@pytest.mark.parametrize("ahead", [POST * 3, b"garbage\r\n\r\n" * 9, LONG, POST * 500, OFFERS])
@pytest.mark.parametrize("way", [socket.AF_INET, socket.AF_UNIX])
async def test_a_caller_who_hangs_up_behind_what_it_sent_ahead_ends_its_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: int, ahead: bytes, most: int
) -> None:
    monkeypatch.setattr(caller_line, "MAX_AHEAD_BYTES", most)
    asked = Asked()
    asked.keeps_silent = True
    path = None if way == socket.AF_INET else tmp_path / "socket"
    async with serving(asked, path) as at:
        connect = anyio.connect_tcp("127.0.0.1", at) if at else anyio.connect_unix(str(path))
        async with await connect as peer:
            await peer.send(POST + ahead)
            await asked.begun.wait()
        await asked.left.wait()
    assert len(asked.heads) == 1


async def test_what_a_caller_sends_ahead_is_held_up_to_a_bound() -> None:
    asked = Asked()
    asked.keeps_silent = True
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:

        async def flood() -> None:
            while True:
                await peer.send(POST * 5000)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            await asked.begun.wait()
            line = asked.line
            assert isinstance(line, caller_line.CallerLine)
            while line._watch is None:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        packet = 256 * 1024  # is the most that asyncio reads at once
        assert len(line._ahead) <= caller_line.MAX_AHEAD_BYTES + packet
        assert len(line._waiting) <= 1 + caller_line.FED_BYTES // len(POST)


@pytest.mark.parametrize("most", [caller_line.MAX_AHEAD_BYTES, 100])
async def test_what_a_caller_sends_ahead_is_answered_to_the_last_request(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(caller_line, "MAX_AHEAD_BYTES", most)
    asked = Asked()
    last = POST.replace(b"host: x", b"host: x\r\nconnection: close")
    offering = POST.replace(b"host: x\r\n", b"host: x\r\n" + OFFERS)
    long = POST.replace(b"length: 2", b"length: 90") + b" " * 88
    async with (
        serving(asked) as port,
        await anyio.connect_tcp("127.0.0.1", port) as peer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(peer.send, (POST * 3 + long + offering) * 1000 + last)
        assert (await everything(peer)).count(b"said\r\n0\r\n\r\n") == 5001
    assert asked.bodies == ([b"{}"] * 3 + [b"{}" + b" " * 88, b"{}"]) * 1000 + [b"{}"]


async def test_a_caller_who_stops_reading_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_line, "SLOW_READER_S", 0.3)
    asked = Asked()
    asked.floods = True
    async with serving(asked) as port, await anyio.connect_tcp("127.0.0.1", port) as peer:
        await peer.send(POST)
        await asked.left.wait()
        assert not (await everything(peer)).endswith(b"0\r\n\r\n")
