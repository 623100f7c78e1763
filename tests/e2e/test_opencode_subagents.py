"""A subagent whose model fails, in an opencode that has a plugin of ours."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.e2e import install
from tests.e2e.clis import build_home
from tests.e2e.opencode_server import opencode, said, settings_of
from tests.support import provider_answers
from tests.support.daemon import ROOT, running
from tests.support.provider import provider
from tests.support.provider_frames import ToolCall

HANG_S = 400.0
PLUGIN = ROOT / "contrib" / "opencode-plugin" / "src" / "index.ts"
CHAIN = '[roles.general]\nchain = ["c/m"]\n'
TASK = ToolCall(
    name="task",
    arguments={"description": "looks", "prompt": "look at it", "subagent_type": "general"},
)


def results(body: dict[str, Any]) -> list[str]:
    """What tools have answered, as the next request tells the model."""
    return [str(one["content"]) for one in body["messages"] if one["role"] == "tool"]


@pytest.mark.parametrize("chain", [CHAIN, ""], ids=["moved", "explained"])
async def test_a_parent_gets_the_answer_of_the_next_model_or_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain: str
) -> None:
    monkeypatch.setattr(provider_answers, "shell_call", lambda *_: TASK)
    with anyio.fail_after(HANG_S), tempfile.TemporaryDirectory(prefix="fbd-") as place:
        async with provider() as served:
            home = build_home(tmp_path, served, names=("opencode",))
            settings = settings_of(served, plugin=[PLUGIN.as_uri()])
            settings["agent"] = {"general": {"model": "b/m"}}
            config = home.path / ".config" / "opencode" / "opencode.json"
            config.write_text(json.dumps(settings))
            served.behave("a", "tool", "ok")
            served.behave("b", "429", retry_after_s=3600)
            async with running(tmp_path, chain, env=home.env) as daemon:
                socket = Path(place) / "s"
                socket.symlink_to(daemon.socket)
                env = {
                    **home.env,
                    "FALLBACKD_SOCKET": str(socket),
                    "npm_config_fetch_retries": "0",
                }
                argv = [str(install.BIN / "opencode"), "run", "--title", "t", "-m", "a/m", "go"]
                done = await anyio.to_thread.run_sync(
                    lambda: subprocess.run(
                        argv,
                        cwd=home.work,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        text=True,
                        timeout=HANG_S,
                        check=False,
                    )
                )
                assert done.returncode == 0, done.stderr
                _, second = served.calls("a", kind="main")
                (result,) = results(second.body)
                if chain:
                    assert "PONG-OK" in result
                    assert len(served.calls("c", kind="main")) == 1
                else:
                    assert "Subagent failed: m [b] failed: rate_limit" in result
                assert "Task cancelled" not in result


async def test_it_gets_that_answer_also_where_the_server_has_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_answers, "shell_call", lambda *_: TASK)
    with anyio.fail_after(HANG_S), tempfile.TemporaryDirectory(prefix="fbd-") as place:
        async with provider() as served:
            home = build_home(tmp_path, served, names=("opencode",))
            (home.work / "opencode.json").write_text('{"agent": {"general": {"model": "b/m"}}}')
            socket = Path(place) / "s"
            async with running(tmp_path, CHAIN, env=home.env) as daemon:
                socket.symlink_to(daemon.socket)
                async with opencode(
                    home, served, plugin=PLUGIN, FALLBACKD_SOCKET=str(socket)
                ) as server:
                    session = await server.session()
                    while "server.followed" not in daemon.log():
                        await anyio.sleep(0.02)
                    served.behave("a", "tool", "ok")
                    served.behave("b", "429", retry_after_s=3600)
                    await server.prompt(session, "a/m", "go")
                    await server.until(session, lambda found: len(said(found, "assistant")) == 2)
                    await server.until(session, lambda _: len(served.calls("a", kind="main")) == 2)
                _, second = served.calls("a", kind="main")
                (result,) = results(second.body)
                assert "PONG-OK" in result
                assert len(served.calls("c", kind="main")) == 1
                assert f"server={server.url}" in daemon.log()
