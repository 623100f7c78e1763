"""
An agent whose provider fails after its first tool: the same agent goes on in the same conversation.

What is asserted is what the provider was sent: the task, the tool call and its result stand in the
request that follows the failure, and the tool has run once.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.scenes import NEXT, ROUTES, Scene, scene
from tests.support.provider import Call
from tests.support.provider_frames import TEXT

AGENTS = ("codex", "claude", "gemini")
MODES = ("interactive", "batch")
TASK = "write the line, then say pong"
TOOL = "echo worked >> made.txt"
NOTE = "another agent has already worked on this"

Table = dict[tuple[str, str, str], str]


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    found: Table = {}
    yield found
    print("\n\nseconds from the first failure to the end (attempts, provider calls of the first)")
    for (agent, case, mode), cell in sorted(found.items()):
        print(f"{agent:14}{case:24}{mode:14}{cell}")


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("agent", AGENTS)
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
