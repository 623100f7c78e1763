"""The way of a request: kept connections that close, proxies that refuse, keys that come back."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.http_backends import SECRET, ask
from tests.support.loopback import listening

from fallbackd.core.protocol import Exit, HttpRequest, HttpResponse, NoAnswer
from fallbackd.transports.http import clients
from fallbackd.transports.http.transport import HttpTransport

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@asynccontextmanager
async def transporting() -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(clock=ManualClock(), environ={"MY_KEY": SECRET})
    try:
        yield transport
    finally:
        await transport.aclose()


async def end_of(transport: HttpTransport, place: Path, call: HttpRequest) -> Exit:
    running = await transport.open(call, attempt="d1.1", directory=str(place), env={})
    async for _ in running.chunks():
        pass
    return running.exit


# --- kept connections ----------------------------------------------------------------------------


class Closing:
    """A server that answers so many requests of each connection, then closes at the next one."""

    def __init__(self, *answered: int, last: bytes = b"") -> None:
        self._answered = list(answered)
        self._last = last
        """What it says before it closes."""
        self.heads: list[tuple[int, bytes]] = []
        """(number of the connection, head of the request)"""
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        answered = self._answered[min(number, len(self._answered) - 1)]
        for request in range(answered + 1):
            self.heads.append((number, await reader.readuntil(b"\r\n\r\n")))
            writer.write(OK if request < answered else self._last)
            await writer.drain()


async def test_a_request_that_meets_a_closing_connection_leaves_over_a_new_one(
    tmp_path: Path,
) -> None:
    server = Closing(1, 1)
    async with listening(server.serve) as port, transporting() as transport:
        call = HttpRequest(method="POST", url=f"http://127.0.0.1:{port}/", body=b"")
        for _ in range(2):
            assert isinstance(await end_of(transport, tmp_path, call), HttpResponse)
    assert [number for number, _ in server.heads] == [0, 0, 1]


async def test_it_is_sent_again_once(tmp_path: Path) -> None:
    server = Closing(1, 0)
    async with listening(server.serve) as port, transporting() as transport:
        call = HttpRequest(method="POST", url=f"http://127.0.0.1:{port}/", body=b"")
        assert isinstance(await end_of(transport, tmp_path, call), HttpResponse)
        assert isinstance(await end_of(transport, tmp_path, call), NoAnswer)
    assert [number for number, _ in server.heads] == [0, 0, 1]


async def test_a_new_connection_that_closes_is_the_server_s_own_failure(tmp_path: Path) -> None:
    server = Closing(0)
    async with listening(server.serve) as port, transporting() as transport:
        call = HttpRequest(method="POST", url=f"http://127.0.0.1:{port}/", body=b"")
        assert isinstance(await end_of(transport, tmp_path, call), NoAnswer)
    assert len(server.heads) == 1


async def test_what_began_to_answer_is_not_asked_again(tmp_path: Path) -> None:
    server = Closing(1, last=b"this is not HTTP\r\n\r\n")
    async with listening(server.serve) as port, transporting() as transport:
        call = HttpRequest(method="POST", url=f"http://127.0.0.1:{port}/", body=b"")
        assert isinstance(await end_of(transport, tmp_path, call), HttpResponse)
        assert isinstance(await end_of(transport, tmp_path, call), NoAnswer)
    assert [number for number, _ in server.heads] == [0, 0]


# --- proxies -------------------------------------------------------------------------------------


@asynccontextmanager
async def behind_a_proxy(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Yields its place; an empty answer: nothing listens there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with listening(serve) as port:
        place = f"127.0.0.1:{port if answer else 9}"
        for name in PROXIES:
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://user:secret@{place}")
        yield place


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (b"", "proxy"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", "proxy_login"),
    ],
)
async def test_what_fails_at_a_proxy_is_not_about_the_provider(
    scheme: str, answer: bytes, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_a_proxy(answer, monkeypatch) as place:
        found = await ask(
            None, tmp_path, base_url=f"{scheme}://models.example/v1", insecure_http=True
        )
    failure = found.failure
    assert (failure.reason, failure.detail) == ("local_network", detail)
    assert not failure.marks_health
    if detail == "proxy" or scheme == "https":
        assert place in failure.evidence
        assert "HTTPS_PROXY" in failure.evidence
        assert "secret" not in failure.evidence


async def test_a_proxy_that_forbids_a_host_has_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
    async with behind_a_proxy(answer, monkeypatch):
        found = await ask(None, tmp_path, base_url="https://models.example/v1")
    assert (found.failure.reason, found.failure.detail) == ("local_network", "proxy")
    assert "models.example" in found.failure.evidence


async def test_a_provider_that_a_proxy_cannot_reach_is_the_provider_s_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"
    async with behind_a_proxy(answer, monkeypatch):
        found = await ask(None, tmp_path, base_url="https://models.example/v1")
    assert found.failure.reason in ("network", "server_error")
    assert found.failure.marks_health


# --- keys that come back -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_a_key_that_is_echoed_is_kept_nowhere(size: int, tmp_path: Path) -> None:
    encoded = base64.b64encode(f"user:{SECRET}".encode())
    said = b'{"error": {"message": "bad key ' + SECRET.encode() + b'", "login": "%s"}}' % encoded
    head = f"HTTP/1.1 401 X\r\nx-key: {SECRET}\r\nx-login: Bearer {SECRET}\r\nx-other: kept\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(said), size):
            piece = said[start : start + size]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with listening(serve) as port:
        found = await ask(None, tmp_path, base_url=f"http://127.0.0.1:{port}/v1")
    assert isinstance(found.exit, HttpResponse)
    assert found.exit.headers["x-other"] == "kept"
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {"exit.json", "http.json", "output.log"} <= kept.keys()
    for name, data in kept.items():
        assert SECRET.encode() not in data, name
        assert encoded[8:-4] not in data, name
    assert len(kept["output.log"]) == len(said)  # offsets hold
    assert SECRET not in f"{found.outcome!r}{found.exit!r}{found.failure!r}"
    assert found.failure.reason == "auth"


@pytest.mark.parametrize("socks", ["socks5://127.0.0.1:9", "socks5h://u:secret@127.0.0.1:9"])
async def test_a_socks_proxy_gives_way_to_one_that_can_be_used_and_is_named_else(
    socks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "find_spec", lambda _: None)
    answer = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
    async with behind_a_proxy(answer, monkeypatch):
        monkeypatch.setenv("ALL_PROXY", socks)
        found = await ask(None, tmp_path, base_url="https://models.example/v1")
        assert "403" in found.failure.evidence
        assert clients.socks_trouble() is None
        monkeypatch.delenv("HTTPS_PROXY")
        found = await ask(None, tmp_path, base_url="https://models.example/v1")
        assert (found.failure.reason, found.failure.detail) == ("local_network", "proxy")
        for word in ("SOCKS", "HTTPS_PROXY", "pipx inject fallbackd socksio"):
            assert word in found.failure.evidence
            assert word in (clients.socks_trouble() or "")
        assert "secret" not in found.failure.evidence
