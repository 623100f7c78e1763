"""The official client libraries through the gateway, beyond a plain answer."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import anyio.to_thread
from tests.support.daemon import HANG_S, ROOT
from tests.support.gateway import Gate, gate
from tests.support.provider_frames import TEXT

PYTHON = ROOT / ".venv-sdk" / "bin" / "python"


async def library(g: Gate, client: str) -> dict[str, Any]:
    """What `sdk_client` prints of it."""
    argv = [str(PYTHON), str(ROOT / "tests/e2e/sdk_client.py"), client]
    argv += [f"http://127.0.0.1:{g.port}", "team"]
    env = {"API_KEY": g.token, "PATH": os.environ["PATH"]}

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=4 * HANG_S, check=False
        )

    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, (done.stderr, g.daemon.log()[-3000:])
    return dict(json.loads(done.stdout))


async def test_a_stored_response_is_retrieved_cancelled_and_deleted(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses") as g:
        g.api.behave("one", "503")
        found = await library(g, "openai-stored")
        assert found == {"text": TEXT, "end": "response_not_found"}
        assert {route for route, _ in g.api.lookups} == {"two"}
        methods = [asked.partition(" ")[0] for _, asked in g.api.lookups]
        assert methods == ["GET", "GET", "GET", "POST", "DELETE"]
