"""The reader of opencode's events, fed with recorded events of opencode 1.18.33."""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.opencode_server import OpencodeEventReader, first_error, retry_evidence
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import (
    AgentStep,
    Chunk,
    Evidence,
    GivenUp,
    HttpResponse,
    NoAnswer,
    NotStarted,
    Observation,
    Output,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Retrying,
    ToolEnded,
    ToolStarted,
    Usage,
)
from fallbackd.core.reasons import Reason

T = TypeVar("T")

RECORDED = Path(__file__).parent / "data" / "opencode_events"
TEXT = "PONG-OK from the fake provider."
DONE = ProcessExit(gone=True, code=0)
FAILED = ProcessExit(gone=True, code=1)


def recorded(name: str) -> list[dict[str, Any]]:
    lines = (RECORDED / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def read(
    events: list[dict[str, Any]], *, at: float = 0.0
) -> tuple[OpencodeEventReader, list[Observation]]:
    reader = OpencodeEventReader()
    return reader, [seen for event in events for seen in reader.feed_event(event, at)]


def only(kind: type[T], seen: list[Observation]) -> list[T]:
    return [each for each in seen if isinstance(each, kind)]


def event(kind: str, **properties: object) -> dict[str, Any]:
    return {"type": kind, "properties": {"sessionID": "ses_1", **properties}}


def assistant(finish: str | None, *texts: str, **info: object) -> dict[str, Any]:
    parts = [{"type": "step-start"}, *({"type": "text", "text": text} for text in texts)]
    about: dict[str, object] = {"id": "msg_1", "role": "assistant", **info}
    if finish is not None:
        about["finish"] = finish
    return event("fallbackd.final", message={"info": about, "parts": parts})


def test_answer_is_the_text_of_the_last_message_with_its_usage() -> None:
    reader, seen = read(recorded("answer"))
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Reply)
    assert outcome.text == TEXT
    assert outcome.usage == Usage(input_tokens=120, output_tokens=9, cost_usd=0.000118)
    assert only(Usage, seen) == [outcome.usage]
    assert only(GivenUp, seen) == []


def test_prompt_itself_is_no_sign_of_the_provider() -> None:
    events = recorded("answer")
    upto = next(i for i, e in enumerate(events) if e["type"] == "session.status")
    assert any(e["type"] == "message.part.updated" for e in events[:upto])
    _, seen = read(events[:upto])
    assert only(ProviderAnswered, seen) == []


def test_answer_comes_from_pieces_alone_when_the_whole_text_was_missed() -> None:
    events = [
        e
        for e in recorded("answer")
        if not (e["type"] == "message.part.updated" and e["properties"]["part"].get("text") == TEXT)
    ]
    reader, _ = read(events)
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Reply)
    assert outcome.text == TEXT


def test_throttle_is_told_at_its_first_event_with_the_wait() -> None:
    events = recorded("throttled")
    first = next(
        i for i, e in enumerate(events) if e["properties"].get("status", {}).get("type") == "retry"
    )
    next_at = events[first]["properties"]["status"]["next"] / 1000
    reader, before = read(events[:first])
    assert only(ProviderAnswered, before) == []
    retrying = only(Retrying, reader.feed_event(events[first], next_at - 5.0))
    assert len(retrying) == 1
    assert retrying[0].evidence.text.startswith("Rate limit reached for m")
    assert not retrying[0].evidence.answered
    assert retrying[0].wait_s == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("attempt", "wait_s", "stated"),
    [(1, 2.4, None), (1, 13_873, 13_873), (3, 9.9, None), (3, 60, 60), (5, 39, None)],
)
def test_a_wait_beyond_its_own_back_off_is_the_time_that_the_provider_stated(
    attempt: int, wait_s: float, stated: float | None
) -> None:
    status = {
        "type": "retry",
        "attempt": attempt,
        "message": "The usage limit has been reached",
        "next": (1000.0 + wait_s) * 1000,
    }
    _, seen = read([event("session.status", status=status)], at=1000.0)
    (retrying,) = only(Retrying, seen)
    failure = classify(retrying.evidence, KINDS["opencode"].rules, now=1000.0)
    assert failure is not None
    assert (failure.reason, failure.stated_reset_s) == (Reason.USAGE_LIMIT, stated)


