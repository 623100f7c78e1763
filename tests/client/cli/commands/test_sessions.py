import re

from tests.client.conftest import RunCli

ONE = {"session": "s1", "current": "opencode", "original": "codex", "depth": 2, "running": "d1"}


def test_sessions_are_a_table_with_their_directory_and_the_newest_prompt(run_cli: RunCli) -> None:
    lines = [
        {"delegation": "d2", "session": "s1", "cwd": "/home/me/work", "prompt": "Fix the parser"},
        {"delegation": "d1", "session": "s1", "cwd": "/home/me", "prompt": "Count the files"},
    ]
    ran = run_cli(
        ["sessions", "--limit", "5"],
        {"session.list": {"sessions": [ONE]}, "delegation.list": {"lines": lines}},
    )
    assert re.search(r"^s1 +opencode +codex +d1 +/home/me/work +Fix the parser$", ran.out, re.M)
    assert ran.params("session.list") == {"limit": 5}


def test_a_session_says_how_long_ago_it_was_used(run_cli: RunCli) -> None:
    used = {"session": "s1", "current": "codex", "original": "codex", "last_active_at": 0.0}
    ran = run_cli(["sessions"], {"session.list": {"sessions": [used]}, "delegation.list": {}})
    assert re.search(r"^s1 +\d+\w.* ago +codex$", ran.out, re.M)


def test_no_sessions_are_said(run_cli: RunCli) -> None:
    assert run_cli(["sessions"], {"session.list": {}, "delegation.list": {}}).out == "no sessions\n"


def test_one_session_is_shown_with_what_was_ignored(run_cli: RunCli) -> None:
    ran = run_cli(["sessions", "s1"], {"session.get": {**ONE, "ignored_reports": 3}})
    assert "ignored reports: 3" in ran.out
    assert ran.params("session.get") == {"session": "s1"}


def test_a_session_can_be_forgotten(run_cli: RunCli) -> None:
    ended = {"session": "s1", "ended": True}
    assert run_cli(["sessions", "s1", "--end"], {"session.end": ended}).out == "forgotten\n"
    assert run_cli(["sessions", "--end"], {"session.end": ended}).code == 2


def test_show_without_a_session_says_what_is_missing(run_cli: RunCli) -> None:
    ran = run_cli(["sessions", "show"], {})
    assert (ran.code, ran.server.requests) == (2, [])
    assert "name the SESSION to show" in ran.err
