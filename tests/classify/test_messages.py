"""
Messages by vendor, and harmless texts: what each means without an exit status.

The tables are `data/messages/*.json`. Every message is asked as its vendor's and as anybody's.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.classify.common_rules import COMMON_RULES
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import Evidence

NOW = 1785578400.0
TABLES: dict[str, list[dict[str, Any]]] = {
    path.stem: msgspec.json.decode(path.read_bytes())["messages"]
    for path in sorted((Path(__file__).parent / "data" / "messages").glob("*.json"))
}
HARMLESS = [one["text"] for one in TABLES["harmless"]]
KINDS = ("generic", "claude", "codex", "opencode", "gemini")
BY_VENDOR = [
    (vendor, number)
    for vendor, table in TABLES.items()
    for number in range(len(table))
    if vendor != "harmless"
]
# Wordings that only their own vendor's signatures know.
OWN_WORDS = {
    "No conversation found with session ID: 2f1c0000-0000-4000-8000-000000000000",
    "Error: Session not found",
    "Your access token could not be refreshed because your refresh token was already used.",
    "Model gpt-4 has hit a token limit!",
}


def judge(text: str, kind: str = "generic", **fields: Any) -> Failure | None:
    evidence = Evidence(text=text, stream=fields.pop("stream", "unknown"), **fields)
    return classify(evidence, SIGNATURES[kind], now=NOW, kind=kind, timezone="UTC")


def reason_of(failure: Failure | None) -> str | None:
    return None if failure is None else failure.reason.value


@pytest.mark.parametrize(("vendor", "number"), BY_VENDOR)
def test_a_message_of_a_vendor_means_what_its_table_says(vendor: str, number: int) -> None:
    one = TABLES[vendor][number]
    fields = {name: one[name] for name in ("stream", "http_status") if name in one}
    right = (one["reason"], *one.get("also", ()))
    assert reason_of(judge(one["text"], vendor, **fields)) in right, one["text"]
    if not any(words in one["text"] for words in OWN_WORDS):
        assert reason_of(judge(one["text"], **fields)) in right, one["text"]


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_text_raises_no_alarm(text: str) -> None:
    for kind in KINDS:
        assert judge(text, kind) is None, kind


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_text_of_a_program_that_ended_well_raises_no_alarm(text: str) -> None:
    for kind in KINDS:
        for stream in ("unknown", "stdout", "stderr"):
            assert judge(text, kind, stream=stream, exit_code=0) is None


# --- what is around an error line --------------------------------------------------------------

ERROR_LINES = [
    "Error: 429 Too Many Requests",
    "You've hit your usage limit. Try again in 3 hours.",
    "HTTP 503: the model is overloaded",
    "Error: Invalid API key",
    "litellm.RateLimitError: RateLimitError: OpenAIException - Error code: 429",
    "Error: connect ECONNREFUSED 127.0.0.1:11434",
    "402 Payment Required",
]
SHOWN_AS: dict[str, Any] = {
    "quotation": lambda line: f"> {line}",
    "quotes": lambda line: f'"{line}"',
    "backticks": lambda line: f"`{line}`",
    "list bullet": lambda line: f"- {line}",
    "star bullet": lambda line: f"* {line}",
    "number": lambda line: f"1. {line}",
    "box to tick": lambda line: f"- [ ] {line}",
    "added line of a diff": lambda line: f"+{line}",
    "removed line of a diff": lambda line: f"-{line}",
    "code fence": lambda line: f"```\n{line}\n```",
    "named code fence": lambda line: f"```text\n{line}\n```",
    "cell of a table": lambda line: f"| {line} | yes |",
    "heading": lambda line: f"## {line}",
    "comment": lambda line: f"// {line}",
    "output of a tool": lambda line: f"⏺ Bash(make)\n  ⎿  {line}",
    "output of a command": lambda line: f"$ make\n{line}",
    "words of an agent": lambda line: f"⏺ The log says: {line}",
    "sentence": lambda line: f"I think that {line!r} comes from the proxy.",
}
PROSE = st.sampled_from(
    ["", "Here is what I found.", "All tests pass.", "The next step is the docs.", "Done."]
)


@pytest.mark.parametrize("kind", ["generic", "claude", "codex"])
@given(line=st.sampled_from(ERROR_LINES), before=PROSE, after=PROSE)
def test_an_error_line_raises_an_alarm_wherever_it_stands(
    kind: str, line: str, before: str, after: str
) -> None:
    assert judge(f"{before}\n\n{line}\n\n{after}", kind) is not None


@pytest.mark.parametrize("kind", ["generic", "claude", "codex"])
@given(
    line=st.sampled_from(ERROR_LINES),
    shown=st.sampled_from(sorted(SHOWN_AS)),
    before=PROSE,
    after=PROSE,
)
def test_an_error_line_that_is_shown_raises_none(
    kind: str, line: str, shown: str, before: str, after: str
) -> None:
    assert judge(f"{before}\n\n{SHOWN_AS[shown](line)}\n\n{after}", kind) is None


@pytest.mark.parametrize("line", ERROR_LINES)
@pytest.mark.parametrize("indent", ["    ", "\t", "        "])
def test_a_notice_that_is_indented_like_code_raises_none(line: str, indent: str) -> None:
    assert judge(f"The banner reads\n\n{indent}{line}\n\nand is printed once.") is None


# --- the signatures themselves -----------------------------------------------------------------


def literals_of(pattern: str) -> list[str]:
    """Runs of characters that stand for themselves, escaped punctuation included."""
    plain = re.sub(r"\\([^a-z0-9])", lambda found: found[1], re.sub(r"\\[a-z]", "\0", pattern))
    return re.split(r"[\0()\[\]{}|*+?^$]", plain)


def test_no_signature_spells_out_a_single_message() -> None:
    """A literal of more than 40 characters has to match at least two messages of the tables."""
    texts = [one["text"].lower() for table in TABLES.values() for one in table]
    literals = {
        (rule.id, literal)
        for rule in (*COMMON_RULES, *(rule for kind in TABLES for rule in SIGNATURES.get(kind, ())))
        for literal in literals_of(rule.pattern.lower())
        if len(literal) > 40
    }
    assert {one for one in literals if sum(one[1] in text for text in texts) < 2} == set()


def test_every_signature_has_a_name_of_its_own() -> None:
    for kind in TABLES:
        names = [rule.id for rule in (*SIGNATURES.get(kind, ()), *COMMON_RULES)]
        assert len(names) == len(set(names))


def test_a_traceback_is_a_crash_of_who_printed_it_on_its_own_stderr() -> None:
    trace = 'Traceback (most recent call last):\n  File "/opt/x.py", line 1, in <module>\n'
    trace += "KeyError: 'rate_limit'"
    assert reason_of(judge(trace, stream="stderr", exit_code=1)) == "crash"
    assert judge(trace) is None


def test_a_long_output_is_read_to_its_end() -> None:
    text = "all is well\n" * 100_000 + "HTTP 429 Too Many Requests"
    assert reason_of(judge(text, stream="stderr", exit_code=1)) == "rate_limit"
    assert reason_of(judge(text)) == "rate_limit"


JUDGE_ALL = """
import hashlib, msgspec
from tests.classify.test_messages import KINDS, TABLES, judge
found = [
    judge(one["text"], kind, exit_code=code)
    for table in TABLES.values() for one in table for kind in KINDS[:2] for code in (None, 1)
]
print(len(found), hashlib.sha256(msgspec.json.encode(found)).hexdigest())
"""


def test_every_process_judges_alike_whatever_the_order_of_hashes() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", JUDGE_ALL],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2", "random")
    }
    assert len(told) == 1, told
