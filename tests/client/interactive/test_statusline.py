"""The status line: what it says, and that it never stands in the way."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import RunCli
from tests.client.scripted import LIMIT_S

from fallbackd_client.interactive import hook
from fallbackd_client.interactive.hook import line

SOON = time.time() + 3600
EVENT: dict[str, Any] = {
    "rate_limits": {
        "five_hour": {"used_percentage": 83, "resets_at": SOON},
        "seven_day": {"used_percentage": 41.4},
    }
}
OK = {"state": "healthy"}
ANSWER: dict[str, Any] = {"backend": "claude", "health": OK, "others": {"codex": OK}}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What is said of an answer does not depend on how quick this machine is."""
    if request.function is not test_without_a_daemon_the_figures_are_shown_all_the_same:
        monkeypatch.setattr(hook, "LINE_LIMIT_S", LIMIT_S)


def said(
    run_cli: RunCli, answer: dict[str, Any], event: dict[str, Any], *words: str
) -> tuple[str, list[Any]]:
    ran = run_cli(
        ["statusline", *words], {"interactive.plan": answer}, stdin=json.dumps(event).encode()
    )
    assert (ran.code, ran.err) == (0, "")
    return ran.out, ran.server.requests


def test_the_plan_is_shown_and_forwarded(run_cli: RunCli) -> None:
    out, requests = said(run_cli, ANSWER, EVENT)
    assert out == "5h 83% · 7d 41% · codex ok\n"
    (request,) = requests
    assert request["params"] == {
        "agent": "claude",
        "windows": [
            {"window_s": 18000.0, "used_percent": 83.0, "resets_at": SOON},
            {"window_s": 604800.0, "used_percent": 41.4, "resets_at": None},
        ],
    }


def test_a_limit_is_said_with_the_way_on(run_cli: RunCli) -> None:
    day = time.mktime((*time.localtime()[:3], 12, 30, 0, 0, 0, -1))
    limited = {"state": "rate_limited", "until_at": day}
    out, _ = said(run_cli, {**ANSWER, "health": limited}, {})
    assert out == (
        "codex ok · claude is limited until 12:30; continue here with: fallbackd-client continue\n"
    )


def test_a_limit_that_claude_waits_for_is_said_with_the_key_that_ends_that(
    run_cli: RunCli, tmp_path: Path
) -> None:
    path = tmp_path / "s.jsonl"
    notice = "Usage limit reached \u00b7 set to continue automatically at 3:04pm"
    path.write_text(json.dumps({"type": "system", "content": notice}) + "\n")
    limited = {"state": "rate_limited"}
    for state, words in (
        (limited, "; press Esc, then continue here"),
        (OK, ""),
    ):
        out, _ = said(run_cli, {**ANSWER, "health": state}, {"transcript_path": str(path)})
        assert words in out
        assert ("Esc" in out) == bool(words)


def test_the_others_are_shown_up_to_the_first_that_can_be_used(run_cli: RunCli) -> None:
    others = {
        "codex": {"state": "rate_limited", "until_at": None},
        "opencode": {"state": "broken", "reason": "not_installed"},
        "gemini": OK,
        "acme": OK,
    }
    out, _ = said(run_cli, {**ANSWER, "others": others}, {})
    assert out == "codex out · gemini ok\n"


@pytest.mark.parametrize(
    "limits",
    [
        None,
        [],
        {"five_hour": 83},
        {"five_hour": {"used_percentage": True}},
        {"five_hour": {"used_percentage": -1}},
        {"five_hour": {"used_percentage": 100, "resets_at": 1.0}},
        {"seven_day_opus": {"used_percentage": 100}},
    ],
    ids=["absent", "list", "number", "truth", "negative", "begun anew", "of one model"],
)
def test_figures_that_are_not_known_are_left_out(run_cli: RunCli, limits: object) -> None:
    assert said(run_cli, ANSWER, {"rate_limits": limits})[0] == "codex ok\n"


def test_the_own_line_of_the_user_comes_first_with_the_same_input(run_cli: RunCli) -> None:
    event = {**EVENT, "model": "m"}
    out, _ = said(run_cli, ANSWER, event, "--then", "grep -o '\"model\"'; printf '\\033[1mx'")
    assert out == '"model"\n\x1b[1mx · 5h 83% · 7d 41% · codex ok\n'


def test_an_own_line_that_fails_takes_nothing_away(run_cli: RunCli) -> None:
    assert said(run_cli, ANSWER, {}, "--then", "exit 3")[0] == "codex ok\n"


def test_without_a_daemon_the_figures_are_shown_all_the_same(tmp_path: Path) -> None:
    assert line(EVENT, str(tmp_path / "none")) == "5h 83% · 7d 41%"
    path = tmp_path / "hangs.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()
        assert line(EVENT, str(path)) == "5h 83% · 7d 41%"
