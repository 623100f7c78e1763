"""Marks of voice agents are taken over once, and health is written for them."""

import json
import time
from pathlib import Path

import anyio
from tests.support.daemon import HANG_S, running


def mark(*, since_at: float, ttl_s: float = 600) -> dict[str, object]:
    return {"marked_broken_at": since_at, "reason": "no credits", "ttl_seconds": ttl_s}


async def test_marks_are_taken_over_with_their_age_and_only_once(tmp_path: Path) -> None:
    source = tmp_path / "voice-platform-health.json"
    now = time.time()
    marks = {"hermes-api": mark(since_at=now - 100), "gemini": mark(since_at=now - 700)}
    source.write_text(json.dumps(marks))
    async with running(tmp_path, f'import = ["{source}"]\n') as daemon:
        found = (await daemon.client.call("health"))["health"]
        assert found["hermes-api"]["state"] == "broken"
        assert found["hermes-api"]["detail"] == "no credits"
        assert 400 < found["hermes-api"]["seconds_remaining"] <= 500
        assert found["gemini"]["detail"] != "no credits"
        cleared = await daemon.client.call("health", {"action": "clear", "target": "hermes-api"})
        assert cleared["cleared"] == ["hermes-api"]
        await daemon.restart()
        found = (await daemon.client.call("health"))["health"]
        assert found["hermes-api"]["detail"] != "no credits"
        assert json.loads(source.read_text()) == marks


async def test_the_export_follows_what_is_marked_and_cleared(tmp_path: Path) -> None:
    target = tmp_path / "out" / "voice-platform-health.json"
    target.parent.mkdir()

    async def until(present: bool) -> None:
        with anyio.fail_after(HANG_S):
            while not target.exists() or ("hermes-api" in target.read_text()) != present:
                await anyio.sleep(0.05)

    async with running(tmp_path, f'export_voice_health = "{target}"\n') as daemon:
        await daemon.client.call("health", {"action": "mark", "target": "hermes-api"})
        await until(present=True)
        entry = json.loads(target.read_text())["hermes-api"]
        assert entry["ttl_seconds"] == 600
        assert entry["marked_at"] == entry["marked_broken_at"]
        await daemon.client.call("health", {"action": "clear", "target": "hermes-api"})
        await until(present=False)