def test_retry_in_the_past_waits_no_time() -> None:
    status = {"type": "retry", "attempt": 1, "message": "Overloaded", "next": 1000}
    _, seen = read([event("session.status", status=status)], at=50.0)
    assert only(Retrying, seen) == [
        Retrying(evidence=Evidence(text="Overloaded", stream="jsonl"), wait_s=0.0)
    ]


def test_retries_that_run_out_end_with_status_headers_and_body() -> None:
    reader, seen = read(recorded("throttled"))
    assert len(only(Retrying, seen)) == 5
    given_up = only(GivenUp, seen)
    assert len(given_up) == 1
    evidence = given_up[0].evidence
    assert evidence.http_status == 429
    assert evidence.headers["retry-after"] == "5"
    assert evidence.body["error"]["code"] == "rate_limit_exceeded"
    assert reader.outcome(FAILED) == evidence


def test_refused_key_is_given_up_at_once() -> None:
    reader, seen = read(recorded("unauthorized"))
    evidence = only(GivenUp, seen)[0].evidence
    assert evidence.http_status == 401
    assert evidence.code == "APIError"
    assert evidence.body["error"]["code"] == "invalid_api_key"
    assert reader.outcome(FAILED) == evidence


def test_unknown_model_is_given_up_once_and_without_its_stack() -> None:
    repeated = recorded("unknown_model")
    error = next(e for e in repeated if e["type"] == "session.error")
    again = json.loads(json.dumps(error))
    again["properties"]["error"]["data"]["message"] += "\n    at <anonymous>"
    reader, seen = read([*repeated, again])
    assert len(only(GivenUp, seen)) == 1
    outcome = reader.outcome(FAILED)
    assert isinstance(outcome, Evidence)
    assert outcome.text == "Model not found: nope/m. Did you mean: standardcompute?"


def test_failure_in_the_middle_of_a_stream_has_the_provider_s_json_as_body() -> None:
    reader, _ = read(recorded("stream_error"))
    outcome = reader.outcome(FAILED)
    assert isinstance(outcome, Evidence)
    assert outcome.body["code"] == "rate_limit_exceeded"
    assert outcome.answered


def test_overflow_is_given_up_when_the_turn_ends_with_it() -> None:
    reader, seen = read(recorded("overflow"))
    assert len(only(GivenUp, seen)) == 1
    assert isinstance(seen[-1], GivenUp)
    outcome = reader.outcome(FAILED)
    assert isinstance(outcome, Evidence)
    assert outcome.code == "ContextOverflowError"


def test_overflow_that_compaction_cures_is_no_failure() -> None:
    reader, seen = read(recorded("compacted"))
    assert only(GivenUp, seen) == []
    assert only(AgentStep, seen) == [AgentStep(key="compacted")]
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Reply)
    assert outcome.text == TEXT
    assert outcome.usage.input_tokens == 240


def test_tool_is_one_step_from_its_start_to_its_end() -> None:
    reader, seen = read(recorded("tool"))
    started, ended = only(ToolStarted, seen), only(ToolEnded, seen)
    assert [each.name for each in started] == ["bash"]
    assert started[0].effects == "possible"
    assert '"command":"echo tool-ran' in started[0].key
    assert [each.call for each in ended] == [started[0].call]
    assert isinstance(reader.outcome(DONE), Reply)


@pytest.mark.parametrize(
    ("tool", "effects"),
    [("read", "none"), ("grep", "none"), ("bash", "possible"), ("mcp_x", "possible")]
    + [(name, "possible") for name in ("edit", "write", "apply_patch")],
)
def test_effects_of_a_tool_follow_from_its_name(tool: str, effects: str) -> None:
    state = {"status": "running", "input": {}}
    part = {"id": "p", "type": "tool", "tool": tool, "callID": "c", "state": state}
    _, seen = read([event("message.part.updated", part=part)])
    assert only(ToolStarted, seen)[0].effects == effects


