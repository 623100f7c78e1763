"""What HTTP APIs answer, byte by byte: however it is cut into pieces, it means the same."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.provider_answers import error_event, stream
from tests.support.provider_frames import TEXT, Answer
from tests.support.provider_refusals import Dialect

from fallbackd.backends import KINDS
from fallbackd.backends.http_calls import parser_of
from fallbackd.backends.spec import ApiMode
from fallbackd.classify.classifier import classify
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import (
    AgentText,
    Chunk,
    Evidence,
    Exit,
    GivenUp,
    HttpResponse,
    NotStarted,
    Observation,
    Outcome,
    Phase,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Usage,
)

RULES = KINDS["openai-http"].rules
OK = HttpResponse(status=200, gone=True)
CUT = HttpResponse(status=200, truncated=True, gone=True)
DIALECTS: dict[Dialect, ApiMode] = {
    "chat": "chat_completions",
    "responses": "responses",
    "anthropic": "messages",
    "google": "generate_content",
}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def read(
    mode: ApiMode, body: bytes, exit: Exit = OK, *, size: int = 1 << 20
) -> tuple[Outcome, list[Observation]]:
    parser = parser_of(mode)
    seen: list[Observation] = []
    for start in range(0, len(body), size):
        seen.extend(parser.feed(Chunk("http", body[start : start + size], 0.0)))
    return parser.finish(exit), seen


def failure(outcome: Outcome) -> Failure:
    assert isinstance(outcome, Evidence), outcome
    found = classify(outcome, RULES, now=0.0)
    assert found is not None
    return found


def streamed(dialect: Dialect, **fields: Any) -> bytes:
    found = stream(dialect, Answer(model="m", **fields))
    return "".join((*found.head, *found.tail)).encode()


def chat(*deltas: dict[str, Any], finish: str | None = "stop") -> bytes:
    chunks: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks)


@every_dialect
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_pieces_may_break_anywhere(dialect: Dialect, size: int) -> None:
    text = 'Grüße, 你好 🙂 "quoted"\n\ndata: [DONE]\n\nevent: message_stop'
    outcome, seen = read(DIALECTS[dialect], streamed(dialect, text=text), size=size)
    assert isinstance(outcome, Reply)
    assert outcome.text == text
    assert [one for one in seen if isinstance(one, ProviderAnswered)] == [ProviderAnswered()]
    assert any(isinstance(one, Usage) for one in seen)


@every_dialect
def test_line_ends_and_a_byte_order_mark_do_not_matter(dialect: Dialect) -> None:
    body = streamed(dialect)
    for other in (body.replace(b"\n", b"\r\n"), body.replace(b"\n", b"\r"), b"\xef\xbb\xbf" + body):
        outcome, _ = read(DIALECTS[dialect], other)
        assert isinstance(outcome, Reply)
        assert outcome.text == TEXT


@every_dialect
def test_every_end_before_the_sign_of_the_end_is_no_answer(dialect: Dialect) -> None:
    found = stream(dialect, Answer(model="m"))
    events = [one.encode() for one in (*found.head, *found.tail)]
    signs = (
        b'"finish_reason": "stop"',
        b"response.completed",
        b'"stop_reason": "end_turn"',
        b'"finishReason": "STOP"',
    )
    end = next(i for i, one in enumerate(events) if any(sign in one for sign in signs))
    for count in range(end + 1):
        for exit in (OK, CUT):
            outcome, _ = read(DIALECTS[dialect], b"".join(events[:count]), exit)
            assert failure(outcome).reason in ("network", "empty_result", "server_error")
    # Google's word for an end may come with each piece: how the body ends counts too.
    exit = OK if dialect == "google" else CUT
    whole, _ = read(DIALECTS[dialect], b"".join(events[: end + 1]), exit)
    assert isinstance(whole, Reply)


@every_dialect
@pytest.mark.parametrize(
    ("ending", "reason", "detail"),
    [("length", "format_error", "output_limit"), ("filter", "content_policy", None)],
)
def test_an_answer_that_ends_for_another_reason_is_none(
    dialect: Dialect, ending: Any, reason: str, detail: str | None
) -> None:
    outcome, _ = read(DIALECTS[dialect], streamed(dialect, ending=ending))
    found = failure(outcome)
    assert (found.reason, found.detail, found.marks_health) == (reason, detail, False)


@every_dialect
def test_an_error_after_output_is_told_at_once_and_once(dialect: Dialect) -> None:
    head = "".join(stream(dialect, Answer(model="m")).head)
    error = error_event(dialect, "rate_limit_mid")
    outcome, seen = read(DIALECTS[dialect], (head + error + error).encode())
    assert sum(isinstance(one, GivenUp) for one in seen) == 1
    assert failure(outcome).reason == "rate_limit"
    assert isinstance(outcome, Evidence)
    assert outcome.answered


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"error": {"message": "Provider returned error", "code": 429}}, "rate_limit"),
        ({"error": {"message": "Insufficient credits", "code": 402}}, "billing"),
        ({"error": "The model is overloaded"}, "overloaded"),
        ({"object": "error", "message": "Too many requests", "code": 429}, "rate_limit"),
        ({"choices": [{"error": {"code": 502, "message": "Upstream error"}}]}, "server_error"),
        ({"error": {"code": 403, "message": "Invalid API key"}}, "auth"),
    ],
)
def test_errors_that_gateways_put_into_a_stream_are_read(event: Any, reason: str) -> None:
    body = b"data: " + json.dumps(event).encode() + b"\n\n"
    outcome, seen = read("chat_completions", body)
    assert failure(outcome).reason == reason
    assert any(isinstance(one, GivenUp) for one in seen)


def test_words_about_errors_are_an_answer() -> None:
    words = 'HTTP 429 means "rate limit exceeded"; {"error": {"code": 429}}'
    outcome, seen = read("chat_completions", chat({"content": words}))
    assert outcome == Reply(text=words)
    assert not any(isinstance(one, GivenUp) for one in seen)


def test_thinking_shows_life_and_is_no_part_of_the_answer() -> None:
    body = chat({"reasoning_content": "hm"}, {"reasoning": "hm"}, {"content": "pong"})
    outcome, seen = read("chat_completions", body)
    assert outcome == Reply(text="pong")
    assert [one for one in seen if isinstance(one, Phase | AgentText)] == [
        Phase("thinking"),
        AgentText("pong"),
    ]


def test_a_refusal_of_the_model_is_no_answer() -> None:
    outcome, _ = read("chat_completions", chat({"refusal": "I cannot help with that."}))
    found = failure(outcome)
    assert found.reason == "content_policy"
    assert "I cannot help" in found.evidence


def test_blanks_before_the_answer_show_life_and_change_nothing() -> None:
    body = b"\n" * 500 + b'{"choices": [{"message": {"content": "pong"}, "finish_reason": "stop"}]}'
    outcome, seen = read("chat_completions", body, size=100)
    assert outcome == Reply(text="pong")
    assert len(seen) == len(range(0, len(body), 100))
    assert read("chat_completions", b"\r\n" * 90 + chat({"content": "pong"}))[0] == Reply(
        text="pong"
    )


def test_a_response_without_deltas_is_read_from_its_last_event() -> None:
    part = {"type": "output_text", "text": "pong"}
    items = [
        {"type": "reasoning", "summary": []},
        {"type": "message", "content": [part]},
        {"type": "message", "content": [part]},
    ]
    done = {"type": "response.completed", "response": {"status": "completed", "output": items}}
    body = b"data: " + json.dumps(done).encode() + b"\n\n"
    assert read("responses", body)[0] == Reply(text="pong\n\npong")
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    whole = json.dumps({"status": "completed", "output": [refusal]}).encode()
    assert failure(read("responses", whole)[0]).reason == "content_policy"


@pytest.mark.parametrize(
    ("status", "reason"),
    [("failed", "server_error"), ("cancelled", "network"), ("in_progress", "network")],
)
def test_a_response_that_is_not_completed_is_no_answer(status: str, reason: str) -> None:
    part = {"type": "output_text", "text": "half"}
    items = [{"type": "message", "content": [part]}]
    whole = json.dumps({"status": status, "output": items}).encode()
    assert failure(read("responses", whole)[0]).reason == reason


@pytest.mark.parametrize("mode", DIALECTS.values())
@pytest.mark.parametrize(
    ("exit", "body", "reason"),
    [
        (HttpResponse(status=301, headers={"location": "/x"}, gone=True), b"", "not_configured"),
        (OK, b"<!DOCTYPE html><html></html>", "not_configured"),
        (OK, b"", "empty_result"),
        (CUT, b"", "network"),
        (OK, b'{"object": "list", "data": []}', "server_error"),
        (OK, b"null", "server_error"),
        (OK, b'"pong"', "server_error"),
        (OK, b"upstream is warming up", "server_error"),
        (OK, b"data: pong\n\n", "server_error"),
        (OK, b'[{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}]', "rate_limit"),
        (HttpResponse(status=429, gone=True), b"", "rate_limit"),
        (HttpResponse(status=503, gone=True), b"upstream connect error", "overloaded"),
        (HttpResponse(status=502, gone=True), b"<html><h1>Bad Gateway</h1></html>", "server_error"),
        (
            HttpResponse(status=404, gone=True),
            b'{"error": {"message": "Not Found"}}',
            "server_error",
        ),
        (
            HttpResponse(status=400, gone=True),
            b'event: error\ndata: {"error": {"message": "m"}}\n\n',
            None,
        ),
        (ProcessExit(gone=True, code=1), b"", "unknown"),
        (NotStarted(error="ENOSPC", text="no space left", gone=True), b"", "crash"),
    ],
)
def test_what_is_no_answer_is_judged_in_every_dialect(
    mode: ApiMode, exit: Exit, body: bytes, reason: str | None
) -> None:
    outcome, _ = read(mode, body, exit)
    assert failure(outcome).reason == (reason or "format_error")


@every_dialect
@given(st.data())
@settings(max_examples=60)
def test_no_bytes_break_a_parser(dialect: Dialect, data: st.DataObject) -> None:
    whole = streamed(dialect)
    pieces = data.draw(
        st.lists(
            st.one_of(
                st.binary(max_size=30),
                st.integers(0, len(whole) - 1).map(lambda at: whole[at : at + 80]),
                st.sampled_from(
                    [b"data: ", b"\n\n", b'data: {"choices": 3}\n\n', b"data: {}\n\n", b"{", b"["]
                ),
                st.sampled_from(
                    [
                        b'data: {"type": "response.completed", "response": [1]}\n\n',
                        b'data: {"choices": [{"delta": {"content": [{"text": 1}]}}]}\n\n',
                        b'data: {"type": "message_delta", "delta": 1, "usage": "x"}\n\n',
                        b'data: {"usage": {"cost": true}, "choices": [null]}\n\n',
                    ]
                ),
            ),
            max_size=12,
        )
    )
    status = data.draw(st.sampled_from([200, 302, 429, 500]))
    truncated = data.draw(st.booleans())
    parser = parser_of(DIALECTS[dialect])
    for piece in pieces:
        parser.feed(Chunk("http", piece, 0.0))
    outcome = parser.finish(HttpResponse(status=status, truncated=truncated, gone=True))
    if isinstance(outcome, Reply):
        assert status == 200
        assert outcome.text.strip()
    else:
        assert classify(outcome, RULES, now=0.0) is not None
