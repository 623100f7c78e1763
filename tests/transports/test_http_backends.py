"""HTTP backends against a provider that streams, refuses and misbehaves, over real connections."""

from pathlib import Path

import pytest
from tests.support.http_backends import DIALECTS, SECRET, ask
from tests.support.provider import provider
from tests.support.provider_frames import INPUT_TOKENS, OUTPUT_TOKENS, TEXT
from tests.support.provider_misbehaviour import ELSEWHERE

from fallbackd.core.protocol import HttpResponse, NoAnswer, NotStarted, Reply

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@every_dialect
async def test_a_stream_becomes_the_answer_with_its_usage(dialect: str, tmp_path: Path) -> None:
    async with provider() as p:
        found = await ask(p, tmp_path, dialect)
        (call,) = p.calls("api")
    assert found.answer == TEXT
    assert isinstance(found.outcome, Reply)
    assert found.outcome.usage.input_tokens in (INPUT_TOKENS, INPUT_TOKENS + 20)
    assert found.outcome.usage.output_tokens == OUTPUT_TOKENS
    assert found.answers == 1
    assert (call.dialect, call.model, call.credential) == (dialect, "m1", SECRET)
    assert dialect == "google" or call.body["stream"] is True


@every_dialect
async def test_a_model_and_an_effort_of_the_request_go_before_the_configured(
    dialect: str, tmp_path: Path
) -> None:
    async with provider() as p:
        await ask(p, tmp_path, dialect, work={"model": "m2", "effort": "high"}, max_output_tokens=7)
        (call,) = p.calls("api")
    assert call.model == "m2"
    limits = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
    body = call.body.get("generationConfig", call.body)
    assert [body[name] for name in limits if name in body] == [7]


REFUSED = {
    "401": ("auth",),
    "402": ("billing",),
    "404": ("model_not_found",),
    "413": ("payload_too_large",),
    "429": ("rate_limit",),
    "500": ("server_error",),
    "502": ("server_error",),
    "503": ("overloaded",),
    "529": ("overloaded",),
    "context": ("context_overflow",),
    "quota": ("billing",),
    "usage_limit": ("usage_limit",),
}


@every_dialect
@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_is_judged_by_status_headers_and_body(
    dialect: str, name: str, tmp_path: Path
) -> None:
    async with provider() as p:
        p.behave("api", name, retry_after_s=17)
        found = await ask(p, tmp_path, dialect)
    if (name, dialect) == ("503", "anthropic"):
        assert found.failure.reason in ("overloaded", "server_error")
        return
    if (name, dialect) == ("quota", "google"):
        assert found.failure.reason == "usage_limit"  # of a day; money is another answer there
        return
    assert found.failure.reason in REFUSED[name]
    if name == "429":
        assert found.failure.stated_reset_s == 17


BROKEN = {
    "truncated": "network",
    "reset": "network",
    "reset_mid": "network",
    "empty": "empty_result",
    "garbage": "server_error",
    "rate_limit_mid": "rate_limit",
    "cut_short": "format_error",
    "filtered": "content_policy",
    "redirect": "not_configured",
    "html": "not_configured",
    "error_200": "rate_limit",
    "big_header": "network",
    "long_length": "network",
    "short_length": "server_error",
    "damaged_json": "server_error",
    "damaged_page": "server_error",
    "damaged_words": "server_error",
    "damaged_error": "server_error",
    "done_early": "network",
}


@every_dialect
@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_is_none_is_a_clear_failure(
    dialect: str, name: str, tmp_path: Path
) -> None:
    async with provider() as p:
        p.behave("api", name)
        found = await ask(p, tmp_path, dialect)
        assert len(p.calls("api")) == 1  # and it was not sent again
    assert found.failure.reason == BROKEN[name]
    assert found.failure.evidence


@every_dialect
async def test_an_error_inside_of_a_stream_ends_it_at_once(dialect: str, tmp_path: Path) -> None:
    async with provider() as p:
        p.behave("api", "error_mid")
        found = await ask(p, tmp_path, dialect)
    assert found.has_given_up
    assert found.failure.reason in ("server_error", "overloaded")


