"""What became of a delegation, in at most five sentences."""

from typing import Any

import pytest
from tests.client.conftest import RunCli

from fallbackd_client.cli.commands.explain import summary
from fallbackd_client.cli.output import clock

AT = 1_700_049_600.0
HOP = {"from": "claude", "to": "codex", "reason": "usage_limit", "trigger": "reactive"}
DONE: dict[str, Any] = {
    "delegation": "d1",
    "state": "succeeded",
    "served_by": "codex",
    "created_at": AT,
    "ended_at": AT + 12,
    "hops": [HOP],
    "attempts": [
        {"backend": "claude", "failure": {"reason": "usage_limit", "evidence": "You\nhit it"}},
        {"backend": "codex", "failure": None},
    ],
    "candidates": [
        {"backend": "claude", "verdict": "tried"},
        {"backend": "codex", "verdict": "chosen"},
        {"backend": "gemini", "verdict": "not_installed"},
        {"backend": "agy", "verdict": "not_installed"},
        {"backend": "mine", "verdict": "cooldown"},
    ],
}


def test_a_failover_is_told_with_its_cause_and_who_was_not_used() -> None:
    assert summary(DONE, now=AT + 60) == [
        "codex answered after 1 failover (12s).",
        "claude hit its usage limit; continuing with codex.",
        'claude reported: "You hit it".',
        "Not used: gemini, agy (not installed); mine (recovering).",
    ]


def test_however_much_happened_it_is_five_sentences() -> None:
    assert len(summary({**DONE, "hops": [HOP] * 9}, now=AT)) == 5


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({"state": "running", "active": "codex"}, "codex is working (5s)."),
        ({"state": "waiting"}, "The work is waiting (5s)."),
        (
            {"state": "failed", "active": "a", "failure": {"reason": "crash"}},
            "The work failed on a (5s): crash.",
        ),
        (
            {"state": "refused", "message": "all are out"},
            "No backend in the chain was available: all are out.",
        ),
        (
            {"state": "refused", "message": "all are out", "retry_at": AT + 60},
            "No backend in the chain was available: all are out; available again at "
            f"{clock(AT + 60, AT)}.",
        ),
        (
            {
                "state": "refused",
                "message": "none is installed",
                "retry_at": AT + 60,
                "candidates": [
                    {"backend": "codex", "verdict": "chosen", "fix": {"kind": "configuration"}}
                ],
            },
            "No backend in the chain was available: none is installed.",
        ),
        ({"state": "cancelled", "active": "a"}, "The work was cancelled on a (5s)."),
        ({"state": "handed_back"}, "The work was handed back to the caller."),
        ({"state": "awaiting_answer"}, "The work waits for an answer (5s)."),
    ],
)
def test_each_state_has_its_sentence(found: dict[str, Any], sentence: str) -> None:
    assert summary({"created_at": AT, **found}, now=AT + 5) == [sentence]


def test_explain_says_it_and_names_the_way_to_every_decision(run_cli: RunCli) -> None:
    ran = run_cli(["explain", "d1"], {"delegation.get": {**DONE, "served_by": "co\x1b[2Jdex"}})
    lines = ran.out.splitlines()
    assert lines[0] == "delegation d1"
    assert lines[1] == "codex answered after 1 failover (12s)."
    assert lines[-1] == "Every decision: fallbackd-client explain -v d1"


def test_words_of_fallbackd_are_not_put_into_the_mouth_of_an_agent() -> None:
    failure = {"reason": "cancelled", "evidence": "cancelled by the caller"}
    found = {**DONE, "state": "cancelled", "attempts": [{"backend": "a", "failure": failure}]}
    assert not any("reported" in one for one in summary(found, now=10.0))


def test_a_refusal_without_a_further_reason_is_said_once() -> None:
    found = {**DONE, "state": "refused", "message": "no backend in the chain is available"}
    assert summary(found, now=10.0)[0] == "No backend in the chain was available."
