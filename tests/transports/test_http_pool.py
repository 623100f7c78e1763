"""Connections of many HTTP attempts: none leaks, none carries what another one was given."""

import asyncio
from pathlib import Path

import anyio
from tests.support.clock import ManualClock
from tests.support.loopback import listening
from tests.support.provider import Provider, provider

from fallbackd.core.protocol import HttpRequest, HttpResponse
from fallbackd.transports.http.transport import HttpTransport

LIMIT_S = 120.0
"""Only a hang takes this long."""
CALLS = 400
AT_ONCE = 40


def request(p: Provider, route: str) -> HttpRequest:
    body = b'{"model":"m1","stream":true,"messages":[]}'
    return HttpRequest(method="POST", url=p.url(route) + "/v1/chat/completions", body=body)


def connections(transport: HttpTransport) -> int:
    """Of all pools. There is no public way to ask the library."""
    clients = transport._line.clients._clients.values()
    others = sum(len(one._transport._pool.connections) for one in clients)  # type: ignore[attr-defined]
    return transport._line.direct.open + others


async def test_400_cancelled_requests_leave_the_pool_whole(tmp_path: Path) -> None:
    """A quarter each: stopped or cancelled, before the head of the answer or in its middle."""
    transport = HttpTransport(clock=ManualClock(), environ={})
    directories = [tmp_path / str(number) for number in range(AT_ONCE)]
    for directory in directories:
        directory.mkdir()
    async with provider() as p:
        p.behave("silent", "hang")
        p.behave("midway", "hang_mid")

        async def leave_one(number: int, first: int) -> None:
            route = "silent" if number % 2 else "midway"
            directory = str(directories[number - first])
            running = await transport.open(
                request(p, route), attempt=f"d{number}.1", directory=directory, env={}
            )
            begun = anyio.Event()

            async def read() -> None:
                async for _ in running.chunks():
                    begun.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                if route == "midway":
                    await begun.wait()
                else:
                    await p.called("silent", first // 2 + 1)
                if number % 4 < 2:
                    running.stop(grace_s=0)
                else:
                    tasks.cancel_scope.cancel()

        with anyio.fail_after(LIMIT_S):
            for first in range(0, CALLS, AT_ONCE):
                async with anyio.create_task_group() as tasks:
                    for number in range(first, first + AT_ONCE):
                        tasks.start_soon(leave_one, number, first)
        assert connections(transport) == 0
        assert len(p.log) > CALLS * 0.7  # some were dropped before the server had read them

        running = await transport.open(
            request(p, "fine"), attempt="d401.1", directory=str(tmp_path), env={}
        )
        body = b"".join([chunk.data async for chunk in running.chunks()])
        assert b"[DONE]" in body
        assert isinstance(running.exit, HttpResponse)
        assert connections(transport) == 1  # kept for the next one
        await transport.aclose()


async def test_a_connection_is_used_again_and_a_cookie_is_not(tmp_path: Path) -> None:
    seen: list[tuple[object, str]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.append((writer, head.decode().lower()))
            writer.write(
                b"HTTP/1.1 200 OK\r\nset-cookie: session=of-the-first-key; Path=/\r\n"
                b"content-length: 2\r\n\r\n{}"
            )
            await writer.drain()

    async with listening(serve) as port:
        transport = HttpTransport(clock=ManualClock(), environ={})
        url = f"http://127.0.0.1:{port}/"
        for _ in range(2):
            running = await transport.open(
                HttpRequest(method="GET", url=url),
                attempt="d1.1",
                directory=str(tmp_path),
                env={},
            )
            assert [chunk.data async for chunk in running.chunks()] == [b"{}"]
            assert isinstance(running.exit, HttpResponse)
            assert "set-cookie" not in running.exit.headers
        await transport.aclose()
    (first, _), (second, head) = seen
    assert first is second
    assert "cookie:" not in head
