"""Calls that are answered by a backend of another API, where the chain allows it."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.gateway import ENDS, Gate, gate, read_into
from tests.support.provider_frames import TEXT

THIRD = """
[backends.three]
kind = "{kind}"
base_url = "{{url}}{path}"
model = "model-of-three"
api_mode = "{mode}"
cost = "local"
max_output_tokens = 500
"""
CHAINS = 'mixed = ["one", { backend = "three", translate = true }]\nplain = ["one", "three"]'
OTHERS = {
    "messages": THIRD.format(kind="openai-http", path="/v1", mode="chat_completions"),
    "chat_completions": THIRD.format(kind="anthropic-http", path="", mode="messages"),
}
CASES = pytest.mark.parametrize("mode", sorted(OTHERS))


MIXED = 'first = [{ backend = "three", translate = true }, "two"]'


async def ask(g: Gate, chain: str = "mixed", *, stream: bool = True) -> httpx2.Response:
    return await g.ask(stream=stream, **{"x-fallbackd-chain": chain})


def text_in(mode: str, body: str, *, stream: bool) -> str:
    if not stream:
        found = json.loads(body)
        if mode == "messages":
            return "".join(one["text"] for one in found["content"])
        return str(found["choices"][0]["message"]["content"])
    values = [line[6:] for line in body.split("\n") if line.startswith("data: {")]
    events: list[dict[str, Any]] = [json.loads(one) for one in values]
    if mode == "messages":
        return "".join(one["delta"].get("text", "") for one in events if "delta" in one)
    deltas = [choice["delta"] for one in events for choice in one["choices"]]
    return "".join(one.get("content") or "" for one in deltas)


@CASES
@pytest.mark.parametrize("stream", [True, False])
async def test_a_backend_of_the_other_api_answers_in_the_callers_words(
    tmp_path: Path, mode: str, *, stream: bool
) -> None:
    async with gate(tmp_path, mode=mode, chains=CHAINS, more=OTHERS[mode]) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        answer = await ask(g, stream=stream)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-fallbackd-served-by"] == "three"
        assert answer.headers["x-fallbackd-model"] == "model-of-three"
        assert text_in(mode, answer.text, stream=stream) == TEXT
        (call,) = g.api.calls("three")
        assert call.model == "model-of-three"
        assert call.body["messages"][0]["role"] == "user"
        name = answer.headers["x-fallbackd-exchange"]
        told = await g.daemon.client.call("explain", {"delegation": name})
        (step,) = [one for one in told["decisions"] if one["event"] == "Translated"]
        assert step["text"].startswith(f"translated from {mode} to ")


@CASES
async def test_without_its_word_a_backend_of_the_other_api_is_passed_over(
    tmp_path: Path, mode: str
) -> None:
    async with gate(tmp_path, mode=mode, chains=CHAINS, more=OTHERS[mode]) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        assert (await ask(g, "plain")).status_code == 429
        assert g.api.calls("three") == []


@CASES
async def test_the_error_of_a_backend_of_the_other_api_is_in_the_callers_words(
    tmp_path: Path, mode: str
) -> None:
    async with gate(tmp_path, mode=mode, chains=CHAINS, more=OTHERS[mode]) as g:
        for name in ("one", "three"):
            g.api.behave(name, "429", retry_after_s=3600)
        answer = await ask(g)
        assert answer.status_code == 429
        assert answer.json()["error"]["message"]
        assert (answer.json().get("type") == "error") == (mode == "messages")
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["three"]["state"] == "rate_limited"


@CASES
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_inside_of_an_answer_keeps_its_meaning(
    tmp_path: Path, mode: str, *, stream: bool
) -> None:
    async with gate(tmp_path, mode=mode, chains=CHAINS, more=OTHERS[mode]) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        g.api.behave("three", "error_event" if stream else "error_200")
        answer = await ask(g, stream=stream)
        assert answer.status_code == (200 if stream else 429)
        text = answer.text.partition("data: ")[2] if stream else answer.text
        assert json.loads(text)["error"]["message"]
        assert (json.loads(text).get("type") == "error") == (mode == "messages")
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["three"]["reason"] == "rate_limit"


@CASES
@pytest.mark.parametrize("fault", ["reset_mid", "truncated", "error_mid"])
async def test_a_translated_answer_that_breaks_off_is_never_a_good_end(
    tmp_path: Path, mode: str, fault: str
) -> None:
    async with gate(tmp_path, mode=mode, chains=CHAINS, more=OTHERS[mode]) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        g.api.behave("three", fault)
        got = bytearray()
        # Where text and failure arrive at once the caller has seen nothing: a plain error.
        with pytest.raises((httpx2.RemoteProtocolError, AssertionError), match=r"peer closed|503"):
            await read_into(got, g, **{"x-fallbackd-chain": "mixed"})
        assert not got or b"error" in got
        assert ENDS[mode].encode() not in got
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["three"]["state"] != "healthy"


@pytest.mark.parametrize("encoding", ["identity", "zstd"])
async def test_what_cannot_be_translated_goes_to_the_next_that_needs_no_translation(
    tmp_path: Path, encoding: str
) -> None:
    mode = "chat_completions"
    async with gate(tmp_path, mode=mode, chains=MIXED, more=OTHERS[mode]) as g:
        odd = [{"role": "function", "name": "f", "content": "1"}]
        sent = {
            "x-api-key": g.token,
            "content-type": "application/json",
            "content-encoding": encoding,
            "accept": "text/event-stream",
        }

        async def send(chain: str) -> httpx2.Response:
            body = json.dumps({**g.body(), "messages": odd}).encode()
            headers = {**sent, "x-fallbackd-chain": chain}
            return await g.client.post(g.path(), content=body, headers=headers)

        answer = await send("first")
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert answer.headers["x-fallbackd-attempts"] == "1"
        assert (await g.health("three"))["state"] == "healthy"
        name = answer.headers["x-fallbackd-exchange"]
        told = await g.daemon.client.call("explain", {"delegation": name})
        last = [one for one in told["decisions"] if one["event"] == "Resolved"][-1]
        verdicts = {one["backend"]: one["verdict"] for one in last["candidates"]}
        assert verdicts == {"two": "chosen", "three": "protocol"}
        await g.daemon.client.call("health", {"action": "pause", "target": "two"})
        assert (await send("first")).status_code == 503
        assert g.api.calls("three") == []


async def test_what_no_backend_can_be_sent_is_the_callers_mistake(tmp_path: Path) -> None:
    mode = "chat_completions"
    chains = 'alone = [{ backend = "three", translate = true }]'
    async with gate(tmp_path, mode=mode, chains=chains, more=OTHERS[mode]) as g:
        odd = {**g.body(), "model": "alone", "messages": [{"role": "function", "content": "1"}]}
        answer = await g.client.post(g.path(), json=odd, headers={"x-api-key": g.token})
        assert answer.status_code == 400
        assert "no role that can be translated" in answer.json()["error"]["message"]
        assert (await g.health("three"))["state"] == "healthy"
