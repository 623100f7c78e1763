"""Bodies that are handed on as they arrive, and connections with TLS that are used again."""

import asyncio
import ssl
from pathlib import Path

import anyio
from tests.support.clock import ManualClock
from tests.support.loopback import listening
from tests.transports.test_http_direct import CHUNKED, LIMIT_S, OK, saying, way_to

from fallbackd.core.protocol import HttpRequest, HttpResponse, Tls
from fallbackd.transports.http.transport import HttpTransport

DATA = Path(__file__).parent / "data"
MUCH = 64 * 1024 * 1024


async def test_a_second_request_over_tls_needs_no_second_handshake() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DATA / "tls" / "server.pem")
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await saying(OK, OK)(reader, writer)

    transport = HttpTransport(clock=ManualClock(), environ={})
    async with listening(serve, tls=context) as port:
        for _ in range(2):
            call = HttpRequest(
                method="POST", url=f"https://127.0.0.1:{port}/", body=b"{}", tls=Tls(verify=False)
            )
            passed = await transport.pass_on(call)
            with anyio.fail_after(LIMIT_S):
                head = await passed.head()
                assert head is not None, passed.exit
                assert await passed.read() == b"{}"
                assert await passed.read() is None
            await passed.aclose()
        await transport.aclose()
    assert opened == 1


async def test_a_server_waits_while_its_answer_is_not_taken() -> None:
    """It writes 64 MiB; what the kernel and the pool hold of it is far less."""
    written = 0
    is_stuck = anyio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % MUCH)
        while written < MUCH:
            writer.write(b"x" * 65536)
            written += 65536
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                is_stuck.set()
                await writer.drain()
        await reader.read()

    async with way_to(serve) as way:
        passed = await way.ask()
        with anyio.fail_after(LIMIT_S):
            assert await passed.head() is not None
            await is_stuck.wait()
            assert written < MUCH / 2
            size = 0

            def take(data: bytes) -> bool:
                nonlocal size
                size += len(data)
                return True

            assert await passed.flow(take)
        assert size == MUCH
        assert isinstance(passed.exit, HttpResponse)
        assert not passed.exit.truncated
        await passed.aclose()


async def test_who_wants_no_more_gets_the_rest_when_it_asks_again() -> None:
    async with way_to(saying(CHUNKED + b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")) as way:
        passed = await way.ask()
        found: list[bytes] = []

        def one(data: bytes) -> bool:
            found.append(data)
            return False

        with anyio.fail_after(LIMIT_S):
            assert await passed.head() is not None
            while not await passed.flow(one):
                pass
        assert b"".join(found) == b"ab"
        await passed.aclose()
