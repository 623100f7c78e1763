"""Without any configuration: the agents that are installed, in order, and nothing else."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import program
from tests.support.daemon import Daemon, running
from tests.transports.test_loopback_owner import served

from fallbackd_client.errors import RpcError

ANSWERS = {
    "claude": (
        'cat >/dev/null; echo \'{"type":"result","subtype":"success","is_error":false,'
        '"result":"by claude","usage":{"input_tokens":1,"output_tokens":1}}\''
    ),
    "codex": (
        'cat >/dev/null; echo \'{"type":"item.completed","item":{"id":"1",'
        '"type":"agent_message","text":"by codex"}}\'; '
        'echo \'{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":1}}\''
    ),
}
LIMITED = (
    'cat >/dev/null; echo \'{"type":"error","message":"You have hit your usage limit. '
    "Try again in 2 hours.\"}'; exit 1"
)


async def delegate(daemon: Daemon, **params: Any) -> dict[str, Any]:
    found: dict[str, Any] = await daemon.client.call(
        "delegate", {"prompt": "x", "wait": "finished", **params}
    )
    return found


def tried(found: dict[str, Any]) -> list[str]:
    return [one["backend"] for one in found["attempts"]]


async def test_work_for_no_backend_goes_to_the_first_installed_agent(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        for name, body in ANSWERS.items():
            program(daemon.bin_dir, name, body)
        found = await delegate(daemon)
        assert (found["state"], found["served_by"]) == ("succeeded", "claude")
        resolved = await daemon.client.call("resolve")
        order = [one["backend"] for one in resolved["candidates"]]
        assert resolved["backend"] == "claude"
        assert order[:4] == ["claude", "codex", "opencode", "gemini"]
        (daemon.bin_dir / "claude").unlink()
        assert (await daemon.client.call("resolve"))["backend"] == "codex"
        assert (await delegate(daemon))["served_by"] == "codex"


async def test_claude_follows_codex_and_an_unknown_server_is_told_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        program(daemon.bin_dir, "codex", LIMITED)
        program(daemon.bin_dir, "claude", ANSWERS["claude"])
        found = await delegate(daemon, backend="codex")
        assert (found["text"], tried(found)) == ("by claude", ["codex", "claude"])
        asked = await delegate(daemon, backend="hermes-api", failover=False)
        assert (asked["state"], tried(asked)) == ("refused", [])
        assert [one["verdict"] for one in asked["candidates"]] == ["not_configured"]
        health = await daemon.client.call("health", {"action": "get", "target": "hermes-api"})
        shown = health["health"]["hermes-api"]
        assert (shown["state"], shown["reason"]) == ("broken", "not_configured")
        assert "[backends.hermes-api]" in shown["detail"]


async def test_without_an_agent_both_say_which_ones_there_are(tmp_path: Path) -> None:
    async with running(tmp_path, env={"PATH": str(tmp_path / "bin")}) as daemon:
        found = await delegate(daemon)
        assert (found["state"], tried(found)) == ("refused", [])
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("resolve")
        for candidates in (found["candidates"], refused.value.data["candidates"]):
            assert {one["verdict"] for one in candidates} == {"not_installed"}
            assert [one["backend"] for one in candidates][:2] == ["claude", "codex"]


async def test_a_vendors_own_program_without_any_login_is_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        native = shutil.which("true")
        assert native is not None
        shutil.copy(native, daemon.bin_dir / "claude")
        program(daemon.bin_dir, "codex", ANSWERS["codex"])  # a script may bring its own login
        found = await delegate(daemon)
        assert (found["served_by"], tried(found)) == ("codex", ["codex"])
        first = found["candidates"][0]
        assert (first["backend"], first["verdict"]) == ("claude", "not_configured")
        assert "claude auth login" in first["detail"]
        login = daemon.home / ".claude" / ".credentials.json"
        login.parent.mkdir()
        login.write_text("{}")
        assert (await daemon.client.call("resolve"))["backend"] == "claude"


@pytest.mark.root
async def test_a_hermes_server_of_another_user_never_gets_the_prompt(tmp_path: Path) -> None:
    with served(by_stranger=True) as (port, process):
        config = f'[backends.hermes-api]\nbase_url = "http://127.0.0.1:{port}/v1"\n'
        async with running(tmp_path, config) as daemon:
            program(daemon.bin_dir, "opencode", "exit 1")
            program(daemon.bin_dir, "codex", ANSWERS["codex"])
            found = await delegate(daemon, backend="hermes-api")
            assert found["served_by"] == "codex"
            first = found["attempts"][0]
            assert first["failure"]["reason"] == "not_configured"
            assert "is served by user" in first["failure"]["evidence"]
            assert process.stdout is not None
            assert process.stdout.readline() == "0\n"
