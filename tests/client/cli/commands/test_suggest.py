import re

from tests.client.conftest import RunCli


def test_the_suggestion_is_shown_with_scores_and_caps(run_cli: RunCli) -> None:
    answer = {
        "suggestion": "codex",
        "reason": "best for code",
        "eta_s": 540.0,
        "scores": {"codex": 90.0, "opencode": 70.5},
        "rate_limits": {"codex": {"used": 3, "cap": 50, "unit": "calls", "window_s": 3600}},
        "unhealthy": {"gemini": {"state": "broken"}},
    }
    ran = run_cli(
        ["suggest", "refactor it", "--size", "large", "--complexity", "high"], {"suggest": answer}
    )
    assert ran.code == 0
    assert ran.params("suggest") == {
        "goal": "refactor it",
        "project_size": "large",
        "complexity": "high",
    }
    assert ran.out.startswith("codex: best for code\ntakes about 9m\n")
    assert re.search(r"^codex +90 +3 of 50 calls in 1h$", ran.out, re.M)
    assert "left out: gemini" in ran.out


def test_nobody_available_ends_in_75(run_cli: RunCli) -> None:
    ran = run_cli(["suggest", "x"], {"suggest": {"suggestion": None, "reason": "All are limited."}})
    assert (ran.code, ran.out) == (75, "All are limited.\n")
