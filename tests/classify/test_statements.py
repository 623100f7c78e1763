"""What in a transcript, a stream of events or an answer counts as a statement of the program."""

from typing import Any

import pytest

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.classify.error_json import MAX_STATEMENTS, read_lines
from fallbackd.classify.error_lines import unwrapped
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

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


# --- words, codes and times ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Error: `gpt-5` hit a rate limit: 429 Too Many Requests", "rate_limit"),
        ("API Error: 429 `slow_down`: too many requests", "rate_limit"),
        ("Error: rate_limit_exceeded", "rate_limit"),
        ("Error: usage_limit_reached", "usage_limit"),
        ("Error: model_not_found", "model_not_found"),
    ],
)
def test_back_quotes_hide_nothing_and_words_may_be_joined(text: str, reason: str) -> None:
    assert reason_of(judge(text)) == reason


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        ("insufficient_quota", "You hit the rate limit, see your plan", "billing"),
        ("context_length_exceeded", "rate limit of tokens: too many tokens", "context_overflow"),
    ],
)
def test_a_code_goes_before_words_of_another_family(code: str, message: str, reason: str) -> None:
    text = f'{{"error":{{"code":"{code}","message":"{message}"}}}}'
    assert reason_of(judge(text, stream="http", http_status=429)) == reason


@pytest.mark.parametrize(
    ("span", "reason", "seconds"), [("53s", "rate_limit", 53.0), ("5h3m", "usage_limit", 18180.0)]
)
def test_a_quota_that_resets_within_seconds_is_a_rate_limit(
    span: str, reason: str, seconds: float
) -> None:
    text = f"You have exhausted your capacity on this model. Your quota will reset after {span}."
    failure = judge(text, "gemini", exit_code=1)
    assert reason_of(failure) == reason
    assert failure is not None
    assert failure.stated_reset_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "Error: Invalid API key. Try again in 2 hours.",
        "connect ECONNREFUSED 127.0.0.1:80, retry in 10 minutes",
    ],
)
def test_only_a_limit_states_when_it_ends(text: str) -> None:
    failure = judge(text, exit_code=1)
    assert failure is not None
    assert failure.stated_reset_s is None


# --- a log of errors -----------------------------------------------------------------------------

THROTTLED = '{"level":"error","error":{"message":"429 Too Many Requests"}}\n'
OTHER = '{"level":"error","error":{"message":"tool %d failed with code 3"}}\n'


def test_of_a_log_of_errors_the_last_ones_count() -> None:
    """A log of any length costs as much as its last statements."""
    log = "".join(OTHER % number for number in range(2_500))
    said = read_lines(log)
    assert len(said) == MAX_STATEMENTS
    assert said[-1].text == "tool 2499 failed with code 3"
    assert reason_of(judge(log + THROTTLED, stream="stderr", exit_code=1)) == "rate_limit"


def test_a_message_of_many_lines_is_read_at_both_ends() -> None:
    for lines in (["429 Too Many Requests", *["x"] * 900], [*["x"] * 900, "429 Too Many Requests"]):
        body = {"error": {"message": "\n".join(lines)}}
        assert reason_of(judge("", stream="http", body=body)) == "rate_limit"


# --- answers of HTTP ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        'data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"hi"}}]}\n\n'
        "data: [DONE]\n\n",
        'event: message_start\ndata: {"type":"message_start","message":{"model":"m"}}\n\n',
        "hello",
    ],
)
def test_a_body_that_came_with_success_and_states_no_error_is_no_failure(body: str) -> None:
    assert judge("", stream="http", http_status=200, body=body) is None


def test_an_error_in_a_stream_that_began_with_success_counts() -> None:
    body = 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'
    assert reason_of(judge("", stream="http", http_status=200, body=body)) == "overloaded"


def test_a_page_in_the_place_of_an_answer_is_a_failure() -> None:
    body = "<!doctype html><title>Sign in to the network</title>"
    assert judge("", stream="http", http_status=200, body=body) is not None


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("token_quota_reached", 403, "usage_limit"),
        ("model_is_overloaded", 400, "overloaded"),
        ("credit-balance-too-low", 400, "billing"),
    ],
)
def test_a_code_is_read_as_the_words_of_a_sentence(code: str, status: int, reason: str) -> None:
    body = {"error": {"code": code, "message": "Refused"}}
    failure = classify(Evidence(stream="http", http_status=status, body=body), now=NOW)
    assert failure is not None
    assert failure.reason.value == reason


@pytest.mark.parametrize(
    "text",
    [
        "curl: (6) Could not resolve host: api.llm-provider.invalid",
        "curl: (6) Could not resolve host: unauthorized.example.com",
    ],
)
def test_the_name_of_a_host_says_nothing_of_the_failure(text: str) -> None:
    failure = classify(Evidence(text=text, stream="unknown", exit_code=6), now=NOW)
    assert failure is not None
    assert failure.reason is Reason.NETWORK


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ('"Error: too many \\"requests\\"\\nretry"', 'Error: too many "requests"\nretry'),
        ('{\\"error\\": \\"busy\\"}', '{"error": "busy"}'),
        ("`Rate limit`", "Rate limit"),
        ("« Trop de requêtes »", "Trop de requêtes"),
        ("╭──────╮\n│ Busy │\n╰──────╯", "Busy"),
        ('He said "a" and "b"', 'He said "a" and "b"'),
        ('"a" and "b"', '"a" and "b"'),
        ("`a` or `b`", "`a` or `b`"),
        ("x", "x"),
    ],
)
def test_what_a_text_quotes_as_a_whole_is_unwrapped_once(text: str, inner: str) -> None:
    assert unwrapped(text) == inner


# --- a statement that stands by itself ----------------------------------------------------------

TRACE = """Traceback (most recent call last):
  File "/opt/agent/main.py", line 41, in <module>
    run()
  File "/opt/agent/loop.py", line 7, in run
    native.load(path)
OSError: [Errno 8] Exec format error: '/opt/agent/native.so'"""


def test_a_trace_and_nothing_else_is_a_failure_however_long_it_is() -> None:
    assert judge(TRACE) is not None
    assert (
        judge(f"{CALL}  ⎿  ok\n\n⏺ The test prints this:\n\n```\n{TRACE}\n```\nI fix it.") is None
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("reading\nbash: line 1: 4711 Killed                  agent run", "crash"),
        ("400 length of prompt_tokens (70000) must be less than max_seq_len (65536)",
         "context_overflow"),
        ("Error: 422 `inputs` tokens + `max_new_tokens` must be <= 4096", "context_overflow"),
        ("Error: 400 Prompt exceeds max length", "context_overflow"),
        ("Error: Body exceeded 1mb limit", "payload_too_large"),
        ("Error: 429 Exceeded budget for this deployment", "billing"),
        ("ActionError: You have an unpaid invoice", "billing"),
        ("Error: Weekly allowance of the plan used. It renews in 2 days.", "usage_limit"),
        ("Error: 429 System is too busy now.", "overloaded"),
        ("Error: 400 input contains sensitive words", "content_policy"),
        ("Error: token source: You are not logged into Agent.", "auth"),
        ("Error: Unable to access jarfile /opt/agent.jar", "not_installed"),
        ("/usr/bin/python3: No module named some_agent", "not_installed"),
        ("> Tokens: 3k sent\n> litellm.APIConnectionError: Connection refused", "network"),
    ],
)  # fmt: skip
def test_a_statement_is_named_by_its_words(text: str, reason: str) -> None:
    assert reason_of(judge(text, exit_code=1)) == reason
