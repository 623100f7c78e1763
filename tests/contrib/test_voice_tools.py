"""The tools of voice agents: one object in, `result` or `error` out, never an exception."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.contrib.agents import ANSWER, PLAIN_OPENCODE, fresh_module, install
from tests.support.daemon import HANG_S, running

from fallbackd_client import RpcError

TOOLS = ("suggest", "assemble", "execute", "eta", "health")
EVERYBODY = ("opencode", "codex", "gemini", "numasec", "hermes-api")


@pytest.fixture
def agent() -> Any:
    return fresh_module()


def use(monkeypatch: pytest.MonkeyPatch, socket: str) -> None:
    monkeypatch.setenv("FALLBACKD_SOCKET", socket)


async def test_health_is_listed_marked_and_cleared(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        health = agent.local_delegate_health
        marked = health({"action": "mark", "platform": "codex", "reason": "down"})
        assert marked["result"] == {
            "marked": "codex",
            "reason": "down",
            "ttl_seconds": 600,
            "fallback_chain": ["opencode", "hermes-api", "gemini"],
        }
        listed = health(action="list")["result"]
        assert {"marked_broken_at", "reason", "ttl_seconds", "seconds_remaining"} <= set(
            listed["health"]["codex"]
        )
        assert {"reason", "expires_in_seconds"} <= set(listed["unhealthy"]["codex"])
        assert listed["unhealthy"]["codex"]["reason"] == "down"
        assert listed["fallback_chain"] == agent.FALLBACK_CHAIN
        cleared = health({"action": "clear", "platform": "codex"})["result"]
        assert cleared["cleared"] == ["codex"]
        assert "codex" not in cleared["unhealthy"]
        assert health({"action": "clear", "platform": "codex"})["result"]["cleared"] == []
        health({"action": "mark", "platform": "codex"})
        assert health({})["result"]["health"]["codex"]["reason"] == "manual mark via tool"
        assert "codex" in health({"action": "clear"})["result"]["cleared"]


async def test_what_health_cannot_do_is_an_error(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        health = agent.local_delegate_health
        assert health({"action": "frobnicate"}) == {
            "error": "unknown action: frobnicate (use list|clear|mark)"
        }
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("health", {"action": "frobnicate"})
        assert refused.value.code == -32602
        assert health({"action": "mark"}) == {"error": "platform is required for action=mark"}
        assert "nobody" in health({"action": "mark", "platform": "nobody"})["error"]
        assert "nobody" in health({"action": "clear", "platform": "nobody"})["error"]
        wrong = {"action": "mark", "platform": "codex", "ttl_seconds": "soon"}
        assert "soon" in health(wrong)["error"]


async def test_a_suggestion_has_the_known_fields(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("codex", "opencode", "gemini"):
        install(tmp_path, name)
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        task = {"goal": "g", "project_size": "large", "scope": "refactor", "complexity": "high"}
        healthy = agent.local_delegate_suggest(task)["result"]
        assert (healthy["suggestion"], healthy["was_fallback"]) == ("codex", False)
        assert healthy["estimated_eta_seconds"] == 6480
        assert healthy["estimated_eta_display"] == "1h 48m"
        assert healthy["rate_limits"]["codex"] == {
            "available": True,
            "used": 0,
            "cap": 50,
            "unit": "requests",
            "window_s": 3600,
        }
        agent.mark_platform_broken("codex", "down")
        found = agent.local_delegate_suggest(**task)["result"]
        assert (found["suggestion"], found["was_fallback"]) == ("gemini", True)
        assert found["all_scores"] == {"opencode": 70, "gemini": 75}
        assert found["available_platforms"] == ["opencode", "gemini"]
        assert found["unhealthy_reasons"]["codex"] == "down"
        assert "codex" in found["unhealthy_platforms"]
        assert "75 points" in found["reason"]


async def test_when_everybody_is_marked_nothing_is_suggested(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, "[backends.claude]\nenabled = false\n") as daemon:
        use(monkeypatch, daemon.socket)
        for name in EVERYBODY:
            agent.mark_platform_broken(name, "down")
        found = agent.local_delegate_suggest({"goal": "g"})
        assert found["error"].startswith(
            "All healthy platforms are either rate-limited or marked broken"
        )
        assert set(found["rates"]) == set(EVERYBODY)
        assert set(EVERYBODY) <= set(found["unhealthy"])
        assert agent.suggest_platform("g")["error"] == found["error"]


async def test_a_spent_budget_is_shown_and_leaves_out(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("codex", "opencode"):
        install(tmp_path, name)
    config = "[backends.codex]\nhourly_cap = 1\n[chains]\ncodex = []\n"
    async with running(tmp_path, config) as daemon:
        use(monkeypatch, daemon.socket)
        done = agent.execute_with_fallback("test", "codex", health_check_delay=HANG_S)
        assert done["state"] == "succeeded"
        task = {"goal": "g", "project_size": "large", "scope": "refactor", "complexity": "high"}
        found = agent.local_delegate_suggest(task)["result"]
        assert "codex" not in found["available_platforms"]
        codex = found["rate_limits"]["codex"]
        assert (codex["available"], codex["used"], codex["cap"]) == (False, 1, 1)
        assert found["unhealthy_reasons"]["codex"].startswith("local_budget")


async def test_a_goal_goes_from_suggestion_over_prompt_to_answer(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "opencode")
    async with running(tmp_path, PLAIN_OPENCODE) as daemon:
        use(monkeypatch, daemon.socket)
        platform = agent.local_delegate_suggest(goal="a small fix")["result"]["suggestion"]
        assert platform == "opencode"
        assembled = agent.local_delegate_assemble(
            goal="a small fix",
            subgoals=["look", "fix"],
            platform=platform,
            project_root=str(daemon.work_dir),
        )["result"]
        done = agent.local_delegate_execute(
            prompt=assembled["prompt"],
            platform=platform,
            session_id="voice-1",
            workdir=str(daemon.work_dir),
            health_check_delay=HANG_S,
        )["result"]
        assert (done["state"], done["text"]) == ("succeeded", ANSWER)
        assert (done["session_id"], done["active_platform"]) == ("voice-1", "opencode")
        found = await daemon.client.call("delegation.get", {"delegation": done["delegation"]})
        assert found["metadata"] == {"estimate_s": 300}


def test_an_assembled_prompt_says_goal_steps_and_place(agent: Any) -> None:
    args = {
        "goal": "three plain words",
        "subgoals": [" first ", "", "second"],
        "platform": "codex",
        "project_root": "/srv/project",
    }
    found = agent.local_delegate_assemble(args)["result"]
    for part in ("three plain words", "1. first", "2. second", "/srv/project"):
        assert part in found["prompt"]
    assert found["platform"] == "codex"
    assert found["length"] == len(found["prompt"])
    assert found["tokens_est"] == 10 * len(found["prompt"].split())
    # Case 000-122.
    bare = {"goal": "three plain words", "subgoals": [], "platform": "codex"}
    found = agent.local_delegate_assemble(bare)["result"]
    assert {"prompt", "platform", "length", "tokens_est"} <= set(found)
    assert found["tokens_est"] == 10 * len(found["prompt"].split())
    assert "1." not in found["prompt"]


def test_an_eta_correction_is_told_and_not_claimed_to_be_applied(agent: Any) -> None:
    found = agent.local_delegate_eta({"actual_seconds": 600, "estimated_seconds": 300})["result"]
    assert found["correction_factor"] == 2.0
    assert found["applied"] is False
    assert found["note"]


@pytest.mark.parametrize(
    "args",
    [
        pytest.param({"actual_seconds": 0, "estimated_seconds": 10}, id="000-121"),
        {"actual_seconds": 10},
        {},
    ],
)
def test_an_eta_correction_needs_both_times(args: dict[str, int], agent: Any) -> None:
    assert agent.local_delegate_eta(args) == {
        "error": "actual_seconds and estimated_seconds are required"
    }


@pytest.mark.parametrize(
    ("tool", "args", "says"),
    [
        ("suggest", {}, "goal is required"),
        ("suggest", {"goal": "  "}, "goal is required"),
        ("assemble", {"goal": 7}, "goal is required"),
        ("execute", {"platform": "codex"}, "prompt is required"),
        ("execute", {"prompt": "x", "health_check_delay": "soon"}, "soon"),
        ("eta", {"actual_seconds": "long", "estimated_seconds": 1}, "long"),
        ("assemble", {"goal": "g", "subgoals": 7}, "iterable"),
        ("execute", {"prompt": "x", "workdir": 7}, "int"),
    ],
)
def test_bad_arguments_are_an_error(tool: str, args: dict[str, Any], says: str, agent: Any) -> None:
    found = getattr(agent, f"local_delegate_{tool}")(args)
    assert set(found) == {"error"}
    assert says in found["error"]


def test_a_bug_of_ours_is_an_error_for_the_agent_and_a_traceback_in_the_log(
    agent: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(agent, "assemble_prompt", broken)
    found = agent.local_delegate_assemble(goal="g")
    assert found == {"error": "local_delegate_assemble failed (ZeroDivisionError): oops"}
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("tool", TOOLS)
def test_arguments_that_are_no_object_are_an_error(tool: str, agent: Any) -> None:
    assert set(getattr(agent, f"local_delegate_{tool}")([7])) == {"error"}


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("suggest", {"goal": "g"}),
        ("execute", {"prompt": "x", "platform": "codex", "session_id": "s"}),
        ("health", {"action": "list"}),
        ("health", {"action": "clear"}),
        ("health", {"action": "mark", "platform": "codex"}),
    ],
)
def test_without_a_daemon_a_tool_says_how_to_start_one(
    tool: str,
    args: dict[str, str],
    tmp_path: Path,
    agent: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, str(tmp_path / "nobody.sock"))
    found = getattr(agent, f"local_delegate_{tool}")(args)
    assert set(found) == {"error"}
    assert "fallbackd-client service start" in found["error"]
