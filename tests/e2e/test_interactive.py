"""A person meets a limit in the real claude or codex: the whole host knows, and the person too."""

import re
import time
from pathlib import Path

import anyio
import pytest
from tests.e2e.scenes import NEXT, Scene, scene
from tests.e2e.sitting import Person, client, health
from tests.e2e.tmux import tmux_server

SHOWS = {"claude": "hit your limit", "codex": "hit your usage limit"}


async def limited(s: Scene, agent: str) -> float:
    """Seconds from the provider's refusal until the daemon knows."""
    while (await health(s, agent))["state"] != "rate_limited":
        await anyio.sleep(0.02)
    refused = s.provider.calls(agent)[-1].answered_s
    assert refused is not None
    return time.monotonic() - refused


@pytest.mark.parametrize("agent", ["claude", "codex"])
async def test_a_limit_of_an_open_session_protects_what_is_delegated(
    tmp_path: Path, agent: str
) -> None:
    async with scene(tmp_path) as s:
        client(s, "hooks", "install", agent, "--yes")
        with tmux_server() as tmux:
            person = Person(s, tmux, agent)
            await person.start()
            s.provider.behave(agent, "ok")
            await person.says("good morning", then="PONG-OK")
            s.provider.behave(agent, "usage_limit")
            tmux.run("send-keys", "-t", agent, "-l", "and now")
            await person.sees("and now")
            person.press("Enter")
            took_s = await limited(s, agent)
            print(f"{agent}: known to the daemon {took_s:.2f} s after the refusal")
            await person.sees(SHOWS[agent])
        entry = await health(s, agent)
        assert entry["reason"] == "usage_limit"
        assert entry["stated_reset_at"] is not None
        calls = len(s.provider.calls(agent))
        done = await s.delegate(agent, then=NEXT[agent])
        assert (done["state"], done["served_by"]) == ("succeeded", NEXT[agent])
        assert len(s.provider.calls(agent)) == calls


async def test_the_status_line_of_claude_says_how_to_continue(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        client(s, "hooks", "install", "claude", "--yes")
        with tmux_server() as tmux:
            person = Person(s, tmux, "claude")
            await person.start()
            await person.sees("codex ok")
            s.provider.behave("claude", "usage_limit")
            await person.says("good morning", then=SHOWS["claude"])
            person.press("Escape")  # it asks whether to wait or to pay
            shown = await person.sees("claude is limited until")
            assert re.search(r"until \d\d:\d\d; continue here with: fallbackd-client co", shown)


async def test_a_limit_of_codex_is_shown_to_a_person_in_claude(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        for agent in ("claude", "codex"):
            client(s, "hooks", "install", agent, "--yes")
        with tmux_server() as tmux:
            in_claude, in_codex = Person(s, tmux, "claude"), Person(s, tmux, "codex")
            await in_claude.start()
            await in_claude.sees("codex ok")
            await in_codex.start()
            s.provider.behave("codex", "usage_limit")
            await in_codex.says("good morning", then=SHOWS["codex"])
            await in_claude.sees(r"codex from \d\d:\d\d · opencode ok")
