"""Requests that go straight to their server: framing, kept connections, answers in the way."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.support.clock import ManualClock
from tests.support.loopback import Handler, listening

from fallbackd.core.protocol import HttpRequest, HttpResponse, NoAnswer
from fallbackd.transports.http import direct
from fallbackd.transports.http.transport import HttpPassing, HttpTransport

LIMIT_S = 60.0
"""Only a hang takes this long."""
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Way:
    """A transport before one server."""

    def __init__(self, transport: HttpTransport, port: int) -> None:
        self.transport, self.port = transport, port

    async def ask(self, body: bytes = b"{}") -> HttpPassing:
        url = f"http://127.0.0.1:{self.port}/v1/x?y=1"
        return await self.transport.pass_on(HttpRequest(method="POST", url=url, body=body))

    async def answer(self, body: bytes = b"{}") -> tuple[HttpResponse | None, bytes, HttpPassing]:
        passed = await self.ask(body)
        found = b""
        with anyio.fail_after(LIMIT_S):
            head = await passed.head()
            while head is not None and (data := await passed.read()) is not None:
                found += data
            await passed.aclose()
        return head, found, passed


@asynccontextmanager
async def way_to(handle: Handler) -> AsyncIterator[Way]:
    transport = HttpTransport(clock=ManualClock(), environ={})
    async with listening(handle) as port:
        try:
            yield Way(transport, port)
        finally:
            await transport.aclose()


def saying(*answers: bytes, closes: bool = False) -> Handler:
    """The same answers on each connection, one for each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for one in answers:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(one)
            await writer.drain()
        if not closes:
            await reader.read()

    return serve


async def test_a_request_says_where_it_goes_and_how_long_it_is() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await reader.read()

    async with way_to(serve) as way:
        await way.answer()
        lines = heads[0].decode().lower().split("\r\n")
        assert lines[0] == "post /v1/x?y=1 http/1.1"
        assert {f"host: 127.0.0.1:{way.port}", "content-length: 2"} <= set(lines)


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (OK, b"{}"),
        (CHUNKED + b"1\r\n{\r\n1;x=y\r\n}\r\n0\r\nx-late: 1\r\n\r\n", b"{}"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
async def test_a_connection_whose_answer_is_over_is_used_again(said: bytes, body: bytes) -> None:
    async with way_to(saying(said, said)) as way:
        for _ in range(2):
            head, found, _ = await way.answer()
            assert head is not None
            assert found == body
        assert way.transport._line.direct.open == 1


@pytest.mark.parametrize(
    "said",
    [
        OK.replace(b"200 OK\r\n", b"200 OK\r\nconnection: close\r\n"),
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
    ],
)
async def test_a_connection_that_says_more_or_closes_is_not_used_again(said: bytes) -> None:
    async with way_to(saying(said, closes=True)) as way:
        for _ in range(2):
            head, found, passed = await way.answer()
            assert head is not None
            assert found == b"{}"
            assert isinstance(passed.exit, HttpResponse)
            assert not passed.exit.truncated
        assert way.transport._line.direct.open == 0


async def test_a_connection_that_was_closed_meanwhile_is_not_met() -> None:
    closed = anyio.Event()
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n{}")
        requests += 1
        writer.write(OK)
        await writer.drain()
        writer.close()
        closed.set()

    async with way_to(serve) as way:
        await way.answer()
        await closed.wait()
        await anyio.lowlevel.checkpoint()  # the transport closes with the next turn of the loop
        head, _, _ = await way.answer()
        assert head is not None
        assert requests == 2


async def test_many_at_once_that_find_closed_connections_are_all_answered() -> None:
    closed = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal closed
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(OK)
        await writer.drain()
        writer.close()
        closed += 1

    async with way_to(serve) as way:
        heads: list[HttpResponse | None] = []

        async def ask() -> None:
            heads.append((await way.answer())[0])

        for turn in range(1, 4):
            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(ask)
            with anyio.fail_after(LIMIT_S):
                while closed < 30 * turn:
                    await anyio.lowlevel.checkpoint()
        assert None not in heads
        assert len(heads) == 90


TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nConnection: Close\r\n\r\n"


class Timing:
    """
    A server of which a test knows what each connection was asked.

    Args:
        answers: Of each connection in turn, one for each of its requests.
    """

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = list(answers)
        self.requests: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.requests)
        self.requests.append(0)
        for one in self.answers[number]:
            await reader.readuntil(b"\r\n\r\n{}")
            self.requests[number] += 1
            writer.write(one)
            await writer.drain()


async def statuses(timing: Timing) -> list[int]:
    async with way_to(timing.serve) as way:
        heads = [(await way.answer())[0] for _ in range(2)]
    assert None not in heads
    return [one.status for one in heads if one is not None]


async def test_a_408_that_closes_a_kept_connection_is_no_answer_to_what_just_left() -> None:
    timing = Timing([OK, TIMEOUT], [OK])
    assert await statuses(timing) == [200, 200]
    assert timing.requests == [2, 1]


async def test_a_request_is_repeated_once_after_a_408() -> None:
    timing = Timing([OK, TIMEOUT], [TIMEOUT], [OK])
    assert await statuses(timing) == [200, 408]
    assert timing.requests == [2, 1]


