"""Answers in a coding that the gateway does not look into."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from msgspec import Struct
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.gateway import free_port, listening
from tests.support.loopback import listening as serving

CONFIG = """
[gateway]
enabled = true
port = {at}
[backends.one]
kind = "{kind}"
base_url = "http://127.0.0.1:{port}"
model = "m"
cost = "local"
[backends.two]
kind = "anthropic-http"
base_url = "http://127.0.0.1:9"
model = "m"
[chains]
team = [{{ backend = "one", translate = true }}]
"""
SEALED = bytes(range(256)) * 20
BODY = {"model": "team", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}


class Sealing(Struct):
    """A provider whose answers cannot be read."""

    status: str = "200 OK"
    is_cut: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = head.partition(b"content-length:")[2].split(b"\r\n")[0]
        await reader.readexactly(int(size))
        writer.write(f"HTTP/1.1 {self.status}\r\ncontent-encoding: br\r\n".encode())
        writer.write(b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(SEALED), SEALED))
        if not self.is_cut:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def gateway(
    place: Path, sealing: Sealing, *, kind: str = "anthropic-http"
) -> AsyncIterator[tuple[Daemon, httpx2.AsyncClient]]:
    async with serving(sealing.serve) as port:
        at = free_port()
        config = CONFIG.format(at=at, port=port, kind=kind)
        async with running(place, config) as daemon:
            await listening(at)
            token = (Path(daemon.state_dir) / "gateway.token").read_text().strip()
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{at}",
                headers={"x-api-key": token},
                timeout=HANG_S,
                trust_env=False,
            ) as client:
                yield daemon, client


async def read_into(
    got: bytearray, client: httpx2.AsyncClient, *, stream: bool = True
) -> httpx2.Response:
    async with client.stream("POST", "/v1/messages", json={**BODY, "stream": stream}) as answer:
        async for piece in answer.aiter_raw():
            got += piece
        return answer


async def state_of(daemon: Daemon) -> str:
    found = await daemon.client.call("health", {"action": "list"})
    return str(found["health"]["one"]["state"])


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_cannot_be_looked_into_goes_back_with_its_coding(
    tmp_path: Path, *, stream: bool
) -> None:
    sealing = Sealing()
    async with gateway(tmp_path, sealing) as (daemon, client):
        got = bytearray()
        answer = await read_into(got, client, stream=stream)
        assert (answer.status_code, answer.headers["content-encoding"]) == (200, "br")
        assert got == SEALED
        assert await state_of(daemon) == "healthy"
        sealing.status = "404 Not Found"
        answer = await read_into(got, client, stream=stream)
        assert (answer.status_code, answer.headers["content-encoding"]) == (404, "br")
        assert got == SEALED * 2


async def test_one_that_is_cut_is_no_whole_answer_and_nothing_is_put_behind_it(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, Sealing(is_cut=True)) as (daemon, client):
        got = bytearray()
        with pytest.raises(httpx2.RemoteProtocolError):
            await read_into(got, client)
        assert got == SEALED
        assert await state_of(daemon) != "healthy"


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
async def test_one_that_is_to_be_translated_is_an_error_in_plain_words(
    tmp_path: Path, status: str
) -> None:
    async with gateway(tmp_path, Sealing(status=status), kind="openai-http") as (_, client):
        answer = await client.post("/v1/messages", json=BODY)
        assert answer.status_code == {"200 OK": 503, "404 Not Found": 404}[status]
        assert "content-encoding" not in answer.headers
        assert answer.json()["error"]["message"]
