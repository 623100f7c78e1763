"""The daemon dies before the real opencode server has the prompt: it is asked once, by the next."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.e2e.processes import matching
from tests.e2e.scenes import Scene, scene
from tests.e2e.test_taken_up import has_server, servers_of
from tests.support.provider_frames import TEXT
from tests.support.survival.points import SERVED

from fallbackd.lib.failpoints import OPTION, VARIABLE


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path) as s:
        try:
            yield s
        finally:
            for left in matching(servers_of(s)):  # of a run that failed
                os.kill(left.pid, signal.SIGTERM)


@pytest.mark.timeout(600)
async def test_a_prompt_whose_daemon_dies_at_any_step_before_the_posting_is_asked_once(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as s:
        for point in SERVED:
            await dies_at(s, point)
            await check(s, f"at-{point}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.5, 1.5, 4.0])
async def test_a_prompt_whose_daemon_dies_while_its_server_starts_is_asked_once(
    tmp_path: Path, after_s: float
) -> None:
    async with serving(tmp_path) as s:
        await dies_after(s, after_s)
        await check(s, f"after-{after_s}")


async def dies_at(s: Scene, point: str) -> None:
    """Beside a server that serves, or the prompt may be run without one and not come there."""
    await has_server(s)
    await s.daemon.kill()
    program = s.daemon.program
    s.daemon.program = ("-X", OPTION, *program)
    s.daemon.env[VARIABLE] = f"{point}=kill"
    await s.daemon.start()
    s.daemon.program = program
    del s.daemon.env[VARIABLE]
    s.provider.log.clear()
    begun = await begin(s, f"at-{point}")
    assert await s.daemon.wait() == -signal.SIGKILL, begun
    assert f"failpoint {point}\n" in s.daemon.log()
    await s.daemon.start()


async def dies_after(s: Scene, after_s: float) -> None:
    """While the server starts, or soon after."""
    await begin(s, f"after-{after_s}")
    await anyio.sleep(after_s)  # the instant is what is tried, whatever it meets
    await s.daemon.kill()
    await s.daemon.start()


async def begin(s: Scene, request_id: str) -> dict[str, Any]:
    return await s.begin("opencode", permissions="full", request_id=request_id)


async def check(s: Scene, request_id: str) -> None:
    done = await s.delegate("opencode", permissions="full", request_id=request_id)
    assert done["state"] == "succeeded", (request_id, done, s.daemon.log())
    assert done["text"] == TEXT
    assert [one["backend"] for one in done["attempts"]] == ["opencode"]
    assert len(s.provider.calls("opencode")) == 1, request_id
    health = await s.daemon.client.call("health", {"action": "get", "target": "opencode"})
    assert health["health"]["opencode"]["state"] == "healthy", (request_id, health)
