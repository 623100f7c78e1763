"""The MCP server as the settings of agents start it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import Home, told
from tests.support.agents import program
from tests.support.daemon import ROOT

from fallbackd_client.cli.doctor.gateway import look_at_mcp
from fallbackd_client.mcp.install import CLIENTS
from fallbackd_client.settings.editing import Command


def with_entry(home: Home, agent: str, server: Path) -> Path:
    (part, *_) = CLIENTS[agent].parts(home.environ, Command(str(server), ["mcp"]))
    return home.write(Path(part.path), part.put(""))


def real_server(home: Home) -> Path:
    own = f"PYTHONPATH={ROOT / 'client'} exec {sys.executable} -m fallbackd_client.cli.main"
    return program(home.bin, "fallbackd-client", f'{own} "$@"')


def test_agents_without_an_entry_are_left_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write(home.path / ".claude.json", '{"mcpServers": {"other": {"command": "x"}}}')
    home.write(home.path / ".cursor" / "mcp.json", "{ broken")
    assert look_at_mcp(home.machine()) == []


def test_a_pipe_in_the_place_of_settings_holds_nobody_up(tmp_path: Path) -> None:
    home = Home(tmp_path)
    directory = home.private(home.path / ".codex")
    for place in (home.path / ".claude.json", directory / "config.toml"):
        os.mkfifo(place)
    assert look_at_mcp(home.machine()) == []


@pytest.mark.parametrize("agent", CLIENTS)
def test_a_server_that_answers_is_well(tmp_path: Path, agent: str) -> None:
    home = Home(tmp_path)
    with_entry(home, agent, real_server(home))
    assert look_at_mcp(home.machine()) == []


def test_a_program_that_is_gone_is_an_error_and_installing_again_mends_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    path = with_entry(home, "codex", tmp_path / "of-an-older-python" / "fallbackd-client")
    ((level, what, mend),) = told(look_at_mcp(home.machine()))
    assert level == "error"
    assert "codex cannot start the MCP server" in what
    assert "of-an-older-python/fallbackd-client is not there" in what
    server = real_server(home)
    assert mend == "fallbackd-client mcp install codex --yes"
    # The program stands for itself: `main.py` is what would be entered here.
    subprocess.run(["/bin/sh", "-c", mend], env=home.environ, check=True)
    assert sys.executable in path.read_text() or str(server) in path.read_text()


@pytest.mark.parametrize("body", ["exit 3", "echo hello", "cat", "echo broken >&2; exit 1"])
def test_a_server_that_does_not_answer_is_an_error(tmp_path: Path, body: str) -> None:
    home = Home(tmp_path)
    server = program(home.bin, "fallbackd-client", body)
    home.environ["PATH"] += ":/usr/bin:/bin"
    home.write(
        home.path / ".gemini" / "settings.json",
        json.dumps({"mcpServers": {"fallbackd": {"command": str(server), "args": ["mcp"]}}}),
    )
    ((_, what, _),) = told(look_at_mcp(home.machine()))
    assert "does not answer" in what


@pytest.mark.parametrize(
    "entry", [{"command": []}, {"command": 3}, {"command": "x", "args": 7}, {}]
)
def test_an_entry_without_a_command_line_is_an_error(tmp_path: Path, entry: object) -> None:
    home = Home(tmp_path)
    settings = {"mcpServers": {"fallbackd": entry}}
    home.write(home.path / ".gemini" / "settings.json", json.dumps(settings))
    ((level, what, mend),) = told(look_at_mcp(home.machine()))
    assert level == "error"
    assert "gemini cannot start the MCP server" in what
    assert "holds no command line" in what
    assert mend == "fallbackd-client mcp install gemini --yes"