def test_same_tool_call_has_the_same_key_whatever_the_order_of_its_arguments() -> None:
    def started(number: int, arguments: dict[str, str]) -> dict[str, Any]:
        state = {"status": "running", "input": arguments}
        part = {"id": f"p{number}", "type": "tool", "tool": "bash", "callID": "c", "state": state}
        return event("message.part.updated", part=part)

    _, seen = read([started(1, {"a": "1", "b": "2"}), started(2, {"b": "2", "a": "1"})])
    keys = [each.key for each in only(ToolStarted, seen)]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_each_message_without_a_finish_reason_is_one_step() -> None:
    reader, seen = read(recorded("no_finish"))
    assert only(AgentStep, seen) == [AgentStep(key="unknown")] * 5
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Evidence)
    assert outcome.empty


def test_text_of_a_broken_try_is_no_part_of_the_answer() -> None:
    events = recorded("reset_then_retry")
    message = next(
        e["properties"]["info"]["id"]
        for e in events
        if e["properties"].get("info", {}).get("role") == "assistant"
    )
    session = events[0]["properties"]["sessionID"]

    def part(number: int, **fields: object) -> dict[str, Any]:
        fields |= {"id": f"p{number}", "messageID": message, "sessionID": session}
        return event("message.part.updated", part=fields) | {"properties": {"part": fields}}

    info = {"id": message, "role": "assistant", "sessionID": session, "finish": "stop"}
    reader, _ = read(
        [
            *events,
            part(1, type="step-start"),
            part(2, type="text", text="whole"),
            {"type": "message.updated", "properties": {"sessionID": session, "info": info}},
        ]
    )
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Reply)
    assert outcome.text == "whole"


def test_final_message_answers_where_all_events_were_missed() -> None:
    reader, _ = read([event("fallbackd.session"), assistant("stop", "one", "two")])
    assert reader.outcome(DONE) == Reply(text="one\n\ntwo")


def test_persisted_error_of_the_final_message_counts_where_the_event_was_missed() -> None:
    error = {"name": "APIError", "data": {"message": "no credit", "statusCode": 402}}
    reader, _ = read([event("fallbackd.session"), assistant(None, error=error)])
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Evidence)
    assert outcome.http_status == 402


def test_message_that_ends_with_a_tool_call_is_no_answer() -> None:
    reader, _ = read([event("fallbackd.session"), assistant("tool-calls", "I will look.")])
    assert isinstance(reader.outcome(DONE), Evidence)


def test_content_filter_is_told_by_its_finish_reason() -> None:
    reader, _ = read([event("fallbackd.session"), assistant("content-filter", "I can")])
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Evidence)
    assert outcome.code == "content-filter"


def test_rejected_permission_without_an_answer_is_told() -> None:
    reader, _ = read(
        [
            event("fallbackd.session"),
            event("fallbackd.permission", permission="bash"),
            assistant(None),
        ]
    )
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Evidence)
    assert outcome.code == "permission_rejected"
    assert "bash" in outcome.text


def test_failure_of_a_subagent_is_not_the_end_and_its_text_no_answer() -> None:
    info = {"id": "m2", "role": "assistant", "sessionID": "ses_2", "tokens": {"input": 5}}
    child = [
        {"type": "message.updated", "properties": {"sessionID": "ses_2", "info": info}},
        {
            "type": "session.error",
            "properties": {"sessionID": "ses_2", "error": {"name": "APIError", "data": {}}},
        },
    ]
    reader, seen = read([event("fallbackd.session"), *child, assistant("stop", "done")])
    assert only(GivenUp, seen) == []
    assert only(Usage, seen) == [Usage(input_tokens=5)]
    outcome = reader.outcome(DONE)
    assert isinstance(outcome, Reply)
    assert outcome.text == "done"


