"""What `opencode run` tells on stderr while its stdout is silent."""

import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import Chunk, CommandLine, Evidence, ProcessExit, Retrying, Work

LINE = (
    'timestamp=2026-11-21T16:17:28.469Z level=ERROR run=4d836d15 message="stream error" '
    "providerID=scripted modelID=m session.id=ses_e011a26a5ffebwyzObZ4O7VWaU small={small} "
    "agent=build mode=primary error.error={error}\n"
)


def read(small: str, error: str) -> tuple[list[object], Evidence]:
    parser = KINDS["opencode"].parser(Options(serve=False))
    line = LINE.format(small=small, error=error).encode()
    seen: list[object] = list(parser.feed(Chunk("stderr", line, 1.0)))
    ended = parser.finish(ProcessExit(code=None, signal=15, at=2.0, stopped=True))
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
