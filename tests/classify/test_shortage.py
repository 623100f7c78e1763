"""A shortage of this machine takes no backend out of rotation, whichever program reports it."""

import pytest

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import Evidence

NOW = 1785578400.0


def judge(evidence: Evidence, kind: str = "generic") -> Failure:
    found = classify(evidence, SIGNATURES[kind], now=NOW)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "Too many open files",
        "Error: EMFILE: too many open files, watch '/home/u/.claude/settings.json'",
        "Error: Too many open files (os error 24)",
        "OSError: [Errno 28] No space left on device",
        "Error: ENOSPC: no space left on device, write",
        "fatal: write error: Disk quota exceeded",
        "OSError: [Errno 12] Cannot allocate memory",
        "Error: spawn ENOMEM",
        "RuntimeError: can't start new thread",
        "bash: fork: retry: Resource temporarily unavailable",
    ],
)
def test_a_program_that_runs_short_here_marks_no_backend(text: str) -> None:
    for evidence in (
        Evidence(text=text, stream="stderr", exit_code=1),
        Evidence(text=f"working\n{text}\n", stream="stderr", exit_code=1),
        Evidence(text=text, stream="jsonl"),
        Evidence(text=text, stream="exception"),
    ):
        found = judge(evidence)
        assert (found.reason.value, found.detail, found.marks_health) == (
            "crash",
            "shortage",
            False,
        )
        assert found.hop  # another kind of backend may need none of it


def test_a_program_that_cannot_be_started_for_want_of_descriptors_marks_no_backend() -> None:
    found = judge(Evidence(text="Too many open files", stream="exception", code="EMFILE"))
    assert (found.detail, found.marks_health) == ("shortage", False)


def test_a_provider_that_runs_short_is_to_blame_itself() -> None:
    body = {"error": {"message": "write failed: no space left on device"}}
    for evidence in (
        Evidence(stream="http", http_status=500, body=body),
        Evidence(text="500 no space left on device", stream="jsonl", http_status=500),
    ):
        assert judge(evidence).marks_health


def test_a_limit_beside_a_full_disk_of_a_tool_stays_a_limit() -> None:
    text = "tee: x: No space left on device\nYou've hit your usage limit. Try again in 2 hours."
    found = judge(Evidence(text=text, stream="stderr", exit_code=1), "codex")
    assert (found.reason.value, found.marks_health) == ("usage_limit", True)
