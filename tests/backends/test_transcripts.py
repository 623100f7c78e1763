"""Recorded runs of the real programs, read again from pieces of any size."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import (
    AgentStep,
    AgentText,
    Chunk,
    GivenUp,
    Observation,
    Outcome,
    Output,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Retrying,
)
from fallbackd.core.reasons import Reason

NOW = 1795190000.0
RUNS: list[tuple[str, dict[str, Any]]] = [
    (path.stem, run)
    for path in sorted((Path(__file__).parent / "transcripts").glob("*.json"))
    for run in msgspec.json.decode(path.read_bytes())["runs"]
]
IDS = [f"{kind} {run['name']}" for kind, run in RUNS]
ANSWER = "PONG-OK from the fake provider."


def by_name(kind: str, name: str) -> dict[str, Any]:
    return next(run for k, run in RUNS if (k, run["name"]) == (kind, name))


def whole_lines(run: dict[str, Any]) -> list[Chunk]:
    return [Chunk(stream, f"{text}\n".encode(), at) for at, stream, text in run["lines"]]


def pieces(run: dict[str, Any], rng: random.Random) -> list[Chunk]:
    """The same bytes, cut anywhere; neighbours of one stream may be joined."""
    cut: list[Chunk] = []
    for chunk in whole_lines(run):
        data = chunk.data
        while data:
            size = rng.choice((1, 2, 3, 7, 50, len(data)))
            cut.append(Chunk(chunk.stream, data[:size], chunk.at))
            data = data[size:]
    return cut


def replay(
    kind: str, run: dict[str, Any], chunks: Iterable[Chunk]
) -> tuple[list[Observation], Outcome]:
    parser = KINDS[kind].parser(Options())
    seen = [one for chunk in chunks for one in parser.feed(chunk)]
    exit = ProcessExit(gone=True, code=run["code"], signal=run["signal"], stopped=run["stopped"])
    return [one for one in seen if not isinstance(one, Output)], parser.finish(exit)


def reason_of(kind: str, outcome: Outcome) -> str:
    if isinstance(outcome, Reply):
        return "REPLY"
    failure = classify(outcome, KINDS[kind].rules, now=NOW, timezone="UTC")
    return "none" if failure is None else failure.reason


def test_every_program_has_at_least_twelve_failures_and_some_answers() -> None:
    for kind in ("claude", "codex", "gemini", "opencode"):
        expected = [run["expect"] for k, run in RUNS if k == kind]
        assert expected.count("REPLY") >= 4
        assert len(expected) - expected.count("REPLY") >= 12


@pytest.mark.parametrize(("kind", "run"), RUNS, ids=IDS)
def test_a_run_ends_as_it_was_seen_to_end(kind: str, run: dict[str, Any]) -> None:
    seen, outcome = replay(kind, run, whole_lines(run))
    assert reason_of(kind, outcome) == run["expect"]
    if isinstance(outcome, Reply):
        assert outcome.text == ANSWER
        assert any(isinstance(one, ProviderAnswered) for one in seen)
        assert not any(isinstance(one, GivenUp) for one in seen)
        assert outcome.usage.output_tokens > 0


@pytest.mark.parametrize(("kind", "run"), RUNS, ids=IDS)
def test_the_borders_of_chunks_change_nothing(kind: str, run: dict[str, Any]) -> None:
    expected = replay(kind, run, whole_lines(run))
    for seed in range(3):
        assert replay(kind, run, pieces(run, random.Random(seed))) == expected


@pytest.mark.parametrize(("kind", "run"), RUNS, ids=IDS)
def test_a_run_that_is_cut_off_anywhere_is_never_an_error_of_ours(
    kind: str, run: dict[str, Any]
) -> None:
    chunks = whole_lines(run)
    for length in range(len(chunks)):
        parser = KINDS[kind].parser(Options())
        for chunk in chunks[:length]:
            parser.feed(chunk)
        if length < len(chunks):
            parser.feed(Chunk(chunks[length].stream, chunks[length].data[:40], 0.0))
        assert reason_of(kind, parser.finish(ProcessExit(gone=True, signal=9))) in (
            *Reason,
            "REPLY",
        )


@pytest.mark.parametrize(("kind", "run"), RUNS, ids=IDS)
def test_what_is_tried_again_after_has_the_reason_of_the_failure(
    kind: str, run: dict[str, Any]
) -> None:
    seen, _ = replay(kind, run, whole_lines(run))
    retries = [one for one in seen if isinstance(one, Retrying)]
    reasons = {reason_of(kind, one.evidence) for one in retries}
    if run["expect"] != "REPLY" and retries:
        # codex names only a broken stream while it retries some failures.
        assert run["expect"] in reasons or reasons <= {"network", "server_error", "overloaded"}
    assert "none" not in reasons


def test_a_recovery_inside_the_program_is_an_answer() -> None:
    for kind in ("claude", "codex", "gemini"):
        seen, outcome = replay(
            kind, by_name(kind, "429_rate,ok"), whole_lines(by_name(kind, "429_rate,ok"))
        )
        assert isinstance(outcome, Reply)
        retries = [one for one in seen if isinstance(one, Retrying)]
        assert [reason_of(kind, one.evidence) for one in retries] == ["rate_limit"]


def test_gemini_that_sleeps_for_hours_says_so_at_its_first_event() -> None:
    run = by_name("gemini", "429_usage_limit")
    seen, outcome = replay("gemini", run, whole_lines(run))
    (retry,) = [one for one in seen if isinstance(one, Retrying)]
    assert retry.wait_s == pytest.approx(14877.231)
    assert not isinstance(outcome, Reply)
    failure = classify(outcome, KINDS["gemini"].rules, now=NOW)
    assert failure is not None
    assert failure.stated_reset_s == 3 * 3600 + 51 * 60 + 12


def test_gemini_whose_day_is_spent_keeps_the_time_that_only_the_cause_states() -> None:
    run = by_name("gemini", "daily quota")
    seen, outcome = replay("gemini", run, whole_lines(run))
    assert not isinstance(outcome, Reply)
    (given_up,) = [one.evidence for one in seen if isinstance(one, GivenUp)]
    for evidence in (given_up, outcome):  # the first is what the next candidate is started for
        failure = classify(evidence, KINDS["gemini"].rules, now=NOW)
        assert failure is not None
        assert failure.stated_reset_s == 18 * 3600 + 12 * 60 + 30.5


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Model stream ended without a finish reason.", "network"),
        ("Model stream ended with empty response text.", "empty_result"),
        (
            "Model stream ended with empty response text but contained reasoning thoughts.",
            "empty_result",
        ),
        ("The model returned an empty response with no text or thoughts.", "empty_result"),
        (
            "Model stream ended due to token limit exhaustion (MAX_TOKENS) with empty response "
            "text.",
            "empty_result",
        ),
        (
            "Model stream ended due to safety settings (SAFETY) with empty response text.",
            "content_policy",
        ),
        ("Model stream ended with malformed function call.", "server_error"),
    ],
)
def test_gemini_names_how_a_stream_ended(message: str, reason: str) -> None:
    run = by_name("gemini", "ok")
    events = [
        {"type": "error", "severity": "error", "message": message},
        {"type": "result", "status": "error", "stats": {}},
    ]
    lines = [Chunk("stdout", msgspec.json.encode(one) + b"\n", 0.0) for one in events]
    _, outcome = replay("gemini", run, [*whole_lines(run)[:2], *lines])
    assert reason_of("gemini", outcome) == reason


def test_gemini_that_was_ended_by_a_signal_has_no_answer_though_its_status_is_0() -> None:
    run = by_name("gemini", "ok")
    _, outcome = replay("gemini", {**run, "stopped": True}, whole_lines(run)[:-1])
    assert not isinstance(outcome, Reply)


def test_gemini_whose_stream_broke_answers_without_the_repeated_part() -> None:
    run = by_name("gemini", "reset_mid,ok")
    assert sum("PONG-OK" in text for _, _, text in run["lines"]) == 2
    _, outcome = replay("gemini", run, whole_lines(run))
    assert isinstance(outcome, Reply)
    assert outcome.text == ANSWER


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pieces (2.1.332)", [ANSWER]),
        ("pieces and a tool (2.1.332)", [ANSWER, ANSWER]),
        ("pieces, cut, written again (2.1.332)", [ANSWER]),
        ("pieces, overloaded, whole at last (2.1.332)", [ANSWER]),
        ("pieces, cut, whole at last", [ANSWER]),
        ("ok", [ANSWER]),
    ],
)
def test_the_words_of_claude_come_as_they_are_written_and_each_of_them_once(
    name: str, told: list[str]
) -> None:
    run = by_name("claude", name)
    seen, _ = replay("claude", run, whole_lines(run))
    pieces = [one.text for one in seen if isinstance(one, AgentText)]
    assert "".join(pieces).splitlines() == told
    assert pieces[0] == ("PONG-OK" if name != "ok" else f"{ANSWER}\n")


def test_a_message_of_claude_that_failed_before_its_first_word_is_no_answer() -> None:
    run = by_name("claude", "pieces (2.1.332)")
    begun = [one for one in whole_lines(run) if b"content_block_delta" not in one.data][:4]
    assert b"content_block_start" in begun[-1].data
    seen, _ = replay("claude", run, begun)
    assert not any(isinstance(one, ProviderAnswered) for one in seen)


def mute_before(run: dict[str, Any], line: int, seconds: float) -> list[Chunk]:
    """The same lines, with a silence before one of them."""
    return [
        Chunk(one.stream, one.data, one.at + (seconds if at >= line else 0.0))
        for at, one in enumerate(whole_lines(run))
    ]


@pytest.mark.parametrize(("seconds", "reason"), [(0, "network"), (60, "timeout")])
@pytest.mark.parametrize(("kind", "first_try"), [("claude", 1), ("gemini", 4)])
def test_a_try_that_ends_after_a_minute_was_not_refused_but_never_answered(
    kind: str, first_try: int, seconds: float, reason: str
) -> None:
    run = by_name(kind, "refused")
    lines = mute_before(run, first_try, seconds)[: first_try + 1]
    seen, outcome = replay(kind, {**run, "code": 1, "signal": None, "stopped": False}, lines)
    (retry,) = [one for one in seen if isinstance(one, Retrying)]
    assert reason_of(kind, retry.evidence) == reason
    assert reason_of(kind, outcome) == reason


def test_the_last_word_of_gemini_after_a_minute_of_silence_names_the_silence() -> None:
    run = by_name("gemini", "refused")
    message = "[API Error: exception TypeError: fetch failed sending request]"
    result = {"type": "result", "status": "error", "error": {"type": "unknown", "message": message}}
    report = "Error when talking to Gemini API Error: exception TypeError: fetch failed"
    for seconds, reason in ((1.5, "network"), (60.0, "timeout")):
        begin = whole_lines(run)[:4]
        lines = [
            Chunk("stderr", f"{report}\n".encode(), begin[-1].at + seconds),
            Chunk("stdout", msgspec.json.encode(result) + b"\n", begin[-1].at + seconds + 0.01),
        ]
        ended = {**run, "code": 1, "signal": None, "stopped": False}
        _, outcome = replay("gemini", ended, [*begin, *lines])
        assert reason_of("gemini", outcome) == reason


def test_claude_states_its_wait_and_its_status() -> None:
    run = by_name("claude", "429_rate")
    seen, _ = replay("claude", run, whole_lines(run))
    first = next(one for one in seen if isinstance(one, Retrying))
    assert first.wait_s == 5.0
    assert first.evidence.http_status == 429


def test_claude_names_the_end_of_a_spent_window() -> None:
    run = by_name("claude", "plan window spent")
    _, outcome = replay("claude", run, whole_lines(run))
    assert not isinstance(outcome, Reply)
    failure = classify(outcome, KINDS["claude"].rules, now=NOW)
    assert failure is not None
    assert failure.stated_reset_at == 1795203935.0


def test_claude_does_not_take_the_end_of_a_window_that_is_not_spent() -> None:
    run = by_name("claude", "plan window spent, the other one is not (2.1.330)")
    event = next(
        value
        for _, _, line in run["lines"]
        if (value := msgspec.json.decode(line))["type"] == "rate_limit_event"
    )
    windows = event["rate_limit_info"]["unifiedWindows"]
    assert windows["seven_day"]["resetsAt"] > windows["five_hour"]["resetsAt"]
    _, outcome = replay("claude", run, whole_lines(run))
    assert not isinstance(outcome, Reply)
    failure = classify(outcome, KINDS["claude"].rules, now=NOW)
    assert failure is not None
    assert failure.stated_reset_at == windows["five_hour"]["resetsAt"]


def cut_claude(name: str, *, keep: str, code: int | None = 0, stopped: bool = False) -> Outcome:
    """The recorded run, whose last line ends behind `keep` as where a pipe was full."""
    run = by_name("claude", name)
    chunks = whole_lines(run)
    end = chunks[-1].data.index(keep.encode()) + len(keep)
    last = Chunk(chunks[-1].stream, chunks[-1].data[:end], chunks[-1].at)
    _, outcome = replay("claude", {**run, "code": code, "stopped": stopped}, [*chunks[:-1], last])
    return outcome


@pytest.mark.parametrize("name", ["ok", "ok (2.1.330)", "429_rate,ok"])
@pytest.mark.parametrize("keep", ['"is_error":false', '"result":"PONG-OK from'])
def test_the_answer_of_claude_is_whole_though_its_last_line_was_cut(name: str, keep: str) -> None:
    outcome = cut_claude(name, keep=keep)
    assert isinstance(outcome, Reply)
    assert outcome.text == ANSWER


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ok", {"stopped": True}),
        ("ok", {"code": 1}),
        ("ok", {"code": None}),
        ("404_model", {}),
    ],
)
def test_a_cut_last_line_of_claude_is_no_answer_unless_it_ended_well(
    name: str, fields: dict[str, Any]
) -> None:
    outcome = cut_claude(name, keep='"is_error":', **fields)
    assert not isinstance(outcome, Reply)


def test_a_cut_message_of_claude_is_lost_output_and_not_an_empty_answer() -> None:
    run = by_name("claude", "ok")
    begin, message, _ = whole_lines(run)
    cut = Chunk(message.stream, message.data[:-200], message.at)
    _, outcome = replay("claude", run, [begin, cut])
    assert not isinstance(outcome, Reply)
    failure = classify(outcome, KINDS["claude"].rules, now=NOW)
    assert failure is not None
    assert (failure.reason, failure.detail) == (Reason.CRASH, "output_cut")


def test_what_a_subagent_of_claude_says_is_not_the_answer() -> None:
    run = by_name("claude", "ok")
    begin, message, result = whole_lines(run)
    inner = message.data.replace(
        b'"parent_tool_use_id":null', b'"parent_tool_use_id":"toolu_1"'
    ).replace(ANSWER.encode(), b"an interim report")
    lines = [begin, message, Chunk("stdout", inner, message.at)]
    _, outcome = replay("claude", run, [*lines, Chunk("stdout", result.data[:80], result.at)])
    assert isinstance(outcome, Reply)
    assert outcome.text == ANSWER


@pytest.mark.parametrize("word", ["a_word_of_next_year", 7, None])
def test_an_unknown_word_of_claude_counts_as_absent(word: object) -> None:
    run = by_name("claude", "529 (2.1.330)")
    lines = [
        Chunk(
            chunk.stream,
            msgspec.json.encode({**msgspec.json.decode(chunk.data), "api_error": word}) + b"\n",
            chunk.at,
        )
        for chunk in whole_lines(run)
    ]
    unknown = Chunk("stdout", b'{"type":"a_kind_of_next_year","error":"boom"}\n', 0.0)
    _, outcome = replay("claude", run, [unknown, *lines, unknown])
    assert reason_of("claude", outcome) == "overloaded"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("usageLimitExceeded", "usage_limit"),
        ("rate_limit_exceeded", "rate_limit"),
        ("contextWindowExceeded", "context_overflow"),
        ("cyberPolicy", "content_policy"),
        ({"httpConnectionFailed": {"httpStatusCode": 503}}, "overloaded"),
        ({"responseStreamDisconnected": {"httpStatusCode": None}}, "network"),
        ("aKindOfNextYear", "server_error"),
        ({}, "server_error"),
        (7, "server_error"),
    ],
)
@pytest.mark.parametrize("name", ["codexErrorInfo", "codex_error_info"])
def test_the_typed_kind_of_codex_goes_before_its_sentence(
    name: str, kind: object, reason: str
) -> None:
    # Of statuses and wordings the wording goes first.
    wording = (
        "it failed" if isinstance(kind, dict) and kind else "An error occurred while processing"
    )
    error = {"message": wording, name: kind}
    events = [{"type": "turn.started"}, {"type": "error", **error}]
    for last in ([], [{"type": "turn.failed", "error": error}]):
        lines = [Chunk("stdout", msgspec.json.encode(one) + b"\n", 0.0) for one in (*events, *last)]
        _, outcome = replay("codex", {"code": 1, "signal": None, "stopped": False}, lines)
        assert reason_of("codex", outcome) == reason


def test_a_failure_of_opencode_keeps_what_the_headers_state() -> None:
    run = by_name("opencode", "429_rate")
    _, outcome = replay("opencode", run, whole_lines(run))
    assert not isinstance(outcome, Reply)
    failure = classify(outcome, KINDS["opencode"].rules, now=NOW)
    assert failure is not None
    assert failure.stated_reset_s == 5.0


def test_opencode_that_asks_again_without_an_end_counts_its_steps() -> None:
    """As recorded: each message ends with the finish reason `unknown`, and the next begins."""
    lines = []
    for n in range(5):
        part = {"id": f"prt_{n}", "messageID": f"msg_{n}", "sessionID": "ses_1"}
        finish = {**part, "id": f"end_{n}", "type": "step-finish", "reason": "unknown"}
        lines += [
            {"type": "step_start", "sessionID": "ses_1", "part": {**part, "type": "step-start"}},
            {"type": "step_finish", "sessionID": "ses_1", "part": finish},
        ]
    run = {"code": None, "signal": 15, "stopped": True}
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    seen, outcome = replay("opencode", run, [Chunk("stdout", data, 0.0)])
    assert [one.key for one in seen if isinstance(one, AgentStep)] == ["unknown"] * 5
    assert not any(isinstance(one, ProviderAnswered) for one in seen)
    assert not isinstance(outcome, Reply)


garbage = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr", "http", "event"]),
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(
                [
                    b'{"type":"result"}\n',
                    b'{"type":"item.completed","item":3}\n',
                    b'{"type":"error","error":[1],"message":{}}\n',
                    b'{"type":"assistant","message":{"content":[{"type":"tool_use","input":[]}]}}\n',
                    b'{"type":"step_finish","part":{"tokens":7}}\n',
                    b'{"type":"system","subtype":"api_retry","retry_delay_ms":"x"}\n',
                    b'{"type":"tool_use","parameters":{"a":{"b":[null]}}}\n',
                    b'{"properties":{"status":{"type":"retry","next":"x"}},"type":"session.status"}\n',
                    b"Attempt 1 failed: {\n",
                    b"[" * 50,
                    b"\x1b[31m\xff\xfe\n",
                ]
            ),
        ),
    ),
    max_size=12,
)


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(chunks=garbage, code=st.sampled_from([0, 1, 144, None]))
def test_garbage_never_raises(kind: str, chunks: list[tuple[Any, bytes]], code: int | None) -> None:
    parser = KINDS[kind].parser(Options(output="jsonl"))
    for stream, data in chunks:
        parser.feed(Chunk(stream, data, 1.0))
    outcome = parser.finish(
        ProcessExit(gone=True, code=code, signal=None if code is not None else 9)
    )
    assert reason_of(kind, outcome) in (*Reason, "REPLY", "none")
