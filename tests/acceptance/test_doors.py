"""
The rules of a chain at the real socket: for work that is delegated and for callers that make the
calls themselves, with a session, with the `turn` of the answer before, and with their role alone.
"""

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.acceptance.cases import stage
from tests.support.daemon import HANG_S

REFUSES = {
    "stream": "http",
    "http_status": 400,
    "body": {"error": {"code": "content_policy_violation", "message": "Your request was rejected"}},
}
BROKEN = {"stream": "http", "http_status": 500, "body": {"error": {"message": "Internal error"}}}
PAIR = '[roles.r]\nchain = ["codex", "opencode"]\n'
WORKS = dict.fromkeys(("codex", "opencode", "gemini"), "ok")


@pytest.mark.parametrize("knows", ["session", "turn", "role"])
async def test_a_refusal_of_the_prompt_ends_with_the_chain(tmp_path: Path, knows: str) -> None:
    said: dict[str, Any] = {"role": "r"} | ({"session": "s"} if knows == "session" else {})
    async with stage(tmp_path, {"config": PAIR}) as played:
        found = await played.call("resolve", {**said, "lease": True})
        tried = []
        while found is not None and len(tried) < 6:
            tried.append((found.get("next") or found)["backend"])
            again = {"turn": found["turn"]} if knows == "turn" else {}
            report = {**said, **again, "backend": tried[-1], "outcome": "failure"}
            found = await played.call("report", {**report, "evidence": REFUSES})
            assert found["failure"]["reason"] == "content_policy"
            if found["next"] is None:
                break
        assert tried == ["codex", "opencode"]
        assert found["why"] == "no other candidate of the chain is available"
        healths = (await played.call("health", {"action": "list"}))["health"]
        assert {healths[name]["state"] for name in tried} == {"healthy"}


async def test_a_turn_of_another_daemon_is_an_error_that_says_what_to_send(tmp_path: Path) -> None:
    async with stage(tmp_path, {"config": PAIR}) as played:
        report = {"backend": "codex", "outcome": "failure", "turn": "bm9uc2Vuc2U="}
        error = (await played.call("report", report))["error"]
        assert (error["code"], error["data"]["path"]) == (-32602, "turn")
        assert "leave it out" in error["message"]


async def test_reports_stop_at_the_maximum_of_hops_and_name_it(tmp_path: Path) -> None:
    names = ["codex", "opencode", "gemini", "numasec"]
    config = f"[defaults]\nmax_fallback_depth = 2\n[roles.r]\nchain = {names}\n"
    async with stage(tmp_path, {"config": config}) as played:
        await played.call("resolve", {"session": "s", "role": "r", "lease": True})
        for name in names[:3]:
            report = {"session": "s", "backend": name, "outcome": "failure", "evidence": BROKEN}
            found = await played.call("report", report)
            assert not found["ignored"]
        assert (found["next"], found["bound"]) == (None, "max_fallback_depth")
        last = found["candidates"][-1]
        assert (last["backend"], last["verdict"]) == ("numasec", "healthy")
        assert "max_fallback_depth" in last["reason"]


async def test_a_look_changes_nothing_and_sees_what_a_delegation_would_do(tmp_path: Path) -> None:
    config = PAIR + "idle_s = 100\n"
    marks = [{"target": "codex", "reason": "rate_limit", "ttl_s": 20}]
    async with stage(tmp_path, {"config": config, "does": WORKS, "marks": marks}) as played:
        work = {"prompt": "x", "role": "r", "session": "s", "wait": "finished"}
        assert (await played.call("delegate", work))["served_by"] == "opencode"
        await played.call("health", {"action": "clear", "target": "codex"})
        played.clock.advance(60)
        before = await played.call("session.get", {"session": "s"})
        look = await played.call("resolve", {"role": "r", "session": "s"})
        assert look["backend"] == "opencode"
        passed = look["candidates"][0]
        assert (passed["verdict"], "opencode" in passed["reason"]) == ("affinity", True)
        assert await played.call("session.get", {"session": "s"}) == before
        played.clock.advance(60)
        look = await played.call("resolve", {"role": "r", "session": "s"})
        assert look["backend"] == "codex"
        assert (await played.call("delegate", work))["served_by"] == "codex"


async def test_usage_of_failed_calls_is_charged_to_who_made_them(tmp_path: Path) -> None:
    async with stage(tmp_path, {"config": PAIR}) as played:
        await played.call("resolve", {"session": "s", "role": "r", "lease": True})
        report = {"session": "s", "backend": "codex", "outcome": "failure", "evidence": BROKEN}
        spent = {"input_tokens": 1000, "output_tokens": 50}
        await played.call("report", {**report, "usage": spent})
        report = {"session": "s", "backend": "opencode", "outcome": "success"}
        await played.call("report", {**report, "usage": {"input_tokens": 7, "output_tokens": 3}})
        found = await played.call("status", {"session": "s", "verbose": True})
        used = {
            one["backend"]: (one["input_tokens"], one["output_tokens"]) for one in found["usage"]
        }
        assert used == {"codex": (1000, 50), "opencode": (7, 3)}


async def test_the_bound_of_a_refusal_is_named_with_its_key(tmp_path: Path) -> None:
    config = "[defaults]\nmax_fallback_depth = 1\nbackoff_base_s = 0\npatience_s = 0.3\n"
    chain = {"chain": ["opencode", "gemini"], "backend": "codex"}
    does = dict.fromkeys(("codex", "opencode", "gemini"), "429")
    async with stage(tmp_path, {"config": config, "does": does}) as played:
        done = await played.call("delegate", {"prompt": "x", "wait": "finished", **chain})
        assert (done["state"], done["served_by"]) == ("refused", None)
        assert "max_fallback_depth" in done["message"]
        last = done["candidates"][-1]
        assert (last["backend"], last["verdict"]) == ("gemini", "healthy")
        assert "max_fallback_depth" in last["reason"]
        told = (await played.call("explain", {"delegation": done["delegation"]}))["decisions"]
        assert all(one["verdict"] != "chosen" for one in told[-2]["candidates"])


async def test_work_that_asks_about_an_outage_goes_on_when_its_service_answers(
    tmp_path: Path,
) -> None:
    config = '[roles.judge]\nkind = "adversarial"\nchain = ["codex", "opencode"]\n'
    marks = [{"target": "codex", "reason": "auth", "ttl_s": 60}]
    async with stage(tmp_path, {"config": config, "does": WORKS, "marks": marks}) as played:
        asked = await played.call("delegate", {"prompt": "x", "role": "judge", "wait": "finished"})
        assert asked["state"] == "awaiting_answer"
        played.clock.advance(61)
        other = {"prompt": "x", "backend": "codex", "wait": "finished"}
        assert (await played.call("delegate", other))["served_by"] == "codex"
        wait = {"delegation": asked["delegation"], "timeout_s": 60}
        with anyio.fail_after(HANG_S):
            while (done := await played.call("delegation.wait", wait))["state"] != "succeeded":
                await anyio.sleep(0.01)
        assert (done["served_by"], done["question"]["choice"]) == ("codex", None)
        assert (await played.call("question.list", {}))["questions"] == []
