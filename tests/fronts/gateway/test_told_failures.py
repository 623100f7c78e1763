"""Where nothing answers: which of the failures the caller is told, and when to come back."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.told import Answers, Gateway, Told, as_json, gateway, told_backend

from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import HttpRequest

ASKED: dict[str, Any] = {
    "model": "team",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}


def error(message: str, status: int, kind: str = "invalid_request_error", **headers: str) -> Told:
    value = {"type": "error", "error": {"type": kind, "message": message}}
    return as_json(value, status, **headers)


def limited(request: HttpRequest) -> Told:
    return error("Number of requests exceeded", 429, "rate_limit_error", retry_after="120")


def overloaded(request: HttpRequest) -> Told:
    return error("Overloaded", 529, "overloaded_error")


def malformed(request: HttpRequest) -> Told:
    return error("Invalid schema for function 'Bash'", 400)


def locked_out(request: HttpRequest) -> Told:
    return error("invalid x-api-key", 401, "authentication_error")


def filtered(request: HttpRequest) -> Told:
    return as_json({"error": {"message": "flagged", "code": "content_filter"}}, 400)


async def ask(g: Gateway) -> tuple[int, int | None]:
    """Status and seconds to wait."""
    answer = await g.client.post("/v1/messages", json=ASKED)
    wait = answer.headers.get("retry-after")
    return answer.status_code, None if wait is None else int(wait)


@pytest.mark.parametrize("translate", [True, False])
@pytest.mark.parametrize("refusal", [malformed, locked_out])
async def test_the_limit_of_the_first_is_told_and_not_what_a_fallback_refuses(
    tmp_path: Path, refusal: Answers, *, translate: bool
) -> None:
    kind = "openai-http" if translate else "anthropic-http"
    backends = told_backend("a", "anthropic-http", labels=("k1",)), told_backend("b", kind)
    team = ("a", Entry(backend=BackendId("b"), translate=translate))
    answers = {"a": limited, "b": refusal}
    async with gateway(tmp_path, *backends, answers=answers, team=team) as g:
        assert await ask(g) == (429, 120)
        # Now the first is passed over, and the fallback alone is asked, where it may be.
        status, wait_s = await ask(g)
        assert status in (429, 503)
        assert wait_s is not None
        assert 60 < wait_s <= 120


async def test_the_refusal_of_the_first_is_told_where_nothing_can_be_waited_for(
    tmp_path: Path,
) -> None:
    backends = told_backend("a", "anthropic-http"), told_backend("b", "openai-http")
    team = ("a", Entry(backend=BackendId("b"), translate=True))
    answers = {"a": locked_out, "b": malformed}
    async with gateway(tmp_path, *backends, answers=answers, team=team) as g:
        assert (await ask(g))[0] == 401


async def test_a_limit_behind_a_refusal_is_told(tmp_path: Path) -> None:
    backends = told_backend("a", "anthropic-http"), told_backend("b", "anthropic-http")
    async with gateway(tmp_path, *backends, answers={"a": malformed, "b": limited}) as g:
        assert await ask(g) == (429, 120)


async def test_of_two_failures_that_pass_the_last_one_is_told(tmp_path: Path) -> None:
    backends = told_backend("a", "anthropic-http"), told_backend("b", "anthropic-http")
    async with gateway(tmp_path, *backends, answers={"a": limited, "b": overloaded}) as g:
        assert (await ask(g))[0] == 529


async def test_a_filter_is_told_whatever_was_limited_before(tmp_path: Path) -> None:
    backends = told_backend("a", "anthropic-http"), told_backend("b", "anthropic-http")
    async with gateway(tmp_path, *backends, answers={"a": limited, "b": filtered}) as g:
        assert [(await ask(g))[0] for _ in range(2)] == [400, 400]
