"""A Hermes agent behind its API."""

from typing import Any

import msgspec
import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import (
    Chunk,
    CredentialRef,
    Evidence,
    Exit,
    HttpRequest,
    HttpResponse,
    NoAnswer,
    Outcome,
    Reply,
    ToolEnded,
    ToolStarted,
    Usage,
    Work,
)

KIND = KINDS["hermes-api"]


def start(options: Options | None = None, **changes: Any) -> HttpRequest:
    work = Work(prompt='say "pong"', prompt_path="/p", cwd="/c", scratch="/s")
    call = KIND.start(msgspec.structs.replace(work, **changes), options or Options())
    assert isinstance(call, HttpRequest)
    return call


def finish(exit: Exit, *pieces: bytes) -> Outcome:
    parser = KIND.parser(Options())
    for piece in pieces:
        parser.feed(Chunk("http", piece, 0.0))
    return parser.finish(exit)


def finish_old(exit: Exit, *pieces: bytes) -> Outcome:
    parser = KIND.parser(Options(api_mode="hermes_chat"))
    for piece in pieces:
        parser.feed(Chunk("http", piece, 0.0))
    return parser.finish(exit)


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Evidence)
    failure = classify(outcome, KIND.rules, now=0.0)
    assert failure is not None
    return failure.reason


@pytest.mark.parametrize(
    ("base", "url"),
    [
        (None, "http://127.0.0.1:8088/v1/chat/completions"),
        ("http://host.test:9/", "http://host.test:9/v1/chat/completions"),
        ("http://host.test:9/v1", "http://host.test:9/v1/chat/completions"),
    ],
)
def test_the_address_may_end_in_its_version(base: str | None, url: str) -> None:
    assert start(Options(base_url=base)).url == url


def test_the_prompt_is_one_message_of_the_user() -> None:
    body = msgspec.json.decode(start(model="m").body)
    assert body["messages"] == [{"role": "user", "content": 'say "pong"'}]
    assert body["model"] == "m"
    assert msgspec.json.decode(start().body)["model"] == "hermes"


def test_a_key_is_named_and_never_held() -> None:
    assert start().secret_headers == {}
    found = start(inherited={"API_SERVER_KEY": "secret-value"})
    assert found.secret_headers == {"authorization": "Bearer {credential}"}
    assert found.credential == CredentialRef(
        label="API_SERVER_KEY", source="env", name="API_SERVER_KEY"
    )
    assert b"secret-value" not in msgspec.json.encode(found)
    chosen = CredentialRef(label="work", source="file", name="~/key")
    assert start(credential=chosen).credential == chosen


def test_the_older_shape_carries_one_message_and_its_key_in_the_body() -> None:
    old = Options(base_url="http://127.0.0.1:8088/api/chat")
    found = start(old, inherited={"API_SERVER_KEY": "secret-value"})
    assert found.url == "http://127.0.0.1:8088/api/chat"
    assert msgspec.json.decode(found.body) == {"message": 'say "pong"', "source": "fallbackd"}
    assert found.secret_fields == {"key": "{credential}"}
    assert found.secret_headers == {}
    by_mode = Options(base_url="http://127.0.0.1:8088/v1", api_mode="hermes_chat")
    assert start(by_mode).url == "http://127.0.0.1:8088/api/chat"
    assert start(by_mode).secret_fields == {}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"response": "p\xc3\xb6ng"}', "pöng"),
        (b'{"ok": true, "reply": "pong"}', "pong"),
        (b"just words", "just words"),
    ],
)
def test_the_older_shape_answers_in_one_piece(body: bytes, text: str) -> None:
    assert finish_old(HttpResponse(status=200, gone=True), body) == Reply(text=text)


def test_the_older_shape_without_an_answer_is_a_failure() -> None:
    said = b'{"ok": false, "message": "Too many requests"}'
    assert reason(finish_old(HttpResponse(status=200, gone=True), said)) == "rate_limit"
    cut = finish_old(HttpResponse(status=200, truncated=True, gone=True), b"half of the wor")
    assert reason(cut) == "network"
    assert reason(finish_old(HttpResponse(status=200, gone=True), b"<!doctype html><p>hello")) == (
        "not_configured"
    )


def test_tools_of_the_agent_make_effects_possible() -> None:
    parser = KIND.parser(Options())
    seen = parser.feed(
        Chunk(
            "http",
            b"event: hermes.tool.progress\n"
            b'data: {"tool":"terminal","toolCallId":"c1","status":"running"}\n\n'
            b"event: hermes.tool.progress\n"
            b'data: {"tool":"terminal","toolCallId":"c1","status":"completed"}\n\n',
            0.0,
        )
    )
    assert [type(one) for one in seen] == [ToolStarted, ToolEnded]
    assert isinstance(seen[0], ToolStarted)
    assert seen[0].effects == "possible"


def test_an_answer_in_pieces_is_a_reply_with_its_usage() -> None:
    body = msgspec.json.encode(
        {
            "choices": [
                {"message": {"role": "assistant", "content": "pöng"}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2},
        }
    )
    outcome = finish(HttpResponse(status=200, gone=True), body[:40], body[40:])
    assert outcome == Reply(text="pöng", usage=Usage(input_tokens=7, output_tokens=2))


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, b'{"error":{"message":"Unauthorized"}}', "auth"),
        (429, b'{"error":{"message":"Too Many Requests"}}', "rate_limit"),
        (503, b"<html><h1>Service Unavailable</h1></html>", "overloaded"),
        (500, b"", "server_error"),
        (200, b"", "empty_result"),
        (200, b'{"choices":[{"message":{"content":" "},"finish_reason":"stop"}]}', "empty_result"),
        (
            200,
            b'{"choices":[{"message":{"content":null},"finish_reason":"content_filter"}]}',
            "content_policy",
        ),
        (200, b"<<<this is not JSON>>>", "server_error"),
        (200, b'{"error":{"message":"The model is overloaded"}}', "overloaded"),
    ],
)
def test_what_is_no_answer_is_classified(status: int, body: bytes, expected: str) -> None:
    assert reason(finish(HttpResponse(status=status, gone=True), body)) == expected


def test_an_answer_that_was_cut_off_is_no_answer() -> None:
    body = b'{"choices":[{"message":{"content":"half"}}]}'
    assert reason(finish(HttpResponse(status=200, truncated=True, gone=True), body)) == "network"


def test_no_response_is_classified_by_its_exception() -> None:
    assert (
        reason(finish(NoAnswer(exception="ConnectError", text="refused", gone=True))) == "network"
    )
    assert reason(finish(NoAnswer(exception="ReadTimeout", text="", gone=True))) == "timeout"


def test_a_stated_time_of_the_headers_is_kept() -> None:
    outcome = finish(HttpResponse(status=429, headers={"retry-after": "30"}, gone=True), b"{}")
    assert isinstance(outcome, Evidence)
    failure = classify(outcome, KIND.rules, now=0.0)
    assert failure is not None
    assert failure.stated_reset_s == 30.0
