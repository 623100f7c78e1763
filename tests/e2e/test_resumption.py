"""
An agent whose provider fails after its first tool: the same agent goes on in the same conversation.

What is asserted is what the provider was sent: the task, the tool call and its result stand in the
request that follows the failure, and the tool has run once.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.e2e.scenes import HANG_S, NEXT, ROUTES, Scene, scene
from tests.support.provider import Call
from tests.support.provider_frames import TEXT
from tests.support.saying import say

from fallbackd.core.work.sessions import CONTINUE

MODES = ("interactive", "batch")
BOTH = tuple((agent, mode) for agent in ("codex", "claude") for mode in MODES)
TASK = "write the line, then say pong"
TOOL = "echo worked >> made.txt"
NOTE = "another agent has already worked on this"

Table = dict[tuple[str, str, str], str]


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    found: Table = {}
    yield found
    say("\n\nseconds from the first failure to the end (attempts, provider calls of the first)")
    for (agent, case, mode), cell in sorted(found.items()):
        say(f"{agent:14}{case:24}{mode:14}{cell}")


async def worked(s: Scene, agent: str, *behaviours: str, mode: str, **knobs: Any) -> Any:
    s.provider.log.clear()
    (s.home.work / "made.txt").unlink(missing_ok=True)
    await s.forget_failures()
    s.provider.behave(ROUTES[agent], "tool", *behaviours, command=TOOL, **knobs)
    return await s.delegate(agent, then=NEXT[agent], prompt=TASK, mode=mode, permissions="full")


def note(table: Table, s: Scene, agent: str, case: str, done: Any) -> None:
    failing = s.provider.first_failure(ROUTES[agent])
    assert failing is not None
    calls = len(s.provider.calls(ROUTES[agent], kind="main"))
    cell = f"{done['ended_at'] - failing.at:6.2f} ({len(done['attempts'])}, {calls})"
    table[agent, case, done["mode"]] = cell


def said(call: Call) -> str:
    return json.dumps(call.body)


def check_work(s: Scene) -> None:
    assert (s.home.work / "made.txt").read_text() == "worked\n", "the tool ran once"


@pytest.mark.parametrize(("agent", "mode"), [*BOTH, ("gemini", "batch")])
async def test_one_failure_after_a_tool_costs_nothing(
    tmp_path: Path, agent: str, mode: str, table: Table
) -> None:
    async with scene(tmp_path) as s:
        for failure in ("500", "reset"):
            done = await worked(s, agent, failure, "ok", mode=mode)
            assert (done["state"], done["served_by"]) == ("succeeded", agent), s.daemon.log()
            assert done["text"] == TEXT
            assert done["hops"] == []
            check_work(s)
            last = said(s.provider.calls(ROUTES[agent], kind="main")[-1])
            assert TASK in last
            assert TOOL in last
            note(table, s, agent, f"one {failure}", done)


@pytest.mark.parametrize(
    ("agent", "mode"),
    [*BOTH, ("gemini", "batch"), ("opencode", "batch"), ("opencode-run", "batch")],
)
async def test_a_conversation_that_broke_off_is_resumed_by_the_same_agent(
    tmp_path: Path, agent: str, mode: str, table: Table
) -> None:
    async with scene(tmp_path, patience_s=5) as s:
        done = await worked(s, agent, "500", mode=mode, until=CONTINUE)
        check_resumed(s, agent, done)
        note(table, s, agent, "resumed", done)


def check_resumed(s: Scene, agent: str, done: Any) -> None:
    assert (done["state"], done["served_by"]) == ("succeeded", agent), (done, s.daemon.log())
    assert done["text"] == TEXT
    assert done["hops"] == []
    first, second = done["attempts"]
    assert first["effects"] != "none"
    assert second["resumes"] == first["attempt"]
    assert second["conversation"] == first["conversation"]
    calls = s.provider.calls(ROUTES[agent], kind="main")
    last = said(calls[-1])
    assert [CONTINUE in said(call) for call in calls].count(True) == 1
    assert last.index(TASK) < last.index(TOOL) < last.index(CONTINUE)
    check_work(s)
    assert s.provider.calls(ROUTES[NEXT[agent]]) == []


@pytest.mark.parametrize(("agent", "mode"), BOTH)
async def test_the_next_agent_starts_with_a_note_once_a_resumption_has_failed(
    tmp_path: Path, agent: str, mode: str, table: Table
) -> None:
    async with scene(tmp_path) as s:
        done = await worked(s, agent, "500", mode=mode)
        assert (done["state"], done["served_by"]) == ("succeeded", NEXT[agent]), s.daemon.log()
        first, second, third = done["attempts"]
        assert second["resumes"] == first["attempt"]
        assert (third["backend"], third["resumes"]) == (NEXT[agent], None)
        (hop,) = done["hops"]
        assert (hop["from"], hop["to"]) == (agent, NEXT[agent])
        assert any(CONTINUE in said(call) for call in s.provider.calls(ROUTES[agent]))
        (call, *_) = s.provider.calls(ROUTES[NEXT[agent]], kind="main")
        assert NOTE in said(call)
        assert TASK in said(call)
        assert CONTINUE not in said(call)
        check_work(s)
        note(table, s, agent, "handed on", done)


@pytest.mark.parametrize("agent", ["codex", "claude"])
async def test_a_conversation_is_resumed_over_the_death_of_the_daemon(
    tmp_path: Path, agent: str
) -> None:
    """Killed while the agent fails, while its conversation is about to be resumed, and after."""
    async with scene(tmp_path, patience_s=5) as s:
        s.provider.behave(ROUTES[agent], "tool", "500", command=TOOL, until=CONTINUE, then="slow")
        begun = await s.begin(
            agent, then=NEXT[agent], prompt=TASK, permissions="full", request_id="r"
        )
        await s.provider.called(ROUTES[agent], where=lambda call: call.has_failed)
        await renew(s)
        await ended(s, begun)
        await renew(s)
        await s.provider.called(ROUTES[agent], where=lambda call: CONTINUE in said(call))
        await renew(s)
        done = await s.delegate(
            agent, then=NEXT[agent], prompt=TASK, permissions="full", request_id="r"
        )
        assert done["delegation"] == begun["delegation"]
        check_resumed(s, agent, done)


async def renew(s: Scene) -> None:
    await s.daemon.kill()
    await s.daemon.start()


async def ended(s: Scene, begun: Any) -> None:
    """The first attempt is over."""
    with anyio.fail_after(HANG_S):
        while True:
            found = await s.daemon.client.call(
                "delegation.get", {"delegation": begun["delegation"]}
            )
            if found["attempts"][0]["ended_at"] is not None:
                return
            await anyio.sleep(0.05)
