"""What stands at each path, and requests that are not the plain ones."""

import gzip
import json
import re
from itertools import product
from pathlib import Path

import httpx2
import pytest
from tests.support.gateway import ENDS, gate, over_http_1_0, read_into


async def test_a_question_whether_anything_listens_needs_no_token_and_says_nothing(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        for path in ("/", "/api/hello", "/healthz"):
            for method in ("GET", "HEAD"):
                answer = await g.client.request(method, path)
                assert (answer.status_code, answer.content) == (200, b"")
                assert not [name for name in answer.headers if "server" in name]


async def test_the_head_of_a_refusal_is_a_refusal(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        key = {"x-api-key": g.token}
        for path, headers, status in (
            ("/v1/models", {}, 401),
            ("/v1/models", key, 200),
            ("/v1/nothing", key, 404),
        ):
            answer = await g.client.head(path, headers=headers)
            assert (answer.status_code, answer.content) == (status, b"")


async def test_codex_is_sent_to_plain_http_at_once(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        asks = {"x-api-key": g.token, "connection": "upgrade", "upgrade": "websocket"}
        answer = await g.client.get("/v1/responses", headers=asks)
        assert answer.status_code == 426
        kept = await g.client.get("/v1/responses/resp_1", headers={"x-api-key": g.token})
        assert kept.status_code == 404
        assert kept.json()["error"]["message"]


@pytest.mark.parametrize("is_served", [True, False])
async def test_a_daemon_that_takes_no_work_says_so(tmp_path: Path, *, is_served: bool) -> None:
    async with gate(tmp_path) as g:
        if is_served:
            assert (await g.ask()).status_code == 200
        await g.daemon.client.call("daemon.drain", {})
        answer = await g.ask()
        assert answer.status_code == 503
        assert "draining" in answer.json()["error"]["message"]
        assert (await g.client.get("/healthz")).status_code == 503
        assert len(g.api.calls("one")) == int(is_served)


async def test_the_key_in_an_address_is_googles_way_and_no_others(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        answer = await g.client.post(f"{g.path()}?key={g.token}", json=g.body())
        assert answer.status_code == 401
        assert g.api.log == []
    async with gate(tmp_path / "google", mode="generate_content") as g:
        answer = await g.client.post(f"{g.path()}&key={g.token}", json=g.body())
        assert answer.status_code == 200


async def test_what_is_not_there_below_googles_paths_is_told_in_its_words(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        for path in ("/v1beta/files", "/v1beta/files/abc", "/v1alpha/tunedModels/team"):
            for method in ("GET", "POST"):
                answer = await g.client.request(method, f"{path}?key={g.token}")
                error = answer.json()["error"]
                assert (error["code"], error["status"]) == (404, "NOT_FOUND")
                assert error["message"] == f"nothing is at {path}"


async def test_models_with_colons_and_slashes_are_asked_for_as_google_asks(tmp_path: Path) -> None:
    more = '[backends.own]\nkind = "google-http"\nmodel = "vendor/qwen3:8b"\ncost = "local"\n'
    more += 'base_url = "{url}/v1beta"\n'
    async with gate(tmp_path, mode="generate_content", more=more) as g:
        for name, served in (("chain:team", "one"), ("vendor/qwen3:8b", "own")):
            path = f"/v1beta/models/{name}:generateContent"
            answer = await g.client.post(path, json=g.body(), headers={"x-api-key": g.token})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-fallbackd-served-by"] == served
        assert [call.model for call in g.api.calls("three")] == ["vendor%2Fqwen3%3A8b"]


def _unnamed(stream: bytes) -> bytes:
    """Without the name of the answer, which is another one each time."""
    return re.sub(rb'"resp\w+"', b'"resp"', stream)


@pytest.mark.parametrize("hold", ["commit", "whole"])
async def test_a_stream_of_google_without_events_is_a_list_of_the_same_pieces(
    tmp_path: Path, hold: str
) -> None:
    async with gate(tmp_path, mode="generate_content", hold=hold) as g:
        g.api.behave("one", "503")
        plain = await g.ask()
        wanted = b"[" + b",\r\n".join(_unnamed(plain.content).split(b"data: ")[1:]) + b"]"
        for query in ("", f"?key={g.token}", "?alt=json"):
            path = g.path().partition("?")[0] + query
            answer = await g.client.post(path, json=g.body(), headers={"x-goog-api-key": g.token})
            assert _unnamed(answer.content) == wanted.replace(b"\n\n", b"")
            assert answer.headers["content-type"].startswith("application/json")
        head, rest = await over_http_1_0(g, "POST", path, json.dumps(g.body()).encode())
        assert f"content-length: {len(rest)}".encode() in head
        assert len(rest) == len(answer.content)
        assert len(json.loads(rest)) > 1
        refused = await g.client.post(
            f"{path}&alt=proto", json=g.body(), headers={"x-goog-api-key": g.token}
        )
        assert refused.status_code == 400
        assert len(g.api.calls("two")) == 5


async def test_a_list_that_breaks_off_has_no_end(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="generate_content") as g:
        g.api.behave("one", "truncated")
        path, got = g.path().partition("?")[0], bytearray()
        with pytest.raises(httpx2.RemoteProtocolError):
            await read_into(got, g, path)
        *pieces, last = json.loads(got + b"]")
        assert pieces
        assert last["error"]["message"] == "one broke off its answer"
        g.api.behave("one", "cut_early")
        await g.daemon.client.call("health", {"action": "clear"})
        answer = await g.client.post(path, json=g.body(), headers={"x-goog-api-key": g.token})
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert json.loads(answer.content)


async def test_a_compressed_body_is_passed_on_as_it_is_or_with_its_model(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        for model, members in product(("team", "model-of-one"), (1, 2)):
            plain = json.dumps({**g.body(), "model": model}).encode()
            body = gzip.compress(plain)
            if members == 2:  # RFC 1952, 2.2
                body = gzip.compress(plain[:20]) + gzip.compress(plain[20:])
            answer = await g.client.post(
                g.path(),
                content=body,
                headers={
                    "x-api-key": g.token,
                    "content-type": "application/json",
                    "content-encoding": "gzip",
                    "x-fallbackd-chain": "team",
                },
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-fallbackd-served-by"] == "one"
        assert {call.model for call in g.api.calls("one")} == {"model-of-one"}


async def test_a_compressed_body_that_is_damaged_or_without_end_is_refused(tmp_path: Path) -> None:
    async with gate(tmp_path, gateway="max_body_mb = 1") as g:
        bomb = gzip.compress(b" " * (8 * 1024 * 1024))
        more = gzip.compress(json.dumps(g.body()).encode()) + b"garbage"
        for body, status in ((b"no gzip", 400), (bomb[:100], 400), (more, 400), (bomb, 413)):
            answer = await g.client.post(
                g.path(),
                content=body,
                headers={
                    "x-api-key": g.token,
                    "content-type": "application/json",
                    "content-encoding": "gzip",
                },
            )
            assert answer.status_code == status, answer.text
        assert g.api.log == []


async def test_a_body_that_cannot_be_looked_into_goes_on_as_it_is(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        answer = await g.client.post(
            g.path(),
            content=json.dumps({**g.body(), "model": "of-the-caller"}).encode(),
            headers={
                "x-api-key": g.token,
                "content-type": "application/json",
                "content-encoding": "zstd",  # by word: the provider here does not unpack it
                "accept": "text/event-stream",
                "x-fallbackd-chain": "team",
            },
        )
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-fallbackd-served-by"] == "two"
        assert "x-fallbackd-model" not in answer.headers
        (call,) = g.api.calls("two")
        assert call.model == "of-the-caller"


async def test_the_header_names_a_chain_in_letters_of_any_language(tmp_path: Path) -> None:
    async with gate(tmp_path, chains='"équipe" = ["two"]') as g:
        sent = [("x-api-key", g.token), ("x-fallbackd-chain", "équipe".encode())]
        answer = await g.client.post(g.path(), json=g.body(), headers=sent)
        assert answer.headers["x-fallbackd-served-by"] == "two"


async def test_the_header_stands_in_place_of_a_model_that_is_missing(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        said = [{"role": "user", "content": "say it"}]
        for more in ({}, {"model": None}):
            answer = await g.client.post(
                g.path(),
                json={"messages": said, **more},
                headers={"x-api-key": g.token, "x-fallbackd-chain": "team"},
            )
            assert answer.status_code == 200, answer.text
        assert [call.model for call in g.api.calls("one")] == ["model-of-one"] * 2


async def test_a_caller_that_takes_no_chunks_gets_a_stream_whole_with_its_length(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "truncated")
        body = json.dumps(g.body()).encode()
        head, stream = await over_http_1_0(g, "POST", g.path(), body, expect="100-continue")
        assert head.startswith(b"http/1.1 200 ")
        assert b"x-fallbackd-served-by: two" in head
        assert f"content-length: {len(stream)}".encode() in head
        assert ENDS["chat_completions"].encode() in stream
        for name in ("one", "two"):
            g.api.behave(name, "truncated")
        await g.daemon.client.call("health", {"action": "clear"})
        head, error = await over_http_1_0(g, "POST", g.path(), body)
        assert head.startswith(b"http/1.1 503 ")
        assert f"content-length: {len(error)}".encode() in head
        for name in ("one", "two"):
            g.api.behave(name, "refuse", status=400, message="not like this")
        await g.daemon.client.call("health", {"action": "clear"})
        head, error = await over_http_1_0(g, "POST", g.path(), body)
        assert head.startswith(b"http/1.1 400 ")
        assert f"content-length: {len(error)}".encode() in head


@pytest.mark.parametrize(
    ("model", "header"),
    [
        ("team", "privat-local"),
        ("chain:privat-local", None),
        ("role:judg", None),
        ("role:team", None),
        ("team", "chain:privat-local"),
    ],
)
async def test_a_name_of_ours_that_is_not_known_is_refused(
    tmp_path: Path, model: str, header: str | None
) -> None:
    async with gate(tmp_path) as g:
        named = {} if header is None else {"x-fallbackd-chain": header}
        answer = await g.client.post(
            g.path(),
            json={**g.body(), "model": model},
            headers={"x-api-key": g.token, **named},
        )
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["code"] == "unknown_name"
        assert "known are: team, one, two" in error["message"]
        assert g.api.log == []


async def test_one_model_is_looked_up_by_its_name(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        sent = {"x-api-key": g.token}
        for name in ("team", "model-of-one"):
            found = (await g.client.get(f"/v1/models/{name}", headers=sent)).json()
            assert (found["id"], found["object"], found["type"]) == (name, "model", "model")
        unknown = await g.client.get("/v1/models/nothing", headers=sent)
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "model_not_found"


async def test_models_are_listed_in_the_form_of_google(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="generate_content") as g:
        sent = {"x-goog-api-key": g.token}
        listed = (await g.client.get("/v1beta/models", headers=sent)).json()["models"]
        assert "models/team" in [one["name"] for one in listed]
        # Their own library asks there, at the path of the other APIs.
        assert (await g.client.get("/v1/models", headers=sent)).json()["models"] == listed
        one = (await g.client.get("/v1beta/models/team", headers=sent)).json()
        assert one in listed
        assert "generateContent" in one["supportedGenerationMethods"]


async def test_input_tokens_are_counted_by_the_backend(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        answer = await g.client.post(
            "/v1/responses/input_tokens", json=g.body(stream=False), headers={"x-api-key": g.token}
        )
        assert answer.headers["x-fallbackd-served-by"] == "one", answer.text
        assert (await g.health("one"))["state"] == "healthy"
        assert (await g.health("two"))["state"] == "healthy"
