import json
import ssl

import httpx2
import pytest
from tests.support.provider import Provider, provider
from tests.support.provider_frames import TEXT
from tests.support.provider_misbehaviour import WITHOUT_END
from tests.support.provider_script import NAMES

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "google": "/v1beta/models/m:generateContent",
    "google_stream": "/v1beta/models/m:streamGenerateContent",
}
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Loading the certificates of the machine for each client would take most of the time."""
DIALECTS = ("chat", "responses", "anthropic", "google")


async def post(p: Provider, dialect: str, **fields: object) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=NO_TLS) as client:
        return await client.post(p.url("r") + PATHS[dialect], json={"model": "m", **fields})


def events(text: str) -> list[dict[str, object]]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_whole_answer_carries_the_text(dialect: str) -> None:
    async with provider() as p:
        response = await post(p, dialect)
    assert response.status_code == 200
    assert TEXT in json.dumps(response.json())


@pytest.mark.parametrize(
    ("dialect", "last"),
    [
        ("chat", "[DONE]"),
        ("responses", '"response.completed"'),
        ("anthropic", '"message_stop"'),
        ("google_stream", '"STOP"'),
    ],
)
async def test_stream_ends_with_the_sign_of_its_dialect(dialect: str, last: str) -> None:
    async with provider() as p:
        response = await post(p, dialect, stream=True)
    assert last in response.text.strip().rpartition("data: ")[2]
    assert len(events(response.text)) >= len(TEXT.split())


async def test_words_of_a_request_change_the_behaviour_whatever_came_before() -> None:
    async with provider() as p:
        p.behave("r", "500", until="go on", then="ok")
        asked = [
            await post(p, "chat", messages=[{"content": text}]) for text in ("a", "go on", "b")
        ]
    assert [response.status_code for response in asked] == [500, 200, 500]


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic", "google_stream"])
async def test_truncated_stream_ends_well_formed_and_too_early(dialect: str) -> None:
    async with provider() as p:
        p.behave("r", "truncated")
        response = await post(p, dialect, stream=True)
    text = json.dumps(events(response.text))
    assert TEXT.split()[0] in text
    assert TEXT.split()[-1] not in text


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic", "google_stream"])
async def test_error_comes_after_the_first_words(dialect: str) -> None:
    async with provider() as p:
        p.behave("r", "rate_limit_mid")
        response = await post(p, dialect, stream=True)
    first, *_, last = events(response.text)
    assert response.status_code == 200
    assert "error" not in first
    assert "rate_limit" in json.dumps(last) or "RESOURCE_EXHAUSTED" in json.dumps(last)


@pytest.mark.parametrize("name", ["401", "429", "500", "503", "529", "usage_limit", "context"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_refusals_have_the_status_of_their_name(dialect: str, name: str) -> None:
    async with provider() as p:
        p.behave("r", name)
        response = await post(p, dialect)
    expected = {"usage_limit": 429, "context": 400}.get(name) or int(name)
    if (dialect, name) == ("google", "401"):
        expected = 400  # Google calls a wrong key an invalid argument
    assert response.status_code == expected
    assert "error" in response.json()


@pytest.mark.parametrize("dialect", ["chat", "anthropic"])
async def test_throttling_states_the_wait_it_was_told(dialect: str) -> None:
    async with provider() as p:
        p.behave("r", "429", retry_after_s=3600)
        stated = await post(p, dialect)
        p.behave("r", "429", retry_after_s=None)
        silent = await post(p, dialect)
    assert stated.headers["retry-after"] == "3600"
    assert "retry-after" not in silent.headers


async def test_behaviour_changes_between_two_calls() -> None:
    async with provider() as p:
        p.behave("r", "429")
        first = await post(p, "chat")
        p.behave("r", "ok")
        second = await post(p, "chat")
    assert (first.status_code, second.status_code) == (429, 200)


async def test_list_of_behaviours_is_met_in_order_and_the_last_one_stays() -> None:
    async with provider() as p:
        p.behave("r", "503", "429", "ok")
        statuses = [(await post(p, "chat")).status_code for _ in range(4)]
    assert statuses == [503, 429, 200, 200]


async def test_routes_have_their_own_behaviour_and_log() -> None:
    async with provider() as p:
        p.behave("other", "500")
        response = await post(p, "chat")
        assert response.status_code == 200
        assert len(p.calls("r")) == 1
        assert p.calls("other") == []


async def test_log_tells_what_was_asked_and_when_the_answer_left() -> None:
    async with provider() as p:
        p.behave("r", "429", "ok")
        await post(p, "chat", tools=[{"type": "function", "function": {"name": "bash"}}])
        await post(p, "anthropic")
        failed, succeeded = p.calls("r")
        assert p.first_failure("r") is failed
    assert (failed.kind, failed.dialect, failed.name, failed.has_failed) == (
        "main",
        "chat",
        "429",
        True,
    )
    assert (succeeded.kind, succeeded.has_failed) == ("aux", False)
    assert failed.answered_s is not None
    assert failed.monotonic_s <= failed.answered_s <= succeeded.monotonic_s


@pytest.mark.parametrize(
    ("dialect", "tool", "result"),
    [
        (
            "chat",
            {"type": "function", "function": {"name": "bash"}},
            {"messages": [{"role": "tool", "content": "done"}]},
        ),
        ("responses", {"name": "exec_command"}, {"input": [{"type": "function_call_output"}]}),
        ("anthropic", {"name": "Bash"}, {"messages": [{"content": [{"type": "tool_result"}]}]}),
        (
            "google",
            {"functionDeclarations": [{"name": "run_shell_command"}]},
            {"contents": [{"parts": [{"functionResponse": {}}]}]},
        ),
    ],
)
async def test_tool_runs_its_command_once(
    dialect: str, tool: dict[str, object], result: dict[str, object]
) -> None:
    async with provider() as p:
        p.behave("r", "tool", command="sleep 307")
        asked = await post(p, dialect, tools=[tool])
        answered = await post(p, dialect, tools=[tool], **result)
    assert "sleep 307" in asked.text
    assert TEXT not in asked.text
    assert TEXT in json.dumps(answered.json())


async def test_empty_answer_is_a_success_without_a_body() -> None:
    async with provider() as p:
        p.behave("r", "empty")
        response = await post(p, "chat", stream=True)
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("name", ["reset", "reset_mid"])
async def test_reset_breaks_the_connection(name: str) -> None:
    async with provider() as p:
        p.behave("r", name)
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await post(p, "chat", stream=True)


@pytest.mark.parametrize(("name", "has_status"), [("hang", False), ("hang_mid", True)])
async def test_hanging_call_stays_open_until_the_caller_leaves(name: str, has_status: bool) -> None:
    async with (
        provider() as p,
        httpx2.AsyncClient(timeout=None, trust_env=False, verify=NO_TLS) as client,
    ):
        p.behave("r", name)
        url = p.url("r") + PATHS["chat"]
        if has_status:
            async with client.stream("POST", url, json={"stream": True}) as response:
                assert response.status_code == 200
        else:
            with pytest.raises(httpx2.ReadTimeout):
                await client.post(url, json={}, timeout=httpx2.Timeout(60, read=0.2))
        (call,) = await p.called("r")
        assert (call.answered_s is not None) == has_status


async def test_provider_that_is_down_refuses_and_comes_back_on_the_same_port() -> None:
    async with provider() as p:
        port = p.port
        await p.go_down()
        with pytest.raises(httpx2.ConnectError):
            await post(p, "chat")
        await p.come_back()
        assert (await post(p, "chat")).status_code == 200
        assert p.port == port


async def test_a_behaviour_holds_for_one_credential_or_model_where_it_names_one() -> None:
    async with provider() as p:
        p.behave("r", "503", model="big")
        p.behave("r", "401", credential="k1")
        p.behave("r", "402", "ok", credential="k1", model="big")

        async def status(key: str, model: str) -> int:
            url = p.url("r") + PATHS["chat"]
            headers = {"authorization": f"Bearer {key}"}
            async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=NO_TLS) as client:
                return (await client.post(url, json={"model": model}, headers=headers)).status_code

        assert [await status("k1", "big"), await status("k1", "big")] == [402, 200]
        assert await status("k1", "m") == 401
        assert await status("k2", "big") == 503
        assert await status("k2", "m") == 200
    assert p.counts("r") == {("k1", "big"): 2, ("k1", "m"): 1, ("k2", "big"): 1, ("k2", "m"): 1}


async def test_the_list_of_models_is_what_is_offered_and_no_model_call() -> None:
    async with provider() as p:
        p.offer("r", "m1", "m2")
        p.behave("r", "401", credential="bad")
        async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=NO_TLS) as client:
            url = p.url("r") + "/v1/models"
            found = await client.get(url, headers={"x-api-key": "good"})
            refused = await client.get(url, headers={"x-api-key": "bad"})
    assert [one["id"] for one in found.json()["data"]] == ["m1", "m2"]
    assert refused.status_code == 401
    assert p.looks == [("r", "good"), ("r", "bad")]
    assert p.calls("r") == []


async def test_unknown_behaviour_is_refused_with_the_known_ones() -> None:
    async with provider() as p:
        with pytest.raises(ValueError, match="rate_limit_mid"):
            p.behave("r", "429_typo")


BROKEN_OFF = ("reset", "reset_mid", "cut_early", "truncated", "big_header", "long_length")


@pytest.mark.parametrize(
    "name", [one for one in NAMES if not one.startswith("hang") and one not in WITHOUT_END]
)
async def test_every_behaviour_is_performed_in_every_dialect(name: str) -> None:
    async with provider() as p:
        p.behave("r", name, pause_s=0.001)
        for dialect in PATHS:
            for stream in (True, False):
                try:
                    await post(p, dialect, stream=stream)
                except (httpx2.ReadError, httpx2.RemoteProtocolError):
                    assert name in BROKEN_OFF
        assert {call.name for call in p.calls("r")} == {name}
        assert len(p.calls("r")) == 2 * len(PATHS)


async def test_json_that_a_request_demands_fits_its_schema() -> None:
    schema = {"type": "object", "properties": {"model": {"enum": ["pro"]}, "n": {"type": "number"}}}
    demand = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    async with provider() as p:
        response = await post(p, "google", generationConfig=demand)
        (call,) = p.calls("r")
    (part,) = response.json()["candidates"][0]["content"]["parts"]
    assert json.loads(part["text"]) == {"model": "pro", "n": 10}
    assert call.kind == "router"
