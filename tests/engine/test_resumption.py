"""An agent that broke off after its first tool continues its own conversation."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.running_engine import agent, ended, engine_in, settings, tried, until, work
from tests.support.scripts import says, script

from fallbackd.core.work.sessions import CONTINUE
from fallbackd.engine.environment import Settings
from fallbackd.engine.requests import NewWork

TOOL = {"id": "i1", "type": "command_execution", "command": "make"}
BREAKS_OFF = says(
    {"type": "thread.started", "thread_id": "talk-1"},
    {"type": "item.completed", "item": TOOL | {"exit_code": 0, "status": "completed"}},
    {"type": "turn.failed", "error": {"message": "unexpected status 500 Internal Server Error"}},
)
CONTINUES = says(
    {"type": "thread.started", "thread_id": "talk-1"},
    {"type": "item.completed", "item": {"id": "i2", "type": "agent_message", "text": "done"}},
    {"type": "turn.completed", "usage": {"input_tokens": 3, "output_tokens": 2}},
)


def codex(place: Path, resumed: str) -> Mapping[str, str]:
    """A `codex` that breaks off, and does what `resumed` says when it is resumed."""
    programs = place / "programs"
    programs.mkdir()
    body = f"""
cat >> "$PLACE/asked"
echo "$@" >> "$PLACE/argv"
case "$*" in
*" resume "*)
{resumed}
;;
*)
{BREAKS_OFF}
exit 1
;;
esac
"""
    script(programs, "codex", body)
    return {"PATH": f"{programs}:/usr/bin:/bin"}


def config(place: Path) -> Settings:
    """`codex` first, then a program that repeats what it was asked."""
    return settings(agent("codex", kind="codex"), agent("b", script(place, "b", "cat")))


async def test_the_same_agent_is_asked_to_continue(tmp_path: Path) -> None:
    environ = codex(tmp_path, CONTINUES)
    async with engine_in(tmp_path, config(tmp_path), environ=environ) as engine:
        done = await work(engine, "make it", backend="codex")
        assert tried(done) == [("codex", "server_error"), ("codex", None)]
        assert await engine.text(done) == "done"
    first, second = (tmp_path / "programs" / "argv").read_text().splitlines()
    assert second == first.removesuffix("-") + "resume talk-1 -"
    assert (tmp_path / "programs" / "asked").read_text() == "make it" + CONTINUE
    assert done.attempts[1].resumes == done.attempts[0].attempt
    assert done.attempts[1].effects == "possible"


@pytest.mark.parametrize(
    "resumed",
    [
        says({"type": "thread.started", "thread_id": "talk-2"}) + "exec sleep 600",
        'echo "Error: thread/resume: thread/resume failed: no rollout found" >&2; exit 1',
    ],
)
async def test_the_next_agent_is_told_where_the_conversation_is_not_there(
    tmp_path: Path, resumed: str
) -> None:
    environ = codex(tmp_path, resumed)
    async with engine_in(tmp_path, config(tmp_path), environ=environ) as engine:
        done = await work(engine, "make it", backend="codex")
        answer = await engine.text(done) or ""
    assert tried(done) == [("codex", "server_error"), ("codex", "server_error"), ("b", None)]
    assert "another agent has already worked on this" in answer
    assert answer.startswith("make it\n\nNote:")
    assert [one.reason for one in done.hops] == ["server_error"]


async def test_a_resumption_outlives_the_daemon(tmp_path: Path) -> None:
    gated = f'while [ ! -e "$PLACE/go" ]; do sleep 0.02; done\n{CONTINUES}'
    environ, policy = codex(tmp_path, gated), config(tmp_path)
    async with engine_in(tmp_path, policy, store="sqlite", environ=environ, leaves=True) as engine:
        begun = await engine.delegate(NewWork(prompt="make it", backend="codex"))
        argv = tmp_path / "programs" / "argv"
        await until(lambda: argv.exists() and "resume" in argv.read_text())
    (tmp_path / "programs" / "go").touch()
    async with engine_in(tmp_path, policy, store="sqlite", environ=environ) as engine:
        done = await ended(engine, begun)
        assert tried(done) == [("codex", "server_error"), ("codex", None)]
        assert await engine.text(done) == "done"
    assert len(argv.read_text().splitlines()) == 2
