"""HTTP attempts and the end of their daemon: what is recorded counts, all else is lost."""

import json
from pathlib import Path

import anyio
import pytest
from tests.support.clock import ManualClock
from tests.support.provider import Provider, provider
from tests.support.provider_frames import TEXT

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options, Parser
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import (
    DAEMON_LOST,
    Chunk,
    Evidence,
    HttpRequest,
    HttpResponse,
    NoAnswer,
    Reply,
    Work,
)
from fallbackd.ports.transport import Running
from fallbackd.transports.http.transport import HttpTransport

KIND = KINDS["openai-http"]
LIMIT_S = 60.0
"""Only a hang takes this long."""


def request(p: Provider) -> HttpRequest:
    options = Options(base_url=p.url("api") + "/v1", model="m1")
    work = Work(prompt="say pong", prompt_path="/p", cwd="/c", scratch="/s")
    found = KIND.start(work, options)
    assert isinstance(found, HttpRequest)
    return found


def new_transport() -> HttpTransport:
    return HttpTransport(clock=ManualClock(), environ={})


async def opened(transport: HttpTransport, p: Provider, place: Path) -> Running:
    return await transport.open(request(p), attempt="d1.1", directory=str(place), env={})


async def read(running: Running, parser: Parser) -> list[Chunk]:
    found: list[Chunk] = []
    with anyio.fail_after(LIMIT_S):
        async for chunk in running.chunks():
            found.append(chunk)
            parser.feed(chunk)
    return found


async def taken_up(place: Path) -> tuple[Running, list[Chunk], Parser]:
    """By a daemon that comes after."""
    running = await new_transport().attach(attempt="d1.1", directory=str(place))
    assert running is not None
    parser = KIND.parser(Options())
    return running, await read(running, parser), parser


async def test_an_attempt_that_ended_is_judged_by_its_record(tmp_path: Path) -> None:
    async with provider() as p:
        transport = new_transport()
        first = await opened(transport, p, tmp_path)
        chunks = await read(first, KIND.parser(Options()))
        await transport.aclose()
        running, again, parser = await taken_up(tmp_path)
        assert len(p.calls("api")) == 1
    assert again == [Chunk(one.stream, one.data, pytest.approx(one.at, abs=1e-5)) for one in chunks]
    assert running.recorded_bytes == running.log_bytes == sum(len(one.data) for one in chunks)
    assert running.exit == first.exit
    outcome = parser.finish(running.exit)
    assert isinstance(outcome, Reply)
    assert outcome.text == TEXT


async def test_a_refusal_keeps_its_headers_over_the_end_of_the_daemon(tmp_path: Path) -> None:
    async with provider() as p:
        p.behave("api", "429", retry_after_s=40)
        transport = new_transport()
        await read(await opened(transport, p, tmp_path), KIND.parser(Options()))
        await transport.aclose()
    running, _, parser = await taken_up(tmp_path)
    outcome = parser.finish(running.exit)
    assert isinstance(outcome, Evidence)
    failure = classify(outcome, KIND.rules, now=0.0)
    assert failure is not None
    assert (failure.reason, failure.stated_reset_s) == ("rate_limit", 40)


async def test_an_attempt_whose_daemon_let_go_is_lost_and_not_a_failure_of_the_network(
    tmp_path: Path,
) -> None:
    async with provider() as p:
        p.behave("api", "hang_mid")
        transport = new_transport()
        first = await opened(transport, p, tmp_path)
        parser = KIND.parser(Options())
        with anyio.fail_after(LIMIT_S):
            async for chunk in first.chunks():
                parser.feed(chunk)
                if b"PONG" in chunk.data:
                    await transport.detach()
                    first.stop(grace_s=0)
        assert isinstance(first.exit, NoAnswer)
        assert first.exit.exception == DAEMON_LOST
        running, chunks, _ = await taken_up(tmp_path)
        assert len(p.calls("api")) == 1
    assert b"PONG" in b"".join(one.data for one in chunks)
    assert isinstance(running.exit, NoAnswer)
    assert running.exit.exception == DAEMON_LOST
    assert not (tmp_path / "exit.json").exists()


async def test_a_daemon_that_died_before_the_answer_leaves_a_lost_attempt(tmp_path: Path) -> None:
    async with provider() as p:
        transport = new_transport()
        await opened(transport, p, tmp_path)  # and dies before the first step
        await transport.aclose()
        running, chunks, parser = await taken_up(tmp_path)
    assert chunks == []
    assert running.recorded_bytes == 0
    outcome = parser.finish(running.exit)
    assert isinstance(outcome, Evidence)
    assert outcome.exception == DAEMON_LOST


async def test_a_record_that_does_not_fit_its_log_counts_for_nothing(tmp_path: Path) -> None:
    async with provider() as p:
        transport = new_transport()
        await read(await opened(transport, p, tmp_path), KIND.parser(Options()))
        await transport.aclose()
    whole = (tmp_path / "output.log").read_bytes()
    (tmp_path / "output.log").write_bytes(whole[:-10])
    running, _, _ = await taken_up(tmp_path)
    assert isinstance(running.exit, NoAnswer)
    (tmp_path / "output.log").write_bytes(whole)
    running, _, _ = await taken_up(tmp_path)
    assert isinstance(running.exit, HttpResponse)
    (tmp_path / "exit.json").write_bytes(b'{"exit":')
    running, _, _ = await taken_up(tmp_path)
    assert isinstance(running.exit, NoAnswer)


async def test_where_no_request_was_begun_there_is_nothing_to_take_up(tmp_path: Path) -> None:
    assert await new_transport().attach(attempt="d1.1", directory=str(tmp_path)) is None


async def test_a_request_that_cannot_be_recorded_is_not_sent(tmp_path: Path) -> None:
    async with provider() as p:
        transport = new_transport()
        running = await opened(transport, p, tmp_path / "gone")
        assert await read(running, KIND.parser(Options())) == []
        await transport.aclose()
        assert p.calls("api") == []
    assert running.exit.gone


async def test_the_record_names_the_place_without_its_query(tmp_path: Path) -> None:
    async with provider() as p:
        transport = new_transport()
        call = request(p)
        url = f"{call.url}?key=sk-in-a-query"
        call = HttpRequest(method="GET", url=url)
        running = await transport.open(call, attempt="d1.1", directory=str(tmp_path), env={})
        await read(running, KIND.parser(Options()))
        await transport.aclose()
    assert json.loads((tmp_path / "http.json").read_text())["url"] == url.partition("?")[0]
    assert all("sk-in-a-query" not in one.read_text() for one in tmp_path.iterdir())
