"""What is wrong with the file of an opencode project is said wherever people look."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.daemon import Daemon, running

WRONG = {
    "enabled": "yes",
    "defaults": {"cooldownMs": 1, "maxFallbackDepth": 99, "fallbackOn": ["nope"], "zzz": 1},
    "patterns": 5,
    "logLevel": "loud",
    "agents": {"build": {"fallbackModels": ["no model"]}},
}
FIELDS = (
    "enabled",
    "defaults.cooldownMs",
    "defaults.maxFallbackDepth",
    "defaults.fallbackOn",
    "defaults.zzz",
    "patterns",
    "logLevel",
    "agents.build.fallbackModels",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project" / ".opencode" / "model-fallback.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(WRONG))
    return tmp_path / "project"


def run(daemon: Daemon, *words: str, cwd: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "fallbackd_client.cli.main", "--socket", daemon.socket, *words],
        cwd=cwd,
        env=daemon.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def missing(text: str) -> list[str]:
    return [field for field in FIELDS if f"model-fallback.json: {field}" not in text]


async def test_a_check_in_a_project_or_of_its_file_says_each_wrong_field(
    tmp_path: Path, project: Path
) -> None:
    async with running(tmp_path) as daemon:
        assert missing(run(daemon, "config", "check", cwd=project)) == []
        file = ".opencode/model-fallback.json"
        text = run(daemon, "config", "check", file, cwd=project)
        assert missing(text) == []
        assert "usable, with" in text
        assert missing(run(daemon, "config", "check", cwd=tmp_path)) == list(FIELDS)


async def test_status_says_what_is_wrong_once_a_session_of_the_project_was_seen(
    tmp_path: Path, project: Path
) -> None:
    async with running(tmp_path) as daemon:
        place = str(project)
        call: dict[str, Any] = {"session": "ses_1", "model": "a/m", "directory": place}
        await daemon.client.call("opencode.resolve", call)
        assert missing(run(daemon, "status", "--verbose", cwd=tmp_path)) == []
        assert "configuration warnings in all" in run(daemon, "status", cwd=tmp_path)
        found = await daemon.client.call("opencode.status", {"session": "ses_1"})
        assert missing(found["text"]) == []
        found = await daemon.client.call("opencode.status", {"directory": place})
        assert missing(found["text"]) == []


async def test_status_names_the_file_of_a_project_that_cannot_be_read(
    tmp_path: Path, project: Path
) -> None:
    (project / ".opencode" / "model-fallback.json").write_text("{")
    async with running(tmp_path) as daemon:
        call: dict[str, Any] = {"session": "ses_1", "model": "a/m", "directory": str(project)}
        await daemon.client.call("opencode.resolve", call)
        shown = run(daemon, "status", cwd=tmp_path)
        assert f"{project}/.opencode/model-fallback.json: is not valid JSON" in shown