@pytest.mark.parametrize(
    "answers",
    [
        [TIMEOUT],
        [OK, TIMEOUT.replace(b"Connection: Close", b"x: close")],
        [OK, TIMEOUT.replace(b"408", b"503")],
    ],
    ids=["of a new connection", "that is kept", "that is something else"],
)
async def test_another_408_is_an_answer(answers: list[bytes]) -> None:
    timing = Timing(answers, [OK])
    assert sorted(await statuses(timing))[1] in (408, 503)


async def test_a_408_that_took_its_time_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "CLOSED_BEFORE_S", 0.0)
    timing = Timing([OK, TIMEOUT], [OK])
    assert await statuses(timing) == [200, 408]
    assert timing.requests == [2]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}",
        CHUNKED + b"2\r\n{}\r\n",
        CHUNKED + b"2\r\n{}\r\nzz\r\n",
        CHUNKED + b"2\r\n{}\r\n0\r\n",
    ],
)
async def test_an_answer_without_its_end_is_cut(said: bytes) -> None:
    async with way_to(saying(said, closes=True)) as way:
        head, found, passed = await way.answer()
        assert head is not None
        assert found == b"{}"
        assert isinstance(passed.exit, HttpResponse)
        assert passed.exit.truncated
        assert way.transport._line.direct.open == 0


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\n", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200\r\nx y\r\n\r\n"]
)
async def test_what_is_no_head_is_no_answer(said: bytes) -> None:
    async with way_to(saying(said, closes=True)) as way:
        head, _, passed = await way.answer()
        assert head is None
        assert isinstance(passed.exit, NoAnswer)
        assert passed.exit.exception in ("RemoteProtocolError", "ReadError")


async def test_a_head_without_end_is_no_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-more: " + b"x" * 4000 + b"\r\n")
            await writer.drain()

    async with way_to(serve) as way:
        head, _, passed = await way.answer()
        assert head is None
        assert isinstance(passed.exit, NoAnswer)
        assert passed.exit.text == "the head of the answer is too long"


async def test_a_server_that_refuses_a_long_request_unread_is_heard() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.write_eof()
        await reader.read(1_000_000)

    async with way_to(serve) as way:
        head, _, _ = await way.answer(b"x" * 1_000_000)
        assert head is not None
        assert head.status == 413


def deflated(data: bytes, bits: int) -> bytes:
    packing = zlib.compressobj(wbits=bits)
    return packing.compress(data) + packing.flush()


WORDS = b"said " * 1000
PACKED = {
    "one gzip": (b"gzip", gzip.compress(WORDS)),
    "several": (
        b"GZIP",
        b"".join(gzip.compress(WORDS[at : at + 500]) for at in range(0, 5000, 500)),
    ),
    "padded": (b"x-gzip", gzip.compress(WORDS) + b"\0" * 40),
    "zlib": (b"deflate", deflated(WORDS, 15)),
    "raw": (b"deflate", deflated(WORDS, -15)),
}


@pytest.mark.parametrize("size", [1, 50, 100_000])
@pytest.mark.parametrize("name", PACKED)
async def test_an_answer_that_was_compressed_unasked_is_read(name: str, size: int) -> None:
    coding, packed = PACKED[name]
    said = CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-encoding: %b\r\n\r\n" % coding)
    for at in range(0, len(packed), size):
        piece = packed[at : at + size]
        said += b"%x\r\n%b\r\n" % (len(piece), piece)
    async with way_to(saying(said + b"0\r\n\r\n")) as way:
        head, found, passed = await way.answer()
        assert head is not None
        assert "content-encoding" not in head.headers
        assert found == WORDS
        assert isinstance(passed.exit, HttpResponse)
        assert not passed.exit.truncated


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br"])
async def test_an_answer_in_another_coding_stays_as_it_is_and_says_so(coding: str) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\ncontent-length: 4\r\n\r\n"
    async with way_to(saying(head.encode() + b"\x8b\x01\x80\x03")) as way:
        answered, found, _ = await way.answer()
        assert answered is not None
        assert answered.headers["content-encoding"] == coding
        assert found == b"\x8b\x01\x80\x03"


async def test_an_answer_that_is_not_in_its_coding_is_broken() -> None:
    said = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nsaid"
    async with way_to(saying(said)) as way:
        _, _, passed = await way.answer()
        assert isinstance(passed.exit, HttpResponse)
        assert passed.exit.truncated


async def test_a_redirect_is_an_answer() -> None:
    said = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n"
    async with way_to(saying(said)) as way:
        head, _, _ = await way.answer()
        assert head is not None
        assert head.status == 302


async def test_leaving_an_answer_closes_its_connection() -> None:
    is_closed = anyio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(CHUNKED + b"2\r\n{}\r\n")
        await writer.drain()
        await reader.read()
        is_closed.set()

    async with way_to(serve) as way:
        passed = await way.ask()
        assert await passed.head() is not None
        assert await passed.read() == b"{}"
        await passed.aclose()
        with anyio.fail_after(LIMIT_S):
            await is_closed.wait()
