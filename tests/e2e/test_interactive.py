"""A person meets a limit in the real claude or codex: the whole host knows, and the person too."""

import base64
import json
import re
import shlex
import subprocess
import time
from pathlib import Path

import anyio
import pytest
from tests.e2e.install import IS_NEWEST
from tests.e2e.mcp_clients import PROGRAM
from tests.e2e.scenes import NEXT, Scene, scene
from tests.e2e.sitting import PROMPT, Person, client, health
from tests.e2e.test_resumption import said
from tests.e2e.tmux import tmux_server
from tests.support.provider_frames import TEXT

from fallbackd_client.interactive.carrying import has_met_limit, newest
from fallbackd_conversations import files
from fallbackd_conversations.agents import AGENTS
from fallbackd_conversations.turns import Attachment, Utterance
from fallbackd_conversations.words import given_to

WHEN = r"(?:\S+ \d\d )?\d\d:\d\d"
"""With its day, where that is not today."""
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
            if not IS_NEWEST:
                person.press("Escape")  # it asks whether to wait or to pay
            shown = await person.sees("claude is limited until")
            first = "press Esc, then " if IS_NEWEST else ""
            way = f"{first}continue here with: fallbackd-client co"
            assert re.search(rf"until {WHEN}; {way}", shown)


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
            await in_claude.sees(rf"codex from {WHEN} · opencode ok")


@pytest.mark.parametrize(
    ("agent", "other"),
    [("claude", "codex"), ("codex", "claude"), ("claude", "gemini"), ("claude", "opencode")],
)
async def test_a_person_continues_with_the_other_agent(
    tmp_path: Path, agent: str, other: str
) -> None:
    first, second = "remember the word marzipan", "and which word was it"
    async with scene(tmp_path) as s:
        client(s, "hooks", "install", agent, "--yes")
        with tmux_server() as tmux:
            person, after = Person(s, tmux, agent), Person(s, tmux, other)
            await person.start()
            await person.says(first, then="PONG-OK")
            s.provider.behave(agent, "usage_limit")
            await person.says(second, then=SHOWS[agent])
            await limited(s, agent)
            while not is_limit_stored(s, agent):
                await anyio.sleep(0.05)
            if agent == "claude" and IS_NEWEST:
                await person.sees("set to continue automatically")
            after.answer_first_questions()
            words = ("continue", "--from", "@last-limited", "--to", other, "--interactive")
            after.begin([PROGRAM, "--socket", s.daemon.socket, *words])
            if agent == "claude" and IS_NEWEST:  # it continues by itself at the reset
                await after.sees("press Esc in claude first")
                assert not s.provider.calls(other)
                person.press("Escape")
            await after.sees(PROMPT[other])
            if other == "opencode":  # it sends no prompt to a session that it opens
                await after.sees(second)
                await after.says("continue", then="continue")
            await s.provider.called(other, where=lambda call: second in said(call))
            await after.sees("PONG-OK")
        asked = said(next(one for one in s.provider.calls(other) if second in said(one)))
        assert asked.index(first) < asked.index(TEXT) < asked.index(second)
        assert asked.count(second) == 1


def is_limit_stored(s: Scene, agent: str) -> bool:
    """By the agent, which may write to its session later than it shows, and calls its hooks."""
    found = newest((agent,), s.home.env, home=str(s.home.path), limit=1)
    return any(map(has_met_limit, found))


def is_answer_stored(s: Scene) -> bool:
    """By claude, which shows an answer before; a title that it had made may hold the same words."""
    paths = (s.home.path / ".claude" / "projects").glob("*/*.jsonl")
    lines = [line for path in paths for line in path.read_text().splitlines() if TEXT in line]
    return any('"type":"assistant"' in line and line.endswith("}") for line in lines)


PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
PAPER = base64.b64encode(b"%PDF-1.4\n%%EOF\n").decode()


@pytest.mark.parametrize("other", ["codex", "claude", "gemini", "opencode"])
async def test_pictures_and_papers_are_part_of_what_is_continued(
    tmp_path: Path, other: str
) -> None:
    attached = (
        Attachment(type="image/png", data=PICTURE, size_bytes=68),
        Attachment(type="application/pdf", data=PAPER, size_bytes=15),
    )
    talk = (
        Utterance(role="user", text="look at this", files=attached),
        Utterance(role="assistant", text="a dot and an empty page"),
    )
    async with scene(tmp_path) as s:
        source = "codex" if other == "claude" else "claude"
        one = AGENTS[source]
        written = one.render(
            given_to(talk, one.takes),
            place=one.place({}, str(s.home.path)),
            cwd=str(s.home.work),
            now=time.time(),
            seed="b4aa40fd-00e7-44ab-ba2a-6581bba52b3c",
            owner="person",
        )
        assert written is not None
        assert written.path is not None
        files.make(written.path, written.data)
        words = ("--from", source, "--to", other)
        argv = shlex.split(client(s, "continue", *words).stdout)
        id = argv[-1]
        s.provider.behave(other, "ok")
        program = s.home.argv(other, "")[0]
        headless = {
            "codex": ["exec", "--json", "-s", "read-only", "resume", id, "and now"],
            "claude": ["--resume", id, "-p", "and now"],
            "gemini": ["--session-file", id, "-m", "gemini-2.5-pro", "-p", "and now"],
            "opencode": ["run", "--session", id, "--dir", str(s.home.work), "and now"],
        }
        await anyio.run_process(
            [program, *headless[other]],
            cwd=s.home.work,
            env=dict(s.home.env),
            stdin=subprocess.DEVNULL,
        )
        asked = json.dumps(s.provider.calls(other, kind="main")[-1].body)
    assert "look at this" in asked
    assert PICTURE in asked
    is_taken = other != "codex" and source != "codex"
    assert PAPER in asked if is_taken else "[attached: application/pdf, 1 kB]" in asked


async def test_without_a_daemon_sessions_are_listed_and_carried_over(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        with tmux_server() as tmux:
            person = Person(s, tmux, "claude")
            await person.start()
            await person.says("remember the word marzipan", then="PONG-OK")
            while not is_answer_stored(s):
                await anyio.sleep(0.05)
        await s.daemon.stop()
        listed = client(s, "continue").stdout
        assert "claude" in listed
        assert "remember the word marzipan" in listed
        argv = shlex.split(client(s, "continue", "--from", "claude").stdout)
        assert argv[:2] == ["codex", "resume"]
        s.provider.behave("codex", "ok")
        options = ["exec", "--json", "-s", "read-only", "resume", argv[2], "and which word was it"]
        await anyio.run_process(
            [s.home.argv("codex", "")[0], *options],
            cwd=s.home.work,
            env=dict(s.home.env),
            stdin=subprocess.DEVNULL,
        )
        asked = said(s.provider.calls("codex", kind="main")[-1])
        assert asked.index("marzipan") < asked.index(TEXT) < asked.index("and which word")
