"""`hooks`: what the settings of the agents hold after it, and after they are taken out."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import RunCli
from tests.support.agents import program

from fallbackd_client.cli.commands import hooks as command
from fallbackd_client.interactive import hooks

OWN: dict[str, Any] = {
    "theme": "dark",
    "hooks": {"StopFailure": [{"matcher": "*", "hooks": [{"type": "command", "command": "beep"}]}]},
    "statusLine": {"type": "command", "command": "my-line 'a b'", "padding": 1},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["/opt/bin/fallbackd-client"])
    return place


def ours(home: Path, *words: str) -> str:
    """As the command is started here: with a socket of its own."""
    return shlex.join(
        ["/opt/bin/fallbackd-client", "--socket", f"{home.parent}/control.sock", *words]
    )


HOOK = ("report", "--claude-hook")


def settings(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / ".claude" / "settings.json").read_text())
    return found


def given(home: Path, text: str) -> Path:
    path = home / ".claude" / "settings.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_agents_of_the_command_are_those_that_are_known() -> None:
    assert command.AGENTS == hooks.AGENTS


def test_claude_reports_its_failures_and_shows_a_line(run_cli: RunCli, home: Path) -> None:
    assert run_cli(["hooks", "install", "claude", "--yes"]).code == 0
    found = settings(home)
    group = {"hooks": [{"type": "command", "command": ours(home, *HOOK), "timeout": 5}]}
    assert found["hooks"] == {"StopFailure": [group], "UserPromptSubmit": [group]}
    assert found["statusLine"] == {
        "type": "command",
        "command": ours(home, "statusline"),
        "refreshInterval": 9,
    }
    again = run_cli(["hooks", "install", "claude", "--yes"])
    assert "nothing to change" in again.err
    assert run_cli(["hooks", "uninstall", "claude", "--yes"]).code == 0
    assert not (home / ".claude" / "settings.json").exists()  # it held nothing but ours


@pytest.mark.parametrize("own", [{}, {"refreshInterval": 30}])
def test_what_the_user_has_stays_and_comes_back(
    run_cli: RunCli, home: Path, own: dict[str, Any]
) -> None:
    before = {**OWN, "statusLine": {**OWN["statusLine"], **own}}
    path = given(home, json.dumps(before, indent=2) + "\n")
    run_cli(["hooks", "install", "claude", "--yes"])
    found = settings(home)
    assert found["theme"] == "dark"
    assert found["hooks"]["StopFailure"][0] == OWN["hooks"]["StopFailure"][0]
    assert found["hooks"]["StopFailure"][1]["hooks"][0]["command"] == ours(home, *HOOK)
    assert found["statusLine"] == {
        "type": "command",
        "command": ours(home, "statusline", "--then", "my-line 'a b'"),
        "padding": 1,
        "refreshInterval": own.get("refreshInterval", 9),
    }
    assert "nothing to change" in run_cli(["hooks", "install", "claude", "--yes"]).err
    run_cli(["hooks", "uninstall", "claude", "--yes"])
    assert path.read_text() == json.dumps(before, indent=2) + "\n"


@pytest.mark.parametrize("text", [None, "", "{}", '{"a": 1}'])
def test_two_entries_in_one_file_go_in_any_order_and_leave_what_was_there(
    run_cli: RunCli, home: Path, text: str | None
) -> None:
    path = home / ".config" / "opencode" / "opencode.json"
    path.parent.mkdir(parents=True)
    both = [["hooks", "install", "opencode"], ["mcp", "install", "opencode"]]
    away = [["hooks", "uninstall", "opencode"], ["mcp", "install", "--undo", "opencode"]]
    for undo in (away, away[::-1]):
        if text is not None:
            path.write_text(text)
        for words in both + undo:
            assert run_cli([*words, "--yes"]).code == 0
        assert (path.read_text() if path.exists() else None) == text


def test_a_program_that_has_moved_replaces_its_own_entries(
    run_cli: RunCli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(home, json.dumps(OWN))
    run_cli(["hooks", "install", "claude", "--yes"])
    monkeypatch.setattr("sys.argv", ["/new place/fallbackd-client"])
    run_cli(["hooks", "install", "claude", "--yes"])
    found = settings(home)
    assert len(found["hooks"]["StopFailure"]) == 2
    assert found["hooks"]["StopFailure"][1]["hooks"][0]["command"].startswith("'/new place/")
    run_cli(["hooks", "uninstall", "claude", "--yes"])
    assert settings(home) == OWN


def test_the_status_line_can_be_left_as_it_is(run_cli: RunCli, home: Path) -> None:
    given(home, json.dumps(OWN))
    run_cli(["hooks", "install", "claude", "--no-statusline", "--yes"])
    assert settings(home)["statusLine"] == OWN["statusLine"]
    assert "without status line" in run_cli(["hooks", "status", "claude"]).out


def test_without_yes_nothing_is_written(run_cli: RunCli, home: Path) -> None:
    ran = run_cli(["hooks", "install", "claude"])
    assert ran.code == 1
    assert ours(home, *HOOK) in ran.out
    assert not (home / ".claude").exists()


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"hooks": []}', '{"hooks": {"StopFailure": {}}}', '{"statusLine": "x"}'],
)
def test_settings_that_are_not_understood_are_left_alone(
    run_cli: RunCli, home: Path, text: str
) -> None:
    path = given(home, text)
    ran = run_cli(["hooks", "install", "claude", "--yes"])
    assert ran.code == 2
    assert "hooks install claude --print" in ran.err
    assert path.read_text() == text


def test_sessions_of_codex_are_watched_by_the_daemon(run_cli: RunCli, home: Path) -> None:
    config = home / ".config" / "fallbackd" / "config.toml"
    config.parent.mkdir(parents=True)
    before = '# mine\n[defaults]\nmode = "batch"\n'
    config.write_text(before)
    answers = {"status": {"daemon": {"config_path": str(config)}}}
    assert run_cli(["hooks", "install", "codex", "--yes"], answers).code == 0
    assert '[interactive]\nwatch = ["codex"]' in config.read_text()
    assert "codex: installed" in run_cli(["hooks", "status"], answers).out
    assert "nothing to change" in run_cli(["hooks", "install", "codex", "--yes"], answers).err
    assert run_cli(["hooks", "uninstall", "codex", "--yes"], answers).code == 0
    assert config.read_text() == before
    assert "codex: not installed" in run_cli(["hooks", "status"], answers).out


def test_a_table_of_the_user_is_not_written_twice(run_cli: RunCli, home: Path) -> None:
    config = home / ".config" / "fallbackd" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[interactive]\nwatch = []\n")
    ran = run_cli(["hooks", "install", "codex", "--yes"])
    assert ran.code == 2
    assert "[interactive] is there already" in ran.err


def test_opencode_loads_the_plugin_and_its_settings_come_back(run_cli: RunCli, home: Path) -> None:
    path = home / ".config/opencode/opencode.json"
    path.parent.mkdir(parents=True)
    before = '{\n  // mine\n  "plugin": ["other"]\n}'
    path.write_text(before)
    assert run_cli(["hooks", "install", "opencode", "--yes"]).code == 0
    named = hooks.jsonc.load(path.read_text())["plugin"]
    assert named[0] == "other"
    assert Path(named[1].removeprefix("file://")).is_file()
    assert "opencode: installed" in run_cli(["hooks", "status"]).out
    again = run_cli(["hooks", "install", "opencode", "--yes"])
    assert (again.code, again.out) == (0, "")
    assert run_cli(["hooks", "uninstall", "opencode", "--yes"]).code == 0
    assert path.read_text() == before


def test_opencode_2_loads_its_own_entry_and_its_settings_come_back(
    run_cli: RunCli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(home / "bin", "opencode", "echo opencode v2.1.4")
    monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin:/bin")
    path = home / ".config/opencode/opencode.json"
    path.parent.mkdir(parents=True)
    before = '{\n  // mine\n  "plugins": ["other"]\n}'
    path.write_text(before)
    assert run_cli(["hooks", "install", "opencode", "--yes"]).code == 0
    named = hooks.jsonc.load(path.read_text())["plugins"]
    assert named[0] == "other"
    assert named[1].endswith("/src/second.ts")
    assert Path(named[1].removeprefix("file://")).is_file()
    screen = path.parent / "cli.json"
    (toast,) = json.loads(screen.read_text())["plugins"]
    assert toast.endswith("/src/toast.ts")
    assert Path(toast.removeprefix("file://")).is_file()
    assert "opencode: installed" in run_cli(["hooks", "status"]).out
    assert run_cli(["hooks", "install", "opencode", "--yes"]).out == ""
    assert run_cli(["hooks", "uninstall", "opencode", "--yes"]).code == 0
    assert path.read_text() == before
    assert not screen.exists() or json.loads(screen.read_text() or "{}") == {}


def test_the_settings_of_the_interface_of_opencode_2_come_back_too(
    run_cli: RunCli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(home / "bin", "opencode", "echo opencode v2.1.4")
    monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin:/bin")
    screen = home / ".config/opencode/cli.json"
    screen.parent.mkdir(parents=True)
    before = '{ // mine\n  "theme": "x", "plugins": ["other"] }'
    screen.write_text(before)
    assert run_cli(["hooks", "install", "opencode", "--yes"]).code == 0
    assert len(hooks.jsonc.load(screen.read_text())["plugins"]) == 2
    program(home / "bin", "opencode", "echo 1.18.33")  # it is another version by now
    assert run_cli(["hooks", "uninstall", "opencode", "--yes"]).code == 0
    assert screen.read_text() == before


def test_a_plugin_elsewhere_is_replaced_and_keeps_its_options(run_cli: RunCli, home: Path) -> None:
    path = home / ".config/opencode/opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"plugin": [["file:///gone/opencode-plugin/src/index.ts", {"budgetMs": 9}]]}')
    assert run_cli(["hooks", "install", "opencode", "--yes"]).code == 0
    ((name, options),) = json.loads(path.read_text())["plugin"]
    assert options == {"budgetMs": 9}
    assert Path(name.removeprefix("file://")).is_file()


def test_the_short_name_writes_what_is_recognised_later(
    run_cli: RunCli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/bin/fb"])
    assert run_cli(["hooks", "install", "claude", "--yes"]).code == 0
    assert "claude: installed with status line" in run_cli(["hooks", "status", "claude"]).out
    assert run_cli(["hooks", "uninstall", "claude", "--yes"]).code == 0
    assert not (home / ".claude/settings.json").exists()
