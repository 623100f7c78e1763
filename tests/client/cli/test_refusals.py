"""What to do about work that was refused."""

from typing import Any

import pytest

from fallbackd_client.cli.refusals import advice, exit_code

NOW = 1_800_000_000.0


def refused(*reasons: str, **more: Any) -> dict[str, Any]:
    candidates = [
        {"backend": f"b{number}", "verdict": "broken", "reason": reason}
        for number, reason in enumerate(reasons)
    ]
    return {"state": "refused", "retry_at": NOW + 60, "candidates": candidates, **more}


@pytest.mark.parametrize(
    ("reasons", "code"),
    [
        (("rate_limit", "auth"), 75),
        (("usage_limit",), 75),
        (("auth", "not_installed"), 77),
        (("billing",), 77),
        (("not_installed", "not_configured"), 78),
        (("context_overflow", "content_policy"), 1),
        ((), 75),
    ],
)
def test_only_where_waiting_helps_the_status_says_so(reasons: tuple[str, ...], code: int) -> None:
    data = refused(*reasons)
    assert exit_code(data) == code
    assert any("available again" in line for line in advice(data, now=NOW)) == (code == 75)


def test_what_failed_here_counts_more_than_the_verdict() -> None:
    tried = [{"backend": "b0", "failure": {"reason": "auth"}}]
    candidates = [{"backend": "b0", "verdict": "tried", "reason": "tried already"}]
    data = refused(attempts=tried, candidates=candidates)
    assert exit_code(data) == 77
    assert advice(data, now=NOW) == ["b0: log in again"]


def test_the_command_of_a_known_program_is_named() -> None:
    candidates = [
        {"backend": "codex", "verdict": "broken", "reason": "auth"},
        {"backend": "claude", "verdict": "not_installed", "reason": "claude is not on PATH"},
        {"backend": "mine", "verdict": "disabled", "reason": "enabled = false"},
    ]
    assert advice(refused(candidates=candidates), now=NOW) == [
        "codex: log in with: codex login",
        "claude: install it with: npm install -g @anthropic-ai/claude-code",
        "mine: enable it in the configuration",
    ]
