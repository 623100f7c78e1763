"""Claude Code's hook: what is reported of a turn that failed, and what the person reads."""

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import RunCli
from tests.client.scripted import LIMIT_S

from fallbackd_client.cli.main import main
from fallbackd_client.interactive import hook

EVENT = {
    "session_id": "b4aa40fd-00e7-44ab-ba2a-6581bba52b3c",
    "transcript_path": "/home/me/.claude/projects/-w/b4aa40fd.jsonl",
    "cwd": "/w",
    "prompt_id": "c430b95a",
    "hook_event_name": "StopFailure",
    "error": "rate_limit",
    "last_assistant_message": "You've hit your limit \u00b7 resets 6:58pm (UTC)",
}
HOOK = ["report", "--claude-hook"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of an answer does not depend on how quick this machine is."""
    monkeypatch.setattr(hook, "LIMIT_S", LIMIT_S)


def limited(until_at: float) -> dict[str, Any]:
    health = {"state": "rate_limited", "reason": "usage_limit", "until_at": until_at}
    return {"interactive.failed": {"backend": "claude", "health": health, "next": "codex"}}


def words(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode()


@pytest.mark.usefixtures("patient")
def test_a_limit_is_reported_and_the_person_is_told_how_to_continue(run_cli: RunCli) -> None:
    noon = time.mktime((*time.localtime()[:3], 12, 30, 0, 0, 0, -1))
    ran = run_cli(HOOK, limited(noon), stdin=words(EVENT))
    assert ran.params("interactive.failed") == {
        "agent": "claude",
        "error": "rate_limit",
        "text": EVENT["last_assistant_message"],
        "session": EVENT["session_id"],
        "turn": "c430b95a",
    }
    said = "claude is limited until 12:30; continue here with: fallbackd-client continue"
    assert (ran.code, json.loads(ran.out), ran.err) == (0, {"systemMessage": said}, "")


@pytest.mark.usefixtures("patient")
def test_a_limit_that_claude_waits_for_is_said(run_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    notice = "Usage limit reached \u00b7 set to continue automatically at 3:04pm"
    path.write_text(json.dumps({"type": "system", "content": notice}) + "\n")
    event = {**EVENT, "transcript_path": str(path)}
    ran = run_cli(HOOK, limited(time.time() + 60), stdin=words(event))
    assert "; press Esc, then continue here" in json.loads(ran.out)["systemMessage"]


AT_RESET = "Your claude.ai usage limit has reset. Continue the task you were working on."


def submitted(run_cli: RunCli, prompt: object, session: object = EVENT["session_id"]) -> str:
    event = {"hook_event_name": "UserPromptSubmit", "session_id": session, "prompt": prompt}
    ran = run_cli(HOOK, {}, stdin=words(event))
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def test_what_claude_sends_by_itself_is_held_back_once_where_another_agent_continues(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert submitted(run_cli, AT_RESET) == ""
    hook.hold(EVENT["session_id"], "codex")
    assert submitted(run_cli, AT_RESET, "b-other") == ""
    said = "this conversation continues with codex; to continue it here, send a prompt"
    assert json.loads(submitted(run_cli, AT_RESET)) == {"decision": "block", "reason": said}
    assert submitted(run_cli, AT_RESET) == ""


def test_a_prompt_of_the_person_is_sent_and_takes_the_session_back(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hook.hold(EVENT["session_id"], "codex")
    assert submitted(run_cli, "go on") == ""
    assert submitted(run_cli, AT_RESET) == ""


@pytest.mark.parametrize("session", ["../../x", "", None, 7])
def test_a_session_that_is_no_name_holds_nothing_back(run_cli: RunCli, session: object) -> None:
    assert submitted(run_cli, AT_RESET, session) == ""


@pytest.mark.usefixtures("patient")
def test_another_account_is_told_apart_by_its_directory(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "/home/me/.claude-work")
    ran = run_cli(HOOK, limited(0.0), stdin=words(EVENT))
    assert ran.params("interactive.failed")["home"] == "/home/me/.claude-work"


@pytest.mark.parametrize(
    "said",
    [
        words({**EVENT, "error": "invalid_request"}),
        words({**EVENT, "error": ["rate_limit"]}),
        words({**EVENT, "hook_event_name": "Stop"}),
        b"[]",
        b"{",
        b"",
        b"[" * 100_000,
    ],
    ids=["of the prompt", "no word", "another hook", "no object", "cut", "empty", "deep"],
)
def test_what_says_nothing_about_the_backend_is_not_reported(run_cli: RunCli, said: bytes) -> None:
    ran = run_cli(HOOK, limited(0.0), stdin=said)
    assert (ran.code, ran.out, ran.err, ran.server.requests) == (0, "", "", [])


def test_an_attempt_of_the_daemon_reports_nothing(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "inside_of", lambda: "d1.1")
    ran = run_cli(HOOK, limited(0.0), stdin=words(EVENT))
    assert (ran.code, ran.out, ran.server.requests) == (0, "", [])


@pytest.mark.usefixtures("patient")
def test_a_backend_that_stays_available_needs_no_words(run_cli: RunCli) -> None:
    answer = {"interactive.failed": {"backend": "claude", "health": {"state": "healthy"}}}
    ran = run_cli(HOOK, answer, stdin=words(EVENT))
    assert (ran.code, ran.out) == (0, "")


def test_a_daemon_that_hangs_is_waited_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FALLBACKD_DELEGATION", raising=False)
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()
        assert hook.report(EVENT, str(path)) is None
        assert hook.report(EVENT, str(tmp_path / "none")) is None
    assert main(["--socket", str(path), "report"]) == 2
    assert "OUTCOME" in capsys.readouterr().err
