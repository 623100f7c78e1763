"""Requests that act at their provider: none of them is begun twice by the gateway."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.gateway import Gate, gate

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
FUNCTION = {"type": "function", "name": "f", "parameters": {}}


async def begin(g: Gate, more: dict[str, Any], **headers: str) -> httpx2.Response:
    body = {**g.body(stream=False), **more}
    return await g.client.post(
        g.path(stream=False), json=body, headers={"x-api-key": g.token, **headers}
    )


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("responses", {"background": True}),
        ("responses", {"store": True}),
        ("responses", {"tools": [FUNCTION, CODE]}),
        ("responses", {"tools": [{"type": "mcp", "server_label": "x", "server_url": "y"}]}),
        ("responses", {"tools": [{"type": "of_another_day"}]}),
        ("messages", {"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}),
        ("messages", {"tools": [{"type": "code_execution_20250825", "name": "x"}]}),
    ],
)
async def test_one_whose_connection_broke_is_sent_once(
    tmp_path: Path, mode: str, more: dict[str, Any]
) -> None:
    async with gate(tmp_path, mode=mode) as g:
        assert (await g.ask(stream=False)).status_code == 200  # its connection is kept
        g.api.behave("one", "reset")
        answer = await begin(g, more)
        assert answer.status_code == 502, answer.text
        assert answer.headers["x-should-retry"] == "false"
        assert "may have begun" in answer.json()["error"]["message"]
        assert len(g.api.calls("one")) == 2
        assert g.api.calls("two") == []


@pytest.mark.parametrize("failure", ["500", "502", "hang"])
async def test_one_that_may_run_is_not_given_to_the_next(tmp_path: Path, failure: str) -> None:
    async with gate(tmp_path, mode="responses", first="first_answer_s = 1\nstall_s = 1") as g:
        g.api.behave("one", failure)
        answer = await begin(g, {"background": True})
        assert answer.status_code == 502
        assert answer.headers["x-should-retry"] == "false"
        assert "may have begun" in answer.json()["error"]["message"]
        assert len(g.api.calls("one")) == 1
        assert g.api.calls("two") == []
        found = await g.daemon.client.call(
            "explain", {"delegation": answer.headers["x-fallbackd-exchange"]}
        )
        assert "not sent again" in str(found)


@pytest.mark.parametrize("refusal", ["429", "401", "503", "quota"])
async def test_one_that_was_refused_goes_to_the_next(tmp_path: Path, refusal: str) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", refusal)
        answer = await begin(g, {"background": True, "store": True})
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert "x-should-retry" not in answer.headers


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"store": False, "background": False, "tools": []},
        {"tools": [FUNCTION, {"type": "web_search"}, {"type": "custom", "name": "x"}]},
        {"tools": [{"type": "namespace", "name": "x", "tools": []}, {"type": "local_shell"}]},
    ],
)
async def test_one_that_only_answers_goes_to_the_next(tmp_path: Path, more: dict[str, Any]) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", "reset")
        answer = await begin(g, more)
        assert answer.headers["x-fallbackd-served-by"] == "two"


async def test_the_same_key_again_goes_to_the_same_account(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", "500", "ok")
        key = {"idempotency-key": "key-1"}
        assert (await begin(g, {"background": True}, **key)).status_code == 502
        await g.daemon.client.call("health", {"action": "clear"})
        again = await begin(g, {"background": True}, **key)
        assert again.headers["x-fallbackd-served-by"] == "one"
        mark = {"action": "mark", "target": "one", "reason": "usage_limit"}
        await g.daemon.client.call("health", mark)
        refused = await begin(g, {"background": True}, **key)
        assert refused.status_code == 503
        assert "idempotency-key" in refused.json()["error"]["message"]
        assert g.api.calls("two") == []
        other = await begin(g, {"background": True}, **{"idempotency-key": "key-2"})
        assert other.headers["x-fallbackd-served-by"] == "two"


async def test_a_key_whose_request_was_refused_is_free(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        key = {"idempotency-key": "key-1"}
        g.api.behave("one", "429", retry_after_s=3600)
        g.api.behave("two", "429", "ok", retry_after_s=3600)
        assert (await begin(g, {"background": True}, **key)).status_code == 429
        await g.daemon.client.call("health", {"action": "clear"})
        again = await begin(g, {"background": True}, **key)
        assert again.headers["x-fallbackd-served-by"] == "two"
