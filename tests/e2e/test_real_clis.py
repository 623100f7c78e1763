"""One delegation to each real CLI through the daemon: answers, outages, silence."""

from pathlib import Path

import pytest
from tests.e2e.scenes import BACKENDS, NEXT, ROUTES, scene
from tests.support.provider_frames import TEXT


@pytest.mark.parametrize("name", BACKENDS)
async def test_the_answer_is_the_text_of_the_provider_with_its_usage(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path) as s:
        done = await s.delegate(name)
        assert done["state"] == "succeeded", s.daemon.log()
        assert done["served_by"] == name
        assert done["text"] == TEXT
        assert done["usage"]["input_tokens"] >= 100
        assert done["usage"]["output_tokens"] == 9
        assert done["hops"] == []
        assert [attempt["state"] for attempt in done["attempts"]] == ["succeeded"]


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_provider_that_is_down_is_a_failure_of_the_network(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path, backends={name: ["retries = 0"]}, patience_s=1) as s:
        await s.provider.go_down()
        done = await s.delegate(name)
        assert done["state"] == "refused", s.daemon.log()
        assert done["text"] is None
        reasons = {attempt["failure"]["reason"] for attempt in done["attempts"]}
        assert reasons == {"network"}, done["attempts"]
        health = (await s.daemon.client.call("health", {"action": "list"}))["health"]
        assert health[name]["state"] == "rate_limited"
        assert health[name]["reason"] == "network"


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_provider_that_hangs_is_left_for_the_next_one(tmp_path: Path, name: str) -> None:
    limit_s = 12 if name.startswith("opencode") else 5  # its own start takes longest
    async with scene(tmp_path, backends={name: [f"first_answer_s = {limit_s}"]}) as s:
        s.provider.behave(ROUTES[name], "hang")
        s.provider.behave(ROUTES[NEXT[name]], "ok")
        done = await s.delegate(name, then=NEXT[name])
        assert done["state"] == "succeeded", s.daemon.log()
        assert done["served_by"] == NEXT[name]
        first = done["attempts"][0]
        assert first["backend"] == name
        # A program that has said that it starts is silent from then on.
        reason = {"first_output": "timeout", "first_answer": "stalled"}[first["failure"]["detail"]]
        assert first["failure"]["reason"] == reason
        assert done["fallback_reason"].startswith(reason)
