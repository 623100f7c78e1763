"""Keys that come back: what a provider or a program prints of them stays in the private log."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.agents import program
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.echoing import echoing_api
from tests.support.gateway import free_port, listening

KEY = "correct+horse/battery=Staple9"
PRINTS_ITS_KEY = """cat >/dev/null
printf 'üü using %s to log in, and %s\\n' "$AGENT_KEY" "$AGENT_KEY" >&2
echo "401 Unauthorized: the key '$AGENT_KEY' is wrong" >&2
exit 1"""


def private_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def tail_of(key: str) -> str:
    """What stands in the middle of the base64 of anything that holds the key."""
    return base64.b64encode(f"user:{key}".encode()).decode()[12:-8]


def assert_hidden(told: object, *, where: str) -> None:
    text = told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)
    assert KEY not in text, where
    assert "Staple9" not in text, where
    assert tail_of(KEY) not in text, where


async def everything_told(daemon: Daemon, done: Mapping[str, Any]) -> dict[str, object]:
    call, name = daemon.client.call, done["delegation"]
    events = []
    async for event in daemon.client.events(since=0):
        events.append(event)
        if event["kind"] == "delegation.ended":
            break
    wrong = await call(
        "classification.wrong", {"delegation": name, "reason": "auth", "note": f"I used {KEY}"}
    )
    return {
        "answer of delegate": done,
        "delegation.get": await call("delegation.get", {"delegation": name}),
        "explain": await call("explain", {"delegation": name}),
        "health": await call("health", {"action": "list"}),
        "status": await call("status", {"verbose": True}),
        "events": events,
        "delegation.log": await call("delegation.log", {"delegation": name}),
        "classification.wrong": wrong,
        "sample": Path(wrong["sample_path"]).read_text(),
    }


async def test_a_key_that_a_provider_echoes_is_given_out_by_nothing(tmp_path: Path) -> None:
    key = private_file(tmp_path / "word", KEY)
    async with echoing_api() as url:
        config = (
            f'[backends.api]\nkind = "openai-http"\nmodel = "m"\nbase_url = "{url}"\n'
            f'credentials = [{{ label = "main", file = "{key}" }}]\n[chains]\napi = []\n'
        )
        async with running(tmp_path, config) as daemon:
            done = await daemon.client.call(
                "delegate", {"prompt": "x", "backend": "api", "wait": "finished"}
            )
            assert done["attempts"][0]["failure"]["reason"] == "auth"
            for where, told in (await everything_told(daemon, done)).items():
                assert_hidden(told, where=where)
            await daemon.stop()
            assert_hidden(daemon.log(), where="log of the daemon")
            for path in daemon.state_dir.glob("fallbackd.db*"):
                assert_hidden(path.read_bytes().decode("latin-1"), where=str(path))


@pytest.mark.parametrize("begins_well", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold", ["commit", "whole"])
async def test_a_key_that_is_echoed_to_a_caller_of_the_gateway_is_masked(
    tmp_path: Path, *, begins_well: bool, stream: bool, hold: str
) -> None:
    port = free_port()
    async with echoing_api(begins_well=begins_well) as url:
        config = (
            f'[gateway]\nenabled = true\nport = {port}\nhold = "{hold}"\n'
            f'[backends.api]\nkind = "openai-http"\nmodel = "m"\nbase_url = "{url}"\n'
            'credentials = [{ label = "main", env = "KEY" }]\n[chains]\nteam = ["api"]\n'
        )
        async with running(tmp_path, config, env={"KEY": KEY}) as daemon:
            await listening(port)
            token = (Path(daemon.state_dir) / "gateway.token").read_text().strip()
            body = {"model": "team", "messages": [{"role": "user", "content": "x"}]}
            async with httpx2.AsyncClient(timeout=HANG_S, trust_env=False) as client:
                answer = await client.post(
                    f"http://127.0.0.1:{port}/v1/chat/completions",
                    json={**body, "stream": stream},
                    headers={"x-api-key": token},
                )
            told = f"{answer.headers} {answer.text}"
            assert "Incorrect API key provided" in told
            assert_hidden(told, where="answer of the gateway")


async def test_a_log_in_pieces_of_any_size_masks_keys_and_keeps_its_offsets(tmp_path: Path) -> None:
    key = private_file(tmp_path / "word", KEY)
    agent = program(tmp_path / "bin", "agent", PRINTS_ITS_KEY)
    config = (
        f'[backends.agent]\nkind = "generic-cli"\ncommand = ["{agent}"]\n'
        f'credentials = [{{ label = "main", file = "{key}", into = "AGENT_KEY" }}]\n'
    )
    async with running(tmp_path, config) as daemon:
        call = daemon.client.call
        done = await call("delegate", {"prompt": "x", "backend": "agent", "wait": "finished"})
        for where, told in (await everything_told(daemon, done)).items():
            assert_hidden(told, where=where)
        kept = Path(done["attempts"][0]["log_path"]).read_bytes()
        assert kept.count(KEY.encode()) == 3
        masked = kept.replace(KEY.encode(), b"*" * len(KEY))
        for size in (1, 5, 16, len(KEY), 64, 65_536):
            offset, text = 0, ""
            while True:
                params = {"delegation": done["delegation"], "offset": offset, "max_bytes": size}
                part = await call("delegation.log", params)
                text += part["text"]
                if part["next_offset"] == offset:
                    break
                assert part["next_offset"] == offset + len(part["text"].encode())
                offset = part["next_offset"]
            assert text.encode() == masked
            assert offset == part["size_bytes"] == len(kept)


async def test_keys_in_the_words_of_people_are_not_kept(tmp_path: Path) -> None:
    shaped = "sk-proj-0123456789abcdefghij"
    async with running(tmp_path, env={"ACME_API_KEY": KEY}) as daemon:
        call = daemon.client.call
        for word in (KEY, shaped):
            marked = await call(
                "health",
                {"action": "mark", "target": "codex", "reason": f"revoked {word}", "note": word},
            )
            paused = await call("health", {"action": "pause", "target": "gemini", "note": word})
            listed = await call("health", {"action": "list"})
            for told in (marked, paused, listed, await call("status", {"verbose": True})):
                assert word not in json.dumps(told)
        assert "revoked [" in json.dumps(listed["health"]["codex"])
        await daemon.stop()
        for path in daemon.state_dir.glob("fallbackd.db*"):
            kept = path.read_bytes()
            assert KEY.encode() not in kept
            assert shaped.encode() not in kept
