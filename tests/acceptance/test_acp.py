"""Agents that speak the Agent Client Protocol, as a real daemon uses them."""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.served import lives, until

DOUBLE = Path(__file__).parents[1] / "transports" / "data" / "acp_double.py"


class Place:
    def __init__(self, daemon: Daemon, notes: Path) -> None:
        self.daemon = daemon
        self._notes = notes

    def notes(self, word: str) -> list[dict[str, Any]]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [one for one in map(json.loads, lines) if one["word"] == word]

    def called(self) -> list[str]:
        return [one["method"] for one in self.notes("called")]

    @property
    def pids(self) -> list[int]:
        return [one["pid"] for one in self.notes("start")]

    async def noted(self, word: str) -> dict[str, Any]:
        with anyio.fail_after(HANG_S):
            while not (found := self.notes(word)):
                await anyio.sleep(0.01)
        return found[-1]

    async def ask(self, prompt: str, **more: Any) -> Any:
        asked = {"backend": "agent", "prompt": prompt, "cwd": str(self.daemon.work_dir)}
        asked["wait"] = "finished"
        return await self.daemon.client.call("delegate", {**asked, **more})

    async def none_is_left(self) -> None:
        await until(lambda: not any(map(lives, self.pids)))


@asynccontextmanager
async def agent(
    tmp_path: Path, *, residents: int = 0, env: Mapping[str, str] | None = None, more: str = ""
) -> AsyncIterator[Place]:
    notes = tmp_path / "notes"
    notes.touch()
    own = {"DOUBLE_NOTES": str(notes), **(env or {})}
    config = f"""
[defaults]
residents = {residents}
[backends.agent]
kind = "acp"
command = {json.dumps([sys.executable, str(DOUBLE)])}
env = {{ {", ".join(f"{name} = {json.dumps(value)}" for name, value in own.items())} }}
writable = [{json.dumps(str(notes))}]
retries = 0
{more}
"""
    async with running(tmp_path, config) as daemon:
        yield Place(daemon, notes)


def reason(done: Mapping[str, Any]) -> str:
    assert done["state"] in ("failed", "refused"), done
    return str(done["attempts"][0]["failure"]["reason"])


async def test_an_agent_answers_and_ends_where_none_may_stay(tmp_path: Path) -> None:
    async with agent(tmp_path) as place:
        done = await place.ask("say one two")
        assert (done["state"], done["text"].strip()) == ("succeeded", "one two")
        assert done["usage"]["input_tokens"] == 3
        await place.none_is_left()
        assert place.called() == ["initialize", "session/new", "session/set_mode", "session/prompt"]
        new, mode = place.notes("called")[1:3]
        assert new["params"]["cwd"] == str(place.daemon.work_dir)
        assert mode["params"]["modeId"] == "default"


async def test_the_next_prompt_of_a_session_goes_to_the_same_process(tmp_path: Path) -> None:
    async with agent(tmp_path, residents=2) as place:
        for number in range(3):
            done = await place.ask(f"say {number}", session="talk")
            assert (done["state"], done["text"].strip()) == ("succeeded", str(number))
        assert len(place.pids) == 1
        assert lives(place.pids[0])
        assert place.called()[-2:] == ["session/set_mode", "session/prompt"]
    await place.none_is_left()


async def test_a_conversation_goes_on_in_a_new_process(tmp_path: Path) -> None:
    async with agent(tmp_path) as place:
        await place.ask("say one", session="talk")
        done = await place.ask("say two", session="talk")
        assert done["text"].strip() == "two", "what is replayed is no answer"
        assert place.called()[4:] == [
            "initialize", "session/load", "session/set_mode", "session/prompt",
        ]  # fmt: skip


async def test_a_conversation_that_an_agent_has_lost_begins_anew(tmp_path: Path) -> None:
    async with agent(tmp_path, env={"DOUBLE_START": "forgets"}) as place:
        await place.ask("say one", session="talk")
        done = await place.ask("say two", session="talk")
        assert done["state"] == "succeeded", done
        assert place.called().count("session/new") == 2


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("nothing", "empty_result"),
        ("thinks", "empty_result"),
        ("login", "auth"),
        ("key", "auth"),
        ("http", "rate_limit"),
        ("limit", "usage_limit"),
        ("throttle", "rate_limit"),
        ("text", "server_error"),
        ("codex", "rate_limit"),
        ("refusal", "content_policy"),
        ("die", "unknown"),
    ],
)
async def test_a_failed_turn_has_its_reason(tmp_path: Path, prompt: str, expected: str) -> None:
    async with agent(tmp_path, residents=1) as place:
        assert reason(await place.ask(prompt)) == expected


