"""The voice agent of the documentation, with the real CLIs: context, interruption, a kill."""

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
from tests.docs.scene import program_of
from tests.e2e.scenes import HANG_S, Scene, scene
from tests.e2e.test_takeover import messages
from tests.support.provider import Call

SENTENCES = ("remember the word marzipan", "and the word nougat", "which words were they")
STORY = "Once upon a time there was a daemon that never lost a single word of it."


class Speaker:
    """The voice agent, with a person before it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.heard = ""

    def says(self, sentence: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sentence}\n".encode())
        self._process.stdin.flush()

    async def until(self, words: str) -> float:
        """Listen until these were spoken. Returns when, on the monotonic clock."""
        assert self._process.stdout is not None
        read = self._process.stdout.read1  # type: ignore[attr-defined]
        while words not in self.heard:
            piece = await anyio.to_thread.run_sync(read, 4096, abandon_on_cancel=True)
            assert piece, self.heard
            self.heard += piece.decode()
        return time.monotonic()

    async def ends(self) -> list[str]:
        """Leave it, and listen to the rest."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        rest = await anyio.to_thread.run_sync(self._process.stdout.read, abandon_on_cancel=True)
        self.heard += rest.decode()
        return self.heard.splitlines()


@asynccontextmanager
async def speaker(s: Scene) -> AsyncIterator[Speaker]:
    path = s.home.path / "voice_agent.py"
    path.write_text(program_of("voice_agent.py").text)
    env = {**s.home.env, "FALLBACKD_SOCKET": s.daemon.socket}
    with subprocess.Popen(
        [sys.executable, str(path)],
        env=env,
        cwd=s.home.work,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            with anyio.fail_after(HANG_S):
                yield Speaker(process)
        finally:
            process.kill()


async def spoken(s: Scene, sentence: str) -> list[str]:
    async with speaker(s) as agent:
        agent.says(sentence)
        return await agent.ends()


def places(call: Call, words: tuple[str, ...]) -> list[int]:
    said = "\n".join(text for _, text in messages(call))
    return [said.index(word) for word in words]


async def test_the_third_sentence_is_answered_in_context_by_another_agent(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        for number, sentence in enumerate(SENTENCES[:2], 1):
            s.provider.behave("claude", "ok", text=f"answer-{number}.", each_turn=True)
            assert (await spoken(s, sentence))[-1] == f"answer-{number}."
        s.provider.behave("claude", "usage_limit")
        s.provider.behave("codex", "ok", text="answer-3.", each_turn=True)
        assert (await spoken(s, SENTENCES[2]))[-1] == "answer-3."
        call = s.provider.calls("codex", kind="main")[-1]
    first, second, third = SENTENCES
    found = places(call, (first, "answer-1.", second, "answer-2.", third))
    assert found == sorted(found)


async def test_the_words_of_claude_are_spoken_as_they_come_and_none_is_lost_with_the_daemon(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s, speaker(s) as agent:
        s.provider.behave("claude", "slow", text=STORY, pause_s=0.4)
        asked_s = time.monotonic()
        agent.says("tell me a story")
        first_s = await agent.until("Once")
        [call] = s.provider.calls("claude", kind="main")
        assert call.answered_s is not None
        print(
            f"first word after {first_s - asked_s:.2f} s,"
            f" {first_s - call.answered_s:.2f} s after the provider began to answer"
        )
        assert "word" not in agent.heard  # the answer is still being written
        await agent.until("daemon")
        await s.daemon.kill()
        await s.daemon.start()
        lines = await agent.ends()
        assert "\n".join(lines).split() == STORY.split()
        assert len(s.provider.calls("claude", kind="main")) == 1


async def test_a_word_of_the_person_stops_the_agent_and_the_next_sentence_is_answered(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s, speaker(s) as agent:
        s.provider.behave("claude", "slow", text=STORY, pause_s=0.4, until="seven", then="ok")
        agent.says("tell me a story")
        await agent.until("Once")
        agent.says("no, name the number seven")
        lines = await agent.ends()
        assert "single word of it." in lines[-1]  # the second answer, whole
        assert "of it." not in "\n".join(lines[:-1])  # the first one, interrupted
        found = (await s.daemon.client.call("delegation.list"))["delegations"]
        assert sorted(one["state"] for one in found) == ["cancelled", "succeeded"]


async def test_a_stop_before_the_first_word_leaves_nothing_running(tmp_path: Path) -> None:
    async with scene(tmp_path) as s, speaker(s) as agent:
        s.provider.behave("claude", "hang")
        agent.says("tell me a story")
        await s.provider.called("claude", 1)
        agent.says("stop")
        await agent.ends()
        found = (await s.daemon.client.call("delegation.list"))["delegations"]
        assert [one["state"] for one in found] == ["cancelled"]
