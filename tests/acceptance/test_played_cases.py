"""Cases that need more than calls and answers: processes, files, events, several callers."""

import json
from pathlib import Path
from typing import Any

import anyio
from tests.acceptance.cases import Case, Stage, stage
from tests.support.daemon import HANG_S
from tests.support.fakes import body
from tests.support.wire import next_events

DELEGATE = {"prompt": "test", "backend": "codex", "wait": "finished"}
QUICK = "[defaults]\nbackoff_base_s = 0.05\npatience_s = 0.3\nstop_grace_s = 0.3\n"


def event(text: str) -> str:
    """A line of shell that says what codex prints for a message of its agent."""
    item = {"id": "item_1", "type": "agent_message", "text": text}
    return f"echo '{json.dumps({'type': 'item.completed', 'item': item})}'"


async def delegate(played: Stage, **params: Any) -> dict[str, Any]:
    found: dict[str, Any] = await played.call("delegate", {**DELEGATE, **params})
    assert "error" not in found, found
    return found


async def health(played: Stage) -> dict[str, Any]:
    found: dict[str, Any] = (await played.call("health", {"action": "list"}))["health"]
    return found


async def test_four_overloaded_backends_are_retried_once_and_then_all_is_refused(
    tmp_path: Path,
) -> None:
    """Case 000-034."""
    chain = ["codex", "opencode", "hermes-api", "gemini"]
    case = {"config": QUICK, "hermes": "503", "does": dict.fromkeys(chain, "503")}
    del case["does"]["hermes-api"]  # type: ignore[attr-defined]
    async with stage(tmp_path, case) as played:
        done = await delegate(played)
        assert done["state"] == "refused"
        assert [hop["to"] for hop in done["hops"]][:3] == chain[1:]
        tried = [one["backend"] for one in done["attempts"]]
        assert sorted(set(tried), key=tried.index) == chain
        assert all(tried.count(name) <= 2 for name in chain)
        usable = [one for one in done["candidates"] if one["verdict"] != "not_installed"]
        assert [one["backend"] for one in usable] == chain
        found = await health(played)
        for name in chain:
            assert found[name]["state"] == "rate_limited", name
            assert found[name]["reason"] in ("overloaded", "server_error"), name
            assert 29 < found[name]["until_at"] - found[name]["since_at"] <= 60
        assert done["retry_at"] == min(found[name]["until_at"] for name in chain)


async def test_a_program_that_goes_on_after_its_failure_is_gone_before_the_next(
    tmp_path: Path,
) -> None:
    """Case 000-036."""
    ends = json.dumps({"type": "turn.failed", "error": {"message": "last status: 429"}})
    goes_on = (
        'setsid sleep 1000 & echo $! > "$HOME/a.pid";'
        ' (sleep 1000 & echo $! > "$HOME/b.pid"; wait) &'
        f" while [ ! -s \"$HOME/b.pid\" ]; do sleep 0.05; done; echo '{ends}'; exec sleep 1000"
    )
    looks = (
        'for name in a b; do kill -0 "$(cat "$HOME/$name.pid")" 2>/dev/null && exit 9; done; '
        + body("opencode", "ok")
    )
    case: Case = {"config": QUICK, "does": {"codex": goes_on, "opencode": looks}}
    async with stage(tmp_path, case) as played:
        done = await delegate(played)
        assert [one["backend"] for one in done["attempts"]] == ["codex", "opencode"]
        assert done["served_by"] == "opencode"
        first, second = done["attempts"]
        assert first["failure"]["reason"] == "rate_limit"
        assert first["ended_at"] <= second["started_at"]


async def test_words_of_an_agent_about_limits_end_nothing(tmp_path: Path) -> None:
    """Case 000-040."""
    works = (
        event("HTTP 429")
        + '; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; '
        + body("codex", "ok")
    )
    async with stage(tmp_path, {"config": QUICK, "does": {"codex": works}}) as played:
        begun = await delegate(played, wait="settled", settle_s=60)
        played.clock.advance(3)
        await played.daemon.engine.look_at_clock()
        found = await played.call("delegation.get", {"delegation": begun["delegation"]})
        assert found["state"] == "running"
        assert (len(found["attempts"]), found["hops"]) == (1, [])
        assert (await health(played))["codex"]["state"] == "healthy"
        (played.home / "goes").touch()
        ended = await played.call("delegation.wait", {"delegation": begun["delegation"]})
        assert ended["state"] == "succeeded"


