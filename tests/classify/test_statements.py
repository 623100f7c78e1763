"""What in a transcript, a stream of events or an answer counts as a statement of the program."""

from typing import Any

import pytest

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import Evidence

NOW = 1785578400.0  # 2026-08-01 10:00 UTC


def judge(text: str, kind: str = "generic", **fields: Any) -> Failure | None:
    evidence = Evidence(text=text, stream=fields.pop("stream", "unknown"), **fields)
    return classify(evidence, SIGNATURES[kind], now=NOW, timezone="UTC")


def reason_of(failure: Failure | None) -> str | None:
    return None if failure is None else failure.reason.value


# --- notices in a transcript -------------------------------------------------------------------

CALL = "⏺ Bash(npm test)\n"
NOTICES = [
    ("API Error: 529 Overloaded", "overloaded"),
    ("Weekly limit reached · resets 4pm (UTC)", "usage_limit"),
]


@pytest.mark.parametrize(("notice", "reason"), NOTICES)
@pytest.mark.parametrize(
    "before",
    [
        "⏺ Reading the parser now.\n",
        "⏺ Read 2 files (ctrl+o to expand)\n",
        "● 3 agents finished (ctrl+o to expand)\n",
        f"{CALL}  ⎿  ok 14 tests\n     ok 15 tests\n",
        "> go on\n",
    ],
)
def test_a_notice_below_what_the_agent_says_is_the_programs(
    before: str, notice: str, reason: str
) -> None:
    failure = judge(f"{before}  ⎿  {notice}\n\n✻ Worked for 2m 41s", "claude")
    assert reason_of(failure) == reason


@pytest.mark.parametrize(("notice", "_reason"), NOTICES)
def test_a_notice_directly_below_a_call_is_output_of_the_tool(notice: str, _reason: str) -> None:
    assert judge(f"{CALL}  ⎿  {notice}", "claude") is None


@pytest.mark.parametrize(("notice", "reason"), NOTICES)
def test_a_notice_in_the_place_of_an_answer_is_the_programs(notice: str, reason: str) -> None:
    assert reason_of(judge(f"⏺ Reading the parser now.\n⏺ {notice}", "claude")) == reason


# --- answers that came -------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["data: [DONE]", "Here is your answer.", "429 is a status."])
@pytest.mark.parametrize("stream", ["unknown", "http"])
def test_a_good_answer_that_is_no_json_is_no_failure(text: str, stream: str) -> None:
    assert judge(text, "openai-http", stream=stream, http_status=200) is None


# --- structures inside of text -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",'
            '"message":"Overloaded"}}',
            "overloaded",
        ),
        ('data: {"error":{"message":"slow down","type":"rate_limit_error"}}', "rate_limit"),
        ('data: {"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"}}', "content_policy"),
        (
            'something else\n{"name":"APIError","data":{"message":"no credits","statusCode":402}}',
            "billing",
        ),
    ],
)
def test_an_error_of_a_stream_or_of_opencode_is_read_as_a_structure(text: str, reason: str) -> None:
    failure = judge(text)
    assert reason_of(failure) == reason
    assert failure is not None
    assert failure.confidence == "structured"


def test_an_error_in_a_stream_that_began_well_counts() -> None:
    text = 'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
    text += 'data: {"error":{"message":"engine overloaded","type":"overloaded_error"}}'
    assert reason_of(judge(text, http_status=200)) == "overloaded"
