"""The real agents, asked how much of their plan is used: no prompt leaves, and nothing stays."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.e2e import install
from tests.e2e.processes import matching, runs
from tests.support import agents
from tests.support.daemon import HANG_S, in_process, running

from fallbackd.engine.quota import PlanReads

CONFIG = '[quota]\nask = ["codex", "claude"]\n'
LIMITS = {
    "plan_type": "plus",
    "rate_limit": {
        "allowed": True,
        "limit_reached": False,
        "primary_window": {
            "used_percent": 63,
            "limit_window_seconds": 18_000,
            "reset_after_seconds": 5_000,
            "reset_at": int(time.time()) + 5_000,
        },
        "secondary_window": None,
    },
}


@contextmanager
def vendor() -> Iterator[tuple[str, list[str]]]:
    """An account's service: its address, and the paths that it was asked for."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            is_usage = self.path.endswith("/wham/usage")
            body = json.dumps(LIMITS if is_usage else {}).encode()
            self.send_response(200 if is_usage else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/backend-api/", asked
    server.shutdown()
    server.server_close()


def log_in(home: Path, address: str) -> None:
    """As after a login with a plan; no vendor has signed it."""
    account = {"chatgpt_plan_type": "plus", "chatgpt_account_id": "a", "chatgpt_user_id": "u"}
    claims = {"exp": time.time() + 86_400, "https://api.openai.com/auth": account}
    parts = ({"alg": "none", "typ": "JWT"}, claims, {})
    token = ".".join(
        base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts
    )
    tokens = {"id_token": token, "access_token": token, "refresh_token": "r", "account_id": "a"}
    now = datetime.now(UTC).isoformat()
    (home / ".codex").mkdir(parents=True)
    (home / ".codex/auth.json").write_text(json.dumps({"tokens": tokens, "last_refresh": now}))
    (home / ".codex/config.toml").write_text(f"chatgpt_base_url = {json.dumps(address)}\n")
    login = {"accessToken": "t", "expiresAt": (time.time() + 86_400) * 1000, "scopes": []}
    (home / ".claude").mkdir()
    (home / ".claude/.credentials.json").write_text(json.dumps({"claudeAiOauth": login}))


def environment() -> dict[str, str]:
    return {"PATH": f"{install.BIN}:/usr/local/bin:/usr/bin:/bin", "IS_SANDBOX": "1"}


async def test_the_plan_of_codex_is_known_without_a_prompt_for_it(tmp_path: Path) -> None:
    config = CONFIG + agents.backend_script(tmp_path / "bin", "mine", agents.ok("hello"))
    with vendor() as (address, asked):
        log_in(tmp_path / "home", address)
        async with running(tmp_path, config, env=environment()) as daemon:
            work = tmp_path / "work"
            work.mkdir(exist_ok=True)
            prompt = {"prompt": "hi", "backend": "mine", "cwd": str(work), "wait": "finished"}
            assert (await daemon.client.call("delegate", prompt))["state"] == "succeeded"
            with anyio.fail_after(HANG_S):
                while not (found := await limits(daemon.client)):
                    await anyio.sleep(0.2)
            assert found == [(18_000.0, 63.0, "asked")]
            assert "sk-" not in daemon.log()
    assert [path for path in asked if path.endswith("/wham/usage")] != []
    assert [path for path in asked if "responses" in path or "consume" in path] == []


async def limits(client: Any) -> list[tuple[float, float, str]]:
    known = (await client.call("health"))["health"]["codex"]["limits"]
    return [(one["window_s"], one["used_percent"], one["source"]) for one in known]


@pytest.mark.parametrize(("kind", "words"), [("claude", "stream-json"), ("codex", "app-server")])
async def test_an_account_that_cannot_be_reached_gives_no_figure_and_leaves_nothing(
    tmp_path: Path, kind: str, words: str
) -> None:
    config = f'[quota]\nask = ["{kind}"]\n'
    config += agents.backend_script(tmp_path / "bin", "mine", agents.ok("hello"))
    log_in(tmp_path / "home", "http://127.0.0.1:9/backend-api/")
    async with in_process(tmp_path, config, env=environment()) as daemon:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        prompt = {"prompt": "hi", "backend": "mine", "cwd": str(work), "wait": "finished"}
        await daemon.client.call("delegate", prompt)
        await PlanReads(daemon.engine).look()
        assert await limits(daemon.client) == []
        home = f"HOME={tmp_path / 'home'}"
        left = [one for one in matching(runs(words)) if home in one.env]
        assert left == []