def test_our_own_abort_is_no_failure_of_the_backend() -> None:
    error = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
    _, seen = read([event("session.error", error=error)])
    assert seen[1:] == [Output()]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"type": 5, "properties": []},
        {"type": "message.updated", "properties": {"info": "x"}},
        {"type": "message.part.updated", "properties": {"part": {"type": "tool", "state": None}}},
        {"type": "message.part.delta", "properties": {"delta": 7}},
        {"type": "session.status", "properties": {"status": None}},
        {"payload": {"type": "brand.new", "properties": {"sessionID": 3}}},
    ],
)
def test_odd_events_are_life_and_nothing_else(odd: dict[str, Any]) -> None:
    reader, seen = read([odd])
    assert only(GivenUp, seen) == []
    assert isinstance(reader.outcome(DONE), Evidence)


def test_events_in_the_wrapper_of_the_global_stream_are_read_alike() -> None:
    wrapped = [{"directory": "/w", "payload": each} for each in recorded("answer")]
    reader, _ = read(wrapped)
    assert isinstance(reader.outcome(DONE), Reply)


def test_exit_that_is_no_end_of_a_turn_becomes_its_evidence() -> None:
    reader = OpencodeEventReader()
    killed = reader.outcome(ProcessExit(gone=True, signal=9, note="the helper server ended"))
    assert killed == Evidence(text="the helper server ended", signal=9)
    missing = reader.outcome(
        NotStarted(error="ENOENT", text="No such file", path="/x/opencode", gone=True)
    )
    assert missing == Evidence(text="No such file", stream="exception", code="ENOENT")
    lost = reader.outcome(NoAnswer(exception="ConnectTimeout", text="did not listen", gone=True))
    assert lost == Evidence(text="did not listen", stream="exception", exception="ConnectTimeout")
    assert reader.outcome(HttpResponse(status=500, gone=True)) == Evidence(
        stream="http", http_status=500
    )


def test_stopped_attempt_has_no_answer_even_with_text() -> None:
    reader, _ = read(recorded("answer"))
    stopped = NoAnswer(exception="Cancelled", text="stopped", stopped=True, gone=True)
    assert isinstance(reader.outcome(stopped), Evidence)


SAID = "opencode says so"
OF_VERSION_2 = [
    ({"type": "provider.rate-limit", "message": SAID, "retryAfterMs": 7000}, Reason.RATE_LIMIT, 7),
    ({"type": "provider.auth", "message": SAID}, Reason.AUTH, None),
    ({"type": "provider.quota", "message": SAID}, Reason.USAGE_LIMIT, None),
    ({"type": "provider.quota", "message": "insufficient credits"}, Reason.BILLING, None),
    ({"type": "provider.internal", "message": SAID}, Reason.SERVER_ERROR, None),
    ({"type": "provider.unknown", "message": SAID, "status": 503}, Reason.OVERLOADED, None),
    ({"type": "provider.no-route", "message": "Model unavailable"}, Reason.MODEL_NOT_FOUND, None),
    ({"type": "provider.transport", "message": SAID}, Reason.NETWORK, None),
]


@pytest.mark.parametrize(("error", "reason", "wait_s"), OF_VERSION_2)
def test_an_error_of_version_2_is_understood_by_its_type_status_and_wait(
    error: dict[str, object], reason: Reason, wait_s: float | None
) -> None:
    parser = KINDS["opencode"].parser(Options())
    line = {"type": "error", "timestamp": 1, "sessionID": "ses_1", "error": error}
    (seen,) = [
        one
        for one in parser.feed(Chunk("stdout", msgspec.json.encode(line) + b"\n", 1.0))
        if isinstance(one, GivenUp)
    ]
    status = {"type": "retry", "attempt": 1, "message": error["message"], "next": 3000}
    retry = retry_evidence({**status, "error": first_error(error)}, now=1.0)
    for evidence in (seen.evidence, retry):
        failure = classify(evidence, KINDS["opencode"].rules, now=0.0)
        assert failure is not None
        assert failure.reason == reason
        assert wait_s is None or failure.stated_reset_s == wait_s
