"""One delegation to each real CLI through the daemon: answers, outages, silence."""

import json
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("name", "size"), [*((n, 300_000) for n in BACKENDS), ("claude", 3_000_000)]
)
async def test_a_long_answer_is_whole(tmp_path: Path, name: str, size: int) -> None:
    """claude 2.1.197 exits before a full pipe is drained."""
    text = "0123456789" * (size // 10)
    async with scene(tmp_path) as s:
        s.provider.behave(ROUTES[name], "ok", text=text)
        done = await s.delegate(name)
        assert done["state"] == "succeeded", s.daemon.log()
        assert done["text"] == text
        assert len(s.provider.calls(ROUTES[name], kind="main")) == 1


SUBSCRIPTION = 'env = { CLAUDE_CODE_OAUTH_TOKEN = "sk-ant-oat01-scripted", ANTHROPIC_API_KEY = "" }'


async def failure_on_a_plan(tmp_path: Path, name: str, **knobs: Any) -> dict[str, Any]:
    async with scene(tmp_path, backends={"claude": [SUBSCRIPTION, "retries = 0"]}) as s:
        s.provider.behave("claude", name, **knobs)
        done = await s.delegate("claude")
        assert done["state"] == "refused", s.daemon.log()
        failure: dict[str, Any] = done["attempts"][-1]["failure"]
        return failure


async def test_a_spent_window_of_a_plan_is_out_until_its_own_end(tmp_path: Path) -> None:
    failure = await failure_on_a_plan(tmp_path, "usage_limit", reset_in_s=7200)
    assert failure["reason"] == "usage_limit"
    # The window of seven days, which is not spent, ends three days later.
    assert 7000 < failure["stated_reset_s"] <= 7200


async def test_a_passing_throttle_of_a_plan_is_not_its_limit(tmp_path: Path) -> None:
    failure = await failure_on_a_plan(tmp_path, "429", retry_after_s=None)
    assert failure["reason"] == "rate_limit"


async def test_a_refusal_of_the_model_is_about_the_prompt(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.provider.behave("claude", "filtered")
        done = await s.delegate("claude", then="codex")
        assert done["attempts"][0]["failure"]["reason"] == "content_policy", s.daemon.log()
        assert done["served_by"] == "codex"
        health = (await s.daemon.client.call("health", {"action": "list"}))["health"]
        assert health["claude"]["state"] == "healthy"


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_prompt_is_text_whatever_the_program_would_read_into_it(
    tmp_path: Path, name: str
) -> None:
    """No command of the program runs, and no file is sent that the prompt happens to name."""
    async with scene(tmp_path) as s:
        (s.home.work / "secret.txt").write_text("held-in-the-file")
        own = s.home.path / ".gemini" / "commands"
        own.mkdir(parents=True, exist_ok=True)
        (own / "mine.toml").write_text('prompt = "words of a command"\n')
        for prompt in ("/clear", "/compact now", "/help", "/mine", "see @secret.txt, !touch made"):
            before = len(s.provider.calls(ROUTES[name], kind="main"))
            done = await s.delegate(name, prompt=prompt)
            assert done["state"] == "succeeded", s.daemon.log()
            (call, *_) = s.provider.calls(ROUTES[name], kind="main")[before:]
            sent = json.dumps(call.body)
            escaped = json.dumps(prompt.replace("@", "\\@") if name == "gemini" else prompt)
            assert escaped[1:-1] in sent, prompt
            assert "held-in-the-file" not in sent
            assert "words of a command" not in sent
        assert not (s.home.work / "made").exists()
