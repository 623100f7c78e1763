"""Names in a stack trace are places, and no statements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.backends import KINDS
from fallbackd.classify.classifier import classify
from fallbackd.classify.error_lines import without_frames
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

NOW = 1785578400.0
WORDS = ("rateLimit", "quota_exceeded", "overloaded", "insufficient_quota", "unauthorized")
TRACES = {
    "javascript": "TypeError: Cannot read properties of undefined (reading 'x')\n"
    "    at WORD (/app/WORD.js:10:3)\n    at async run (file:///app/dist/WORD.js:1:2)\n"
    "    at Object.<anonymous> (/app/WORD/index.js:1:1)\n    at new WORD (<anonymous>)",
    "uncaught": "file:///app/dist/WORD.js:12\n    throw WORD('boom');\n          ^\n\n"
    "Error: boom\n    at WORD (file:///app/dist/WORD.js:12:11)\n\nNode.js v20.20.2",
    "python": 'Traceback (most recent call last):\n  File "/app/WORD.py", line 3, in <module>\n'
    '    WORD()\n  File "/app/WORD.py", line 1, in WORD\n    return WORD[1]\n'
    "           ~~~~^^^\nIndexError: list index out of range",
    "rust": "thread 'main' panicked at src/WORD.rs:10:5:\nindex out of bounds\n"
    "stack backtrace:\n   0: rust_begin_unwind\n   1: codex::WORD::check\n"
    "             at ./src/WORD.rs:10:5",
    "java": 'Exception in thread "main" java.lang.IllegalStateException: boom\n'
    "\tat com.x.WORD.check(WORD.java:10)\n\t... 12 more",
    "go": "panic: runtime error: index out of range\n\ngoroutine 1 [running]:\n"
    "main.WORD(0x1)\n\t/app/WORD.go:12 +0x1d",
}


@pytest.mark.parametrize("kind", ["claude", "codex", "gemini", "generic-cli", "opencode"])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", TRACES)
def test_a_program_that_dies_of_an_exception_has_crashed(name: str, word: str, kind: str) -> None:
    text = TRACES[name].replace("WORD", word)
    failure = classify(
        Evidence(text=text, stream="stderr", exit_code=1), KINDS[kind].rules, now=NOW
    )
    assert failure is not None
    assert failure.reason is Reason.CRASH


@pytest.mark.parametrize("stream", ["jsonl", "exception"])
def test_an_exception_that_is_told_as_data_has_crashed_too(stream: str) -> None:
    text = TRACES["javascript"].replace("WORD", "rateLimit")
    failure = classify(Evidence(text=text, stream=stream), now=NOW)
    assert failure is not None
    assert failure.reason is Reason.CRASH


def test_the_message_above_the_frames_is_a_statement() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/app/x.py", line 3, in <module>\n    x()\n'
        "openai.RateLimitError: Error code: 429 - {'error': {'message': 'Rate limit reached'}}"
    )
    failure = classify(Evidence(text=text, stream="stderr", exit_code=1), now=NOW)
    assert failure is not None
    assert failure.reason is Reason.RATE_LIMIT


FRAMES = 'Traceback (most recent call last):\n  File "/app/x.py", line 3, in <module>\n    ask()\n'
NODE = "\n    at IncomingMessage.<anonymous> (file:///app/cli.mjs:18:245)\n\nNode.js v20.20.2"
LAST_STATEMENTS = [
    (f"{FRAMES}requests.HTTPError: 503 Server Error for url: https://x.test", "overloaded"),
    (f"{FRAMES}aiohttp.ClientResponseError: 503, message='Busy', url='x'", "overloaded"),
    (f"{FRAMES}httpx.HTTPStatusError: Client error '401 Unauthorized'", "auth"),
    (f"{FRAMES}requests.exceptions.ChunkedEncodingError: Response ended prematurely", "network"),
    (f"{FRAMES}urllib.error.HTTPError: HTTP Error 500: Internal Server Error", "server_error"),
    (f"{FRAMES}httpx.ReadTimeout: timed out", "timeout"),
    (f"{FRAMES}botocore.exceptions.ClientError: An error occurred (503) when calling the Converse"
     " operation: Bedrock is unable to process your request.", "overloaded"),
    (f"{FRAMES}openai.APIStatusError: Error code: 402 - {{'message': 'Pay first'}}", "billing"),
    (f"Error: provider answered 429 Too Many Requests{NODE}", "rate_limit"),
    (f"TypeError: fetch failed{NODE}", "network"),
    ("panic: ask model: unexpected status 503 Service Unavailable\n\ngoroutine 1 [running]:\n"
     "main.main()\n\t/app/main.go:21 +0x1da", "overloaded"),
    ("curl: (6) Could not resolve host: api.llm-provider.invalid", "network"),
    ('Exception in thread "main" java.net.ConnectException: Connection refused\n'
     "\tat com.x.Ask.main(Ask.java:10)", "network"),
    ("/ruby/socket.rb:452:in `read': Connection reset by peer (Errno::ECONNRESET)\n"
     "\tfrom /ruby/protocol.rb:212:in `fill'\n\tfrom ask.rb:10:in `<main>'", "network"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), LAST_STATEMENTS)
def test_the_last_statement_of_a_trace_goes_before_the_crash(text: str, reason: str) -> None:
    failure = classify(Evidence(text=text, stream="stderr", exit_code=1), now=NOW)
    assert failure is not None
    assert failure.reason.value == reason


@pytest.mark.parametrize(
    "text",
    ["You've hit your limit, try again\nat 7:09 PM.", "at 14:30", "Look at line 3:\n  1: one"],
)
def test_prose_keeps_its_lines(text: str) -> None:
    assert without_frames(text) == text


@given(st.text(alphabet=st.sampled_from(list('at (/x.js:1)\n\t File", line 3')), max_size=200))
def test_no_text_makes_it_raise_or_grow(text: str) -> None:
    assert len(without_frames(text)) <= len(text)
