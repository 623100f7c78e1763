"""HTTP backends in an engine: signs of life, limits, an engine that comes after another."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.clock import ManualClock
from tests.support.provider import Provider, provider
from tests.support.provider_frames import INPUT_TOKENS, OUTPUT_TOKENS, TEXT
from tests.support.running_engine import (
    Agent,
    Ear,
    agent,
    ended,
    engine_in,
    settings,
    state_of,
    tried,
    until,
    work,
)

from fallbackd.core.policy import Price
from fallbackd.core.records import Delegation
from fallbackd.engine import feedback
from fallbackd.engine.api import Engine
from fallbackd.engine.environment import Settings
from fallbackd.engine.requests import NewWork
from fallbackd.transports.http.transport import HttpTransport


def api(
    p: Provider, name: str, kind: str = "openai-http", *, mode: str | None = None, **more: Any
) -> Agent:
    suffix = "" if kind == "anthropic-http" else "/v1"
    options = {"base_url": p.url(name) + suffix, "model": "m1", "api_mode": mode}
    return agent(name, kind=kind, options=options, provider=f"{name}.example", **more)


@asynccontextmanager
async def engine_for(place: Path, config: Settings, **more: Any) -> AsyncIterator[Engine]:
    clock = more.setdefault("clock", ManualClock())
    transport = HttpTransport(clock=clock, environ={})
    async with engine_in(place, config, transport=transport, **more) as engine:
        yield engine
    await transport.detach()


def answer_of(engine: Engine, found: Delegation) -> str:
    return (engine.world.runs_root / found.delegation / "answer").read_text()


async def begun(engine: Engine, p: Provider, *, words: bytes) -> Delegation:
    """Delegate to `a`, and wait until these words of its answer are on record."""
    found = await engine.delegate(NewWork(prompt="x", backend="a"))
    await said(engine, p, found, words=words)
    return found


async def said(
    engine: Engine, p: Provider, found: Delegation, *, words: bytes, attempt: int = 1
) -> None:
    """Wait until this attempt has these words of its answer on record."""
    await p.called("a", attempt)
    log = engine.world.runs_root / found.delegation / str(attempt) / "output.log"
    await until(lambda: log.exists() and words in log.read_bytes())


async def test_a_stream_is_a_sign_of_life_an_answer_and_usage(tmp_path: Path) -> None:
    async with provider() as p, engine_for(tmp_path, settings(api(p, "a"))) as engine:
        ear = Ear(engine)
        found = await work(engine, backend="a")
        assert found.state == "succeeded"
        assert found.attempts[0].answered_at is not None
        assert found.attempts[0].effects == "none"
        assert answer_of(engine, found) == TEXT
        usage = found.usage
        assert (usage.input_tokens, usage.output_tokens) == (INPUT_TOKENS, OUTPUT_TOKENS)
        assert any(one.offset > 0 for one in ear.progress)


async def test_the_prices_of_the_configuration_say_what_a_delegation_cost(tmp_path: Path) -> None:
    async with provider() as p:
        config = settings(api(p, "a", model="m1"))
        prices = {"m1": Price(input=2, output=10)}
        config = structs.replace(config, policy=structs.replace(config.policy, prices=prices))
        async with engine_for(tmp_path, config) as engine:
            found = await work(engine, backend="a")
            cost = (2 * INPUT_TOKENS + 10 * OUTPUT_TOKENS) / 1e6
            assert found.usage.cost_usd == pytest.approx(cost)


async def test_an_error_in_mid_stream_goes_to_the_next_backend_and_keeps_no_half(
    tmp_path: Path,
) -> None:
    async with provider() as p:
        p.behave("a", "error_mid")
        config = settings(api(p, "a", kind="anthropic-http"), api(p, "b"))
        async with engine_for(tmp_path, config) as engine:
            found = await work(engine, backend="a")
            assert tried(found)[-1] == ("b", None)
            assert answer_of(engine, found) == TEXT
            assert state_of(engine, "b") == "healthy"


async def test_comments_without_an_answer_end_at_the_limit_for_the_first_one(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with provider() as p:
        p.behave("a", "pings")
        async with engine_for(tmp_path, settings(api(p, "a"), api(p, "b")), clock=clock) as engine:
            found = await begun(engine, p, words=b"PROCESSING")
            clock.advance(301)
            await engine.look_at_clock()
            done = await ended(engine, found)
            assert tried(done) == [("a", "stalled"), ("b", None)]
            first = done.attempts[0].failure
            assert first is not None
            assert first.detail == "first_answer"


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("openai-http", "chat_completions"),
        ("openai-http", "responses"),
        ("anthropic-http", None),
        ("google-http", "generate_content"),
    ],
)
async def test_pings_after_half_an_answer_do_not_hold_off_the_limit_for_silence(
    kind: str, mode: str | None, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with provider() as p:
        p.behave("a", "pings_mid")
        config = settings(api(p, "a", kind=kind, mode=mode, stall_s=5.0), api(p, "b"))
        async with engine_for(tmp_path, config, clock=clock) as engine:
            found = await begun(engine, p, words=b"PONG-OK")
            log = engine.world.runs_root / found.delegation / "1" / "output.log"
            size = log.stat().st_size
            for _ in range(3):
                clock.advance(2.5)
                await engine.look_at_clock()
                size += 100  # some more pings
                await until(lambda least=size: log.stat().st_size > least or p.calls("b"))
            done = await ended(engine, found)
            assert tried(done) == [("a", "stalled"), ("b", None)]
            first = done.attempts[0].failure
            assert first is not None
            assert first.detail == "silent"


@pytest.mark.parametrize("name", ["damaged_json", "damaged_words", "damaged_error", "done_early"])
async def test_an_answer_with_a_damaged_piece_goes_to_the_next_backend(
    name: str, tmp_path: Path
) -> None:
    async with provider() as p:
        p.behave("a", name)
        async with engine_for(tmp_path, settings(api(p, "a"), api(p, "b"))) as engine:
            found = await work(engine, backend="a")
            assert tried(found)[-1] == ("b", None)
            assert answer_of(engine, found) == TEXT


async def test_a_stream_that_never_ends_is_over_after_the_limit_for_the_whole(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with provider() as p:
        p.behave("a", "drip")
        config = settings(api(p, "a", timeout_s=100.0), api(p, "b"))
        async with engine_for(tmp_path, config, clock=clock) as engine:
            found = await begun(engine, p, words=b"PONG-OK")
            clock.advance(101)
            await engine.look_at_clock()
            done = await ended(engine, found)
            assert tried(done) == [("a", "stalled"), ("b", None)]
            first = done.attempts[0].failure
            assert first is not None
            assert first.detail == "total"


async def test_a_request_that_was_lost_with_its_daemon_is_made_once_more_and_marks_nobody(
    tmp_path: Path,
) -> None:
    async with provider() as p:
        p.behave("a", "hang_mid", "ok")
        config = settings(api(p, "a"), api(p, "b"))
        async with engine_for(tmp_path, config, store="sqlite") as engine:
            found = await begun(engine, p, words=b"PONG-OK")
        async with engine_for(tmp_path, config, store="sqlite") as engine:
            done = await ended(engine, found)
            assert done.served_by == "a"
            assert answer_of(engine, done) == TEXT
            assert state_of(engine, "a") == "healthy"
        assert len(p.calls("a")) == 2
        assert p.calls("b") == []


async def test_a_proxy_that_is_not_there_marks_no_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "no_proxy", "NO_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    far = {"base_url": "http://models.example/v1", "model": "m1"}
    config = settings(
        agent("a", kind="openai-http", options=far, provider="models.example"),
        agent("b", kind="openai-http", options=far, provider="other.example"),
    )
    async with engine_for(tmp_path, config) as engine:
        found = await work(engine, backend="a")
        assert tried(found) == [("a", "local_network")]
        assert found.state == "refused"
        failure = found.attempts[0].failure
        assert failure is not None
        assert failure.detail == "proxy"
        assert "127.0.0.1:9" in failure.evidence
        assert (state_of(engine, "a"), state_of(engine, "b")) == ("healthy", "healthy")


@pytest.mark.parametrize("times", [2, 4])
async def test_a_request_that_is_lost_again_and_again_is_made_until_it_is_answered(
    times: int, tmp_path: Path
) -> None:
    async with provider() as p:
        p.behave("a", *["hang_mid"] * times, "ok")
        config = settings(api(p, "a"))
        async with engine_for(tmp_path, config, store="sqlite") as engine:
            found = await begun(engine, p, words=b"PONG-OK")
        for number in range(2, times + 1):
            clock = ManualClock()
            clock.advance(100.0 * number)
            async with engine_for(tmp_path, config, store="sqlite", clock=clock) as engine:
                await said(engine, p, found, words=b"PONG-OK", attempt=number)
        async with engine_for(tmp_path, config, store="sqlite", clock=clock) as engine:
            clock.advance(100.0)
            await engine.look_at_clock()
            done = await ended(engine, found)
            assert done.served_by == "a"
            assert answer_of(engine, done) == TEXT
            assert state_of(engine, "a") == "healthy"
        assert len(p.calls("a")) == times + 1


async def test_a_trial_that_is_lost_with_its_daemon_is_made_again(tmp_path: Path) -> None:
    clock = ManualClock()
    async with provider() as p:
        p.behave("a", "hang_mid", "ok")
        config = settings(api(p, "a"))
        async with engine_for(tmp_path, config, store="sqlite", clock=clock) as engine:
            await feedback.mark(engine, "a", reason="overloaded", ttl_s=1.0, note=None)
            clock.advance(2.0)
            found = await begun(engine, p, words=b"PONG-OK")
            assert (await engine.delegation(found.delegation)).attempts[0].trial
        clock.advance(10.0)
        async with engine_for(tmp_path, config, store="sqlite", clock=clock) as engine:
            done = await ended(engine, found)
            assert done.served_by == "a"


async def test_an_answer_that_came_before_the_end_of_its_daemon_is_not_asked_for_again(
    tmp_path: Path,
) -> None:
    async with provider() as p:
        p.behave("a", "hang_mid")
        config = settings(api(p, "a"), api(p, "b"))
        async with engine_for(tmp_path, config, store="sqlite") as engine:
            found = await begun(engine, p, words=b"PONG-OK")
        # The rest and the record of the end, as of a daemon that died just behind them.
        place = tmp_path / "runs" / found.delegation / "1"
        rest = b'data: {"choices":[{"delta":{"content":"!"},"finish_reason":"stop"}]}\n\n'
        with (place / "output.log").open("ab") as log, (place / "output.idx").open("ab") as index:
            log.write(rest)
            index.write(b"%.6f h %d %d\n" % (0.0, len(rest), log.tell()))
            size = log.tell()
        record = {"exit": {"type": "response", "status": 200, "gone": True}, "log_bytes": size}
        (place / "exit.json").write_text(json.dumps(record))
        async with engine_for(tmp_path, config, store="sqlite") as engine:
            done = await ended(engine, found)
            assert tried(done) == [("a", None)]
            assert answer_of(engine, done).endswith("!")
        assert len(p.calls("a")) == 1


async def test_a_parameter_that_is_refused_is_sent_under_its_other_name_from_then_on(
    tmp_path: Path,
) -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. "
    said += "Use 'max_completion_tokens' instead."
    async with provider() as p:
        p.behave("a", "refuse", message=said, until="max_completion_tokens", then="ok")
        one = api(p, "a", mode="chat_completions")
        one = structs.replace(one, options=structs.replace(one.options, max_output_tokens=77))
        async with engine_for(tmp_path, settings(one, api(p, "b"))) as engine:
            found = [await work(engine, backend="a") for _ in range(2)]
            assert [tried(one) for one in found] == [
                [("a", "format_error"), ("a", None)],
                [("a", None)],
            ]
            failure = found[0].attempts[0].failure
            assert failure is not None
            assert failure.detail == "repairable"
            assert "asked again with: max_tokens as max_completion_tokens" in failure.evidence
            sent = [call.body for call in p.calls("a")]
            assert [one.get("max_completion_tokens") for one in sent] == [None, 77, 77]


async def test_a_refusal_that_its_repair_does_not_end_goes_to_the_next_backend(
    tmp_path: Path,
) -> None:
    said = "Unsupported parameter: 'stream_options' is not supported with this model."
    async with provider() as p:
        p.behave("a", "refuse", message=said)
        config = settings(api(p, "a", mode="chat_completions"), api(p, "b"))
        async with engine_for(tmp_path, config) as engine:
            found = await work(engine, backend="a")
            assert tried(found) == [("a", "format_error"), ("a", "format_error"), ("b", None)]


async def test_a_repair_that_changes_nothing_is_none(tmp_path: Path) -> None:
    said = "Unsupported parameter: 'max_tokens'. Unsupported parameter: 'max_completion_tokens'."
    async with provider() as p:
        p.behave("a", "refuse", message=said)
        one = api(p, "a", mode="chat_completions")
        one = structs.replace(one, options=structs.replace(one.options, max_output_tokens=77))
        async with engine_for(tmp_path, settings(one, api(p, "b"))) as engine:
            assert tried(await work(engine, backend="a")) == [("a", "format_error"), ("b", None)]


async def test_a_repair_without_success_is_not_kept_for_the_next_delegation(
    tmp_path: Path,
) -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported with this model."
    async with provider() as p:
        p.behave("a", "refuse", message=said)
        one = api(p, "a", mode="chat_completions")
        one = structs.replace(one, options=structs.replace(one.options, max_output_tokens=77))
        async with engine_for(tmp_path, settings(one, api(p, "b"))) as engine:
            for _ in range(2):
                found = await work(engine, backend="a")
                assert tried(found)[-1] == ("b", None)
            sent = ["max_tokens" in call.body for call in p.calls("a")]
            assert sent == [True, False, True, False]
