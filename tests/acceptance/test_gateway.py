"""The gateway: programs that speak a provider's own API, answered by whichever backend can."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.provider import Provider, provider

CONFIG = """
[gateway]
enabled = true
port = {port}
hold = "{hold}"
hold_s = 5

[defaults]
patience_s = 1

[backends.one]
kind = "{kind}"
base_url = "{one}{path}"
model = "model-of-one"
api_mode = "{mode}"
cost = "local"
[backends.two]
kind = "{kind}"
base_url = "{two}{path}"
model = "model-of-two"
api_mode = "{mode}"
cost = "local"

[chains]
team = ["one", "two"]
"""
KINDS = {
    "chat_completions": ("openai-http", "/v1"),
    "responses": ("openai-http", "/v1"),
    "messages": ("anthropic-http", ""),
    "generate_content": ("google-http", "/v1beta"),
}
ENDS = {
    "chat_completions": "data: [DONE]",
    "responses": "response.completed",
    "messages": "message_stop",
    "generate_content": '"finishReason"',
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Gate:
    def __init__(self, daemon: Daemon, api: Provider, port: int, mode: str) -> None:
        self.daemon, self.api, self.port, self.mode = daemon, api, port, mode
        self.client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=HANG_S, trust_env=False
        )

    @property
    def token(self) -> str:
        return (Path(self.daemon.state_dir) / "gateway.token").read_text().strip()

    def body(self, *, stream: bool = True) -> dict[str, object]:
        said = [{"role": "user", "content": "say it"}]
        match self.mode:
            case "responses":
                return {"model": "team", "input": said, "stream": stream}
            case "messages":
                return {"model": "team", "messages": said, "max_tokens": 99, "stream": stream}
            case "generate_content":
                return {"contents": [{"role": "user", "parts": [{"text": "say it"}]}]}
            case _:
                return {"model": "team", "messages": said, "stream": stream}

    def path(self, *, stream: bool = True) -> str:
        action = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return {
            "chat_completions": "/v1/chat/completions",
            "responses": "/v1/responses",
            "messages": "/v1/messages?beta=true",
            "generate_content": f"/v1beta/models/team:{action}",
        }[self.mode]

    async def ask(self, *, stream: bool = True, **headers: str) -> httpx2.Response:
        return await self.client.post(
            self.path(stream=stream),
            json=self.body(stream=stream),
            headers={"authorization": f"Bearer {self.token}", **headers},
        )


@asynccontextmanager
async def gate(
    place: Path, *, mode: str = "chat_completions", hold: str = "commit"
) -> AsyncIterator[Gate]:
    port = free_port()
    kind, path = KINDS[mode]
    async with provider() as api:
        for route in ("one", "two"):
            api.behave(route, "ok")
        # Of another host: a network that fails is the failure of a host.
        two = api.url("two").replace("127.0.0.1", "localhost")
        text = CONFIG.format(
            port=port,
            hold=hold,
            kind=kind,
            path=path,
            mode=mode,
            one=api.url("one"),
            two=two,
        )
        async with running(place, config=text) as daemon:
            found = Gate(daemon, api, port, mode)
            with anyio.fail_after(HANG_S):
                while not await _listens(port):
                    await anyio.sleep(0.02)
            try:
                yield found
            finally:
                await found.client.aclose()


async def read_into(got: bytearray, gate: Gate) -> None:
    async with gate.client.stream(
        "POST", gate.path(), json=gate.body(), headers={"x-api-key": gate.token}
    ) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw():
            got += piece


async def _listens(port: int) -> bool:
    try:
        async with await anyio.connect_tcp("127.0.0.1", port):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_comes_back_as_the_provider_gave_it(
    tmp_path: Path, mode: str, *, stream: bool
) -> None:
    async with gate(tmp_path, mode=mode) as g:
        answer = await g.ask(stream=stream)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-fallbackd-served-by"] == "one"
        assert not stream or ENDS[mode] in answer.text
        (call,) = g.api.calls("one")
        assert call.model == "model-of-one"


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("fault", ["429", "401", "503", "reset", "empty", "hang"])
async def test_a_failure_before_the_answer_is_answered_by_the_next_and_asked_once(
    tmp_path: Path, mode: str, fault: str
) -> None:
    async with gate(tmp_path, mode=mode) as g:
        g.api.behave("one", fault)
        answers = [await g.ask() for _ in range(2)]
        assert [one.status_code for one in answers] == [200, 200], answers[0].text
        assert {one.headers["x-fallbackd-served-by"] for one in answers} == {"two"}
        assert ENDS[mode] in answers[0].text
        assert len(g.api.calls("one")) <= 2
        if fault in ("429", "401"):
            assert len(g.api.calls("one")) == 1


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("fault", ["reset_mid", "truncated", "error_mid"])
async def test_a_failure_in_the_middle_is_never_a_good_end(
    tmp_path: Path, mode: str, fault: str
) -> None:
    async with gate(tmp_path, mode=mode) as g:
        g.api.behave("one", fault)
        got = bytearray()
        with pytest.raises(httpx2.RemoteProtocolError):
            await read_into(got, g)
        assert b"error" in got
        assert ENDS[mode].encode() not in got
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["one"]["state"] != "healthy"


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("fault", ["reset_mid", "truncated", "error_mid"])
async def test_with_whole_answers_a_failure_in_the_middle_is_answered_by_the_next(
    tmp_path: Path, mode: str, fault: str
) -> None:
    async with gate(tmp_path, mode=mode, hold="whole") as g:
        g.api.behave("one", fault)
        answer = await g.ask()
        assert answer.status_code == 200
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert ENDS[mode] in answer.text


async def test_the_error_of_the_last_backend_goes_back_as_it_came(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        g.api.behave("two", "429", retry_after_s=1800)
        answer = await g.ask()
        assert answer.status_code == 429
        assert answer.json()["error"]
        again = await g.ask()
        assert again.status_code == 503
        assert int(again.headers["retry-after"]) > 60
        assert "no backend is available" in again.json()["error"]["message"]


async def test_a_request_reaches_the_provider_byte_for_byte_but_for_the_model(
    tmp_path: Path,
) -> None:
    said = b'"messages":[{"role":"user","content":"\\u00e9 \\ud83d\\ude00"}]'
    body = b"{ " + said + b',\n"model" : "team","x":1.0 }'
    async with gate(tmp_path) as g:
        answer = await g.client.post(
            "/v1/chat/completions",
            content=body,
            headers={"authorization": f"Bearer {g.token}", "content-type": "application/json"},
        )
        assert answer.status_code == 200
        (call,) = g.api.calls("one")
        assert call.body == {**json.loads(body), "model": "model-of-one"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer TOKEN", "origin": "http://evil.example"}, 403),
        ({"authorization": "Bearer TOKEN", "origin": "null"}, 403),
        ({"authorization": "Bearer TOKEN", "host": "evil.example:41411"}, 403),
        ({"authorization": "Bearer TOKEN", "content-type": "text/plain"}, 415),
        ({"authorization": "Bearer TOKEN", "x-fallbackd-hop": "2"}, 508),
    ],
)
async def test_who_must_not_ask_is_refused_before_anything_is_sent(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with gate(tmp_path) as g:
        given = {name: text.replace("TOKEN", g.token) for name, text in headers.items()}
        answer = await g.client.post(
            g.path(),
            content=json.dumps(g.body()),
            headers={"content-type": "application/json", **given},
        )
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
        assert g.api.calls("one") == []


async def test_models_are_listed_and_the_token_outlives_a_restart(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        token = g.token
        answer = await g.client.get("/v1/models", headers={"x-api-key": token})
        listed = [one["id"] for one in answer.json()["data"]]
        assert {"team", "one", "two", "model-of-one", "claude-fallbackd-team"} <= set(listed)
        assert (await g.client.head("/")).status_code == 200
        await g.daemon.restart()
        with anyio.fail_after(HANG_S):
            while not await _listens(g.port):
                await anyio.sleep(0.02)
        assert g.token == token
        assert (await g.ask()).status_code == 200


async def test_a_caller_who_hangs_up_ends_the_call_and_marks_nobody(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "hang_mid")
        with anyio.fail_after(HANG_S):
            async with g.client.stream(
                "POST", g.path(), json=g.body(), headers={"x-api-key": g.token}
            ) as answer:
                async for _ in answer.aiter_raw():
                    break
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["one"]["state"] == "healthy"
