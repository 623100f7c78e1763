"""Requests that act at their provider, where several failures or several calls meet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.running_engine import Agent, settings
from tests.support.told import Answers, Gateway, Told, as_json, gateway, told_backend

from fallbackd.core.callers.lease import ReportAnswer
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Evidence
from fallbackd.engine import feedback
from fallbackd.fronts.gateway.exchange import CallReport
from fallbackd.fronts.gateway.makers import Makers

KEY = {"idempotency-key": "key-1"}


def error(status: int, message: str = "no", kind: str = "server_error", **headers: str) -> Told:
    return as_json({"error": {"message": message, "type": kind}}, status, **headers)


LIMITED = error(429, "Rate limit reached, try again in 20s", retry_after="20")
LIMIT_IN_A_BODY = as_json(
    {
        "id": "resp_1",
        "object": "response",
        "status": "failed",
        "error": {"code": "rate_limit_exceeded", "message": "Rate limit reached"},
    }
)
DONE = as_json(
    {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "said"}],
            }
        ],
    }
)


def in_turn(*told: Told) -> Answers:
    left: Iterator[Told] = iter(told)
    return lambda _: next(left)


def backends() -> tuple[Agent, ...]:
    return tuple(told_backend(one, options={"api_mode": "responses"}) for one in ("a", "b"))


async def begin(g: Gateway, **headers: str) -> httpx2.Response:
    body: dict[str, Any] = {"model": "team", "input": "do it", "background": True}
    return await g.client.post("/v1/responses", json=body, headers=headers)


def asked(g: Gateway) -> list[str]:
    return [name for name, _ in g.sent]


async def test_a_limit_later_does_not_free_the_key_of_a_request_that_may_have_begun(
    tmp_path: Path,
) -> None:
    answers = {"a": in_turn(error(500), LIMITED), "b": in_turn(DONE)}
    async with gateway(tmp_path, *backends(), answers=answers) as g:
        assert (await begin(g, **KEY)).status_code == 502
        await feedback.clear(g.engine, None)
        assert (await begin(g, **KEY)).status_code == 429
        again = await begin(g, **KEY)
        assert again.status_code == 503, again.text
        assert asked(g) == ["a", "a"]


def test_a_key_that_another_call_has_used_since_is_not_freed() -> None:
    makers = Makers()
    first = makers.bind("key", BackendId("a"), None)
    assert makers.bind("key", BackendId("a"), None) is None
    makers.free("key", first)
    assert makers.find("key") is not None


def test_a_key_is_freed_by_the_call_that_alone_has_used_it() -> None:
    makers = Makers()
    makers.free("key", makers.bind("key", BackendId("a"), None))
    assert makers.find("key") is None
    assert makers.bind("key", BackendId("b"), None) is not None


@pytest.mark.parametrize("is_in_rotation", [True, False])
async def test_a_limit_of_the_first_does_not_hide_that_the_second_may_have_begun(
    tmp_path: Path, *, is_in_rotation: bool
) -> None:
    failed = error(500, "Invalid request", "invalid_request_error")  # it marks nothing
    answers = {"a": in_turn(LIMITED), "b": lambda _: failed}
    async with gateway(tmp_path, *backends(), answers=answers) as g:
        for _ in range(1 if is_in_rotation else 2):
            answer = await begin(g)
        assert answer.status_code == 502
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        assert "may have begun" in answer.json()["error"]["message"]
        assert "Invalid request" in answer.json()["error"]["message"]


async def test_a_limit_that_is_told_inside_an_answer_may_have_begun_and_is_not_one_to_wait_for(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, *backends(), answers={"a": in_turn(LIMIT_IN_A_BODY)}) as g:
        answer = await begin(g)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "false")
        assert "retry-after" not in answer.headers
        assert asked(g) == ["a"]


async def test_one_that_may_have_begun_is_not_sent_on_where_its_backend_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_a = told_backend("b", options={"api_mode": "responses"})
    failed = CallReport.failed

    async def removed(report: CallReport, evidence: Evidence) -> ReportAnswer | None:
        await g.engine.set_settings(settings(without_a))
        return await failed(report, evidence)

    monkeypatch.setattr(CallReport, "failed", removed)
    answers = {"a": in_turn(error(500)), "b": in_turn(DONE)}
    async with gateway(tmp_path, *backends(), answers=answers) as g:
        assert (await begin(g)).status_code == 502
        assert asked(g) == ["a"]
