"""gemini asks for a stream that broke or hung again by itself, and prints its text once more."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import AgentText, Chunk, ProcessExit, ProviderAnswered, Reply
from fallbackd.core.watch import Watch, see

NOW = 1_795_190_000.0
GEMINI = KINDS["gemini"]


def event(at: float, **fields: Any) -> Chunk:
    stamp = datetime.fromtimestamp(NOW + at, UTC).isoformat().replace("+00:00", "Z")
    line = json.dumps({"timestamp": stamp, **fields}) + "\n"
    return Chunk(stream="stdout", data=line.encode(), at=NOW + at)


def said(at: float, text: str) -> Chunk:
    return event(at, type="message", role="assistant", content=text, delta=True)


def watched(*chunks: Chunk) -> Watch:
    parser, watch = GEMINI.parser(Options()), Watch(started_at=NOW)
    for chunk in chunks:
        for one in parser.feed(chunk):
            watch = see(watch, one, now=chunk.at)
    return watch


def test_text_that_is_printed_again_renews_no_limit_of_silence() -> None:
    begun = (said(1, "PONG-OK from "), said(1.1, "the fake "))
    once = (said(302, "PONG-OK from "), said(302.1, "the fake "))
    twice = (said(603, "PONG-OK from "),)
    assert watched(*begun, *once, *twice).last_output_at == NOW + 1.1
    # What is new is output.
    assert watched(*begun, *once, said(302.2, "provider.")).last_output_at == NOW + 302.2


def test_words_that_an_answer_repeats_after_others_are_output() -> None:
    watch = watched(said(1, "tick "), said(1.1, "tock "), said(5, "tock "), said(9, "tack "))
    assert watch.last_output_at == NOW + 9


def test_text_that_is_printed_again_shows_no_answer_and_is_shown_as_it_comes() -> None:
    parser = GEMINI.parser(Options())
    parser.feed(said(1, "PONG-OK from "))
    seen = parser.feed(said(302, "PONG-OK from "))
    assert seen == [AgentText("PONG-OK from ", again=True)]
    assert not any(isinstance(one, ProviderAnswered) for one in seen)
    parser.feed(said(302.1, "the provider"))
    parser.feed(event(303, type="result", status="success", stats={}))
    outcome = parser.finish(ProcessExit(gone=True, code=0))
    assert isinstance(outcome, Reply)
    assert outcome.text == "PONG-OK from the provider"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Model stream ended without a finish reason.", "network"),
        ("Model stream ended with empty response text.", "empty_result"),
        ("[API Error: Incomplete JSON segment at the end]", "network"),
        ("Model stream ended with malformed function call.", "server_error"),
    ],
)
def test_a_stream_that_gemini_has_asked_for_four_times_is_not_tried_again_by_the_engine(
    message: str, reason: str
) -> None:
    parser = GEMINI.parser(Options())
    parser.feed(event(9, type="result", status="error", error={"message": message}))
    outcome = parser.finish(ProcessExit(gone=True, code=1))
    assert not isinstance(outcome, Reply)
    failure = classify(outcome, GEMINI.rules, now=NOW)
    assert failure is not None
    assert failure.reason.value == reason
    assert (failure.retry_same, failure.retryable, failure.hop) == (False, True, True)


def test_a_connection_that_broke_is_tried_again_by_the_engine_since_gemini_does_not() -> None:
    parser = GEMINI.parser(Options())
    error = {"message": "[API Error: terminated]"}
    parser.feed(event(9, type="result", status="error", error=error))
    failure = classify(parser.finish(ProcessExit(gone=True, code=1)), GEMINI.rules, now=NOW)  # type: ignore[arg-type]
    assert failure is not None
    assert (failure.reason.value, failure.retry_same) == ("network", True)


def test_claude_that_writes_a_message_anew_renews_no_limit_with_its_old_words() -> None:
    def piece(at: float, **fields: Any) -> Chunk:
        line = json.dumps({"type": "stream_event", "event": fields}) + "\n"
        return Chunk(stream="stdout", data=line.encode(), at=NOW + at)

    def words(at: float, text: str) -> Chunk:
        return piece(at, type="content_block_delta", delta={"type": "text_delta", "text": text})

    parser, watch = KINDS["claude"].parser(Options()), Watch(started_at=NOW)
    begun = (piece(1, type="message_start"), words(2, "Once upon "), words(3, "a time "))
    anew = (piece(200, type="message_start"), words(201, "Once upon "))
    for chunk in (*begun, *anew):
        for one in parser.feed(chunk):
            watch = see(watch, one, now=chunk.at)
    assert watch.last_output_at == NOW + 200
    for one in parser.feed(words(202, "a time there was")):
        watch = see(watch, one, now=NOW + 202)
    assert watch.last_output_at == NOW + 202