async def test_a_redirect_names_its_place_and_takes_no_key_there(tmp_path: Path) -> None:
    async with provider() as p:
        p.behave("api", "redirect")
        found = await ask(p, tmp_path)
    assert found.failure.detail == "redirect"
    assert ELSEWHERE in found.failure.evidence
    assert "base_url" in found.failure.evidence


@pytest.mark.parametrize("dialect", [one for one in DIALECTS if one != "google"])
async def test_a_whole_answer_ends_though_the_server_holds_the_line(
    dialect: str, tmp_path: Path
) -> None:
    async with provider() as p:
        p.behave("api", "held")
        found = await ask(p, tmp_path, dialect)
    assert found.answer == TEXT
    assert isinstance(found.exit, HttpResponse)
    assert not found.exit.truncated


@every_dialect
async def test_an_answer_without_an_end_is_cut_at_its_bound_and_is_none(
    dialect: str, tmp_path: Path
) -> None:
    async with provider() as p:
        p.behave("api", "endless")
        found = await ask(p, tmp_path, dialect, call={"max_bytes": 200_000})
    assert found.failure.reason == "network"


@every_dialect
async def test_what_comes_behind_the_end_is_left_out(dialect: str, tmp_path: Path) -> None:
    async with provider() as p:
        p.behave("api", "done_more")
        found = await ask(p, tmp_path, dialect)
    assert found.answer == TEXT


async def test_bytes_without_a_whole_line_are_no_sign_of_life(tmp_path: Path) -> None:
    async with provider() as p:
        p.behave("api", "drip")
        found = await ask(p, tmp_path, stop_after=12)
    assert 0 < len(found.seen) < 12  # those of the events that came before
    assert found.failure.reason == "network"


async def test_comments_are_a_sign_of_life_and_no_answer(tmp_path: Path) -> None:
    async with provider() as p:
        p.behave("api", "pings")
        found = await ask(p, tmp_path, stop_after=3)
    assert len(found.seen) == 3
    assert found.answers == 0


async def test_a_head_that_never_ends_is_stopped_from_outside(tmp_path: Path) -> None:
    """Each byte is in time for the connection: the limits of the attempt have to end it."""
    async with provider() as p:
        p.behave("api", "drip_head")
        found = await ask(p, tmp_path, stop_when=lambda: p.called("api"))
    assert isinstance(found.exit, NoAnswer)
    assert found.exit.stopped
    assert found.seen == ()


async def test_nothing_is_sent_without_the_configured_secret(tmp_path: Path) -> None:
    async with provider() as p:
        found = await ask(p, tmp_path, environ={"OPENAI_API_KEY": "sk-of-another"})
        assert p.calls("api") == []
    assert isinstance(found.exit, NotStarted)
    assert found.exit.error == "NO_SECRET"
    assert "MY_KEY" in found.exit.text


async def test_a_server_of_one_s_own_may_want_no_key(tmp_path: Path) -> None:
    async with provider() as p:
        found = await ask(
            p, tmp_path, work={"credential": None}, environ={"OPENAI_API_KEY": "sk-of-another"}
        )
        (call,) = p.calls("api")
    assert found.answer == TEXT
    assert call.credential == ""


async def test_a_server_that_ignores_the_wish_for_a_stream_is_read_too(tmp_path: Path) -> None:
    async with provider() as p:
        for dialect in DIALECTS:
            found = await ask(p, tmp_path, dialect, call=_unstreamed(dialect))
            assert found.answer == TEXT
            assert isinstance(found.outcome, Reply)
            assert found.outcome.usage.output_tokens == OUTPUT_TOKENS


def _unstreamed(dialect: str) -> dict[str, bytes | str]:
    wish = b'"input":"x"' if dialect == "responses" else b'"messages":[]'
    return {"body": b'{"model":"m1",' + wish + b"}"}
