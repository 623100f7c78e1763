"""What a person's own agent reports protects what is delegated on the same machine."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.backends.test_codex_rollout import LIMITS, PERSON, WORDS, line
from tests.support.command import run_client
from tests.support.daemon import HANG_S, ROOT, Daemon, running

CONFIG = """
[backends.claude-work]
kind = "claude"
[backends.claude-work.env]
CLAUDE_CONFIG_DIR = "~/.claude-work"
"""
SPENT = {"message": WORDS, "codex_error_info": "usage_limit_exceeded"}
LIMIT = "You've hit your session limit \u00b7 resets 6:58pm (UTC)"


def now() -> str:
    return datetime.now(UTC).isoformat()


def used() -> bytes:
    limits = {
        name: {**one, "resets_at": time.time() + 3600} if isinstance(one, dict) else one
        for name, one in LIMITS.items()
    }
    return line("token_count", at=now(), rate_limits=limits) + b"\n"


def spent(turn: str) -> bytes:
    return line("task_complete", at=now(), turn_id=turn, error=SPENT) + b"\n"


async def health(daemon: Daemon, backend: str) -> dict[str, Any]:
    found = await daemon.client.call("status")
    entry: dict[str, Any] = found["health"][backend]
    return entry


async def failed(daemon: Daemon, **params: Any) -> dict[str, Any]:
    given = {"agent": "claude", "error": "rate_limit", "text": LIMIT, **params}
    found: dict[str, Any] = await daemon.client.call("interactive.failed", given)
    return found


async def test_a_limit_in_an_open_session_takes_the_backend_out_of_rotation(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        found = await failed(daemon, session="s", turn="t")
        assert found["backend"] == "claude"
        assert found["failure"]["reason"] == "usage_limit"
        assert found["failure"]["stated_reset_at"] % 86400 == 18 * 3600 + 58 * 60
        assert (await health(daemon, "claude"))["reason"] == "usage_limit"
        assert (await health(daemon, "claude-work"))["state"] != "rate_limited"
        again = await failed(daemon, session="s", turn="t")
        assert again["health"]["count"] == 1


async def test_accounts_are_told_apart_by_the_directory_of_their_login(tmp_path: Path) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        found = await failed(daemon, home=str(daemon.home / ".claude-work"))
        assert found["backend"] == "claude-work"
        nobody = await failed(daemon, home=str(daemon.home / ".claude-other"))
        assert nobody["backend"] is None
        assert (await health(daemon, "claude"))["state"] != "rate_limited"


@pytest.mark.parametrize("agent", ["codec", "openai-http"])
async def test_an_agent_without_accounts_is_no_backend(tmp_path: Path, agent: str) -> None:
    async with running(tmp_path) as daemon:
        assert (await failed(daemon, agent=agent))["backend"] is None


async def test_the_hook_of_a_person_marks_for_the_whole_host(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        event = (
            '{"hook_event_name":"StopFailure","error":"rate_limit","session_id":"s",'
            f'"prompt_id":"p","last_assistant_message":"{LIMIT}"}}'
        )
        subprocess.run(
            [sys.executable, "-m", "fallbackd_client.cli.main", "report", "--claude-hook"],
            input=event,
            env={**daemon.env, "PYTHONPATH": os.pathsep.join([str(ROOT / "client")])},
            capture_output=True,
            text=True,
            check=True,
        )
        # It may have left before the answer: on a busy machine it does not wait for that.
        with anyio.fail_after(HANG_S):
            while (await health(daemon, "claude"))["state"] != "rate_limited":
                await anyio.sleep(0.05)


async def test_a_limit_in_a_session_of_codex_is_heard_of_once_it_is_watched(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        rollout = daemon.home / ".codex" / "sessions" / "2026" / "11" / "23" / "rollout-a.jsonl"
        rollout.parent.mkdir(parents=True)
        rollout.write_bytes(PERSON + spent("t0"))
        config = daemon.config_path
        config.write_text('[interactive]\nwatch = ["codex"]\n')
        await daemon.client.call("config.reload")
        with anyio.fail_after(HANG_S):
            while "interactive.following" not in daemon.log():
                await anyio.sleep(0.05)
            # What had been written before it was watched is not news.
            assert (await health(daemon, "codex"))["state"] != "rate_limited"
            with rollout.open("ab") as file:
                file.write(used() + spent("t1"))
            while (await health(daemon, "codex"))["state"] != "rate_limited":
                await anyio.sleep(0.05)
        assert (await health(daemon, "codex"))["reason"] == "usage_limit"
        limits = (await health(daemon, "codex"))["limits"]
        assert [one["window_s"] for one in limits] == [18000, 604800]


async def test_a_window_that_comes_near_its_end_is_one_event(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:

        async def shown(used_percent: float) -> None:
            windows = [{"window_s": 18000, "used_percent": used_percent}]
            await daemon.client.call("interactive.plan", {"agent": "claude", "windows": windows})

        for used_percent in (79.0, 81.0, 85.0, 99.0, 3.0, 80.0):
            await shown(used_percent)
        wanted = ("--since", "0", "--kinds", "plan.near", "--count", "2")
        told = await run_client(daemon.socket, "--json", "events", *wanted)
        found = [json.loads(line) for line in told.out.splitlines()]
        assert [one["used_percent"] for one in found] == [81.0, 80.0]
        assert {one["backend"] for one in found} == {"claude"}


async def test_figures_of_a_plan_are_shown_and_decide_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        windows = [{"window_s": 18000, "used_percent": 100, "resets_at": time.time() + 60}]
        found = await daemon.client.call(
            "interactive.plan", {"agent": "claude", "windows": windows}
        )
        assert found["backend"] == "claude"
        assert "codex" in found["others"]
        assert (await health(daemon, "claude"))["state"] != "rate_limited"
        shown = (await daemon.client.call("status"))["health"]["claude"]["limits"]
        assert [(one["used_percent"], one["source"]) for one in shown] == [(100, "statusline")]


async def test_a_limit_ends_when_the_same_login_is_answered_in_an_open_session(
    tmp_path: Path,
) -> None:
    """A plan is changed or its windows are reset, long before the time that it stated."""
    config = '[interactive]\nwatch = ["codex"]\n'
    async with running(tmp_path, config) as daemon:
        rollout = daemon.home / ".codex" / "sessions" / "2026" / "11" / "23" / "rollout-a.jsonl"
        rollout.parent.mkdir(parents=True)
        rollout.write_bytes(PERSON)
        with anyio.fail_after(HANG_S):
            while "interactive.following" not in daemon.log():
                await anyio.sleep(0.05)
            await daemon.client.call(
                "report",
                {
                    "backend": "codex",
                    "outcome": "failure",
                    "evidence": {"text": "You've hit your usage limit. Try again in 5 days."},
                },
            )
            assert (await health(daemon, "codex"))["state"] == "rate_limited"
            whole = line("task_complete", at=now(), turn_id="t", last_agent_message="done")
            with rollout.open("ab") as file:
                file.write(whole + b"\n")
            while (await health(daemon, "codex"))["state"] == "rate_limited":
                await anyio.sleep(0.05)
        assert (await health(daemon, "codex"))["unproven"] is True
