"""What a caller may ask of the gateway beside its words: a time, and a conversation by its name."""

import json
from pathlib import Path

import pytest
from tests.support.gateway import Gate, gate, last_event


async def test_a_caller_says_how_long_it_waits_and_no_backend_is_marked(tmp_path: Path) -> None:
    async with gate(tmp_path, hold_s=600) as g:
        g.api.behave("one", "hang")
        answer = await g.ask(**{"x-fallbackd-timeout-s": "0.5"})
        assert answer.status_code == 504
        assert answer.json()["error"]["message"] == "no answer within 0.5 s (x-fallbackd-timeout-s)"
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["one"]["state"] == "healthy"
        assert g.api.calls("two") == []


async def test_the_time_ends_with_the_beginning_of_the_answer(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "held")  # its connection stays open for a second after its end
        answer = await g.ask(**{"x-fallbackd-timeout-s": "0.9"})
        assert answer.status_code == 200
        assert "[DONE]" in answer.text


@pytest.mark.parametrize("stated", ["soon", "-1", "0", "nan", "inf"])
async def test_a_time_that_is_none_is_refused(tmp_path: Path, stated: str) -> None:
    async with gate(tmp_path) as g:
        answer = await g.ask(**{"x-fallbackd-timeout-s": stated})
        assert answer.status_code == 400
        assert stated in answer.json()["error"]["message"]
        assert g.api.log == []


async def continued(g: Gate, previous: str) -> tuple[int, dict[str, str], str]:
    body = {**g.body(), "previous_response_id": previous}
    sent = {"authorization": f"Bearer {g.token}"}
    answer = await g.client.post(g.path(), json=body, headers=sent)
    return answer.status_code, dict(answer.headers), answer.text


async def test_a_response_is_continued_by_its_maker_alone(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", "503", "ok")
        first = await g.ask()
        assert first.headers["x-fallbackd-served-by"] == "two"
        await g.daemon.client.call("health", {"action": "clear"})
        status, headers, _ = await continued(g, last_event(first.text)["response"]["id"])
        assert (status, headers["x-fallbackd-served-by"]) == (200, "two")


async def test_without_its_maker_it_is_refused_in_the_words_of_the_api(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        previous = last_event((await g.ask()).text)["response"]["id"]
        await g.daemon.client.call("health", {"action": "pause", "target": "one"})
        status, _, text = await continued(g, previous)
        assert status == 400
        error = json.loads(text)["error"]
        assert error["code"] == "previous_response_not_found"
        assert error["message"].startswith("previous_response_id: one made this response")
        assert g.api.calls("two") == []


async def test_one_of_an_unknown_maker_is_asked_of_no_backend(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        status, _, text = await continued(g, "resp_of_another_day")
        assert (status, "resp_of_another_day" in text) == (400, True), text
        assert g.api.calls("one") == g.api.calls("two") == []


SMALL = """context_tokens = 1000
"""
THREE = """
[backends.three]
kind = "openai-http"
base_url = "{url}/v1"
model = "model-of-three"
cost = "local"
context_tokens = 100000
"""


async def test_a_prompt_goes_to_no_backend_that_it_does_not_fit_into(tmp_path: Path) -> None:
    chains = 'all = ["one", "three"]\nsmall = ["one"]'
    async with gate(tmp_path, first=SMALL, more=THREE, chains=chains) as g:
        said = [{"role": "user", "content": "word " * 1000}]
        sent = {"x-api-key": g.token}
        body = {"model": "all", "messages": said}
        answer = await g.client.post(g.path(), json=body, headers=sent)
        assert answer.headers["x-fallbackd-served-by"] == "three"
        assert g.api.calls("one") == []
        refused = await g.client.post(g.path(), json={**body, "model": "small"}, headers=sent)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        body["messages"] = [{"role": "user", "content": "word"}]
        answer = await g.client.post(g.path(), json=body, headers=sent)
        assert answer.headers["x-fallbackd-served-by"] == "one"
