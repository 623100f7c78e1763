"""The official client drives both eras through every tool, a question included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import pytest
from tests.acceptance.test_questions import court
from tests.support.agents import backend_script
from tests.support.daemon import HANG_S, ROOT, running

PYTHON = ROOT / ".venv-mcp" / "bin" / "python"
SLOW = "cat >/dev/null; sleep 1; echo late answer"


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
async def test_every_tool_answers_the_official_client(
    tmp_path: Path, mode: str, version: str
) -> None:
    config = court(tmp_path / "bin") + backend_script(tmp_path / "bin", "slow", SLOW)
    async with running(tmp_path, config) as daemon:
        program = str(Path(sys.executable).with_name("fallbackd-client"))
        command = [str(PYTHON), str(ROOT / "tests" / "e2e" / "mcp_sdk_client.py"), mode]

        def run() -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                [*command, program, "--socket", daemon.socket, "mcp"],
                cwd=daemon.work_dir,
                env={"PATH": os.environ["PATH"], "HOME": str(daemon.home)},
                capture_output=True,
                text=True,
                timeout=2 * HANG_S,
                check=False,
            )

        done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == version
    assert len(found["tools"]) == 7
    assert not any(found[name]["is_error"] for name in found["tools"])  # each was called
    assert found["handle"]["structured"]["state"] == "running"
    assert found["wait"]["structured"]["text"].strip() == "late answer"
    assert any("slow" in message for message in found["told"])
    assert found["written"]["text"].strip() == "a text"
    assert len(found["asked"]) == 1
    assert found["judged"]["text"].strip() == "a verdict"
