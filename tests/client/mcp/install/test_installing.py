"""`mcp install`: what each agent's settings hold after it, and after `--undo`."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import RunCli

from fallbackd_client.cli.commands.mcp import AGENTS
from fallbackd_client.mcp.install import CLIENTS

FILES = {
    "claude": ".claude.json",
    "codex": ".codex/config.toml",
    "opencode": ".config/opencode/opencode.json",
    "gemini": ".gemini/settings.json",
    "cursor": ".cursor/mcp.json",
    "zed": ".config/zed/settings.json",
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


def entry(agent: str, home: Path) -> Any:
    text = (home / FILES[agent]).read_text()
    found = tomllib.loads(text) if agent == "codex" else json.loads(text)
    return found[CLIENTS[agent].place]["fallbackd"]


def test_the_agents_of_the_command_are_those_that_are_known() -> None:
    assert tuple(CLIENTS) == AGENTS
    assert set(FILES) == set(AGENTS)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_entry_starts_the_server_by_an_absolute_path(
    run_cli: RunCli, home: Path, agent: str
) -> None:
    ran = run_cli(["mcp", "install", agent, "--yes"])
    assert ran.code == 0
    assert FILES[agent] in ran.out
    path = home / FILES[agent]
    words = CLIENTS[agent].installed(path.read_text())
    assert words is not None
    assert words[0] == "/opt/bin/fallbackd-client"
    assert words[-1] == "mcp"
    assert path.stat().st_mode & 0o777 == 0o600
    again = run_cli(["mcp", "install", agent, "--yes"])
    assert (again.code, again.out) == (0, "")
    assert "nothing to change" in again.err


def test_it_can_be_undone_where_an_editor_has_changed_the_ends_of_lines(
    run_cli: RunCli, home: Path
) -> None:
    path = home / FILES["codex"]
    path.parent.mkdir()
    path.write_bytes(b'model = "x"\r\n')
    run_cli(["mcp", "install", "codex", "--yes"])
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    assert run_cli(["mcp", "install", "codex", "--yes"]).code == 0
    assert path.read_text().count("[mcp_servers.fallbackd]") == 1
    assert run_cli(["mcp", "install", "codex", "--undo", "--yes"]).code == 0
    assert path.read_bytes() == b'model = "x"\r\n'


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_a_byte_order_mark_stays_where_it_is(run_cli: RunCli, home: Path, agent: str) -> None:
    path = home / FILES[agent]
    path.parent.mkdir(exist_ok=True)
    before = "\ufeff" + ('model = "x"\n' if agent == "codex" else '{\n  "theme": "dark"\n}\n')
    path.write_text(before)
    assert run_cli(["mcp", "install", agent, "--yes"]).code == 0
    text = path.read_text()
    assert text.count("\ufeff") == 1
    assert (CLIENTS[agent].installed(text) or [""])[0] == "/opt/bin/fallbackd-client"
    assert run_cli(["mcp", "install", agent, "--undo", "--yes"]).code == 0
    assert path.read_text() == before


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("text", [None, "", "\n", "{}", "{ }\n", "one value", "no end of a line"])
def test_whatever_was_there_is_there_again_byte_for_byte(
    run_cli: RunCli, home: Path, agent: str, text: str | None
) -> None:
    is_toml = agent == "codex"
    given = {
        "{}": "# mine" if is_toml else "{}",
        "{ }\n": "\n\n" if is_toml else "{ }\n",
        "one value": "a = 1\n" if is_toml else '{"a": 1}\n',
        "no end of a line": "[t]\na = 1" if is_toml else '{\n  "a": 1\n}',
    }
    text = text if text is None else given.get(text, text)
    path = home / FILES[agent]
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # what is remembered of the first time does not count in the second
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        assert run_cli(["mcp", "install", agent, "--yes"]).code == 0
        assert "fallbackd" in path.read_text()
        assert run_cli(["mcp", "install", "--undo", agent, "--yes"]).code == 0
        assert (path.read_text() if path.exists() else None) == text
        text = None if text == "" else text


@pytest.mark.parametrize("agent", AGENTS)
def test_it_can_be_undone(run_cli: RunCli, home: Path, agent: str) -> None:
    path = home / FILES[agent]
    path.parent.mkdir(parents=True, exist_ok=True)
    before = '# mine\nmodel = "x"\n' if agent == "codex" else '{\n  "mine": [1, 2]\n}\n'
    path.write_text(before)
    path.chmod(0o640)
    assert run_cli(["mcp", "install", agent, "--yes"]).code == 0
    assert path.read_text() != before
    assert run_cli(["mcp", "install", agent, "--undo", "--yes"]).code == 0
    assert path.read_text() == before
    assert path.stat().st_mode & 0o777 == 0o640


def test_each_agent_gets_the_time_and_the_approval_that_it_needs(
    run_cli: RunCli, home: Path
) -> None:
    for agent in AGENTS:
        run_cli(["mcp", "install", agent, "--yes"])
    assert entry("claude", home)["timeout"] == 3_600_000
    assert entry("claude", home)["alwaysLoad"] is True
    rules = json.loads((home / ".claude" / "settings.json").read_text())
    assert rules == {"permissions": {"allow": ["mcp__fallbackd"]}}
    codex = entry("codex", home)
    assert codex["tool_timeout_sec"] == 3600
    assert codex["default_tools_approval_mode"] == "approve"
    assert "XDG_RUNTIME_DIR" in codex["env_vars"]
    assert entry("opencode", home)["timeout"] == 3_600_000
    assert entry("gemini", home)["trust"] is True


def test_nothing_is_written_unless_a_person_agrees(run_cli: RunCli, home: Path) -> None:
    ran = run_cli(["mcp", "install", "claude"])
    assert ran.code == 1
    assert '+    "fallbackd": {' in ran.out
    assert "nothing was written; add --yes" in ran.err
    assert os.listdir(home) == []


def test_print_shows_what_to_paste_and_writes_nothing(run_cli: RunCli, home: Path) -> None:
    ran = run_cli(["mcp", "install", "codex", "--print"])
    assert ran.code == 0
    assert "[mcp_servers.fallbackd]" in ran.out
    assert os.listdir(home) == []


def test_the_change_is_a_document_with_json(run_cli: RunCli, home: Path) -> None:
    ran = run_cli(["--json", "mcp", "install", "gemini"])
    found = json.loads(ran.out)
    assert found["written"] is False
    assert found["edits"][0]["path"] == str(home / FILES["gemini"])
    assert os.listdir(home) == []


def test_a_file_that_cannot_be_understood_is_left_alone(run_cli: RunCli, home: Path) -> None:
    path = home / FILES["claude"]
    path.write_text("{ broken")
    ran = run_cli(["mcp", "install", "claude", "--yes"])
    assert ran.code == 2
    assert str(path) in ran.err
    assert "--print" in ran.err
    assert path.read_text() == "{ broken"


def test_a_table_of_codex_that_somebody_else_wrote_is_left_alone(
    run_cli: RunCli, home: Path
) -> None:
    path = home / FILES["codex"]
    path.parent.mkdir()
    path.write_text('[mcp_servers.fallbackd]\ncommand = "mine"\n')
    ran = run_cli(["mcp", "install", "codex", "--yes"])
    assert ran.code == 2
    assert "is there already" in ran.err
    assert path.read_text() == '[mcp_servers.fallbackd]\ncommand = "mine"\n'


@pytest.mark.parametrize(
    ("agent", "text", "words"),
    [
        ("codex", 'mcp_servers = { a = { command = "x" } }\n', "is written in one line"),
        ("claude", '{"mcpServers": {}, "mcpServers": {}}', "is there twice"),
    ],
)
def test_a_file_in_which_the_agent_would_not_find_the_entry_is_left_alone(
    run_cli: RunCli, home: Path, agent: str, text: str, words: str
) -> None:
    path = home / FILES[agent]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    ran = run_cli(["mcp", "install", agent, "--yes"])
    assert ran.code == 2
    assert words in ran.err
    assert path.read_text() == text


def test_a_link_to_the_settings_stays_a_link(run_cli: RunCli, home: Path) -> None:
    real = home / "dotfiles.json"
    real.write_text("{}")
    (home / FILES["claude"]).symlink_to(real)
    run_cli(["mcp", "install", "claude", "--yes"])
    assert (home / FILES["claude"]).is_symlink()
    assert "fallbackd" in real.read_text()


def test_opencode_settings_with_comments_are_found(run_cli: RunCli, home: Path) -> None:
    path = home / ".config" / "opencode" / "opencode.jsonc"
    path.parent.mkdir(parents=True)
    path.write_text('{\n  // mine\n  "model": "a/b"\n}\n')
    run_cli(["mcp", "install", "opencode", "--yes"])
    assert "// mine" in path.read_text()
    assert '"fallbackd"' in path.read_text()
