"""Programs that `gateway setup` has pointed at the gateway: they ask it, and their files say so."""

import json
import subprocess
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.e2e import install
from tests.e2e.gateway_scene import GatewayScene, gateway_scene
from tests.e2e.scenes import HANG_S, scene
from tests.support.daemon import ROOT
from tests.support.gateway import free_port, listening
from tests.support.provider_frames import TEXT

CLIENT = ROOT / ".venv" / "bin" / "fallbackd-client"
APIS = {"claude": "messages", "codex": "responses", "gemini": "google", "opencode": "chat"}
ARGV = {
    "claude": ["-p", "say pong"],
    "codex": ["exec", "say pong"],
    "gemini": ["--skip-trust", "-p", "say pong"],
    "opencode": ["run", "--title", "t", "-m", "fallbackd/team", "say pong"],
}


def without_the_way(s: GatewayScene) -> dict[str, str]:
    """The environment and the files of a user who has told no program where to ask."""
    codex = s.home.path / ".codex" / "config.toml"
    lines = codex.read_text().splitlines()
    lines = lines[: lines.index("[model_providers.scripted]")]
    codex.write_text("\n".join(one for one in lines if "model_provider" not in one) + "\n")
    opencode = s.home.path / ".config" / "opencode" / "opencode.json"
    found = json.loads(opencode.read_text())
    for name in ("provider", "model"):
        del found[name]
    found["small_model"] = "fallbackd/team"
    found["$schema"] = "https://opencode.ai/config.json"  # which it would add
    opencode.write_text(json.dumps(found))
    gone = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "SCRIPTED_API_KEY", "GEMINI_API_KEY")
    return {name: text for name, text in s.home.env.items() if name not in gone}


@pytest.mark.parametrize("tool", APIS)
async def test_a_program_that_is_set_up_asks_the_gateway_and_its_file_has_no_token_without_need(
    tmp_path: Path, tool: str
) -> None:
    async with gateway_scene(tmp_path) as s:
        env = without_the_way(s)
        before = {path: path.read_text() for path in files(s)}

        async def run(*argv: str, **more: str) -> "subprocess.CompletedProcess[str]":
            def wait() -> "subprocess.CompletedProcess[str]":
                return subprocess.run(
                    argv,
                    env={**env, **more},
                    cwd=s.home.work,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=HANG_S,
                    check=False,
                )

            return await anyio.to_thread.run_sync(wait)

        setup = [str(CLIENT), "--socket", str(s.daemon.socket), "gateway", "setup", tool, "--yes"]
        written = await run(*setup)
        assert written.returncode == 0, written.stderr
        done = await run(str(install.BIN / tool), *ARGV[tool], IS_SANDBOX="1")
        assert done.returncode == 0, (done, s.daemon.log()[-3000:])
        assert TEXT in done.stdout
        assert s.tries(APIS[tool])[0] >= 1
        # Gemini reads its key from no command and from no other file.
        holding = [s.home.path / ".gemini/.env"] if tool == "gemini" else []
        assert holding == [path for path in files(s) if s.token in path.read_text(errors="replace")]
        undone = await run(*setup, "--undo")
        assert undone.returncode == 0, undone.stderr
        assert {path: path.read_text() for path in before} == before


OF_AGENTS = {
    "claude": ("claude", "anthropic-http", ""),
    "opencode": ("opencode", "openai-http", "/v1"),
    "opencode-run": ("opencode", "openai-http", "/v1"),
}


@pytest.mark.parametrize("backend", OF_AGENTS)
async def test_a_confined_agent_that_is_set_up_asks_the_gateway_as_what_it_is(
    tmp_path: Path, backend: str
) -> None:
    tool, kind, path = OF_AGENTS[backend]
    async with scene(tmp_path) as s:
        s.provider.behave("own", "ok")
        s.provider.behave("paid", "ok")
        port = free_port()
        lines = ["", "[gateway]", "enabled = true", f"port = {port}"]
        for name, cost in (("own", "local"), ("paid", "metered")):
            lines += [f"[backends.{name}]", f'kind = "{kind}"', 'model = "m"', f'cost = "{cost}"']
            lines += [f'base_url = "{s.provider.url(name)}{path}"']
        lines += ["[chains]", 'team = ["paid", "own"]', '"*" = ["paid", "own"]', ""]
        with s.daemon.config_path.open("a") as file:
            file.write("\n".join(lines))
        await s.daemon.client.call("config.reload")
        await listening(port)
        setup = [str(CLIENT), "--socket", str(s.daemon.socket), "gateway", "setup", tool, "--yes"]
        await anyio.run_process(setup, env=s.daemon.env)
        model = {} if tool == "claude" else {"model": "fallbackd/team"}
        done = await s.delegate(backend, permissions="read", **model)
        assert (done["state"], done["text"]) == ("succeeded", TEXT), done
        assert s.provider.calls("own")
        assert not s.provider.calls("paid")
        done = await s.delegate(backend, permissions="read", allow_metered=True, **model)
        assert done["state"] == "succeeded", done
        assert s.provider.calls("paid")


def files(s: GatewayScene) -> list[Path]:
    """The settings of the programs."""
    known: tuple[str, ...] = (".claude/settings.json", ".codex/config.toml", ".gemini/.env")
    known += (".config/opencode/opencode.json",)
    return [path for name in known if (path := s.home.path / name).exists()]
