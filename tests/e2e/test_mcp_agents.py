"""The MCP server in the real agent CLIs: limits, questions, and agents that were handed work."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.acceptance.test_questions import court
from tests.e2e.mcp_clients import (
    ANSWER,
    CLIENTS,
    HELPER,
    configure,
    delegating,
    install,
    run_client,
    told_model,
)  # fmt: skip
from tests.e2e.scenes import scene
from tests.support.agents import backend_script, chain, ok


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_reads_who_answered_in_place_of_a_backend_at_its_limit(
    tmp_path: Path, name: str
) -> None:
    helper = HELPER[name]
    async with scene(tmp_path) as s:
        spare = backend_script(tmp_path / "bin", "spare", ok(ANSWER))
        await configure(s, spare + chain(helper, "spare"))
        s.provider.behave(helper, "usage_limit")
        delegating(s, name)
        output = await run_client(name, s)
        told = told_model(s, name)
        (done,) = (await s.daemon.client.call("delegation.list"))["delegations"]
    assert ANSWER in told, output
    assert (done["fallback_from"], done["served_by"]) == (helper, "spare")
    assert f"{helper} hit its usage limit" in told  # and when it is over
    assert "; continuing with spare." in told


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_that_gets_a_handle_waits_for_the_answer(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path) as s:
        until = 'cat >/dev/null; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; ' + ok(ANSWER)
        await configure(s, backend_script(tmp_path / "bin", "slow", until))
        arguments = {"prompt": "review this", "backend": "slow", "wait_s": 0.5}
        s.provider.behave(
            name, "tool", call="delegate", arguments=arguments, waits="wait", text="done"
        )

        async def finish() -> None:
            """Once the client has asked its model what to do about the handle, and waits."""
            await s.provider.called(name, where=lambda call: "call wait with" in str(call.body))
            (s.home.path / "goes").touch()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finish)
            output = await run_client(name, s)
        told = told_model(s, name)
        (done,) = (await s.daemon.client.call("delegation.list"))["delegations"]
    assert ANSWER in told, output
    assert len(done["attempts"]) == 1
    assert done["state"] == "succeeded"


def names_of_tools(body: dict[str, Any]) -> str:
    return json.dumps(body.get("tools"))


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_that_was_handed_work_may_hand_it_on(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path) as s:
        install(name, s)
        s.provider.behave(name, "ok", text=ANSWER)
        done = await s.delegate(name)
        assert ANSWER in done["text"]
        offered = [names_of_tools(one.body) for one in s.provider.calls(name, kind="main")]
    assert any("Returns the answer, which backend gave it" in one for one in offered), offered


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_headless_agent_reads_the_choices_and_answers_nothing(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path) as s:
        await configure(s, court(tmp_path / "bin"))
        written = {"prompt": "x", "role": "build", "session": "s", "wait": "finished"}
        await s.daemon.client.call("delegate", {**written, "cwd": str(s.home.work)})
        judged = {"prompt": "judge it", "role": "judge", "session": "s"}
        s.provider.behave(name, "tool", call="delegate", arguments=judged, text="done")
        output = await run_client(name, s)
        told = told_model(s, name)
        (question,) = (await s.daemon.client.call("question.list"))["questions"]
    assert "awaiting_answer" in told, output
    assert f"fallbackd-client answer {question['question']}" in told
    assert question["answered_at"] is None