async def test_secrets_of_the_output_are_only_in_its_private_log(tmp_path: Path) -> None:
    """Case 000-046."""
    says = "echo 'api_key=private-value' >&2; " + body("codex", "ok", say="LIVE_TOOLS_VERIFIED")
    async with stage(tmp_path, {"does": {"codex": says}}) as played:
        done = await delegate(played)
        assert done["state"] == "succeeded"
        assert "LIVE_TOOLS_VERIFIED" in done["text"]
        name = {"delegation": done["delegation"]}
        seen = [
            await played.call("explain", name),
            await played.call("health", {"action": "list"}),
            await played.call("status", {"verbose": True}),
            await played.call("delegation.get", name),
            await next_events(played.daemon.socket, 4, since=0),
        ]
        assert "private-value" not in json.dumps(seen)
        state = played.daemon.state_dir
        told = [one for one in state.iterdir() if one.is_file()]
        assert not any(b"private-value" in one.read_bytes() for one in told)


async def test_a_cap_that_is_spent_leaves_the_backend_out(tmp_path: Path) -> None:
    """Case 000-098."""
    case = {"config": "[backends.codex]\nhourly_cap = 3\n", "does": {"codex": "ok"}}
    async with stage(tmp_path, case) as played:
        for _ in range(3):
            assert (await delegate(played))["served_by"] == "codex"
        params = {"goal": "g", "project_size": "large", "scope": "refactor", "complexity": "high"}
        found = await played.call("suggest", params)
        assert "codex" not in found["available"]
        assert found["suggestion"] != "codex"
        assert (found["rate_limits"]["codex"]["used"], found["rate_limits"]["codex"]["cap"]) == (
            *(3, 3),
        )
        codex = (await health(played))["codex"]
        assert (codex["state"], codex["reason"]) == ("rate_limited", "local_budget")
        assert (await delegate(played, failover=False))["attempts"] == []


async def test_measured_times_correct_the_estimate(tmp_path: Path) -> None:
    """Case 000-107, what the daemon measures."""
    slow = 'while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; rm "$HOME/goes"; ' + body(
        "opencode", "ok"
    )
    # The clock is set while it works: that is no reason to take it for silent.
    patient = "[defaults]\nfirst_output_s = 86400\nfirst_answer_s = 86400\n"
    async with stage(tmp_path, {"does": {"opencode": slow}, "config": patient}) as played:
        params = {"goal": "g", "project_size": "small", "scope": "code", "complexity": "low"}
        before = await played.call("suggest", params)
        for _ in range(5):
            estimate = {"estimate_s": before["eta_s"]}
            begun = await delegate(played, backend="opencode", wait="accepted", metadata=estimate)
            with anyio.fail_after(HANG_S):
                while (await one(played, begun))["state"] != "running":
                    await anyio.sleep(0.02)
            played.clock.advance(2 * before["eta_s"])
            (played.home / "goes").touch()
            ended = await played.call("delegation.wait", {"delegation": begun["delegation"]})
            assert ended["state"] == "succeeded"
        after = await played.call("suggest", params)
        assert (before["suggestion"], after["suggestion"]) == ("opencode", "opencode")
        assert after["eta_s"] > before["eta_s"]


