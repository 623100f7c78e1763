"""An agent that has pushed and then fails: nobody else pushes again before a person says so."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.running_engine import Ear, agent, ended, engine_in, settings, tried
from tests.support.scripts import says, script

from fallbackd.engine import feedback
from fallbackd.engine.environment import Settings
from fallbackd.engine.requests import NewWork

PUSH = {"id": "i1", "type": "command_execution", "command": "/bin/bash -lc 'git push'"}
LIMIT = {"type": "turn.failed", "error": {"message": "You've hit your usage limit."}}


def codex(place: Path, **ended: object) -> Mapping[str, str]:
    """A `codex` that runs a command and meets its limit."""
    programs = place / "programs"
    programs.mkdir()
    item = {"type": "item.completed", "item": PUSH | ended}
    begun = {"type": "thread.started", "thread_id": "talk-1"}
    script(programs, "codex", f"cat >/dev/null\n{says(begun, item, LIMIT)}\nexit 1")
    return {"PATH": f"{programs}:/usr/bin:/bin"}


def config(place: Path) -> Settings:
    return settings(agent("codex", kind="codex"), agent("b", script(place, "b", "cat")))


async def test_a_person_is_asked_and_the_next_agent_is_told(tmp_path: Path) -> None:
    environ = codex(tmp_path, exit_code=0, status="completed")
    async with engine_in(tmp_path, config(tmp_path), environ=environ) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="release it", backend="codex"))
        await ear.hears("question.opened")
        asked = await engine.delegation(begun.delegation)
        assert (asked.state, tried(asked)) == ("awaiting_answer", [("codex", "usage_limit")])
        assert (asked.attempts[0].effects, asked.attempts[0].outside) == ("external", ("git push",))
        [question] = await feedback.questions(engine)
        await feedback.answer(engine, question.question, choice="use:b", note=None, uid=1, pid=2)
        done = await ended(engine, begun)
        text = await engine.text(done) or ""
    assert tried(done) == [("codex", "usage_limit"), ("b", None)]
    assert text.startswith("release it\n\nNote: another agent")
    assert "must not be done twice: git push" in text


async def test_a_push_that_was_cut_off_may_or_may_not_be_done(tmp_path: Path) -> None:
    environ = codex(tmp_path)
    item = {"type": "item.started", "item": PUSH | {"status": "in_progress"}}
    said = says({"type": "thread.started", "thread_id": "talk-1"}, item, LIMIT)
    script(tmp_path / "programs", "codex", f"cat >/dev/null\n{said}\nexit 1")
    async with engine_in(tmp_path, config(tmp_path), environ=environ) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="release it", backend="codex"))
        await ear.hears("question.opened")
        [question] = await feedback.questions(engine)
        assert "git push, which may or may not be done" in question.text
        asked = await engine.delegation(begun.delegation)
        assert (asked.attempts[0].outside, asked.attempts[0].unfinished) == (("git push",),) * 2
        await feedback.answer(engine, question.question, choice="use:b", note=None, uid=1, pid=2)
        text = await engine.text(await ended(engine, begun)) or ""
    assert "must not be done twice" not in text
    assert "may or may not be done: git push. Find out before you do it." in text


@pytest.mark.parametrize("end", [{"exit_code": 128, "status": "failed"}, {"status": "declined"}])
async def test_a_push_that_was_refused_hinders_nobody(
    tmp_path: Path, end: dict[str, object]
) -> None:
    environ = codex(tmp_path, **end)
    async with engine_in(tmp_path, config(tmp_path), environ=environ) as engine:
        begun = await engine.delegate(NewWork(prompt="release it", backend="codex"))
        done = await ended(engine, begun)
    assert tried(done) == [("codex", "usage_limit"), ("b", None)]
    assert done.attempts[0].outside == ()
