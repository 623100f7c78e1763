"""The functions that voice agents know, against a real daemon with programs that answer."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.client.scripted import Failing, Peer, answering, serving
from tests.contrib.agents import ANSWER, PLAIN_OPENCODE, fresh_module, install, write
from tests.support.daemon import HANG_S, running

from fallbackd_client import Client, NoDaemon, RpcError

MODULE = fresh_module()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loaded anew: it remembers estimates. Without a daemon until `use` names one."""
    return fresh_module()


def use(monkeypatch: pytest.MonkeyPatch, socket: str) -> None:
    monkeypatch.setenv("FALLBACKD_SOCKET", socket)


async def test_the_documented_smoke_test_runs_as_written(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 000-114."""
    install(tmp_path, "codex")
    install(tmp_path, "opencode")
    async with running(tmp_path, PLAIN_OPENCODE) as daemon:
        use(monkeypatch, daemon.socket)
        agent.mark_platform_broken("codex", "rate_limit", ttl=60)
        suggested = agent.suggest_platform("complex refactor")
        assert suggested["suggestion"] == "opencode"
        assert suggested["unhealthy_reasons"]["codex"] == "rate_limit"
        result = agent.execute_with_fallback("test", "codex")
        assert result["requested_platform"] == "codex"
        assert result["active_platform"] == "opencode"
        assert result["fallback_from"] == "codex"
        assert result["fallback_reason"].startswith("rate_limit")
        health = await daemon.client.call("health", {"action": "get", "target": "codex"})
        entry = health["health"]["codex"]
        assert (entry["state"], entry["reason"]) == ("rate_limited", "rate_limit")
        assert 0 < entry["seconds_remaining"] <= 60


async def test_work_without_trouble_has_no_fallback_and_the_answer(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        result = agent.execute_with_fallback(
            "test", "codex", "s", str(daemon.work_dir), health_check_delay=HANG_S
        )
        assert (result["state"], result["text"]) == ("succeeded", ANSWER)
        assert result["session_id"] == "s"
        assert result["requested_platform"] == result["active_platform"] == "codex"
        assert result["fallback_from"] is None
        assert result["fallback_reason"] is None
        assert result["original_log_path"] is None
        assert result["tmux_window"] is None
        assert Path(result["log_path"]).is_relative_to(daemon.state_dir)
        assert "error" not in result


async def test_a_platform_that_breaks_is_left_for_its_neighbour(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex", run="429_usage_limit")
    install(tmp_path, "opencode")
    async with running(tmp_path, PLAIN_OPENCODE) as daemon:
        use(monkeypatch, daemon.socket)
        result = agent.execute_with_fallback("test", "codex", "s", health_check_delay=HANG_S)
        assert (result["active_platform"], result["fallback_from"]) == ("opencode", "codex")
        assert result["fallback_reason"].startswith("usage_limit")
        assert result["text"] == ANSWER
        assert result["session_id"] == "s", "one session for all attempts"
        found = await daemon.client.call("delegation.get", {"delegation": result["delegation"]})
        first, second = found["attempts"]
        assert result["original_log_path"] == first["log_path"]
        assert result["log_path"] == second["log_path"]
        assert Path(first["log_path"]).exists()
        assert not agent.is_platform_healthy("codex")


async def test_work_that_goes_on_is_returned_as_it_is_then(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "codex", "cat > /dev/null; exec sleep 1000")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        result = agent.execute_with_fallback("test", "codex", "s", health_check_delay=0.1)
        assert result["state"] in ("queued", "running")
        assert result["active_platform"] == "codex"
        assert "text" not in result
        assert "error" not in result
        again = agent.execute_with_fallback("test", "codex", "s", health_check_delay=0.1)
        assert again["state"] == "queued", "one at a time for a session"
        for one in (again, result):
            cancelled = await daemon.client.call(
                "delegation.cancel", {"delegation": one["delegation"]}
            )
            assert cancelled["state"] == "cancelled"


def delegation(*ended: bool, state: str = "running") -> dict[str, Any]:
    """As the daemon shows one, with an attempt for each word."""
    attempts = [{"ended_at": 1.0 if is_over else None} for is_over in ended]
    return {"delegation": "d1", "state": state, "attempts": attempts}


@pytest.mark.parametrize(
    ("seen", "rounds"),
    [
        ([delegation(True, state="succeeded")], 0),
        ([delegation(state="queued")], 0),
        ([delegation(False)], 0),
        ([delegation(True, False), delegation(True, False)], 1),
        ([delegation(True), delegation(True, False), delegation(True, False)], 2),
        ([delegation(True, state="waiting"), delegation(True, True, state="refused")], 1),
        ([delegation(True, state="waiting")] * 100, 8),
    ],
)
def test_whoever_comes_after_a_broken_platform_has_the_same_time(
    seen: list[dict[str, Any]], rounds: int, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def answer(method: str, *, delegation: str, timeout_s: float) -> dict[str, Any]:
        asked.append((method, timeout_s))
        return seen[len(asked)]

    monkeypatch.setattr(agent, "_call", answer)
    found = agent._followed(seen[0], 5.0)
    assert asked == [("delegation.wait", 5.0)] * rounds
    assert found is seen[rounds]


async def test_without_a_delay_the_launch_alone_is_returned(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "codex", "cat > /dev/null; exec sleep 1000")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        for launched in (
            agent.execute_with_fallback("test", "codex", health_check_delay=0),
            agent.execute_delegation("test", "codex"),
        ):
            assert launched["state"] in ("queued", "running")
            assert launched["session_id"]
            await daemon.client.call("delegation.cancel", {"delegation": launched["delegation"]})


async def test_when_nobody_is_left_the_result_says_so(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    async with running(tmp_path, "[chains]\ncodex = []\n") as daemon:
        use(monkeypatch, daemon.socket)
        agent.mark_platform_broken("codex", "the login is gone")
        result = agent.execute_with_fallback("test", "codex", health_check_delay=HANG_S)
        assert result["state"] == "refused"
        assert result["error"]
        assert result["health_warning"] == result["error"]
        assert result["health"]["codex"]["reason"] == "the login is gone"
        assert result["retry_at"] > 0
        assert (result["requested_platform"], result["active_platform"]) == ("codex", "codex")


async def test_when_everybody_has_failed_the_result_says_so(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex", run="401")
    install(tmp_path, "opencode", run="401")
    config = PLAIN_OPENCODE + '[chains]\ncodex = ["opencode"]\n'
    async with running(tmp_path, config) as daemon:
        use(monkeypatch, daemon.socket)
        result = agent.execute_with_fallback("test", "codex", health_check_delay=HANG_S)
        assert result["state"] == "refused"
        assert (result["active_platform"], result["fallback_from"]) == ("opencode", "codex")
        assert result["health_warning"]
        assert result["health"]["codex"]["reason"].startswith("auth")
        assert result["health"]["opencode"]["reason"].startswith("auth")


async def test_work_that_fails_by_itself_is_an_error(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex", run="400_context")
    async with running(tmp_path, "[chains]\ncodex = []\n") as daemon:
        use(monkeypatch, daemon.socket)
        result = agent.execute_with_fallback("test", "codex", health_check_delay=HANG_S)
        assert result["state"] in ("failed", "refused")
        assert result["error"]


async def test_what_the_daemon_does_not_take_is_an_error_and_no_exception(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        unknown = agent.execute_with_fallback("test", "nobody")
        assert "nobody" in unknown["error"]
        assert unknown["requested_platform"] == unknown["active_platform"] == "nobody"
        gone = agent.execute_with_fallback("test", "codex", workdir=str(tmp_path / "gone"))
        assert "gone" in gone["error"]


async def test_marks_are_read_in_both_shapes_and_cleared(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    install(tmp_path, "opencode")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        assert agent.is_platform_healthy("codex")
        agent.mark_platform_broken("codex", "x" * 400)
        agent.mark_platform_broken("opencode", "down", ttl_seconds=120)
        marked = agent.get_health_snapshot()
        assert marked["codex"]["reason"] == "x" * 280
        assert marked["opencode"]["reason"] == "down"
        assert isinstance(marked["codex"]["expires_in_seconds"], int)
        assert marked["codex"]["ttl_seconds"] == pytest.approx(600)
        assert marked["opencode"]["ttl_seconds"] == pytest.approx(120)
        assert marked["opencode"]["marked_broken_at"] > 0
        assert 0 < marked["opencode"]["seconds_remaining"] <= 120
        assert not agent.is_platform_healthy("codex")
        assert agent.clear_platform_health("codex") == ["codex"]
        assert agent.is_platform_healthy("codex")
        assert not agent.is_platform_healthy("opencode")
        assert "opencode" in agent.clear_platform_health()
        left = agent.get_health_snapshot()
        assert {entry["reason"].partition(":")[0] for entry in left.values()} <= {"not_installed"}
        assert not {"codex", "opencode"} & set(left)


@pytest.mark.parametrize("given", [{"ttl": 0}, {"ttl_seconds": 0}, {"ttl_seconds": -5}])
async def test_a_mark_for_no_time_at_all_makes_healthy(
    given: dict[str, float], tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        agent.mark_platform_broken("codex", "down")
        agent.mark_platform_broken("codex", "down", **given)
        assert agent.is_platform_healthy("codex")


async def test_a_mark_ends_by_itself(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        agent.mark_platform_broken("codex", "r", ttl=0.3)
        with anyio.fail_after(HANG_S):
            while not agent.is_platform_healthy("codex"):
                await anyio.sleep(0.05)
        entry = await daemon.client.call("health", {"action": "get", "target": "codex"})
        assert entry["health"]["codex"]["state"] == "healthy"
        assert entry["health"]["codex"]["unproven"] is True
        assert entry["health"]["codex"]["until_at"] is None


async def test_marks_of_nobody_are_refused(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        with pytest.raises(RpcError, match="nobody"):
            agent.mark_platform_broken("nobody", "down")
        with pytest.raises(ValueError, match="ttl"):
            agent.mark_platform_broken("codex", "down", 60, ttl=61)


async def test_the_fallback_is_the_first_usable_neighbour(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("codex", "opencode"):
        install(tmp_path, name)
    async with running(tmp_path, '[chains]\ncodex = ["opencode", "gemini"]\n') as daemon:
        use(monkeypatch, daemon.socket)
        assert agent.choose_fallback("codex") == "opencode"
        agent.mark_platform_broken("codex", "down")
        assert agent.choose_fallback("codex") == "opencode"
        agent.mark_platform_broken("opencode", "down")
        assert agent.choose_fallback("codex") is None
        assert agent.choose_fallback("nobody") is None


async def test_time_that_work_takes_corrects_later_estimates(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    config = "".join(
        f"[backends.{name}]\nenabled = false\n"
        for name in ("opencode", "gemini", "numasec", "hermes-api", "claude")
    )
    async with running(tmp_path, config) as daemon:
        use(monkeypatch, daemon.socket)
        before = agent.suggest_platform("g", "tiny", "code", "low")
        assert (before["suggestion"], before["estimated_eta_seconds"]) == ("codex", 36)
        prompt = agent.assemble_prompt("g", [], "codex")
        result = agent.execute_with_fallback(prompt, "codex", health_check_delay=HANG_S)
        assert result["state"] == "succeeded"
        found = await daemon.client.call("delegation.get", {"delegation": result["delegation"]})
        assert found["metadata"] == {"estimate_s": 36}
        after = agent.suggest_platform("g", "tiny", "code", "low")
        assert after["estimated_eta_seconds"] != before["estimated_eta_seconds"]
        # A tiny part of what it took: it took far longer than that.
        agent.execute_with_fallback("h", "codex", health_check_delay=HANG_S, estimate_s=0.001)
        assert agent.suggest_platform("g", "tiny", "code", "low")["estimated_eta_seconds"] > 36


@pytest.mark.parametrize(
    ("size", "complexity", "eta_s"),
    [
        ("tiny", "low", 36),
        ("small", "medium", 300),
        ("medium", "extreme", 2700),
        ("xlarge", "extreme", 14_400),
        ("unknown", "unknown", 300),
    ],
)
def test_an_estimate_is_size_times_complexity(size: str, complexity: str, eta_s: int) -> None:
    assert MODULE.estimate_eta(size, complexity) == eta_s


def test_estimates_of_long_ago_are_forgotten(agent: Any) -> None:
    for number in range(200):
        agent._remember(f"goal {number}", 60)
    assert len(agent._estimates) == 64
    assert "goal 199" in agent._estimates


def test_platforms_and_chains_are_those_of_the_daemon() -> None:
    from fallbackd.config.profiles import BACKENDS, HERMES, HERMES_KEY, built_in, chains

    assert MODULE._FALLBACK_CHAIN is MODULE.FALLBACK_CHAIN
    backends, _ = built_in({HERMES_KEY: "set"})
    assert {
        first: [entry.backend for entry in rest if entry.backend != "claude"]
        for first, rest in chains(backends).items()
        if first in MODULE.PLATFORMS
    } == MODULE.FALLBACK_CHAIN
    assert set(MODULE.PLATFORMS) == set(BACKENDS) - {"agy", "claude", "in-session"}
    for name, platform in MODULE.PLATFORMS.items():
        assert platform["max_context"] == BACKENDS[name].context_tokens
        assert platform["rate_limit"]["cap"] == BACKENDS[name].shown_cap
        assert platform["rate_limit"]["unit"] == BACKENDS[name].cap_unit
    assert MODULE.PLATFORMS["hermes-api"]["endpoint"] == f"http://{BACKENDS[HERMES].provider}"


def test_without_a_daemon_the_error_says_how_to_start_one(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, str(tmp_path / "nobody.sock"))
    for answer in (
        agent.suggest_platform("g"),
        agent.execute_with_fallback("test", "codex"),
        agent.execute_delegation("test", "codex"),
    ):
        assert "fallbackd-client service start" in answer["error"]
    for ask in (
        lambda: agent.mark_platform_broken("codex", "down"),
        lambda: agent.is_platform_healthy("codex"),
        lambda: agent.clear_platform_health(),
        lambda: agent.get_health_snapshot(),
        lambda: agent.choose_fallback("codex"),
    ):
        with pytest.raises(NoDaemon, match="fallbackd-client service start"):
            ask()


async def test_the_end_of_work_is_found_by_its_id(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        "codex",
        'cat >/dev/null; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; exit 3',
    )
    install(tmp_path, "opencode")
    async with running(tmp_path, PLAIN_OPENCODE) as daemon:
        use(monkeypatch, daemon.socket)
        result = agent.execute_with_fallback("test", "codex", health_check_delay=0.1)
        assert result["state"] == "running"
        assert agent.delegation_result(result["delegation"]) is None
        status = agent.local_delegate_status(delegation=result["delegation"])["result"]
        assert status["state"] == "running"
        (daemon.home / "goes").touch()
        done = agent.wait_for(result["delegation"], HANG_S)
        assert (done["state"], done["active_platform"]) == ("succeeded", "opencode")
        assert Path(done["log_path"]).exists()
        assert agent.delegation_result(result["delegation"]) == ANSWER
        assert agent.local_delegate_status(delegation="d0")["error"]


async def test_an_unknown_platform_is_not_healthy_and_a_missing_one_is_not_listed(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        asked = {"prompt": "x", "backend": "codex", "wait": "finished"}
        await daemon.client.call("delegate", asked)
        assert agent.is_platform_healthy("codex")
        assert not agent.is_platform_healthy("foobar")
        assert not agent.is_platform_healthy("claude")
        assert "claude" not in agent.get_health_snapshot()


async def test_a_daemon_that_hangs_costs_two_seconds_and_its_last_answer_is_given(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "codex")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        monkeypatch.setattr(agent, "QUICK_S", HANG_S)
        agent.mark_platform_broken("codex", "down")
        assert "stale" not in agent.suggest_platform("test")
        assert "stale" not in agent.get_health_snapshot()["codex"]
        monkeypatch.setattr(agent, "QUICK_S", 0.2)
        daemon.send(signal.SIGSTOP)
        try:
            assert agent.get_health_snapshot()["codex"]["stale"]
            assert not agent.is_platform_healthy("codex")
            assert agent.suggest_platform("test")["stale"]
            assert "error" in agent.suggest_platform("another question")
        finally:
            daemon.send(signal.SIGCONT)


async def test_a_daemon_that_hangs_holds_up_no_call_for_long(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agent.HEALTH_CHECK_DELAY_S + agent.CALL_S < 10
    install(tmp_path, "codex")
    async with running(tmp_path) as daemon:
        use(monkeypatch, daemon.socket)
        monkeypatch.setattr(agent, "CALL_S", 0.2)
        daemon.send(signal.SIGSTOP)
        try:
            asked = partial(agent.execute_with_fallback, "x", "codex", health_check_delay=0.1)
            assert "did not answer" in asked()["error"]
            for call in (
                partial(agent.mark_platform_broken, "codex", "down"),
                partial(agent.clear_platform_health, "codex"),
                partial(agent.choose_fallback, "codex"),
                partial(agent.delegation_status, "d1"),
            ):
                with pytest.raises(NoDaemon, match=r"did not answer in 0\.2 s"):
                    call()
        finally:
            daemon.send(signal.SIGCONT)


def test_what_was_not_answered_is_the_same_request_when_it_is_asked_again(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hold(peer: Peer) -> None:
        while peer.read() is not None:
            pass

    taken = Failing(-32003, "no backend is available")
    path = tmp_path / "control.sock"
    use(monkeypatch, str(path))
    with serving(
        path, hold, answering({"delegate": taken}), answering({"delegate": taken})
    ) as server:
        monkeypatch.setattr(agent, "Client", partial(Client, timeout_s=0.05))
        assert "did not answer" in agent.execute_delegation("p", "a")["error"]
        monkeypatch.setattr(agent, "Client", Client)
        for _ in range(2):
            agent.execute_delegation("p", "a")
    first, again, anew = (one["params"]["request_id"] for one in server.requests)
    assert first == again
    assert anew != first


async def test_what_cannot_be_prepared_is_no_error(
    tmp_path: Path, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not await anyio.to_thread.run_sync(agent.prepare, "codex")
    async with running(tmp_path, PLAIN_OPENCODE) as daemon:
        use(monkeypatch, daemon.socket)
        assert not await anyio.to_thread.run_sync(agent.prepare, "codex", "s", str(tmp_path))
