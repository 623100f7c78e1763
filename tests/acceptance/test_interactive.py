"""What a person's own agent reports protects what is delegated on the same machine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.daemon import ROOT, Daemon, running

CONFIG = """
[backends.claude-work]
kind = "claude"
[backends.claude-work.env]
CLAUDE_CONFIG_DIR = "~/.claude-work"
"""
LIMIT = "You've hit your session limit \u00b7 resets 6:58pm (UTC)"


async def health(daemon: Daemon, backend: str) -> dict[str, Any]:
    found = await daemon.client.call("status")
    entry: dict[str, Any] = found["health"][backend]
    return entry


async def failed(daemon: Daemon, **params: Any) -> dict[str, Any]:
    given = {"agent": "claude", "error": "rate_limit", "text": LIMIT, **params}
    found: dict[str, Any] = await daemon.client.call("interactive.failed", given)
    return found


async def test_a_limit_in_an_open_session_takes_the_backend_out_of_rotation(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        found = await failed(daemon, session="s", turn="t")
        assert found["backend"] == "claude"
        assert found["failure"]["reason"] == "usage_limit"
        assert found["failure"]["stated_reset_at"] % 86400 == 18 * 3600 + 58 * 60
        assert (await health(daemon, "claude"))["reason"] == "usage_limit"
        assert (await health(daemon, "claude-work"))["state"] != "rate_limited"
        again = await failed(daemon, session="s", turn="t")
        assert again["health"]["count"] == 1


async def test_accounts_are_told_apart_by_the_directory_of_their_login(tmp_path: Path) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        found = await failed(daemon, home=str(daemon.home / ".claude-work"))
        assert found["backend"] == "claude-work"
        nobody = await failed(daemon, home=str(daemon.home / ".claude-other"))
        assert nobody["backend"] is None
        assert (await health(daemon, "claude"))["state"] != "rate_limited"


@pytest.mark.parametrize("agent", ["codec", "openai-http"])
async def test_an_agent_without_accounts_is_no_backend(tmp_path: Path, agent: str) -> None:
    async with running(tmp_path) as daemon:
        assert (await failed(daemon, agent=agent))["backend"] is None


async def test_the_hook_of_a_person_marks_for_the_whole_host(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        event = (
            '{"hook_event_name":"StopFailure","error":"rate_limit","session_id":"s",'
            f'"prompt_id":"p","last_assistant_message":"{LIMIT}"}}'
        )
        ran = subprocess.run(
            [sys.executable, "-m", "fallbackd_client.cli.main", "report", "--claude-hook"],
            input=event,
            env={**daemon.env, "PYTHONPATH": os.pathsep.join([str(ROOT / "client")])},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "continue here with: fallbackd-client continue" in ran.stdout
        assert (await health(daemon, "claude"))["state"] == "rate_limited"
