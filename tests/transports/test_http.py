"""The HTTP transport against a real server on loopback."""

import asyncio
import socket
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from fallbackd.core.protocol import Chunk, CommandLine, HttpRequest, HttpResponse, NoAnswer
from fallbackd.transports.http.transport import HttpTransport, resolve_secrets
from fallbackd.transports.output_log import OutputLog

LIMIT_S = 60.0
"""Only a hang takes this long."""

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Ticks:
    """A clock that moves by itself, one second at each look."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        self.at += 1.0
        return self.at

    def slept(self) -> float:
        return 0.0

    def step(self) -> float:
        return 0.0

    def boot_id(self) -> str:
        return "boot"


class Server:
    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    head += await reader.readexactly(int(line.split(b":")[1]))
            self.requests.append(head)
            self.arrived.set()
            await self.handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.left.set()
            writer.close()


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    server = Server(handler)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


@asynccontextmanager
async def transporting(environ: dict[str, str] | None = None) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(clock=Ticks(), environ=environ or {})
    try:
        yield transport
    finally:
        await transport.aclose()


def answering(raw: bytes) -> Handler:
    async def handle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return handle


async def until_the_other_side_leaves(reader: asyncio.StreamReader) -> None:
    while await reader.read(1000):
        pass


async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await until_the_other_side_leaves(reader)


async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def start(transport: HttpTransport, directory: Path, call: HttpRequest):  # type: ignore[no-untyped-def]
    return await transport.open(call, attempt="d1.1", directory=str(directory), env={})


async def body_of(running) -> bytes:  # type: ignore[no-untyped-def]
    with anyio.fail_after(LIMIT_S):
        return b"".join([chunk.data async for chunk in running.chunks()])


async def test_answer_is_handed_on_and_recorded(tmp_path: Path) -> None:
    handler = answering(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Odd: A\r\nContent-Length: 5\r\n\r\nhello"
    )
    async with serving(handler) as server, transporting() as transport:
        call = HttpRequest(method="POST", url=f"{server.url}/v1/x", body=b'{"a":1}')
        running = await start(transport, tmp_path, call)
        assert await body_of(running) == b"hello"
    assert isinstance(running.exit, HttpResponse)
    assert running.exit.status == 200
    assert running.exit.headers["x-odd"] == "A"
    assert not running.exit.truncated
    assert server.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert server.requests[0].endswith(b'{"a":1}')
    log = tmp_path / "output.log"
    assert log.read_bytes() == b"hello"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert running.log_bytes == 5
    assert (tmp_path / "output.idx").read_text().split()[1:] == ["h", "5", "5"]


async def test_refusal_by_status_is_a_response_with_headers_and_body(tmp_path: Path) -> None:
    handler = answering(
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 30\r\nContent-Length: 4\r\n\r\nslow"
    )
    async with serving(handler) as server, transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        assert await body_of(running) == b"slow"
    assert isinstance(running.exit, HttpResponse)
    assert running.exit.status == 429
    assert running.exit.headers["retry-after"] == "30"


async def test_redirect_is_not_followed(tmp_path: Path) -> None:
    handler = answering(
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    )
    async with serving(handler) as server, transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        assert await body_of(running) == b""
    assert isinstance(running.exit, HttpResponse)
    assert running.exit.status == 302
    assert len(server.requests) == 1


async def test_refused_connection_is_no_answer_with_the_library_s_name(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with transporting() as transport:
        call = HttpRequest(method="GET", url=f"http://127.0.0.1:{port}/")
        running = await start(transport, tmp_path, call)
        assert await body_of(running) == b""
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.exception == "ConnectError"
    assert running.exit.text
    assert running.exit.gone


@pytest.mark.parametrize("host", ["api..example", f"{'a' * 70}.example"])
async def test_a_name_that_no_host_can_have_is_refused_as_a_connection_is(
    tmp_path: Path, host: str
) -> None:
    async with transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=f"http://{host}/"))
        await body_of(running)
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.exception == "ConnectError"


async def test_reset_before_an_answer_is_no_answer(tmp_path: Path) -> None:
    async with serving(reset) as server, transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        await body_of(running)
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.exception in {"ReadError", "RemoteProtocolError"}
    assert len(server.requests) == 1  # and it was not sent again


async def test_silence_after_the_request_is_a_read_timeout(tmp_path: Path) -> None:
    async with serving(hang) as server, transporting() as transport:
        call = HttpRequest(method="GET", url=server.url, read_timeout_s=0.05)
        running = await start(transport, tmp_path, call)
        await body_of(running)
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.exception == "ReadTimeout"


async def test_malformed_url_is_no_answer(tmp_path: Path) -> None:
    async with transporting() as transport:
        call = HttpRequest(method="GET", url="http://[::1/")
        running = await start(transport, tmp_path, call)
        await body_of(running)
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.exception == "InvalidURL"


async def test_stop_ends_a_request_that_hangs(tmp_path: Path) -> None:
    async with serving(hang) as server, transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(body_of, running)
                await server.arrived.wait()
                running.stop(grace_s=5.0)
                running.stop(grace_s=5.0)
            await server.left.wait()
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.stopped
    assert running.exit.gone


async def test_stop_before_the_first_step_sends_nothing(tmp_path: Path) -> None:
    async with serving(hang) as server, transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        running.stop(grace_s=5.0)
        await body_of(running)
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.stopped
    assert server.requests == []


async def test_slow_stream_is_handed_on_piece_by_piece_and_stops(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none \r\n")
        await writer.drain()
        await until_the_other_side_leaves(reader)

    async with serving(handle) as server, transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        pieces: list[Chunk] = []
        with anyio.fail_after(LIMIT_S):
            async for chunk in running.chunks():
                pieces.append(chunk)
                running.stop(grace_s=5.0)
            await server.left.wait()
    assert [(piece.stream, piece.data) for piece in pieces] == [("http", b"one ")]
    assert isinstance(running.exit, HttpResponse)
    assert running.exit.stopped
    assert running.exit.truncated


async def test_body_that_ends_before_its_length_is_truncated(tmp_path: Path) -> None:
    handler = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf")
    async with serving(handler) as server, transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        assert await body_of(running) == b"half"
    assert isinstance(running.exit, HttpResponse)
    assert running.exit.truncated
    assert not running.exit.stopped


async def test_body_longer_than_its_bound_is_cut_there(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789")
        await writer.drain()
        await until_the_other_side_leaves(reader)

    async with serving(handle) as server, transporting() as transport:
        call = HttpRequest(method="GET", url=server.url, max_bytes=4)
        running = await start(transport, tmp_path, call)
        assert await body_of(running) == b"0123"
        with anyio.fail_after(LIMIT_S):
            await server.left.wait()
    assert isinstance(running.exit, HttpResponse)
    assert running.exit.truncated


async def test_many_stopped_requests_leave_room_for_the_next(tmp_path: Path) -> None:
    async with serving(hang) as server, transporting() as transport:
        for _ in range(120):
            server.arrived.clear()
            running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
            with anyio.fail_after(LIMIT_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(body_of, running)
                    await server.arrived.wait()
                    running.stop(grace_s=1.0)
        server.handler = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        assert await body_of(running) == b"ok"
    assert len(server.requests) == 121


async def test_cancelled_caller_frees_the_connection(tmp_path: Path) -> None:
    async with serving(hang) as server, transporting() as transport:
        running = await start(transport, tmp_path, HttpRequest(method="GET", url=server.url))
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(body_of, running)
                await server.arrived.wait()
                tasks.cancel_scope.cancel()
            await server.left.wait()
    assert isinstance(running.exit, NoAnswer)


async def test_proxy_of_the_environment_is_used_except_for_its_exceptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nproxy")
    direct = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ndirect")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with serving(handler) as proxy, serving(direct) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        async with transporting() as transport:
            call = HttpRequest(method="GET", url="http://models.example/v1")
            assert await body_of(await start(transport, tmp_path, call)) == b"proxy"
            call = HttpRequest(method="GET", url=server.url)
            assert await body_of(await start(transport, tmp_path, call)) == b"direct"
    assert proxy.requests[0].startswith(b"GET http://models.example/v1 HTTP/1.1\r\n")


async def test_secret_header_reaches_the_server_and_no_text(tmp_path: Path) -> None:
    handler = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    environ = {"MY_KEY": "sk-very-secret\n"}
    async with serving(handler) as server, transporting(environ) as transport:
        call = HttpRequest(
            method="GET",
            url=server.url,
            secret_headers={"Authorization": "Bearer {MY_KEY}", "X-Other": "{NOT_SET}"},
        )
        running = await start(transport, tmp_path, call)
        await body_of(running)
    assert b"Authorization: Bearer sk-very-secret\r\n" in server.requests[0]
    assert b"x-other" not in server.requests[0].lower()
    assert "sk-very-secret" not in repr(running) + repr(call) + repr(running.exit)


async def test_header_that_http_forbids_is_not_quoted(tmp_path: Path) -> None:
    environ = {"MY_KEY": "sk-very\nsecret"}
    async with serving(hang) as server, transporting(environ) as transport:
        call = HttpRequest(method="GET", url=server.url, secret_headers={"X-Key": "{MY_KEY}"})
        running = await start(transport, tmp_path, call)
        await body_of(running)
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.exception == "LocalProtocolError"
    assert "secret" not in running.exit.text


def test_header_without_its_variable_is_left_out() -> None:
    templates = {"A": "Bearer {KEY}", "B": "fixed", "C": "{EMPTY}"}
    assert resolve_secrets(templates, {"KEY": "k", "EMPTY": " "}) == {"A": "Bearer k", "B": "fixed"}


async def test_another_kind_of_call_is_a_wiring_error(tmp_path: Path) -> None:
    async with transporting() as transport:
        with pytest.raises(TypeError, match=r"d1\.1"):
            await transport.open(
                CommandLine(argv=("x",), cwd="/"), attempt="d1.1", directory=str(tmp_path), env={}
            )


def test_log_keeps_its_bound_and_says_so(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), max_bytes=6)
    for data in (b"1234", b"5678", b"9"):
        log.write(Chunk("http", data, 1.0))
    log.close()
    kept = (tmp_path / "output.log").read_bytes()
    assert kept == b"123456\n[fallbackd: the rest was not kept]\n"
    assert log.size_bytes == len(kept)