async def one(played: Stage, begun: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = await played.call("delegation.get", {"delegation": begun["delegation"]})
    return found


async def test_a_session_has_one_running_delegation(tmp_path: Path) -> None:
    """Case 000-116."""
    slow = 'echo >> "$HOME/slow.runs"; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; ' + body(
        "opencode", "ok"
    )
    async with stage(tmp_path, {"does": {"opencode": slow}}) as played:
        first = {"backend": "opencode", "session": "s1", "request_id": "r1"}
        begun = await delegate(played, **first, wait="accepted")
        second = {**DELEGATE, "backend": "opencode", "session": "s1", "queue": False}
        busy = await played.call("delegate", second)
        assert busy["error"]["code"] == -32002
        same = await delegate(played, **first, wait="accepted")
        assert same["delegation"] == begun["delegation"]
        found = await one(played, begun)
        assert found["state"] == "running"
        assert len(found["attempts"]) == 1
        (played.home / "goes").touch()
        ended = await played.call("delegation.wait", {"delegation": begun["delegation"]})
        assert ended["state"] == "succeeded"
        assert len((played.home / "slow.runs").read_text().splitlines()) == 1


async def test_one_tick_announces_what_three_backends_have_become(tmp_path: Path) -> None:
    """Cases 001-195 and 001-197."""
    names = ["a/1", "a/2", "a/3"]
    config = (
        "[policy.rate_limit]\nwindow_s = 10\ncooldown_s = 600\n"
        f"[roles.build]\nchain = {json.dumps(names)}\n"
    )
    async with stage(tmp_path, {"config": config}) as played:
        for name in names:
            params = {"backend": name, "outcome": "failure", "evidence": {"http_status": 429}}
            await played.call("report", params)
        await played.step({"after_s": 11})
        found = await health(played)
        assert {found[name]["state"] for name in names} == {"cooldown"}
        seq = (await played.call("events.subscribe", {}))["seq"]
        await played.step({"tick": True})
        moved = await next_events(played.daemon.socket, 3, kinds=["health.moved"], since=seq)
        assert {(each["backend"], each["to"]) for each in moved} == {
            (name, "cooldown") for name in names
        }
        before = (await played.call("events.subscribe", {}))["seq"]
        await played.step({"tick": True})
        assert (await played.call("events.subscribe", {}))["seq"] == before


async def test_a_fall_is_announced_once_and_a_recovery_only_when_it_is_one(tmp_path: Path) -> None:
    """Cases 001-246 and 001-249."""
    config = "[policy.rate_limit]\nwindow_s = 100\ncooldown_s = 100\n"
    case: Case = {"config": config, "does": {"codex": "exit 75", "opencode": "ok"}}
    async with stage(tmp_path, case) as played:
        for _ in range(3):
            done = await delegate(played, session="s", backend="codex")
            assert done["served_by"] == "opencode"
        await played.step({"after_s": 150, "tick": True})
        assert (await health(played))["codex"]["state"] == "cooldown"
        await played.step({"after_s": 100, "tick": True})
        await played.step({"after_s": 100, "tick": True})
        assert (await health(played))["codex"]["state"] == "healthy"
        end = (await played.call("events.subscribe", {}))["seq"]
        await played.call("health", {"action": "pause", "target": "numasec", "note": "the end"})
        told: list[dict[str, Any]] = []
        while not told or told[-1]["seq"] <= end:
            told = await next_events(played.daemon.socket, len(told) + 1, since=0)
        notices = [each for each in told if each["kind"] == "session.notice"]
        assert [(each["notice"], each["from"], each["to"]) for each in notices] == [
            ("fallback", "codex", "opencode"),
            ("recovered", "opencode", "codex"),
        ]
        states = [
            each["to"]
            for each in told
            if each["kind"] == "health.moved" and each["backend"] == "codex"
        ]
        assert states == ["rate_limited", "cooldown", "healthy"]
        recovered = notices[1]["seq"]
        healthy = [each["seq"] for each in told if each["kind"] == "health.moved"]
        assert max(seq for seq in healthy if seq <= end) < recovered


async def test_a_report_that_names_its_attempt_counts_at_once(tmp_path: Path) -> None:
    """Case 001-213."""
    config = '[roles.build]\nchain = ["a/1", "a/2", "a/3"]\n'
    async with stage(tmp_path, {"config": config}) as played:
        await played.call("resolve", {"session": "s", "role": "build", "backend": "a/1"})
        report = {"session": "s", "outcome": "failure", "evidence": {"http_status": 429}}
        first = await played.call("report", {**report, "backend": "a/1"})
        assert first["next"]["backend"] == "a/2"
        echo = await played.call("report", {**report, "backend": "a/1"})
        assert echo["next"] is None
        session = await played.call("session.get", {"session": "s"})
        assert (session["ignored_reports"], session["current"]) == (1, "a/2")
        named = await played.call("report", {**report, "backend": "a/2", "attempt": "mine"})
        assert named["next"]["backend"] == "a/3"
