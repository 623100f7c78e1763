import json
from pathlib import Path

from tests.client.conftest import RunCli

FAILURE = {
    "reason": "rate_limit",
    "detail": "per minute",
    "scope": "backend:codex",
    "retryable": True,
    "hop": True,
    "marks_health": True,
    "stated_reset_s": 20.0,
    "stated_reset_at": None,
    "wait_s": 20.0,
    "confidence": "text",
    "signature": "codex-429",
    "evidence": "429\x1b[2J",
}


def test_text_from_standard_input_is_classified(run_cli: RunCli) -> None:
    ran = run_cli(["classify"], {"classify": FAILURE}, stdin=b"429 \xff")
    assert ran.params("classify") == {"evidence": {"text": "429 \ufffd", "stream": "unknown"}}
    assert ran.code == 0
    for words in (
        "rate_limit: per minute",
        "backend:codex",
        "retryable, hop, marks health",
        "stated      20s",
        "codex-429 (text)",
    ):
        assert words in ran.out
    assert "\x1b" not in ran.out


def test_flags_reach_the_evidence(run_cli: RunCli, tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    file.write_text("no")
    argv = (
        f"classify {file} --kind codex --backend b --stream stderr --exit-code 75 --http-status 429"
        " --header Retry-After:20 --timezone UTC --now 5 --exception E"
    )
    assert run_cli(argv.split(), {"classify": None}).params("classify") == {
        "evidence": {
            "text": "no",
            "stream": "stderr",
            "exit_code": 75,
            "http_status": 429,
            "headers": {"Retry-After": "20"},
            "exception": "E",
        },
        "kind": "codex",
        "backend": "b",
        "timezone": "UTC",
        "now_at": 5,
    }


def test_no_failure_is_said(run_cli: RunCli) -> None:
    assert run_cli(["classify"], {"classify": None}).out == "no failure\n"
    assert json.loads(run_cli(["classify", "--json"], {"classify": None}).out) is None


def test_a_file_that_is_not_there_is_usage(run_cli: RunCli) -> None:
    ran = run_cli(["classify", "/nowhere/x"], {"classify": None})
    assert ran.code == 2
    assert "/nowhere/x" in ran.err


def test_a_header_without_a_value_is_usage(run_cli: RunCli) -> None:
    assert run_cli(["classify", "--header", "x"], {"classify": None}).code == 2
