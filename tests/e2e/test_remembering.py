"""
Two prompts of one session share the conversation of the real agent that answers them.

What is asserted is what the provider was sent: the first prompt and its answer stand in the request
of the second.
"""

from pathlib import Path

import pytest
from tests.e2e.scenes import NEXT, ROUTES, scene
from tests.e2e.test_resumption import said
from tests.support.provider_frames import TEXT

FIRST, SECOND = "remember the word marzipan", "and which word was it"


@pytest.mark.parametrize("agent", ["codex", "claude", "gemini", "opencode"])
async def test_the_same_agent_remembers(tmp_path: Path, agent: str) -> None:
    async with scene(tmp_path) as s:
        s.provider.behave(ROUTES[agent], "ok")
        for prompt in (FIRST, SECOND):
            done = await s.delegate(agent, then=NEXT[agent], prompt=prompt, session="talk")
            assert (done["state"], done["served_by"]) == ("succeeded", agent), s.daemon.log()
        assert done["attempts"][0]["carried"] == "resumed"
        last = said(s.provider.calls(ROUTES[agent], kind="main")[-1])
        assert last.index(FIRST) < last.index(TEXT) < last.index(SECOND)
