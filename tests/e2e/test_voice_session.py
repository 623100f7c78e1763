"""Three sentences to the voice agent of the documentation; the agent behind it changes."""

import sys
from pathlib import Path

import anyio
from tests.docs.scene import program_of
from tests.e2e.scenes import Scene, scene
from tests.e2e.test_takeover import messages
from tests.support.provider import Call

SENTENCES = ("remember the word marzipan", "and the word nougat", "which words were they")


async def spoken(s: Scene, sentence: str) -> list[str]:
    path = s.home.path / "voice_agent.py"
    path.write_text(program_of("voice_agent.py").text)
    env = {**s.home.env, "FALLBACKD_SOCKET": s.daemon.socket}
    ran = await anyio.run_process([sys.executable, str(path), sentence], env=env, cwd=s.home.work)
    return ran.stdout.decode().splitlines()


def places(call: Call, words: tuple[str, ...]) -> list[int]:
    said = "\n".join(text for _, text in messages(call))
    return [said.index(word) for word in words]


async def test_the_third_sentence_is_answered_in_context_by_another_agent(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        for number, sentence in enumerate(SENTENCES[:2], 1):
            s.provider.behave("claude", "ok", text=f"answer-{number}.", each_turn=True)
            assert (await spoken(s, sentence))[-1] == f"[voice] answer-{number}."
        s.provider.behave("claude", "usage_limit")
        s.provider.behave("codex", "ok", text="answer-3.", each_turn=True)
        assert (await spoken(s, SENTENCES[2]))[-1] == "[voice] answer-3."
        call = s.provider.calls("codex", kind="main")[-1]
    first, second, third = SENTENCES
    found = places(call, (first, "answer-1.", second, "answer-2.", third))
    assert found == sorted(found)