async def test_the_same_process_serves_after_a_failure(tmp_path: Path) -> None:
    async with agent(tmp_path, residents=1) as place:
        await place.ask("say one", session="talk")
        await place.ask("http", session="talk")
        await place.daemon.client.call("health", {"action": "clear"})
        done = await place.ask("say two", session="talk")
        assert done["text"].strip() == "two"
        assert len(place.pids) == 1


async def test_an_agent_that_is_logged_out_at_its_start_says_so(tmp_path: Path) -> None:
    async with agent(tmp_path, env={"DOUBLE_START": "logged-out"}) as place:
        assert reason(await place.ask("say one")) == "auth"
        assert "session/prompt" not in place.called()
        await place.none_is_left()


async def test_an_agent_that_never_starts_to_speak_is_ended(tmp_path: Path) -> None:
    more = "first_answer_s = 1"
    async with agent(tmp_path, env={"DOUBLE_START": "mute"}, more=more) as place:
        assert reason(await place.ask("say one")) in ("timeout", "stalled")
        await place.none_is_left()


async def test_a_program_that_is_no_agent_fails(tmp_path: Path) -> None:
    async with agent(tmp_path) as place:
        config = place.daemon.config_path
        prints = json.dumps(["-c", "print('hello')"])[1:-1]
        config.write_text(config.read_text().replace(json.dumps(str(DOUBLE)), prints))
        await place.daemon.client.call("config.reload")
        done = await place.ask("say one")
        assert (done["text"], reason(done)) == (None, "empty_result")


async def test_noise_and_a_long_line_are_no_harm(tmp_path: Path) -> None:
    async with agent(tmp_path, residents=1) as place:
        done = await place.ask("noise")
        assert done["text"] == "heard"
        assert place.notes("told")[0]["outcome"]["error"]["code"] == -32601
        done = await place.ask(f"long {3 * 1024 * 1024}")
        assert done["state"] == "succeeded"


@pytest.mark.parametrize(
    ("permissions", "more", "runs"),
    [
        ("read", "", False),
        ("workspace", 'shell = "own"', False),
        ("workspace", 'shell = "confined"', True),
        ("full", "", True),
    ],
)
async def test_a_tool_runs_by_the_permission_of_its_prompt(
    tmp_path: Path, permissions: str, more: str, runs: bool
) -> None:
    async with agent(tmp_path, more=more) as place:
        done = await place.ask("shell touch made", permissions=permissions)
        assert done["text"] == "done"
        chosen = (await place.noted("told"))["outcome"]
        assert chosen == {"outcome": "selected", "optionId": "a-1" if runs else "r-1"}
        assert (place.daemon.work_dir / "made").exists() is runs
        assert any("Shell" in one for one in done["warnings"]) is not runs


@pytest.mark.parametrize("prompt", ["hang", "hang end_turn", "tool", "deaf"])
async def test_a_cancelled_turn_is_cancelled_whatever_the_agent_answers(
    tmp_path: Path, prompt: str
) -> None:
    async with agent(tmp_path, residents=1) as place:
        await place.ask("say one", session="talk")
        begun = await place.ask(prompt, session="talk", wait="accepted")
        with anyio.fail_after(HANG_S):
            while place.called().count("session/prompt") < 2:
                await anyio.sleep(0.01)
        if prompt == "tool":
            await place.noted("child")
        one = {"delegation": begun["delegation"]}
        await place.daemon.client.call("delegation.cancel", one)
        done = await place.daemon.client.call("delegation.wait", one)
        assert done["state"] == "cancelled"
        for child in place.notes("child"):
            assert not lives(child["child"])
        assert (await place.ask("say two", session="talk"))["text"].strip() == "two"
        assert (len(place.pids) == 1) is (prompt != "deaf")


async def test_a_turn_goes_on_while_there_is_no_daemon(tmp_path: Path) -> None:
    async with agent(tmp_path) as place:
        begun = await place.ask("slow 1", request_id="r1", wait="accepted")
        await place.noted("start")
        with anyio.fail_after(HANG_S):
            while "session/prompt" not in place.called():
                await anyio.sleep(0.01)
        await place.daemon.kill()
        await place.daemon.start()
        done = await place.ask("slow 1", request_id="r1")
        assert (done["state"], done["text"]) == ("succeeded", "slow")
        assert done["delegation"] == begun["delegation"]
        assert place.called().count("session/prompt") == 1
        await place.none_is_left()


async def test_an_acp_backend_needs_a_command(tmp_path: Path) -> None:
    async with running(tmp_path, '[backends.agent]\nkind = "acp"\n') as daemon:
        assert "backends.agent.command" in daemon.log(), daemon.log()
        assert os.path.exists(daemon.socket)
