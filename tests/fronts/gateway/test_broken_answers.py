"""Answers with status 200 that are none: broken generations, empty ones, and side calls."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.told import Gateway, Told, as_events, as_json, gateway, told_backend

from fallbackd.backends.passage import AnswerWatch
from fallbackd.backends.spec import ApiMode
from fallbackd.core.protocol import HttpRequest, HttpResponse

DONE = b"data: [DONE]\n\n"
ASKED = {"model": "team", "messages": [], "stream": True}


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


async def read_into(got: bytearray, gateway: Gateway) -> None:
    async with gateway.client.stream("POST", "/v1/chat/completions", json=ASKED) as answer:
        async for piece in answer.aiter_raw():
            got += piece


def well(request: HttpRequest) -> Told:
    return as_events(chunk(content="well"), chunk("stop"), DONE)


@pytest.mark.parametrize("word", ["error", "network_error", "insufficient_system_resource"])
async def test_a_generation_that_breaks_after_text_is_broken_off_before_its_end(
    tmp_path: Path, word: str
) -> None:
    def broken(request: HttpRequest) -> Told:
        return as_events(chunk(content="Half of "), chunk(word), DONE)

    backends = told_backend("a", provider="a.example"), told_backend("b", provider="b.example")
    async with gateway(tmp_path, *backends, answers={"a": broken, "b": well}) as g:
        got = bytearray()
        with pytest.raises(httpx2.RemoteProtocolError):
            await read_into(got, g)
        assert b"Half of" in got
        assert b"[DONE]" not in got
        assert word.encode() not in got.split(b"error", 1)[0]
        assert set(g.marks()) == {"model:a/m-a"}


@pytest.mark.parametrize(
    "pieces",
    [
        (chunk("network_error"),),
        (chunk("stop"),),
        (chunk(content="Half of ") + chunk("network_error"),),
    ],
)
async def test_a_generation_that_breaks_or_ends_before_text_is_sent_is_answered_by_the_next(
    tmp_path: Path, pieces: tuple[bytes, ...]
) -> None:
    def broken(request: HttpRequest) -> Told:
        return as_events(chunk(role="assistant", content=""), *pieces, DONE)

    backends = told_backend("a"), told_backend("b")
    async with gateway(tmp_path, *backends, answers={"a": broken, "b": well}) as g:
        answer = await g.client.post("/v1/chat/completions", json=ASKED)
        assert answer.headers["x-fallbackd-served-by"] == "b"
        assert b"well" in answer.content


async def test_a_backend_that_is_alone_is_asked_once_more_after_an_empty_answer(
    tmp_path: Path,
) -> None:
    def empty_at_first(request: HttpRequest) -> Told:
        return as_events(chunk("stop"), DONE) if len(g.sent) == 1 else well(request)

    async with gateway(tmp_path, told_backend("a"), answers={"a": empty_at_first}) as g:
        answer = await g.client.post("/v1/chat/completions", json=ASKED)
        assert b"well" in answer.content
        assert g.marks() == {}


PICTURE = {"inlineData": {"data": "QUJD"}}
WITHOUT_TEXT: list[tuple[ApiMode, Any]] = [
    ("chat_completions", {"message": {"audio": {"data": "QUJD"}}}),
    ("chat_completions", {"message": {"content": "", "images": [{"type": "url"}]}}),
    ("chat_completions", {"message": {"tool_calls": [{"id": "1"}]}}),
    ("chat_completions", {"message": {"refusal": "no"}}),
    ("messages", [{"type": "tool_use", "id": "1"}]),
    ("messages", [{"type": "web_search_tool_result", "content": []}]),
    ("responses", [{"type": "image_generation_call", "result": "QUJD"}]),
    ("responses", [{"type": "compaction", "encrypted_content": "x"}]),
    ("responses", [{"type": "function_call", "name": "f"}]),
    ("generate_content", PICTURE),
    ("generate_content", {"functionCall": {"name": "f"}}),
]
EMPTY: list[tuple[ApiMode, Any]] = [
    ("chat_completions", {"message": {"content": None, "reasoning_content": "hm"}}),
    ("messages", [{"type": "thinking", "thinking": "hm", "signature": "s"}]),
    ("responses", [{"type": "reasoning", "summary": []}]),
    ("generate_content", {"text": "hm", "thought": True}),
]


def in_one_piece(mode: ApiMode, said: Any) -> bytes:
    match mode:
        case "chat_completions":
            value: Any = {"choices": [{"index": 0, "finish_reason": "stop", **said}]}
        case "messages":
            value = {"type": "message", "content": said, "stop_reason": "end_turn"}
        case "responses":
            value = {"id": "r", "status": "completed", "output": said}
        case _:
            value = {"candidates": [{"content": {"parts": [said]}, "finishReason": "STOP"}]}
    return json.dumps(value).encode()


@pytest.mark.parametrize(("mode", "said"), WITHOUT_TEXT)
def test_an_answer_without_text_that_holds_something_else_is_one(mode: ApiMode, said: Any) -> None:
    watch = AnswerWatch(mode)
    watch.feed(in_one_piece(mode, said))
    assert watch.finish(HttpResponse(status=200, gone=True)) is None


@pytest.mark.parametrize(("mode", "said"), EMPTY)
def test_an_answer_of_nothing_but_thoughts_is_none(mode: ApiMode, said: Any) -> None:
    watch = AnswerWatch(mode)
    watch.feed(in_one_piece(mode, said))
    found = watch.finish(HttpResponse(status=200, gone=True))
    assert found is not None
    assert found.empty


SIDE_CALLS = [
    ("/v1/messages/count_tokens", "anthropic-http", {"model": "team", "messages": []}),
    ("/v1beta/models/team:countTokens", "google-http", {"contents": []}),
    ("/v1/responses/compact", "openai-http", {"model": "team", "input": "hi"}),
]
NOT_WHOLE = {
    "cut": Told(pieces=(b'{"input_tokens": 4',), is_cut=True),
    "cut behind its end": Told(pieces=(b'{"input_tokens": 4}',), is_cut=True),
    "a page": Told(pieces=(b"<!DOCTYPE html><html></html>",)),
    "no body": Told(),
    "no JSON": Told(pieces=(b'{"input_tokens": ',)),
    "no object": Told(pieces=(b"[4]",)),
}


@pytest.mark.parametrize("fault", NOT_WHOLE)
@pytest.mark.parametrize(("path", "kind", "body"), SIDE_CALLS)
async def test_a_side_call_whose_answer_is_not_whole_is_answered_by_the_next(
    tmp_path: Path, path: str, kind: str, body: dict[str, Any], fault: str
) -> None:
    options = {"api_mode": "responses"} if kind == "openai-http" else {}
    backends = (
        told_backend("a", kind, options=options),
        told_backend("b", kind, options=options),
    )
    answers = {"a": lambda _: NOT_WHOLE[fault], "b": lambda _: as_json({"input_tokens": 4})}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        answer = await g.client.post(path, json=body)
        assert (answer.status_code, answer.json()) == (200, {"input_tokens": 4})
        assert answer.headers["x-fallbackd-served-by"] == "b"
        assert bool(g.marks()) is (path == "/v1/responses/compact")


async def test_a_count_that_no_backend_gives_whole_is_an_error_and_marks_none(
    tmp_path: Path,
) -> None:
    path, kind, body = SIDE_CALLS[0]
    answers = {"a": lambda _: NOT_WHOLE["a page"]}
    async with gateway(tmp_path, told_backend("a", kind), answers=answers) as g:
        answer = await g.client.post(path, json=body)
        assert answer.status_code == 503
        assert g.marks() == {}


TEXT = {"type": "message", "content": [{"type": "output_text", "text": "well"}]}
MADE = {"id": "resp_1", "object": "response", "status": "completed", "output": [TEXT]}


@pytest.mark.parametrize("body", [b"<html>login</html>", b"", b'{"id": "resp_1", "out', b"[1]"])
async def test_a_stored_answer_that_its_provider_does_not_give_whole_is_an_error(
    tmp_path: Path, body: bytes
) -> None:
    def answer(request: HttpRequest) -> Told:
        return as_json(MADE) if request.method == "POST" else Told(pieces=(body,))

    backend = told_backend("a", options={"api_mode": "responses"})
    async with gateway(tmp_path, backend, answers={"a": answer}) as g:
        asked = {"model": "team", "input": "say it"}
        assert (await g.client.post("/v1/responses", json=asked)).json()["id"] == "resp_1"
        found = await g.client.get("/v1/responses/resp_1")
        assert found.status_code == 502
        assert "not a JSON object" in found.json()["error"]["message"]
        assert g.marks() == {}
