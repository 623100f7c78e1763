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


SIGNATURES = {
    "signatures": [
        {
            "id": "mine",
            "reason": "billing",
            "source": "yours",
            "kind": None,
            "pattern": "no\x1b money",
            "codes": [],
        },
        {
            "id": "codex-429",
            "reason": "rate_limit",
            "source": "vendor",
            "kind": "codex",
            "codes": ["slow_down", "throttled"],
            "statuses": [429],
            "exits": [75],
        },
    ],
    "kinds": ["codex", "openai-http"],
}


def test_signatures_are_listed_without_reading_anything(run_cli: RunCli) -> None:
    ran = run_cli(["classify", "--signatures"], {"signatures.list": SIGNATURES})
    assert ran.code == 0
    assert ran.params("signatures.list") == {}
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert any(line.startswith("any mine billing yours /no") for line in lines)
    assert "codex codex-429 rate_limit vendor codes slow_down throttled statuses 429 exits 75" in (
        lines
    )
    assert lines[-1] == "kinds: codex, openai-http"
    assert "\x1b" not in ran.out


def test_signatures_of_one_kind_are_asked_for(run_cli: RunCli) -> None:
    argv = ["classify", "--signatures", "--kind", "codex", "--json"]
    ran = run_cli(argv, {"signatures.list": SIGNATURES})
    assert ran.params("signatures.list") == {"kind": "codex"}
    assert json.loads(ran.out) == SIGNATURES


def test_an_explanation_is_shown_line_by_line(run_cli: RunCli) -> None:
    found = {
        "failure": FAILURE,
        "because": "no signature decides; the learned model names the reason",
        "statements": ["429\x1b[2J"],
        "rule": None,
        "margin": 0.6,
        "threshold": 0.47,
        "failure_share": 0.93,
        "reasons": [{"reason": "rate_limit", "share": 0.81}],
        "for_failure": [{"feature": "whole 'w 429'", "weight": 0.25}],
        "for_reason": [{"feature": "whole 'w 429'", "weight": -0.125}],
    }
    ran = run_cli(["classify", "--explain"], {"classification.explain": found}, stdin=b"429")
    assert ran.params("classification.explain")["evidence"]["text"] == "429"
    for words in (
        "because       no signature decides",
        "signature     none fits",
        "failure       93% (margin 0.60, alarm above 0.47)",
        "rate_limit 81%",
        "+0.250  whole 'w 429'",
        "-0.125  whole 'w 429'",
    ):
        assert words in ran.out
    assert "\x1b" not in ran.out


def test_what_was_learned_is_reported_before_and_after(run_cli: RunCli) -> None:
    sample = {
        "attempt": "d1.1",
        "right": "billing",
        "before": "unknown",
        "after": "billing",
        "unseen": None,
        "signature": "model/billing",
    }
    answer = {"path": "/s/weights.json", "samples": [sample], "passed_over": 2}
    ran = run_cli(["classify", "train", "--from-samples"], {"classification.train": answer})
    assert "right of 1: 0 before, 1 after, 0 by weights that did not see the sample" in ran.out
    assert "2 passed over" in ran.out
    assert "in use now: /s/weights.json" in ran.out


def test_training_without_samples_says_how_to_keep_one(run_cli: RunCli) -> None:
    answer = {"path": None, "samples": [], "passed_over": 0}
    ran = run_cli(["classify", "train", "--from-samples"], {"classification.train": answer})
    assert "explain ID --wrong" in ran.out
    assert "shipped weights are in use" in ran.out


def test_samples_without_the_word_train_are_a_mistake(run_cli: RunCli) -> None:
    ran = run_cli(["classify", "out.log", "--from-samples"], {})
    assert ran.code != 0
    assert "classify train --from-samples" in ran.err
