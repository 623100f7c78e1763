"""What a call cost: as the provider says it, or by the prices of the configuration."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.told import Answers, Gateway, as_events, as_json, gateway, told_backend

from fallbackd.api.explaining import explained
from fallbackd.core.policy import Price

COST = "x-fallbackd-cost-usd"
MESSAGE = {"role": "assistant", "content": "said"}
ENDED = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
ASKED = {"model": "team", "messages": []}
USED = {"prompt_tokens": 1000, "completion_tokens": 10}


def answering(**usage: Any) -> Answers:
    return lambda _: as_json({"choices": [ENDED], "usage": usage})


async def priced(g: Gateway, **prices: Price) -> None:
    """The prices of models, `m-` left out."""
    named = {f"m-{name}": price for name, price in prices.items()}
    policy = structs.replace(g.engine.settings.policy, prices=named)
    await g.engine.set_settings(structs.replace(g.engine.settings, policy=policy))


@pytest.mark.parametrize(
    ("usage", "shown"),
    [
        ({**USED, "cost": 0.0125}, "0.0125"),
        ({**USED, "cost": 0}, "0"),
        (USED, "0.0035"),
        ({"prompt_tokens": 1, "completion_tokens": 0}, "0.000003"),
        ({}, None),
    ],
)
async def test_the_cost_of_a_whole_answer_stands_in_its_head(
    tmp_path: Path, usage: dict[str, Any], shown: str | None
) -> None:
    async with gateway(tmp_path, told_backend("a"), answers={"a": answering(**usage)}) as g:
        await priced(g, a=Price(input=3, output=50))
        answer = await g.client.post("/v1/chat/completions", json=ASKED)
        assert answer.headers.get(COST) == shown
        (record,) = g.engine.exchanges.newest(limit=1)
        assert record.usage.cost_usd == (None if shown is None else float(shown))
        assert explained(record).usage.cost_usd == record.usage.cost_usd
        if shown is not None:
            assert record.steps[-1].text.endswith(f", {shown} USD")
        (used,) = g.engine.store.peek().meters.values()
        assert used.totals.cost_usd == record.usage.cost_usd


OTHERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "messages": (
        "anthropic-http",
        "/v1/messages",
        {"max_tokens": 9, "messages": []},
        {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"},
    ),
    "responses": (
        "openai-http",
        "/v1/responses",
        {"input": "x"},
        {
            "id": "r",
            "object": "response",
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}],
        },
    ),
}


@pytest.mark.parametrize("mode", OTHERS)
async def test_a_cost_that_is_stated_counts_in_every_api(tmp_path: Path, mode: str) -> None:
    kind, path, asked, whole = OTHERS[mode]
    said = {**whole, "usage": {"input_tokens": 2, "output_tokens": 1, "cost": 0.5}}
    backend = told_backend("a", kind, options={"api_mode": mode})
    async with gateway(tmp_path, backend, answers={"a": lambda _: as_json(said)}) as g:
        answer = await g.client.post(path, json={"model": "team", **asked})
        assert (answer.status_code, answer.headers[COST]) == (200, "0.5")


async def test_a_plan_and_a_model_without_a_price_cost_what_is_not_known(tmp_path: Path) -> None:
    plan = told_backend("a")
    plan = structs.replace(plan, backend=structs.replace(plan.backend, cost="subscription"))
    answers = {"a": answering(**USED), "b": answering(**USED)}
    async with gateway(tmp_path, plan, told_backend("b"), answers=answers) as g:
        await priced(g, a=Price(input=3, output=50))
        for name in ("a", "b"):
            answer = await g.client.post("/v1/chat/completions", json={**ASKED, "model": name})
            assert answer.headers["x-fallbackd-served-by"] == name
            assert COST not in answer.headers


async def test_the_cost_of_a_stream_is_explained_and_stands_in_no_head(tmp_path: Path) -> None:
    pieces = (
        {"choices": [{"index": 0, "delta": {"content": "said"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": USED},
    )
    stream = [b"data: %b\n\n" % json.dumps(one).encode() for one in pieces]
    answers: dict[str, Answers] = {
        "a": lambda _: as_json({"error": {"message": "slow down"}}, 429),
        "b": lambda _: as_events(*stream, b"data: [DONE]\n\n"),
    }
    async with gateway(tmp_path, told_backend("a"), told_backend("b"), answers=answers) as g:
        await priced(g, b=Price(input=3, output=50))
        answer = await g.client.post("/v1/chat/completions", json={**ASKED, "stream": True})
        assert COST not in answer.headers
        (record,) = g.engine.exchanges.newest(limit=1)
        assert (record.usage.cost_usd, record.reason) == (0.0035, "rate_limit")
