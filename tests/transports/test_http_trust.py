"""Certificates, keys and cookies of HTTP backends: whom a request trusts, and what goes along."""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.http_backends import KEY, SECRET, Asked, ask
from tests.support.loopback import listening
from tests.support.provider import provider
from tests.support.provider_frames import TEXT

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import CredentialRef, HttpResponse, NotStarted, Reply, Work
from fallbackd.transports.http.transport import HttpTransport

DATA = Path(__file__).parent / "data" / "tls"
SERVER, CLIENT, LOCKED = (str(DATA / name) for name in ("server.pem", "client.pem", "locked.key"))


@asynccontextmanager
async def behind_tls(port: int, *, wants_client: bool = False) -> AsyncIterator[str]:
    """A TLS end in front of a plain server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(SERVER)
    if wants_client:
        context.load_verify_locations(CLIENT)
        context.verify_mode = ssl.CERT_REQUIRED

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pass_on(reader, back_writer), pass_on(back_reader, writer))
        finally:
            back_writer.close()

    async with listening(serve, tls=context) as own_port:
        yield f"https://127.0.0.1:{own_port}"


async def asked(place: Path, *, wants_client: bool = False, **options: Any) -> Asked:
    async with provider() as p, behind_tls(p.port, wants_client=wants_client) as url:
        return await ask(p, place, base_url=f"{url}/api/v1", **options)


async def test_a_certificate_that_nobody_vouches_for_is_a_tls_failure(tmp_path: Path) -> None:
    found = await asked(tmp_path)
    assert found.failure.reason == "tls"
    assert "certificate" in found.failure.evidence.lower()


async def test_a_named_certificate_is_trusted(tmp_path: Path) -> None:
    assert (await asked(tmp_path, tls_ca_file=SERVER)).answer == TEXT


async def test_checks_that_are_switched_off_are_off(tmp_path: Path) -> None:
    assert (await asked(tmp_path, tls_verify=False)).answer == TEXT


async def test_our_own_certificate_is_shown_where_it_is_configured(tmp_path: Path) -> None:
    found = await asked(tmp_path, wants_client=True, tls_ca_file=SERVER, tls_client_cert=CLIENT)
    assert found.answer == TEXT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls_ca_file": "/nowhere/ca.pem"}, "tls_ca_file /nowhere/ca.pem: No such file"),
        ({"tls_ca_file": os.devnull}, f"tls_ca_file {os.devnull}: no certificates"),
        ({"tls_client_cert": SERVER, "tls_client_key": CLIENT}, "no certificate with its key"),
        ({"tls_client_cert": CLIENT, "tls_client_key": LOCKED}, "without a password"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named(
    options: dict[str, str], words: str, tmp_path: Path
) -> None:
    async with provider() as p:
        found = await ask(p, tmp_path, **options)
        assert p.calls("api") == []
    assert found.failure.reason == "not_configured"
    assert found.failure.detail == "tls_files"
    assert words in found.failure.evidence


async def test_tls_spoken_to_a_server_that_has_none_is_a_tls_failure(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    async with listening(answer) as port, provider() as p:
        found = await ask(p, tmp_path, base_url=f"https://127.0.0.1:{port}/v1")
    assert found.failure.reason == "tls"


async def test_a_file_without_a_secret_sends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("\n")
    path.chmod(0o600)
    async with provider() as p:
        ref = CredentialRef(label="file", source="file", name=str(path))
        found = await ask(p, tmp_path, work={"credential": ref})
        assert p.calls("api") == []
    assert isinstance(found.exit, NotStarted)
    assert found.exit.error == "NO_SECRET"


async def test_a_file_whose_secret_is_over_sends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "login.json"
    path.write_text('{"access_token": "sk-old", "expires_at": 1000}')
    path.chmod(0o600)
    async with provider() as p:
        ref = CredentialRef(label="cli", source="file", name=str(path), field="access_token")
        found = await ask(p, tmp_path, work={"credential": ref})
        assert p.calls("api") == []
    assert isinstance(found.exit, NotStarted)
    assert found.exit.error == "OLD_SECRET"
    assert "sk-old" not in found.exit.text


async def test_a_secret_is_in_no_file_of_the_attempt(tmp_path: Path) -> None:
    async with provider() as p:
        p.behave("api", "401")
        found = await ask(p, tmp_path)
    assert isinstance(found.exit, HttpResponse)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {"http.json", "exit.json", "output.log", "output.idx"} <= kept.keys()
    assert all(SECRET.encode() not in data for data in kept.values())
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


async def test_a_key_that_belongs_into_the_body_is_put_there_when_it_is_sent(
    tmp_path: Path,
) -> None:
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        bodies.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npong")

    kind = KINDS["hermes-api"]
    async with listening(serve) as port:
        options = Options(base_url=f"http://127.0.0.1:{port}/api/chat")
        work = Work(prompt="hi", prompt_path="/p", cwd="/c", scratch="/s", credential=KEY)
        call = kind.start(work, options)
        transport = HttpTransport(clock=ManualClock(), environ={"MY_KEY": SECRET})
        running = await transport.open(call, attempt="d1.1", directory=str(tmp_path), env={})
        parser = kind.parser(options)
        async for chunk in running.chunks():
            parser.feed(chunk)
        await transport.aclose()
    assert parser.finish(running.exit) == Reply(text="pong")
    assert [json.loads(body) for body in bodies] == [
        {"message": "hi", "source": "fallbackd", "key": SECRET}
    ]
    assert SECRET not in repr(call) + repr(running)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "no-address"])
async def test_a_server_on_loopback_is_asked_past_every_proxy(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, address)
    async with provider() as p:
        found = await ask(p, tmp_path)
    assert found.answer == TEXT


async def test_a_proxy_that_cannot_be_used_is_a_matter_of_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "ftp://127.0.0.1:9")
    async with provider() as p:
        found = await ask(p, tmp_path, base_url="http://models.example/v1", insecure_http=True)
    assert (found.failure.reason, found.failure.detail) == ("not_configured", "proxy")


async def test_a_header_that_http_cannot_carry_is_a_matter_of_configuration(
    tmp_path: Path,
) -> None:
    async with provider() as p:
        found = await ask(p, tmp_path, headers={"X-Team": "größe\n"})
    assert (found.failure.reason, found.failure.detail) == ("not_configured", "header")
