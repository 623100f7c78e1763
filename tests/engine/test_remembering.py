"""What was said in a session is continued by the agent that answers next."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.running_engine import agent, engine_in, settings, tried, work
from tests.support.scripts import says, script

from fallbackd.core.policy import Handoff
from fallbackd.engine.environment import Settings

REFUSES = 'echo "Error: thread/resume: thread/resume failed: no rollout found" >&2; exit 1'
HANGS = "exec sleep 600"
FOREIGN = """echo '{"type":"turn.failed","error":{"message":"{\\"error\\": {\\"message\\": \\"The \
encrypted content gAAA could not be verified.\\", \\"code\\": \\"invalid_encrypted_content\\"}}"}}'
exit 1"""
"""Its account has not signed the reasoning of the conversation."""


def codex(place: Path, resumed: str = "") -> Mapping[str, str]:
    """A `codex` that answers `yes`; `resumed` comes first where it is to continue."""
    programs = place / "programs"
    programs.mkdir()
    answer = says(
        {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": "yes"}},
        {"type": "turn.completed", "usage": {"input_tokens": 100, "output_tokens": 10}},
    )
    body = f"""
echo "$@" >> "$PLACE/argv"
cat >> "$PLACE/asked"; echo >> "$PLACE/asked"
case "$*" in *" resume "*) {resumed or ":"};; esac
echo '{{"type":"thread.started","thread_id":"talk-1"}}'
{answer}
"""
    script(programs, "codex", body)
    return {"PATH": f"{programs}:/usr/bin:/bin"}


def argv(place: Path) -> list[str]:
    return (place / "programs" / "argv").read_text().splitlines()


def asked(place: Path) -> str:
    return (place / "programs" / "asked").read_text()


def both(place: Path, **handoff: object) -> Settings:
    """`codex`, then a program that repeats what it was asked."""
    found = settings(agent("codex", kind="codex"), agent("b", script(place, "b", "cat")))
    knobs = Handoff(**handoff)  # type: ignore[arg-type]
    return structs.replace(found, policy=structs.replace(found.policy, handoff=knobs))


async def test_the_same_agent_resumes_its_own_conversation(tmp_path: Path) -> None:
    async with engine_in(tmp_path, both(tmp_path), environ=codex(tmp_path)) as engine:
        for prompt in ("one", "two", "three"):
            done = await work(engine, prompt, backend="codex", session="s")
        session = await engine.session("s")
    assert ["resume talk-1" in line for line in argv(tmp_path)] == [False, True, True]
    assert asked(tmp_path) == "one\ntwo\nthree\n"
    assert (done.attempts[0].carried, done.attempts[0].conversation) == ("resumed", "talk-1")
    assert len(session.past.turns) == 3
    assert session.past.conversation is not None
    assert session.past.conversation.id == "talk-1"


async def test_totals_of_a_conversation_are_counted_once(tmp_path: Path) -> None:
    async with engine_in(tmp_path, both(tmp_path), environ=codex(tmp_path)) as engine:
        first = await work(engine, "one", backend="codex", session="s")
        second = await work(engine, "two", backend="codex", session="s")
    assert first.usage.input_tokens == 100
    assert second.usage.input_tokens == 0, "the program reports the total of both"


async def test_another_session_and_a_fresh_start_continue_nothing(tmp_path: Path) -> None:
    async with engine_in(tmp_path, both(tmp_path), environ=codex(tmp_path)) as engine:
        await work(engine, "one", backend="codex", session="s")
        await work(engine, "two", backend="codex", session="t")
        await work(engine, "three", backend="codex", session="s", fresh=True)
        session = await engine.session("s")
    assert not any("resume" in line for line in argv(tmp_path))
    assert asked(tmp_path) == "one\ntwo\nthree\n"
    assert len(session.past.turns) == 1


async def test_another_agent_is_given_a_brief(tmp_path: Path) -> None:
    async with engine_in(tmp_path, both(tmp_path), environ=codex(tmp_path)) as engine:
        await work(engine, "one", backend="codex", session="s")
        done = await work(engine, "two", backend="b", session="s")
        answer = await engine.text(done) or ""
    assert "> User: one\n> Agent: yes" in answer
    assert answer.endswith("\ntwo")
    assert done.attempts[0].carried == "brief"
    kept = tmp_path / "runs" / done.delegation / "1" / "earlier.md"
    assert str(kept) in answer
    assert kept.stat().st_mode & 0o777 == 0o600


async def test_nothing_is_given_where_that_is_configured(tmp_path: Path) -> None:
    async with engine_in(tmp_path, both(tmp_path, mode="none"), environ=codex(tmp_path)) as engine:
        await work(engine, "one", backend="codex", session="s")
        done = await work(engine, "two", backend="b", session="s")
        assert (await engine.text(done) or "") == "two"
    assert done.attempts[0].carried is None


@pytest.mark.parametrize("resumed", [REFUSES, HANGS, FOREIGN])
async def test_an_agent_that_cannot_continue_is_started_once_more_with_a_brief(
    tmp_path: Path, resumed: str
) -> None:
    configured = both(tmp_path, start_s=1.0)
    async with engine_in(tmp_path, configured, environ=codex(tmp_path, resumed)) as engine:
        await work(engine, "one", backend="codex", session="s")
        done = await work(engine, "two", backend="codex", session="s")
        health = engine.snapshot().health
    assert tried(done) == [("codex", "session"), ("codex", "session"), ("codex", None)]
    assert [one.carried for one in done.attempts] == ["resumed", "native", "brief"]
    assert done.hops == ()
    assert all(one.outage is None for one in health.values())
    assert "> User: one" in asked(tmp_path)


async def test_a_reply_continues_the_session_of_a_delegation(tmp_path: Path) -> None:
    async with engine_in(tmp_path, both(tmp_path), environ=codex(tmp_path)) as engine:
        first = await work(engine, "one", backend="codex")
        asked_next = await engine.reply_to(first.delegation, "two")
        begun = await engine.delegate(asked_next)
        done, _ = await engine.wait(begun.delegation, until="finished", timeout_s=None)
    assert (done.session, done.served_by) == (first.session, "codex")
    assert done.attempts[0].carried == "resumed"


async def test_a_session_without_a_directory_works_in_one_place(tmp_path: Path) -> None:
    here = script(tmp_path, "b", "cat >/dev/null; pwd; ls; touch left-here")
    async with engine_in(tmp_path, settings(agent("b", here))) as engine:
        first = await work(engine, "one", session="s")
        second = await work(engine, "two", session="s")
        answers = [await engine.text(one) or "" for one in (first, second)]
    assert answers[0].splitlines()[0] == answers[1].splitlines()[0]
    assert "left-here" in answers[1]


@pytest.mark.parametrize(
    "name", ["--dangerously-bypass-approvals-and-sandbox", "-x", "../talk", "a b", "x" * 200]
)
async def test_a_name_of_a_conversation_that_a_program_makes_up_is_no_option(
    tmp_path: Path, name: str
) -> None:
    environ = codex(tmp_path)
    program = tmp_path / "programs" / "codex"
    program.write_text(program.read_text().replace("talk-1", name))
    async with engine_in(tmp_path, both(tmp_path), environ=environ) as engine:
        for prompt in ("one", "two"):
            done = await work(engine, prompt, backend="codex", session="s")
    assert not any(name in line for line in argv(tmp_path))
    assert done.state == "succeeded"
