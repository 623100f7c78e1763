"""What became of a call through the gateway can be asked later, without what was said."""

import json
from pathlib import Path
from typing import Any

import httpx2
from tests.support.gateway import Gate, gate


async def test_a_call_is_explained_and_listed_without_its_words(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        answer = await g.ask()
        name = answer.headers["x-fallbackd-exchange"]
        told = await g.daemon.client.call("explain", {"delegation": name})
        assert (told["state"], told["requested"], told["served_by"]) == ("succeeded", "one", "two")
        events = [one["event"] for one in told["decisions"]]
        assert events == ["Resolved", "Asked", "Reported", "Asked", "Answered"]
        failed = told["decisions"][2]
        assert failed["evidence"]["reason"] == "rate_limit"
        verdicts = {one["backend"]: one["verdict"] for one in failed["candidates"]}
        assert verdicts["two"] == "chosen"
        again = await g.ask()
        listed = (await g.daemon.client.call("exchange.list", {"limit": 5}))["exchanges"]
        assert [one["exchange"] for one in listed] == [again.headers["x-fallbackd-exchange"], name]
        assert [one["calls"] for one in listed] == [1, 2]
        assert "say it" not in json.dumps([told, listed])


async def test_a_call_that_fails_or_is_left_is_listed_as_that(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        for name in ("one", "two"):
            g.api.behave(name, "429", retry_after_s=3600)
        assert (await g.ask()).status_code == 429
        assert (await g.ask()).status_code == 503
        await g.daemon.client.call("health", {"action": "clear"})
        g.api.behave("one", "hang_mid")
        async with g.client.stream(
            "POST", g.path(), json=g.body(), headers={"x-api-key": g.token}
        ) as answer:
            async for _ in answer.aiter_raw():
                break
        g.api.behave("one", "ok")
        assert (await g.ask()).status_code == 200
        listed = (await g.daemon.client.call("exchange.list", {}))["exchanges"]
        states = [one["state"] for one in listed]
        assert states == ["succeeded", "cancelled", "failed", "failed"]


async def told_of(g: Gate, answer: httpx2.Response) -> dict[str, Any]:
    """What is on record of an answer's exchange."""
    name = answer.headers["x-fallbackd-exchange"]
    return dict(await g.daemon.client.call("explain", {"delegation": name}))


async def test_a_refusal_of_our_own_names_its_exchange(tmp_path: Path) -> None:
    async with gate(tmp_path, second_cost="metered", hold_s=600, chains='solo = ["one"]') as g:
        g.api.behave("one", "hang")
        late = await g.ask(**{"x-fallbackd-timeout-s": "0.5"})
        g.api.behave("one", "429", retry_after_s=3600)
        ends = [late, await g.ask(**{"x-fallbackd-chain": "solo"})]
        ends.append(await g.ask())  # only the one that bills each call is left
        ends.append(await g.ask(**{"x-fallbackd-chain": "solo"}))
        ends.append(await g.ask(**{"x-fallbackd-hop": "9"}))
        assert [one.status_code for one in ends] == [504, 429, 402, 503, 508]
        for one in ends:
            assert (await told_of(g, one))["state"] == "failed"
            assert "x-fallbackd-served-by" not in one.headers
        reasons = [one.headers.get("x-fallbackd-fallback-reason") for one in ends]
        assert reasons == [None, "rate_limit", "rate_limit", "rate_limit", None]
        assert ends[3].headers["retry-after"]


async def test_an_answer_says_why_the_first_backend_is_passed_over_while_it_is_out(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        for attempts in ("2", "1"):
            answer = await g.ask()
            assert answer.headers["x-fallbackd-attempts"] == attempts
            assert answer.headers["x-fallbackd-fallback-reason"] == "rate_limit"
        await g.daemon.client.call("health", {"action": "clear"})
        g.api.behave("one", "ok")
        assert "x-fallbackd-fallback-reason" not in (await g.ask()).headers
        await g.daemon.client.call("health", {"action": "pause", "target": "one"})
        answer = await g.ask()
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert "x-fallbackd-fallback-reason" not in answer.headers


OTHER = """
[backends.three]
kind = "anthropic-http"
base_url = "{url}"
model = "model-of-three"
cost = "local"
"""


async def test_a_backend_of_another_protocol_is_passed_over_and_explained(tmp_path: Path) -> None:
    async with gate(tmp_path, chains='mixed = ["three", "codex", "one"]', more=OTHER) as g:
        answer = await g.ask(**{"x-fallbackd-chain": "mixed"})
        assert answer.headers["x-fallbackd-served-by"] == "one"
        name = answer.headers["x-fallbackd-exchange"]
        told = await g.daemon.client.call("explain", {"delegation": name})
        verdicts = {one["backend"]: one for one in told["decisions"][0]["candidates"]}
        assert verdicts["one"]["verdict"] == "chosen"
        assert verdicts["three"]["verdict"] == "protocol"
        assert verdicts["three"]["reason"] == "it speaks messages, the request is chat_completions"
        assert verdicts["codex"]["verdict"] == "protocol"
        assert g.api.calls("three") == []


async def test_a_chain_without_a_backend_of_the_protocol_is_explained_too(tmp_path: Path) -> None:
    async with gate(tmp_path, chains='other = ["three"]', more=OTHER) as g:
        answer = await g.ask(**{"x-fallbackd-chain": "other"})
        assert answer.status_code == 404
        assert (await told_of(g, answer))["state"] == "failed"
        assert "speaks this API (chat_completions)" in answer.json()["error"]["message"]
        (one,) = (await g.daemon.client.call("exchange.list", {}))["exchanges"]
        told = await g.daemon.client.call("explain", {"delegation": one["exchange"]})
        (candidate,) = told["decisions"][0]["candidates"]
        assert candidate["verdict"] == "protocol"
