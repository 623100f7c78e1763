"""
A conversation goes round between the four agents: each takes it over from each other as its own.

One session; in every turn the agent that held the conversation last is tried first and fails, and
the next one answers, with a tool. What is asserted is what its provider was sent: all that was
said, in order, in the right roles.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.e2e.scenes import ROUTES, Scene, scene
from tests.support.provider import Call
from tests.support.saying import say

ROUND = (
    "codex claude codex gemini codex opencode claude gemini claude opencode gemini opencode codex"
)
"""Each ordered pair of two agents once."""


def messages(call: Call) -> Iterator[tuple[str, str]]:
    """(role, text) of a request of any dialect; results of tools have the role `tool`."""
    body = call.body
    for one in body.get("input") or body.get("messages") or body.get("contents"):
        role = "assistant" if one.get("role") == "model" else str(one.get("role"))
        match one.get("type"):
            case "function_call_output":
                yield "tool", str(one["output"])
            case "function_call":
                yield "assistant", str(one["arguments"])
        content = one.get("content") or one.get("parts") or []
        for part in [{"text": content}] if isinstance(content, str) else content:
            if part.get("type") == "tool_result" or "functionResponse" in part:
                yield "tool", str(part)
            else:
                yield role, str(part.get("text", part))
        for use in one.get("tool_calls") or ():
            yield role, str(use)


def roles_of(call: Call, word: str) -> list[str]:
    return [role for role, text in messages(call) if word in text]


def check(call: Call, turn: int) -> None:
    """Everything of the turns before, and the prompt of this one."""
    said = "\n".join(text for _, text in messages(call))
    words = [f"{word}-{n}." for n in range(turn) for word in ("ask", "tool", "answer")]
    places = [said.index(word) for word in [*words, f"ask-{turn}."]]
    assert places == sorted(places)
    for n in range(turn):
        assert roles_of(call, f"ask-{n}.") == ["user"]
        assert roles_of(call, f"answer-{n}.") == ["assistant"]
        assert roles_of(call, f"tool-{n}.") == ["assistant", "tool"], "a call and its result"
    assert roles_of(call, f"ask-{turn}.") == ["user"], "asked once, by the prompt"


async def ask(s: Scene, agent: str, then: str | None, turn: int) -> dict[str, Any]:
    """One turn: `agent` fails where another one is to follow."""
    await s.forget_failures()
    knobs = {"command": f"echo tool-{turn}.", "text": f"answer-{turn}.", "each_turn": True}
    s.provider.behave(ROUTES[then or agent], "tool", **knobs)
    if then is not None:
        s.provider.behave(ROUTES[agent], "401")
    s.provider.log.clear()
    done = await s.delegate(
        agent, then=then, prompt=f"ask-{turn}.", session="talk", mode="batch", permissions="full"
    )
    assert (done["state"], done["served_by"]) == ("succeeded", then or agent), s.daemon.log()
    return done


async def test_each_agent_takes_the_conversation_over_from_each_other(tmp_path: Path) -> None:
    pairs = list(pairwise(ROUND.split()))
    assert len(set(pairs)) == 12
    cells = []
    async with scene(tmp_path) as s:
        await ask(s, "codex", None, 0)
        for turn, (agent, then) in enumerate(pairs, start=1):
            done = await ask(s, agent, then, turn)
            how = [one["carried"] for one in done["attempts"]]
            told = await s.daemon.client.call("explain", {"delegation": done["delegation"]})
            assert how == ["resumed", "native"], told
            first = s.provider.calls(ROUTES[then], kind="main")[0]
            check(first, turn)
            ended_at = done["attempts"][0]["ended_at"]
            [started_at] = [
                one["at"]
                for one in told["decisions"]
                if "gets the whole conversation" in one["text"]
            ]
            cells.append((agent, then, started_at - ended_at, first.at - ended_at))
    say("\n\nseconds from the end of the failed attempt (to the start, to the first request)")
    for agent, then, started_s, asked_s in cells:
        say(f"{agent:9} {then:9} {started_s:6.2f} {asked_s:6.2f}")
