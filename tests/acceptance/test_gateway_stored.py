"""An answer that its provider has stored: asked for by its id, of the backend that made it."""

from pathlib import Path

import httpx2
import pytest
from tests.support.gateway import Gate, gate, last_event, listening, over_http_1_0, read_into

ACCOUNTS = """credentials = [{ label = "a", env = "KEY_A" }, { label = "b", env = "KEY_B" }]
credential_strategy = "round_robin"
"""
KEYS = {"KEY_A": "key-of-a", "KEY_B": "key-of-b"}


async def asked(g: Gate, method: str, path: str, **headers: str) -> httpx2.Response:
    return await g.client.request(method, path, headers={"x-api-key": g.token, **headers})


async def made_by_the_second(g: Gate) -> str:
    """The id of an answer; both backends are healthy behind it."""
    g.api.behave("one", "503", "ok")
    answer = await g.ask()
    assert answer.headers["x-fallbackd-served-by"] == "two"
    await g.daemon.client.call("health", {"action": "clear"})
    return str(last_event(answer.text)["response"]["id"])


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""),
        ("GET", "?include=reasoning.encrypted_content"),
        ("GET", "/input_items?limit=5"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ],
)
async def test_it_is_asked_of_its_maker_alone(tmp_path: Path, method: str, rest: str) -> None:
    async with gate(tmp_path, mode="responses") as g:
        name = await made_by_the_second(g)
        answer = await asked(g, method, f"/v1/responses/{name}{rest}")
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert answer.json().get("id") in (name, None)
        assert g.api.lookups == [("two", f"{method} /v1/responses/{name}{rest}")]


