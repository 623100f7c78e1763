"""The gateway: programs that speak a provider's own API, answered by whichever backend can."""

import json
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.support import provider_answers
from tests.support.command import run_client
from tests.support.daemon import HANG_S
from tests.support.gateway import ENDS, KINDS, gate, listening, read_into
from tests.support.provider_refusals import Dialect

DIALECTS: dict[str, Dialect] = {
    "chat_completions": "chat",
    "responses": "responses",
    "messages": "anthropic",
    "generate_content": "google",
}


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
        assert stream or int(answer.headers["content-length"]) == len(answer.content)
        (call,) = g.api.calls("one")
        assert call.model == "model-of-one"


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("fault", ["429", "401", "503", "reset", "empty", "hang", "cut_early"])
async def test_a_failure_before_the_answer_is_answered_by_the_next_and_asked_once(
    tmp_path: Path, mode: str, fault: str
) -> None:
    async with gate(tmp_path, mode=mode) as g:
        g.api.behave("one", fault)
        answers = [await g.ask() for _ in range(2)]
        assert [one.status_code for one in answers] == [200, 200], answers[0].text
        assert {one.headers["x-fallbackd-served-by"] for one in answers} == {"two"}
        assert ENDS[mode] in answers[0].text
        assert len(g.api.calls("one")) == 1


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("fault", ["reset_mid", "truncated"])
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
async def test_a_failure_that_comes_with_the_first_piece_is_answered_by_the_next_and_else_told(
    tmp_path: Path, mode: str
) -> None:
    async with gate(tmp_path, mode=mode) as g:
        g.api.behave("one", "error_mid")  # whether in one packet with it is the kernel's choice
        got = bytearray()
        try:
            await read_into(got, g)
        except httpx2.RemoteProtocolError:
            assert b"error" in got
            assert ENDS[mode].encode() not in got
        else:
            assert ENDS[mode].encode() in got
            assert len(g.api.calls("two")) == 1
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


async def test_a_chain_may_hold_its_answers_to_the_end_where_the_others_do_not(
    tmp_path: Path,
) -> None:
    gateway = 'hold_whole = ["careful"]'
    async with gate(tmp_path, gateway=gateway, chains='careful = ["one", "two"]') as g:
        g.api.behave("one", "truncated")
        answer = await g.ask(**{"x-fallbackd-chain": "careful"})
        assert answer.headers["x-fallbackd-served-by"] == "two"
        await g.daemon.client.call("health", {"action": "clear"})
        with pytest.raises(httpx2.RemoteProtocolError):
            await g.ask()


async def test_the_chain_of_all_other_models_may_hold_its_answers_too(tmp_path: Path) -> None:
    held = 'hold_whole = ["*"]'
    async with gate(tmp_path, gateway=held, chains='"*" = ["one", "two"]') as g:
        g.api.behave("one", "truncated")
        for name, status in (("gpt-4o", 200), ("team", None)):
            await g.daemon.client.call("health", {"action": "clear"})
            asked = g.client.post(
                g.path(), json={**g.body(), "model": name}, headers={"x-api-key": g.token}
            )
            if status is None:
                with pytest.raises(httpx2.RemoteProtocolError):
                    await asked
            else:
                assert (await asked).headers["x-fallbackd-served-by"] == "two"


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


@pytest.mark.parametrize("mode", KINDS)
async def test_an_error_that_comes_with_status_200_goes_back_as_an_error(
    tmp_path: Path, mode: str
) -> None:
    async with gate(tmp_path, mode=mode) as g:
        for name in ("one", "two"):
            g.api.behave(name, "error_event")
        event = await g.ask()
        assert event.status_code == 200
        assert event.headers["content-type"].startswith("text/event-stream")
        assert provider_answers.error_event(DIALECTS[mode], "rate_limit_mid") == event.text
        await g.daemon.client.call("health", {"action": "clear"})
        for name in ("one", "two"):
            g.api.behave(name, "error_200")
        for stream in (True, False):
            whole = await g.ask(stream=stream)
            assert whole.status_code == 429
            assert whole.json()["error"]["message"]
            assert "every backend failed" not in whole.text
            await g.daemon.client.call("health", {"action": "clear"})


