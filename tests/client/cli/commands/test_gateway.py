import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import RunCli
from tests.client.gateway.listening import listening
from tests.support.gateway import free_port

from fallbackd_client.cli import exits
from fallbackd_client.cli.commands.gateway import SETUP
from fallbackd_client.cli.main import main
from fallbackd_client.gateway import TOOLS

ON: dict[str, Any] = {
    "config.get": {"config": {"gateway": {"enabled": True, "port": 41411}}},
    "status": {"daemon": {}},
}
TAKEN = "the gateway cannot listen at port 41411: Address already in use (::1)"
"""The words of the daemon while another program has the port."""
AWAY = {**ON, "status": {"daemon": {"troubles": [{"kind": "gateway", "message": TAKEN}]}}}
NAMES = {
    "claude": "ANTHROPIC_BASE_URL",
    "codex": "FALLBACKD_GATEWAY_TOKEN",
    "opencode": "FALLBACKD_GATEWAY_TOKEN",
    "gemini": "GOOGLE_GEMINI_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
}


@pytest.mark.parametrize(("tool", "name"), NAMES.items())
def test_a_shell_takes_what_is_printed_and_asks_for_the_token_itself(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, name: str
) -> None:
    program = tmp_path / 'it\'s "mine" $HOME' / "fallbackd-client"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$*" = "$WANTED" ] && echo the-token\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program)])
    ran = run_cli(["gateway", "env", tool], ON)
    assert ran.code == 0
    done = subprocess.run(
        ["/bin/sh", "-eu"],
        input=f"{ran.out}env\n",
        env={
            "PATH": "/usr/bin:/bin",
            "WANTED": f"--socket {tmp_path}/control.sock gateway token",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(f"^{name}=(http://127.0.0.1:41411|the-token)", done.stdout, re.M)
    assert "=the-token" in done.stdout
    assert "the-token" not in ran.out


def test_a_port_that_is_taken_is_said_beside_what_a_shell_takes(run_cli: RunCli) -> None:
    ran = run_cli(["gateway", "env", "claude"], AWAY)
    assert (ran.code, ran.out) == (0, run_cli(["gateway", "env", "claude"], ON).out)
    assert ran.err == f"warning: {TAKEN}; see fallbackd-client doctor\n"
    as_json = run_cli(["--json", "gateway", "env", "claude"], AWAY)
    assert json.loads(as_json.out)["warnings"] == [f"{TAKEN}; see fallbackd-client doctor"]
    assert json.loads(run_cli(["--json", "gateway", "env", "claude"], ON).out)["warnings"] == []


@pytest.mark.parametrize("tool", [one for one in SETUP if one != "opencode"])
def test_a_port_that_is_taken_is_said_where_a_program_is_set_up(
    run_cli: RunCli, home: Path, answers: dict[str, Any], tool: str
) -> None:
    argv = ["gateway", "setup", tool, "--print"]
    assert run_cli(argv, answers).err == ""
    answers["status"]["daemon"]["troubles"] = AWAY["status"]["daemon"]["troubles"]
    ran = run_cli(argv, answers)
    assert ran.code == 0
    assert ran.err == f"warning: {TAKEN}; see fallbackd-client doctor\n"
    undone = run_cli(["gateway", "setup", tool, "--undo", "--yes"], answers)
    assert TAKEN not in undone.err


def test_a_gateway_that_is_off_is_said_with_what_to_write(run_cli: RunCli) -> None:
    ran = run_cli(["gateway", "env", "claude"], {"config.get": {"config": {}}})
    assert ran.code != 0
    assert "config set gateway.enabled true" in ran.err


NOWHERE = {"status": {"daemon": {"state_dir": "/nonexistent"}}}


def test_the_token_is_read_and_made_anew_for_its_user_alone(
    run_cli: RunCli, tmp_path: Path
) -> None:
    status = {"status": {"daemon": {"state_dir": str(tmp_path)}}}
    absent = run_cli(["gateway", "token"], status)
    assert "there is no token" in absent.err
    kept = tmp_path / "gateway.token"
    kept.write_text("the-first\n")
    assert run_cli(["gateway", "token"], status).out == "the-first\n"
    ran = run_cli(["--json", "gateway", "token"], status)
    assert json.loads(ran.out) == {"token": "the-first"}
    made = run_cli(["gateway", "token", "--rotate"], status).out
    assert made == kept.read_text() != "the-first\n"
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without settings of any program; the token of the gateway is there."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "gateway.token").write_text("the-token\n")
    return tmp_path


SERVED = ["team", "other", "claude-fallbackd-team", "claude-fallbackd-other", "claude-sonnet-4-5"]


def on(home: Path, port: int) -> dict[str, Any]:
    """What the daemon answers while its gateway is enabled at this port."""
    return {
        "config.get": {
            "config": {
                "gateway": {"enabled": True, "port": port},
                "chains": {"team": ["main"], "claude": ["claude", "codex"]},
                "roles": {"writer": {}},
            }
        },
        "status": {"daemon": {"state_dir": str(home)}},
    }


@pytest.fixture
def answers(home: Path) -> Iterator[dict[str, Any]]:
    """Of a daemon whose gateway listens."""
    with listening(models=SERVED) as port:
        yield on(home, port)


def test_inside_an_attempt_the_token_is_the_one_of_the_attempt(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers of agents' settings ask for it: the person's is hidden from them."""
    monkeypatch.setenv("FALLBACKD_GATEWAY_TOKEN", "of-the-attempt")
    assert "there is no token" in run_cli(["gateway", "token"], NOWHERE).err
    monkeypatch.setenv("FALLBACKD_ATTEMPT", "d1.1")
    assert run_cli(["gateway", "token"], NOWHERE).out == "of-the-attempt\n"


def test_a_new_token_names_the_settings_that_hold_the_old_one_and_what_writes_them(
    run_cli: RunCli, home: Path, answers: dict[str, Any]
) -> None:
    for tool in SETUP:
        assert run_cli(["gateway", "setup", tool, "--yes"], answers).code == 0
    rotated = run_cli(["gateway", "token", "--rotate"], answers)
    new = (home / "gateway.token").read_text()
    assert rotated.out == new
    assert rotated.err.splitlines() == [
        f"gemini still has the old token in {home}/.gemini/.env;"
        " write the new one with: fallbackd-client gateway setup gemini"
    ]
    assert "the-token" not in rotated.err
    assert run_cli(["gateway", "setup", "gemini", "--yes"], answers).code == 0
    assert new.strip() in (home / ".gemini/.env").read_text()
    # What is not ours is named, and left to its owner.
    by_hand = home / ".claude/settings.json"
    by_hand.write_text(f'{{"env": {{"ANTHROPIC_AUTH_TOKEN": "{new.strip()}"}}}}')
    again = run_cli(["gateway", "token", "--rotate"], answers).err.splitlines()
    assert again[0] == f"claude still has the old token in {by_hand}; replace it there"
    assert again[1].startswith("gemini still has")
    assert len(again) == 2


@pytest.mark.parametrize("left", ["", "{ this is no JSON"])
def test_a_new_token_is_made_whatever_the_settings_of_programs_are(
    run_cli: RunCli, home: Path, left: str
) -> None:
    (home / ".claude").mkdir()
    (home / ".claude/settings.json").write_text(left + "the-token")
    (home / "gateway.token").write_text(left and "the-token")
    answers = {"status": {"daemon": {"state_dir": str(home)}}}
    rotated = run_cli(["gateway", "token", "--rotate"], answers)
    assert rotated.code == 0
    assert len(rotated.err.splitlines()) == bool(left)


def test_the_last_calls_say_who_answered(run_cli: RunCli) -> None:
    call = {
        "exchange": "ex-1",
        "api": "messages",
        "state": "succeeded",
        "began_at": 1767268800.0,
        "ended_at": 1767268802.5,
        "served_by": "other",
        "model": "m",
        "reason": "rate_limit",
        "usage": {"input_tokens": 12, "output_tokens": 3, "cost_usd": 0.0125},
    }
    left = {"exchange": "ex-0", "state": "cancelled", "began_at": call["began_at"]}
    left |= {"ended_at": call["ended_at"], "asked_by": "d1.1"}
    ran = run_cli(["gateway", "list"], {"exchange.list": {"exchanges": [call, left]}})
    first, second, *_ = ran.out.splitlines()
    assert re.fullmatch(
        r"ex-1  .*  succeeded  2\.5 s  other \(rate_limit\)  m  12 tokens in, 3 out, .*", first
    )
    assert first.endswith("3 out, 0.0125 USD")
    assert re.fullmatch(r"ex-0  .*  cancelled  2\.5 s  -  from inside d1\.1", second)
    assert "explain -v" in ran.out


def test_a_cost_of_less_than_four_digits_is_no_zero(run_cli: RunCli) -> None:
    call = {"exchange": "ex-1", "state": "succeeded", "began_at": 1767268800.0}
    call["usage"] = {"input_tokens": 5, "output_tokens": 0, "cost_usd": 1e-7}
    ran = run_cli(["gateway", "list"], {"exchange.list": {"exchanges": [call]}})
    assert "5 tokens in, 0 out, 0.000000100 USD" in ran.out


def test_no_call_is_said(run_cli: RunCli) -> None:
    ran = run_cli(["gateway", "list"], {"exchange.list": {"exchanges": []}})
    assert ran.out == "no calls through the gateway since the daemon started\n"


@pytest.mark.parametrize("tool", SETUP)
def test_a_program_is_set_up_and_the_change_is_shown_first(
    run_cli: RunCli, home: Path, answers: dict[str, Any], tool: str
) -> None:
    port = answers["config.get"]["config"]["gateway"]["port"]
    path = Path(TOOLS[tool].file({"HOME": str(home)}))
    shown = run_cli(["gateway", "setup", tool], answers)
    assert "+" in shown.out
    assert str(port) in shown.out
    assert not path.exists()
    assert run_cli(["gateway", "setup", tool, "--yes"], answers).code == 0
    made = path.read_text()
    assert TOOLS[tool].port(made) == port
    assert "the-token" not in shown.out
    assert ("the-token" in made) == (tool == "gemini")
    assert path.stat().st_mode & 0o077 == 0
    again = run_cli(["gateway", "setup", tool, "--yes"], answers)
    assert "nothing to change" in again.err
    off = {**answers, "config.get": {"config": {}}}
    assert run_cli(["gateway", "setup", tool, "--undo", "--yes"], off).code == 0
    assert not path.exists()  # it held nothing but ours


def test_a_program_that_needs_no_change_is_not_written(
    run_cli: RunCli, home: Path, answers: dict[str, Any]
) -> None:
    argv = ["--json", "gateway", "setup", "claude"]
    assert json.loads(run_cli(argv, answers).out)["written"] is False
    assert json.loads(run_cli([*argv, "--yes"], answers).out)["written"] is True
    again = run_cli([*argv, "--yes"], answers)
    assert again.code == 0
    assert json.loads(again.out) == {"edits": [], "written": False}


def test_opencode_gets_the_names_that_the_gateway_serves_and_no_others(
    run_cli: RunCli, home: Path, answers: dict[str, Any]
) -> None:
    assert run_cli(["gateway", "setup", "opencode", "--yes"], answers).code == 0
    found = json.loads((home / ".config/opencode/opencode.json").read_text())
    models = found["provider"]["fallbackd"]["models"]
    assert list(models) == ["team", "other", "claude-sonnet-4-5"]


def test_opencode_is_not_set_up_while_the_gateway_cannot_say_what_it_serves(
    run_cli: RunCli, home: Path
) -> None:
    argv = ["gateway", "setup", "opencode", "--yes"]
    port = free_port()
    silent = run_cli(argv, on(home, port))
    assert silent.code == 2
    assert f"cannot be asked at port {port}: nothing answers there" in silent.err
    assert "fallbackd-client doctor" in silent.err
    with listening(models=[]) as port:
        empty = run_cli(argv, on(home, port))
    assert empty.code == 2
    assert "no backend that speaks chat completions: configure one" in empty.err
    assert not (home / ".config").exists()


def test_a_program_that_has_the_port_of_the_gateway_is_not_sent_the_token(
    run_cli: RunCli, home: Path, answers: dict[str, Any]
) -> None:
    said = "the gateway cannot listen at port 5: Address already in use (::1)"
    answers["status"]["daemon"]["troubles"] = [{"kind": "gateway", "message": said}]
    ran = run_cli(["gateway", "setup", "opencode", "--yes"], answers)
    assert ran.code == 2
    assert said in ran.err
    assert not (home / ".config").exists()


@pytest.mark.parametrize("tool", SETUP)
def test_a_program_is_set_back_while_the_daemon_is_away(
    run_cli: RunCli, home: Path, answers: dict[str, Any], tool: str
) -> None:
    assert run_cli(["gateway", "setup", tool, "--yes"], answers).code == 0
    away = ["--socket", str(home / "none.sock"), "gateway", "setup", tool]
    assert main([*away, "--undo", "--yes"]) == 0
    path = Path(TOOLS[tool].file({"HOME": str(home)}))
    assert not path.exists()  # it held nothing but ours
    assert main([*away, "--yes"]) == exits.NO_DAEMON


def test_what_opencode_has_is_taken_out_while_nothing_listens(run_cli: RunCli, home: Path) -> None:
    with listening(models=SERVED) as port:
        assert run_cli(["gateway", "setup", "opencode", "--yes"], on(home, port)).code == 0
    undone = run_cli(["gateway", "setup", "opencode", "--undo", "--yes"], on(home, free_port()))
    assert undone.code == 0
    assert not (home / ".config/opencode/opencode.json").exists()  # it held nothing but ours
