import json
import tomllib

import pytest
from tests.client.conftest import RunCli

STORY = {
    "delegation": "d1",
    "state": "succeeded",
    "requested": "codex",
    "served_by": "opencode",
    "decisions": [
        {
            "at": 1_700_049_600.25,
            "event": "DelegateRequested",
            "text": "codex was asked for",
            "candidates": [
                {"backend": "codex", "verdict": "chosen", "state": "healthy"},
                {"backend": "opencode", "verdict": "healthy", "reason": "next in the chain"},
            ],
            "effects": ["start d1.1 on codex"],
        },
        {
            "at": 1_700_049_601.0,
            "event": "AttemptFailed",
            "attempt": "d1.1",
            "evidence": {"reason": "rate_limit", "signature": "codex-429", "detail": None},
            "policy": {"window_s": 300, "growth": {"factor": 2.0}, "metered": False},
            "changes": ["backend:codex is rate_limited\x1b[2J"],
        },
    ],
}


def test_the_story_tells_each_decision_with_its_reasons(run_cli: RunCli) -> None:
    ran = run_cli(["explain", "-v", "d1"], {"explain": STORY})
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "delegation d1: succeeded, asked of codex, served by opencode"
    assert lines[2].startswith("1. ")
    assert lines[2].endswith(".250  DelegateRequested")
    assert "   codex was asked for" in lines
    assert "   codex      chosen   healthy" in lines
    assert any(line.endswith("next in the chain") for line in lines)
    assert "   then: start d1.1 on codex" in lines
    assert any(line.endswith(".000  AttemptFailed  d1.1") for line in lines)
    assert "   evidence: reason=rate_limit, signature=codex-429" in lines
    assert "   policy: window_s=300, growth={factor=2.0}, metered=no" in lines
    assert "   kept: backend:codex is rate_limited" in lines


def test_what_was_used_stands_in_the_heading(run_cli: RunCli) -> None:
    used = {"input_tokens": 12, "output_tokens": 5, "cost_usd": None}
    ran = run_cli(["explain", "-v", "d1"], {"explain": {**STORY, "usage": used}})
    heading = ran.out.splitlines()[0]
    assert heading.endswith("served by opencode, 12 tokens in, 5 out")


@pytest.mark.parametrize("more", [[], ["-v"]])
def test_a_gateway_call_is_named_as_that(run_cli: RunCli, more: list[str]) -> None:
    told = {**STORY, "delegation": "ex-1", "requested": "one", "served_by": "two"}
    ran = run_cli(["explain", *more, "ex-1"], {"explain": told})
    heading = ran.out.splitlines()[0]
    assert heading == "gateway call ex-1: succeeded, asked of one, served by two"


def test_nothing_on_record_is_said(run_cli: RunCli) -> None:
    ran = run_cli(["explain", "-v", "d1"], {"explain": {"delegation": "d1", "truncated": True}})
    assert "no decisions on record" in ran.out
    assert "older decisions were dropped" in ran.out


def test_with_json_it_is_the_document(run_cli: RunCli) -> None:
    assert json.loads(run_cli(["explain", "d1", "--json"], {"explain": STORY}).out) == STORY


WRONG = {
    "delegation": "d1",
    "attempt": "d1.2",
    "sample_path": "/state/samples/d1.2.json",
    "signature_toml": "[[signatures]]\nid = 'mine-d1.2'\npattern = 'no\\d+'\nreason = 'billing'\n",
}


def test_a_wrong_verdict_is_noted_and_a_signature_to_paste_is_printed(run_cli: RunCli) -> None:
    argv = ["explain", "d1", "--wrong", "--attempt", "2", "--reason", "billing", "--note", "money"]
    ran = run_cli(argv, {"classification.wrong": WRONG})
    assert ran.code == 0
    assert ran.params("classification.wrong") == {
        "delegation": "d1",
        "attempt": 2,
        "reason": "billing",
        "note": "money",
    }
    assert "/state/samples/d1.2.json" in ran.out
    pasted = tomllib.loads(ran.out)
    assert pasted["signatures"] == [{"id": "mine-d1.2", "pattern": "no\\d+", "reason": "billing"}]


def test_the_right_reason_may_stand_behind_the_delegation_and_a_row_is_kept_to_send(
    run_cli: RunCli,
) -> None:
    answer = WRONG | {"row_path": "/state/samples/d1.2.jsonl"}
    ran = run_cli(["explain", "--wrong", "d1", "billing"], {"classification.wrong": answer})
    assert ran.params("classification.wrong") == {"delegation": "d1", "reason": "billing"}
    assert "# a row that you can send: /state/samples/d1.2.jsonl" in ran.out
    assert tomllib.loads(ran.out)["signatures"]


def test_without_more_words_the_last_attempt_is_meant(run_cli: RunCli) -> None:
    ran = run_cli(["explain", "d1", "--wrong"], {"classification.wrong": WRONG})
    assert ran.params("classification.wrong") == {"delegation": "d1"}
