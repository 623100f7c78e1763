"""Keep-alives in an answer that is held: `[gateway] keepalive_s`."""

import json
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.support.gateway import ENDS, KINDS, Gate, gate, over_http_1_0, read_into

BEATS = dict.fromkeys(KINDS, b": keepalive\n\n") | {"generate_content": b"\n\n"}
HANGS_FIRST = "first_answer_s = 3"
OFTEN = "keepalive_s = 1"
BUSY = "please come back later"


@pytest.mark.parametrize("mode", KINDS)
async def test_a_held_answer_is_preceded_by_keep_alives(tmp_path: Path, mode: str) -> None:
    async with gate(tmp_path, mode=mode, hold="whole", first=HANGS_FIRST, gateway=OFTEN) as g:
        g.api.behave("one", "hang")
        answer = await g.ask()
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert "x-fallbackd-served-by" not in answer.headers  # no backend had answered yet
        assert answer.content.startswith(BEATS[mode])
        said = answer.content
        while said.startswith(BEATS[mode]):
            said = said.removeprefix(BEATS[mode])
        plain = await g.ask()
        assert plain.headers["x-fallbackd-served-by"] == "two"
        assert said.startswith(plain.content[:6])
        assert ENDS[mode].encode() in said
        assert said.count(b"data: ") == plain.content.count(b"data: ") > 1


async def test_keep_alives_before_a_list_of_json_leave_it_one(tmp_path: Path) -> None:
    more = {"hold": "whole", "first": HANGS_FIRST, "gateway": OFTEN}
    async with gate(tmp_path, mode="generate_content", **more) as g:
        g.api.behave("one", "hang")
        path, key = g.path().partition("?")[0], {"x-api-key": g.token}
        answer = await g.client.post(path, json=g.body(), headers=key)
        assert answer.content.startswith(b"\n")
        assert answer.headers["content-type"].startswith("application/json")
        assert len(json.loads(answer.content)) > 1


@pytest.mark.parametrize("mode", KINDS)
async def test_the_last_failure_is_reported_behind_them_without_a_good_end(
    tmp_path: Path, mode: str
) -> None:
    last = 'last = ["two"]'
    async with gate(
        tmp_path, mode=mode, first=HANGS_FIRST, gateway=OFTEN, hold_s=20, chains=last
    ) as g:
        g.api.behave("one", "hang")
        g.api.behave("two", "refuse", status=429, message=BUSY)
        got = bytearray()
        with pytest.raises(httpx2.RemoteProtocolError):
            await read_into(got, g)
        assert got.startswith(BEATS[mode])
        told = next(line for line in reversed(got.splitlines()) if line.startswith(b"data: "))
        said = json.loads(told[6:])
        assert BUSY in json.dumps(said)
        await g.daemon.client.call("health", {"action": "clear"})
        alone = await g.ask(**{"x-fallbackd-chain": "last"})
        if mode == "responses":
            assert got.count(b"data: ") == 2
            assert b"event: response.created" in got
            code = alone.json()["error"]["code"] or "server_error"
            assert said["response"]["error"]["code"] == code
        else:
            assert said == alone.json()  # as it is said where nothing has left before it
        assert ENDS[mode].encode() not in got


async def test_a_refusal_of_the_gateway_is_reported_behind_them_too(tmp_path: Path) -> None:
    alone = 'alone = ["one"]'
    async with gate(tmp_path, first="first_answer_s = 60", gateway=OFTEN, chains=alone) as g:
        g.api.behave("one", "hang")
        got = bytearray()
        asks = {"x-fallbackd-chain": "alone", "x-fallbackd-timeout-s": "3"}
        with pytest.raises(httpx2.RemoteProtocolError):
            await read_into(got, g, **asks)
        assert got.startswith(BEATS["chat_completions"])
        assert b"no answer within 3 s" in got


async def test_an_answer_that_is_no_stream_is_not_put_behind_them(tmp_path: Path) -> None:
    async with gate(tmp_path, hold="whole", first=HANGS_FIRST, gateway=OFTEN) as g:
        g.api.behave("one", "hang")
        g.api.behave("two", "error_200")
        got = bytearray()
        with pytest.raises(httpx2.RemoteProtocolError):
            await read_into(got, g)
        events = [line for line in got.splitlines() if line and not line.startswith(b":")]
        assert [b"data: " in one for one in events] == [True]


async def test_what_comes_in_one_piece_has_none(tmp_path: Path) -> None:
    async with gate(tmp_path, first=f"{HANGS_FIRST}\nstall_s = 3", gateway=OFTEN) as g:
        g.api.behave("one", "hang")

        async def whole() -> None:
            answer = await g.ask(stream=False)
            assert json.loads(answer.content)["choices"]
            assert answer.headers["x-fallbackd-served-by"] == "two"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(whole)
            tasks.start_soon(over_the_old_protocol, g)


async def over_the_old_protocol(g: Gate) -> None:
    """Where a stream that is cut looks whole."""
    body = json.dumps(g.body()).encode()
    _, found = await over_http_1_0(g, "POST", g.path(), body)
    assert not found.startswith(b":")
    assert ENDS[g.mode].encode() in found
