"""What `opencode run` tells on stderr while its stdout is silent."""

import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import (
    Chunk,
    CommandLine,
    Evidence,
    GivenUp,
    ProcessExit,
    Retrying,
    Work,
)

LINE = (
    'timestamp=2026-11-21T16:17:28.469Z level=ERROR run=4d836d15 message="stream error" '
    "providerID=scripted modelID=m session.id=ses_e011a26a5ffebwyzObZ4O7VWaU small={small} "
    "agent=build mode=primary error.error={error}\n"
)


def read(small: str, error: str) -> tuple[list[object], Evidence]:
    parser = KINDS["opencode"].parser(Options(serve=False))
    line = LINE.format(small=small, error=error).encode()
    seen: list[object] = list(parser.feed(Chunk("stderr", line, 1.0)))
    ended = parser.finish(ProcessExit(gone=True, code=None, signal=15, at=2.0, stopped=True))
    assert isinstance(ended, Evidence)
    return seen, ended


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ('"AI_APICallError: The server is overloaded. Sorry!"', "The server is overloaded. Sorry!"),
        ('"AI_APICallError: said \\"no\\" twice"', 'said "no" twice'),
        ('"a bad \\q escape"', "a bad \\q escape"),
        ("ECONNRESET", "ECONNRESET"),
    ],
)
def test_a_failed_try_in_its_log_is_a_retry(error: str, text: str) -> None:
    (seen,), ended = read("false", error)
    assert isinstance(seen, Retrying)
    assert seen.evidence.text == ended.text == text


def test_a_failed_title_is_nobody_s_failure() -> None:
    seen, _ = read("true", '"AI_APICallError: overloaded"')
    assert not any(isinstance(one, Retrying) for one in seen)


def test_it_is_asked_for_its_log() -> None:
    work = Work(prompt="x", prompt_path="/run/p", cwd="/srv", scratch="/run/s")
    call = KINDS["opencode"].start(work, Options(serve=False))
    assert isinstance(call, CommandLine)
    assert "--print-logs" in call.argv


UNEXPECTED = (
    '{"type":"error","timestamp":1,"sessionID":"ses_1","error":{"name":"UnknownError","data":'
    '{"message":"Unexpected server error. Check server logs for details.","ref":"err_23"}}}\n'
)
CAUSE = (
    "timestamp=2026-11-26T17:44:25.402Z level=ERROR run=349fb662 message=failed ref=err_23 "
    'error="ProviderModelNotFoundError: Model not found: p1/nope." '
    'cause="ProviderModelNotFoundError: Model not found: p1/nope.\\n    at <anonymous> (/x.js:1)"\n'
)


@pytest.mark.parametrize("logs_first", [True, False])
def test_an_unexpected_error_of_its_server_has_the_cause_that_its_log_names(
    logs_first: bool,
) -> None:
    parser = KINDS["opencode"].parser(Options(serve=False))
    chunks = [Chunk("stderr", CAUSE.encode(), 1.0), Chunk("stdout", UNEXPECTED.encode(), 1.0)]
    seen = [one for c in (chunks if logs_first else reversed(chunks)) for one in parser.feed(c)]
    (given_up,) = [one for one in seen if isinstance(one, GivenUp)]
    ended = parser.finish(ProcessExit(gone=True, code=1, signal=None, at=2.0))
    assert isinstance(ended, Evidence)
    for evidence in (given_up.evidence, ended) if logs_first else (ended,):
        failure = classify(evidence, KINDS["opencode"].rules, now=0.0, kind="opencode")
        assert failure is not None
        assert failure.reason == "model_not_found"


def test_each_version_takes_a_conversation_in_by_its_own_command() -> None:
    imports = KINDS["opencode"].imports
    assert imports is not None
    first, second = (imports("/f.json", "/w", Options(), line).argv for line in (1, 2))
    assert first == ("opencode", "import", "/f.json")
    assert second == ("opencode", "session", "import", "/f.json", "--directory", "/w")