async def test_a_key_in_its_query_goes_no_further(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        path = f"/v1/responses/{await made_by_the_second(g)}"
        answer = await asked(g, "GET", f"{path}?include=x&key={g.token}")
        assert answer.status_code == 200
        assert g.api.lookups == [("two", f"GET {path}?include=x")]


async def test_what_was_made_of_one_piece_is_known_too(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        name = (await g.ask(stream=False)).json()["id"]
        assert (await asked(g, "GET", f"/v1/responses/{name}")).json()["id"] == name


async def test_an_answer_that_is_made_in_the_background_goes_back_and_is_known(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", "queued")
        answer = await g.ask(stream=False)
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "queued"
        name = answer.json()["id"]
        assert (await asked(g, "GET", f"/v1/responses/{name}")).json()["id"] == name
        assert g.api.calls("two") == []
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["one"]["state"] == "healthy"


async def test_it_is_read_and_cancelled_after_a_restart(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses", first=ACCOUNTS, env=KEYS) as g:
        g.api.behave("one", "queued")
        sent = {"x-api-key": g.token}
        body = {**g.body(stream=False), "background": True}
        name = (await g.client.post(g.path(), json=body, headers=sent)).json()["id"]
        gone = (await g.client.post(g.path(), json=body, headers=sent)).json()["id"]
        assert (await asked(g, "DELETE", f"/v1/responses/{gone}")).status_code == 200
        assert (await asked(g, "GET", f"/v1/responses/{gone}")).status_code == 404
        await g.daemon.kill()
        await g.daemon.start()
        await listening(g.port)
        path = f"/v1/responses/{name}"
        assert (await asked(g, "GET", path)).json()["id"] == name
        assert (await asked(g, "POST", f"{path}/cancel")).json()["status"] == "cancelled"
        assert (await asked(g, "GET", f"/v1/responses/{gone}")).status_code == 404
        assert [one for one, _ in g.api.lookups] == ["one"] * 3


async def test_it_is_known_as_soon_as_its_stream_has_begun(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses", first=ACCOUNTS, env=KEYS) as g:
        g.api.behave("one", "hang_mid", "ok")
        sent, got = {"x-api-key": g.token}, b""
        body = {**g.body(), "background": True}
        async with g.client.stream("POST", g.path(), json=body, headers=sent) as stream:
            pieces = stream.aiter_raw()
            while b"output_text.delta" not in got:
                got += await anext(pieces)
            name = "resp_" + got.decode().split('"id": "resp_')[1].partition('"')[0]
            assert (await asked(g, "GET", f"/v1/responses/{name}")).json()["id"] == name
            for _ in range(2):
                more = {**g.body(stream=False), "previous_response_id": name}
                answer = await g.client.post(g.path(), json=more, headers=sent)
                assert answer.status_code == 200, answer.text
            cancelled = await asked(g, "POST", f"/v1/responses/{name}/cancel")
            assert cancelled.json()["status"] == "cancelled"
        assert [call.credential for call in g.api.calls("one")] == ["key-of-a"] * 3


async def test_what_broke_off_on_its_way_can_be_asked_for_again(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", "truncated")
        got = bytearray()
        with pytest.raises(httpx2.RemoteProtocolError):
            await read_into(got, g)
        name = got.decode().split('"id": "resp_')[1].partition('"')[0]
        found = await asked(g, "GET", f"/v1/responses/resp_{name}?stream=true&starting_after=2")
        assert last_event(found.text)["type"] == "response.completed"


async def test_its_head_is_that_of_the_answer_and_comes_at_once(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        path = f"/v1/responses/{await made_by_the_second(g)}"
        whole, head = await asked(g, "GET", path), await asked(g, "HEAD", path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]


async def test_an_account_that_is_configured_no_more_is_not_known(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses", first=ACCOUNTS, env=KEYS) as g:
        name = last_event((await g.ask()).text)["response"]["id"]
        config = g.daemon.config_path.read_text()
        g.daemon.config_path.write_text(config.replace('{ label = "a", env = "KEY_A" },', ""))
        await g.daemon.client.call("config.reload")
        answer = await asked(g, "GET", f"/v1/responses/{name}")
        assert answer.status_code == 404
        assert g.api.lookups == []


async def test_it_is_continued_with_the_account_that_has_it(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses", first=ACCOUNTS, env=KEYS) as g:
        name = last_event((await g.ask()).text)["response"]["id"]
        sent = {"x-api-key": g.token}
        body = {**g.body(), "previous_response_id": name}
        for _ in range(2):
            assert (await g.client.post(g.path(), json=body, headers=sent)).status_code == 200
        assert [call.credential for call in g.api.calls("one")] == ["key-of-a"] * 3
        g.api.behave("one", "429", credential="key-of-a", retry_after_s=3600)
        assert (await g.client.post(g.path(), json=body, headers=sent)).status_code == 429
        refused = await g.client.post(g.path(), json=body, headers=sent)
        assert refused.status_code == 400
        assert "one (a) made this response" in refused.json()["error"]["message"]
        assert (await g.ask()).headers["x-fallbackd-served-by"] == "one"


async def test_an_unknown_one_is_not_found_and_no_backend_is_asked(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
            answer = await asked(g, method, f"/v1/responses/resp_of_another_day{path}")
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert error["message"].startswith("response resp_of_another_day is not known here")
            assert error["code"] == "response_not_found"
        assert g.api.lookups == []


@pytest.mark.parametrize(
    "named",
    [
        {"previous_response_id": "resp_of_another_day"},
        {"conversation": "resp_of_another_day"},
        {"conversation": {"id": "resp_of_another_day"}},
    ],
)
async def test_one_whose_maker_is_not_known_is_continued_by_no_backend(
    tmp_path: Path, named: dict[str, object]
) -> None:
    async with gate(tmp_path, mode="responses") as g:
        sent = {"x-api-key": g.token}
        answer = await g.client.post(g.path(), json={**g.body(), **named}, headers=sent)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "previous_response_not_found"
        assert error["message"].startswith("resp_of_another_day was not made through this endpoint")
        assert g.api.calls("one") == g.api.calls("two") == []
        only = {**g.body(), **named, "model": "one"}
        assert (await g.client.post(g.path(), json=only, headers=sent)).status_code == 200


async def test_one_that_was_deleted_is_not_known_any_more(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        path = f"/v1/responses/{await made_by_the_second(g)}"
        assert (await asked(g, "DELETE", path)).json()["deleted"] is True
        assert (await asked(g, "GET", path)).status_code == 404
        assert len(g.api.lookups) == 1


@pytest.mark.parametrize(
    ("stored", "status"), [("gone", 404), ("limited", 429), ("reset", 502), ("cut", 502)]
)
async def test_what_its_maker_says_of_it_says_nothing_about_the_maker(
    tmp_path: Path, stored: str, status: int
) -> None:
    async with gate(tmp_path, mode="responses") as g:
        name = await made_by_the_second(g)
        g.api.behave("two", "ok", stored=stored)
        answer = await asked(g, "GET", f"/v1/responses/{name}")
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["two"]["state"] == "healthy"


async def test_a_limit_of_its_maker_does_not_hide_it(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        name = await made_by_the_second(g)
        mark = {"action": "mark", "target": "two", "reason": "usage_limit"}
        await g.daemon.client.call("health", mark)
        assert (await asked(g, "GET", f"/v1/responses/{name}")).status_code == 200


async def test_a_maker_that_a_person_has_paused_is_not_asked(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        name = await made_by_the_second(g)
        await g.daemon.client.call("health", {"action": "pause", "target": "two"})
        answer = await asked(g, "GET", f"/v1/responses/{name}")
        assert answer.status_code == 400
        assert "fallbackd-client health resume two" in answer.json()["error"]["message"]
        assert g.api.lookups == []


async def test_a_stream_that_stops_short_is_no_whole_answer(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        path = f"/v1/responses/{await made_by_the_second(g)}?stream=true"
        assert b"content-length" in (await over_http_1_0(g, "GET", path))[0]
        g.api.behave("two", "ok", stored="truncated")
        with pytest.raises(httpx2.RemoteProtocolError):
            await asked(g, "GET", path)
        assert (await over_http_1_0(g, "GET", path))[0].startswith(b"http/1.1 502 ")


async def test_one_that_its_maker_does_not_stream_goes_back_as_it_is(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        path = f"/v1/responses/{await made_by_the_second(g)}"
        g.api.behave("two", "ok", stored="whole")
        whole = await asked(g, "GET", path)
        asked_as_stream = await asked(g, "GET", f"{path}?stream=true")
        assert asked_as_stream.status_code == 200
        assert asked_as_stream.json().keys() == whole.json().keys()
        assert asked_as_stream.headers["content-length"] == whole.headers["content-length"]
        assert b"content-length" in (await over_http_1_0(g, "GET", f"{path}?stream=true"))[0]
        found = await g.daemon.client.call("exchange.list", {"limit": 1})
        assert found["exchanges"][0]["state"] == "succeeded"
        g.api.behave("two", "ok", stored="cut")
        assert (await asked(g, "GET", f"{path}?stream=true")).status_code == 502


async def test_a_stream_is_known_by_its_bytes_too(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        path = f"/v1/responses/{await made_by_the_second(g)}?stream=true"
        g.api.behave("two", "ok", stored="untyped")
        found = await asked(g, "GET", path)
        assert "content-length" not in found.headers
        assert last_event(found.text)["type"] == "response.completed"


async def test_one_that_failed_does_not_repeat_the_key(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses", first=ACCOUNTS, env=KEYS) as g:
        path = f"/v1/responses/{last_event((await g.ask()).text)['response']['id']}"
        g.api.behave("one", "ok", stored="failed")
        answers = [await asked(g, "GET", path), await asked(g, "GET", f"{path}?stream=true")]
        told = [answer.text for answer in answers]
        told.append((await over_http_1_0(g, "GET", f"{path}?stream=true"))[1].decode())
        for text in told:
            assert "bad key ********" in text
            assert "key-of-a" not in text


async def test_it_needs_the_token_and_explain_shows_who_was_asked(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        name = await made_by_the_second(g)
        path = f"/v1/responses/{name}"
        assert (await g.client.get(path)).status_code == 401
        answer = await asked(g, "GET", path)
        exchange = answer.headers["x-fallbackd-exchange"]
        told = await g.daemon.client.call("explain", {"delegation": exchange})
        assert "two" in str(told)
        assert (await asked(g, "PUT", path)).status_code == 405