async def test_a_key_is_hidden_in_errors_and_no_word_of_an_answer_is(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("lm-studio")
    key.chmod(0o600)
    first = f'credentials = [{{ label = "a", file = "{key}" }}]'
    async with gate(tmp_path, first=first) as g:
        g.api.behave("one", "ok", text="start lm-studio first")
        for stream in (True, False):
            assert "lm-studio" in (await g.ask(stream=stream)).text
        g.api.behave("one", "refuse", status=400, message="no such key: lm-studio")
        refused = await g.ask(**{"x-fallbackd-failover": "0"})
        assert refused.status_code == 400
        assert "no such key: *********" in refused.text


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
        ({"authorization": "Bearer TOKEN", "x-fallbackd-hop": "9" * 5000}, 508),
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


@pytest.mark.parametrize("translates", [False, True])
async def test_whether_a_model_that_is_not_listed_is_answered_is_said_too(
    tmp_path: Path, *, translates: bool
) -> None:
    """Programs ask for models of their own: no name stands for the chain of all of them."""
    chains = '"*" = [{ backend = "one", translate = true }]' if translates else ""
    async with gate(tmp_path, chains=chains) as g:
        key = {"x-api-key": g.token}
        for api, is_served in (("chat_completions", True), ("messages", translates)):
            listed = (await g.client.get(f"/v1/models?api={api}", headers=key)).json()
            assert listed["serves_other_models"] is is_served
            assert bool(listed["data"]) is (api == "chat_completions")
        asked = {
            "model": "claude-x",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "x"}],
        }
        answer = await g.client.post("/v1/messages", json=asked, headers=key)
        assert answer.status_code == (200 if translates else 404)


async def test_models_are_listed_and_the_token_outlives_a_restart(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        token = g.token
        answer = await g.client.get("/v1/models", headers={"x-api-key": token})
        listed = [one["id"] for one in answer.json()["data"]]
        assert {"team", "one", "two", "model-of-one", "claude-fallbackd-team"} <= set(listed)
        for api, count in (("chat_completions", len(listed)), ("messages", 0)):
            path = f"/v1/models?api={api}"
            answer = await g.client.get(path, headers={"x-api-key": token})
            assert len(answer.json()["data"]) == count
        answer = await g.client.get("/v1/models?api=nope", headers={"x-api-key": token})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "api")
        assert (await g.client.head("/")).status_code == 200
        await g.daemon.restart()
        await listening(g.port)
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


async def test_the_name_of_a_backend_is_the_backend_and_then_its_chain(tmp_path: Path) -> None:
    async with gate(tmp_path, chains='one = ["two"]') as g:
        for name in ("one", "two"):
            answer = await g.client.post(
                "/v1/chat/completions",
                json={**g.body(), "model": name},
                headers={"x-api-key": g.token},
            )
            assert answer.headers["x-fallbackd-served-by"] == name


async def test_a_chain_may_have_the_name_of_a_model_that_a_program_asks_for(
    tmp_path: Path,
) -> None:
    """Claude Code asks for a small model beside the large one, and has no setting for it."""
    small = "claude-haiku-4-5-20251001"
    async with gate(tmp_path, mode="messages", chains=f'"{small}" = ["two"]') as g:
        answer = await g.client.post(
            g.path(), json={**g.body(), "model": small}, headers={"x-api-key": g.token}
        )
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert answer.headers["x-fallbackd-model"] == "model-of-two"
        assert g.api.calls("two")[0].model == "model-of-two"
        assert g.api.calls("one") == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("mode", KINDS)
async def test_half_a_character_passes_in_both_directions(
    tmp_path: Path, mode: str, *, stream: bool
) -> None:
    """JavaScript cuts texts in the middle of an emoji, and writes what is left as it is."""
    async with gate(tmp_path, mode=mode) as g:
        g.api.behave("one", "ok", text="half \ud83d")
        body = json.dumps(g.body(stream=stream)).replace("say it", r"half \ud83d").encode()
        answer = await g.client.post(
            g.path(stream=stream),
            content=body,
            headers={"x-api-key": g.token, "content-type": "application/json"},
        )
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-fallbackd-served-by"] == "one"
        assert rb"\ud83d" in answer.content
        assert r"half \ud83d" in json.dumps(g.api.calls("one")[0].body)
        assert (await g.health("one"))["state"] == "healthy"


async def test_figures_in_the_head_of_an_answer_are_shown_and_outlive_a_restart(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", "usage_limit")
        assert (await g.ask()).status_code == 200
        await g.daemon.restart()
        week, hours = (await g.health("one"))["limits"][::-1]
        assert (hours["window_s"], hours["used_percent"], hours["source"]) == (18e3, 100, "headers")
        assert (week["window_s"], week["used_percent"], week["fresh"]) == (604_800, 80, True)
        shown = await run_client(g.daemon.socket, "limits")
        assert "80%" in shown.out
