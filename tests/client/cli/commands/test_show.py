from tests.client.conftest import RunCli

FOUND = {
    "delegation": "d1",
    "state": "failed",
    "session": "s1",
    "prompt": "Explain\x1b[2J this",
    "cwd": "/home/a/project",
    "requested": "codex",
    "fallback_reason": "rate_limit: later",
    "created_at": 100.0,
    "ended_at": 225.0,
    "attempts": [
        {
            "attempt": "d1.1",
            "backend": "codex",
            "model": "gpt",
            "state": "failed",
            "trial": True,
            "exit_code": 1,
            "effects": "none",
            "started_at": 100.0,
            "ended_at": 130.0,
            "failure": {"reason": "rate_limit", "evidence": "429\x1b[2J Too Many"},
        }
    ],
    "hops": [
        {"from": "codex", "to": None, "trigger": "reactive", "reason": "rate_limit"},
    ],
    "candidates": [{"backend": "codex", "verdict": "tried", "reason": "failed here"}],
    "failure": {"reason": "task_failed", "detail": "exit 1"},
    "usage": {"input_tokens": 5, "output_tokens": 7, "cost_usd": 0.5},
    "text": None,
}


def test_a_delegation_is_shown_with_attempts_hops_and_verdicts(run_cli: RunCli) -> None:
    ran = run_cli(["show", "d1"], {"delegation.get": FOUND})
    assert ran.code == 0
    assert ran.params("delegation.get") == {"delegation": "d1"}
    for words in (
        "delegation d1",
        "prompt     Explain this",
        "directory  /home/a/project",
        "took       2m 5s",
        "usage      5 tokens in, 7 out, 0.5000 USD",
        "failure    task_failed: exit 1",
        "failed (trial)  codex [gpt]  30s   1     none     rate_limit – 429 Too Many",
        "codex is rate-limited; no other backend is available.",
        "failed here",
    ):
        assert words in ran.out
    assert "\x1b" not in ran.out


def test_an_answer_is_shown_below(run_cli: RunCli) -> None:
    found = {"delegation": "d1", "state": "succeeded", "text": "line one\nline two"}
    ran = run_cli(["show", "d1"], {"delegation.get": found})
    assert ran.out.endswith("\n\nline one\nline two\n")


def test_an_open_question_is_shown_with_its_choices(run_cli: RunCli) -> None:
    question = {"question": "q1", "text": "go on?", "options": [{"choice": "stop", "text": "end"}]}
    found = {"delegation": "d1", "state": "awaiting_answer", "question": question}
    ran = run_cli(["show", "d1"], {"delegation.get": found})
    assert "a question is open (q1): go on?\n  stop: end" in ran.out
