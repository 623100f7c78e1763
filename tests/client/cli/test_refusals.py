"""What to do about work that was refused."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.agents import program

from fallbackd.api.shapes import none_installed, verdict
from fallbackd.core.ids import BackendId
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Verdict
from fallbackd_client.cli.views import advice, exit_code
from fallbackd_client.wire.shapes import CandidateVerdict

NOW = 1_800_000_000.0


def shown(backend: str, reason: str, *, failed: Reason | None = None, **more: Any) -> Any:
    """A candidate as the daemon shows it."""
    one = Verdict(**{"backend": BackendId(backend), "verdict": "broken", "reason": reason, **more})
    return msgspec.to_builtins(verdict(one, failed))


def refused(*reasons: str, **more: Any) -> dict[str, Any]:
    candidates = [shown(f"b{number}", reason) for number, reason in enumerate(reasons)]
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
    one = shown("b0", "tried already", verdict="tried", failed=Reason.AUTH)
    data = refused(candidates=[one])
    assert exit_code(data) == 77
    assert advice(data, now=NOW) == ["b0: log in again"]


def test_the_command_of_a_known_program_is_named() -> None:
    candidates = [
        shown("codex", "auth", kind="codex"),
        shown("claude", "claude is not on PATH", verdict="not_installed", kind="claude"),
        shown("mine", "enabled = false", verdict="disabled"),
    ]
    assert advice(refused(candidates=candidates), now=NOW) == [
        "codex: log in with: codex login",
        "claude: install it with: npm install -g @anthropic-ai/claude-code",
        "mine: enable it in the configuration",
    ]


def test_where_nothing_is_installed_the_refusal_itself_says_so() -> None:
    candidates = [
        shown(name, "not_installed", verdict="not_installed", kind=name, detail=f"{name} is not …")
        for name in ("claude", "codex")
    ]
    found = [msgspec.convert(one, CandidateVerdict) for one in candidates]
    assert none_installed(found, "/usr/bin") == (
        "none of claude, codex is on the daemon's PATH (/usr/bin); install one, for example with:"
        " npm install -g @anthropic-ai/claude-code"
    )
    assert none_installed(found[1:], "/usr/bin") == (
        "codex is not on the daemon's PATH (/usr/bin); install it with:"
        " npm install -g @openai/codex"
    )
    logged_out = msgspec.convert(shown("mine", "auth", kind="codex"), CandidateVerdict)
    assert none_installed([*found, logged_out], "/usr/bin") is None
    assert none_installed([], "/usr/bin") is None
    assert advice(refused(candidates=candidates), now=NOW) == []


def test_a_program_that_only_this_shell_finds_is_named_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = program(tmp_path / "bin", "codex", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    missing = shown(
        "codex", "not_installed", verdict="not_installed", detail="codex is not on PATH"
    )
    login = shown("claude", "auth", kind="claude")
    assert advice(refused(candidates=[missing, login]), now=NOW) == [
        f"installed, but not on the daemon's PATH: codex ({place});"
        " fix this with: fallbackd-client doctor --fix",
        "claude: log in with: claude auth login",
    ]
