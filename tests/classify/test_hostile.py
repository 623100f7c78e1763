"""Output that is made to be slow to read. A pattern that explodes shows as a hang here."""

import sys

import pytest

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.classify.error_lines import MAX_FIRST_LINES, MAX_LAST_LINES, opens_like_error
from fallbackd.classify.languages import in_english
from fallbackd.classify.lines import MAX_HEAD_CHARS, MAX_TAIL_CHARS, lines_of
from fallbackd.classify.reset_time import read_sentence
from fallbackd.classify.rules import Rule, linear
from fallbackd.core.protocol import Evidence, StreamName
from fallbackd.core.reasons import Reason
from fallbackd_conversations.redact import redact

NOW = 1785578400.0
SIZE = 8_000
UNITS = [
    "a", "A", " ", "a ", "1", "error ", "Error: ", "A.b", '{"', "model ", "the ", "429 ",
    "exceeded ", "'a' ", "spawn ", "a: ", "[a] ", "- ", "/a", "a/b.", "A_1", "reset in 1 h ",
    "9 h ", "you ve hit your ", "key token ", ". ", "wait for 1m ", "context ", "over", "<", "<a ",
    '"a', "(", "limit ", "exceeded your ", "not_found_error ", "\t", "account policy ", "billing ",
    "1d", "Jan ", "2026-01-01 ", "again at by on in ", '{\\"', "=1 ", "a-", "a@", "$ ", "./a", "\\",
    "a\n", '"error"', '{"error":', "env: ", "thread '", "cannot find module ", "invalid ",
    "input length ", "1 und ", "3时", "秒", "ثانية ", "resets 1:0", "exhaust", "violat",
]  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_no_output_is_slow_to_classify(unit: str) -> None:
    long, whole = unit * (SIZE // len(unit)), unit * (3_800 // len(unit))
    for text, stream in (
        (long, "unknown"),
        (f"Error: {whole}\x00", "stderr"),
        (f'{{"error": "{whole}', "http"),
    ):
        classify(Evidence(text=text, stream=stream), SIGNATURES["codex"], now=NOW)


MAX_CALLS = 20_000
"""Bound for calls of functions, those of the interpreter among them: some 10 ms."""


def calls_of(text: str, stream: StreamName) -> int:
    """Count what one verdict calls; the same in every process and on every machine."""
    lines_of.cache_clear()
    opens_like_error.cache_clear()
    in_english.cache_clear()
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        classify(Evidence(text=text, stream=stream, exit_code=1), SIGNATURES["codex"], now=NOW)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("stream", ["stderr", "unknown", "jsonl"])
def test_a_verdict_takes_a_bounded_number_of_steps(unit: str, stream: StreamName) -> None:
    calls_of("Error: x", stream)  # what is built once
    for width in (20, 100, 4_000):
        line = unit * (width // len(unit) + 1)
        assert calls_of("\n".join([line] * (60_000 // width)), stream) < MAX_CALLS


def test_of_a_long_output_little_is_read() -> None:
    lines = [f"Error {number}: connection reset by peer {number}" for number in range(5_000)]
    read = lines_of("\n".join(lines), "stderr")
    assert len(read) <= MAX_FIRST_LINES + MAX_LAST_LINES
    assert read[-1].text == lines[-1]
    assert sum(len(one.text) for one in read) < MAX_HEAD_CHARS + MAX_TAIL_CHARS


@pytest.mark.parametrize("unit", UNITS)
def test_no_sentence_is_slow_to_read_or_to_redact(unit: str) -> None:
    text = unit * (8_000 // len(unit))
    read_sentence(text, now=NOW, timezone="UTC")
    read_sentence(f"try again {text}", now=NOW, timezone="UTC")
    redact(text)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*x", "a*a*a*a*a*a*b", "(x+x+)+y"])
def test_no_pattern_of_a_user_is_slow(pattern: str) -> None:
    rule = Rule(
        id="mine",
        reason=Reason.BILLING,
        pattern=pattern,
        streams=("stderr",),
        anywhere=True,
        is_users=True,
    )
    for unit in ("a", "x", "ax"):
        evidence = Evidence(text=unit * (3_900 // len(unit)), stream="stderr", exit_code=1)
        assert classify(evidence, (rule,), now=NOW) is not None


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("(x", "missing"), ("a(?=b)", "perl operator"), (r"(a)\1", "escape"), ("a{9999}", "repet")],
)
def test_what_linear_time_cannot_search_is_refused_with_a_reason(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        linear(pattern)


def test_a_users_pattern_ignores_case_and_reads_every_script() -> None:
    assert linear("LIMIT").search("the limit") is not None
    assert linear("已达.*上限").search("您已达到使用上限") is not None
