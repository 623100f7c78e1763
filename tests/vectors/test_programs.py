"""Cases of programs as backends: real processes in a real engine, and a clock that is steered."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.fakes import recorded
from tests.support.running_engine import (
    Ear,
    agent,
    ended,
    engine_in,
    settings,
    state_of,
    tried,
    work,
)
from tests.support.scripts import runs_of, says, script
from tests.transports.programs import is_alive, read_pid

from fallbackd.core.ids import ScopeId
from fallbackd.engine.requests import NewWork

READS = "cat >/dev/null\n"
ANSWERS = READS + "echo answer of $(basename $0)"
ECHO = "cat"
"""Answers with its prompt."""
COUNTS = 'echo >> "$PLACE/$(basename $0).runs"\n'


# --- work that was begun -------------------------------------------------------------------------


def shell_call(command: str) -> str:
    """What an agent prints and does for one call of its shell."""
    item = {"id": "i", "type": "command_execution", "command": command}
    done = {**item, "exit_code": 0, "status": "completed"}
    begun = says({"type": "item.started", "item": item})
    return begun + f"{command}\n" + says({"type": "item.completed", "item": done})


def repository(place: Path) -> Path:
    """A git repository with changes that nobody has committed."""
    found = place / "project"
    (found / "build").mkdir(parents=True)
    for name in ("f", "build/made"):
        (found / name).write_text("before\n")
    for words in (("init", "-q"), ("add", "f")):
        subprocess.run(["git", *words], cwd=found, check=True)
    return found


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        pytest.param("rm -rf build", "build/made", id="002-526"),
        pytest.param("echo x > f", "f", id="002-528"),
        pytest.param("echo x >> f", "f", id="002-529"),
    ],
)
async def test_what_a_shell_has_changed_is_not_done_twice_and_is_handed_over(
    command: str, changed: str, tmp_path: Path
) -> None:
    place = repository(tmp_path)
    failed = {"type": "turn.failed", "error": {"message": "unexpected status 503: unavailable"}}
    body = READS + COUNTS + shell_call(command) + says(failed) + "exit 1\n"
    p = agent("p", script(tmp_path, "p", body), "--json", kind="codex")
    b = agent("b", script(tmp_path, "b", ECHO))
    async with engine_in(tmp_path, settings(p, b)) as engine:
        done = await work(engine, "the task", backend="p", cwd=str(place), on_partial="continue")
        assert done.attempts[0].effects in ("possible", "seen")
        assert [one.backend for one in done.attempts] == ["p", "b"]
        assert runs_of(tmp_path, "p") == 1
        assert done.served_by == "b"
        prompt = await engine.text(done)
        assert prompt is not None
        failure = done.attempts[0].failure
        assert failure is not None
        assert failure.reason in ("overloaded", "server_error")
        assert f"It was p, and it ended with {failure.reason.value}." in prompt
        assert f"Changed files: {changed}." in prompt
        assert prompt.startswith("the task\n\nNote:")


async def test_who_follows_is_told_of_the_work_and_nothing_of_the_session_before(
    tmp_path: Path,
) -> None:
    """Case field-744."""
    spent = recorded("claude", "plan window spent")
    lines = [text for _, stream, text in spent["lines"] if stream == "stdout"]
    session = json.loads(lines[0])["session_id"]
    call = {"type": "tool_use", "id": "t", "name": "Write", "input": {"file_path": "notes.md"}}
    wrote = {"type": "assistant", "message": {"role": "assistant", "content": [call]}}
    body = READS + "echo notes > notes.md\n" + f"echo '{lines[0]}'\n" + says(wrote)
    body += "cat <<'END'\n" + "\n".join(lines[1:]) + "\nEND\nexit 1\n"
    said = {"id": "i", "type": "agent_message", "text": "done"}
    follows = 'echo "$*" > "$PLACE/argv"; cat > "$PLACE/prompt"\n'
    follows += says({"type": "item.completed", "item": said}, {"type": "turn.completed"})
    claude = agent("claude", script(tmp_path, "claude", body), "stream-json", kind="claude")
    codex = agent("codex", script(tmp_path, "codex", follows), "--json", kind="codex")
    place = tmp_path / "project"
    place.mkdir()
    async with engine_in(tmp_path, settings(claude, codex)) as engine:
        done = await work(engine, "the task", backend="claude", session="s", cwd=str(place))
        assert tried(done) == [("claude", "usage_limit"), ("codex", None)]
        assert done.served_by == "codex"
        assert done.attempts[0].effects == "seen"
        prompt = (tmp_path / "prompt").read_text()
        assert "It was claude, and it ended with usage_limit." in prompt
        assert "Changed files: notes.md." in prompt
        assert prompt.startswith("the task\n\nNote:")
        assert session not in (tmp_path / "argv").read_text()
        assert session not in prompt


# --- silence and loops ---------------------------------------------------------------------------


async def test_silence_below_its_limit_is_left_alone(tmp_path: Path) -> None:
    """Case 002-503."""
    clock = ManualClock()
    body = READS + 'echo begun; while [ ! -e "$PLACE/go" ]; do sleep 0.02; done; echo answer'
    p = agent("p", script(tmp_path, "p", body), stall_s=450)
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(p, b), clock=clock) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="p"))
        await ear.until(lambda heard: heard.shown("attempt.output"))
        clock.advance(440)
        await engine.look_at_clock()
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert (done.served_by, done.hops) == ("p", ())


@pytest.mark.parametrize(
    ("stall_s", "options", "line"),
    [
        pytest.param(450, {}, "begun", id="002-504"),
        pytest.param(300, {"output": "jsonl"}, '{"type": "begun"}', id="004-680"),
    ],
)
async def test_silence_for_ever_is_ended_at_its_limit_and_gone_before_the_next(
    stall_s: float, options: dict[str, Any], line: str, tmp_path: Path
) -> None:
    clock = ManualClock()
    hangs = f"""
        cat >/dev/null
        setsid sleep 1000 & echo $! > "$PLACE/child.pid"
        echo $$ > "$PLACE/p.pid"
        echo '{line}'
        while :; do sleep 1; done
        """
    looks = READS + 'for name in p child; do kill -0 "$(cat "$PLACE/$name.pid")" && exit 9; done\n'
    p = agent("p", script(tmp_path, "p", hangs), options=options, stall_s=stall_s)
    b = agent("b", script(tmp_path, "b", looks + "echo all gone"))
    async with engine_in(tmp_path, settings(p, b), clock=clock) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="p", mode="batch"))
        at = (await ear.until(lambda heard: heard.shown("attempt.output")))[-1].at
        clock.advance(stall_s - 30)
        await engine.look_at_clock()
        assert not (await engine.delegation(begun.delegation)).is_ended
        clock.advance(30)
        await engine.look_at_clock()
        done = await ended(engine, begun)
        assert tried(done) == [("p", "stalled"), ("b", None)]
        assert await engine.text(done) == "all gone"
        over_at = done.attempts[0].ended_at
        assert over_at is not None
        assert stall_s <= over_at - at < stall_s + 60  # a busy machine starts late


def tool_event(**state: Any) -> dict[str, Any]:
    tool = {"type": "tool", "callID": "c", "tool": "bash", "state": state}
    return {"type": "tool_use", "sessionID": "ses_1", "part": tool}


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(
            tool_event(status="error", input={"command": "make"}, error="no rule"), id="002-512"
        ),
        pytest.param(
            tool_event(status="completed", input={"command": "ls"}, output="f"), id="002-514"
        ),
    ],
)
async def test_the_same_call_with_the_same_end_again_and_again_is_ended(
    event: dict[str, Any], tmp_path: Path
) -> None:
    line = json.dumps(event).replace('"callID": "c"', '"callID": "c\'$n\'"')
    body = READS + f"n=0\nwhile [ $n -lt 500 ]; do echo '{line}'; n=$((n + 1)); sleep 0.05; done\n"
    body += 'touch "$PLACE/by-itself"; exec sleep 1000'
    p = agent("p", script(tmp_path, "p", body), "--format=json", kind="opencode", stall_s=450)
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(p, b)) as engine:
        done = await work(engine, backend="p")
        assert done.served_by == "b"
        failure = done.attempts[0].failure
        assert failure is not None
        assert (failure.reason, failure.detail) == ("stalled", "loop")
        assert not (tmp_path / "by-itself").exists()


# --- questions and deadlines ---------------------------------------------------------------------


async def test_a_program_that_asks_before_it_acts_meets_the_end_of_its_input(
    tmp_path: Path,
) -> None:
    """Case 002-518."""
    asks = 'printf "Allow this command? [y/n] "\nread answer || { echo > "$PLACE/eof"; exit 1; }\n'
    p = agent("p", script(tmp_path, "p", asks + "echo done"), options={"stdin": "none"})
    async with engine_in(tmp_path, settings(p, chain=())) as engine:
        done = await work(engine, backend="p")
        assert (tmp_path / "eof").exists()
        failure = done.attempts[0].failure
        assert failure is not None
        assert failure.reason == "approval_required"
        assert failure.marks_health is False
        assert state_of(engine, "p") == "healthy"


async def test_a_deadline_ends_the_whole_family_and_asks_and_marks_nobody(tmp_path: Path) -> None:
    """Case field-773."""
    clock = ManualClock()
    stubborn = """
        cat >/dev/null
        trap '' TERM
        for name in one two; do
            setsid sh -c 'trap "" TERM; echo $$ > "$0"; while :; do sleep 1; done' \
                "$PLACE/$name.pid" &
        done
        while [ ! -s "$PLACE/one.pid" ] || [ ! -s "$PLACE/two.pid" ]; do sleep 0.02; done
        echo $$ > "$PLACE/a.pid"
        while :; do sleep 1; done
        """
    a = agent("a", script(tmp_path, "a", stubborn))
    b = agent("b", script(tmp_path, "b", COUNTS + ANSWERS))
    async with engine_in(tmp_path, settings(a, b), clock=clock) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", timeout_s=3600))
        pids = [await read_pid(tmp_path / f"{name}.pid") for name in ("one", "two", "a")]
        clock.advance(3600)
        await engine.look_at_clock()
        done = await ended(engine, begun)
        assert done.state == "failed"
        assert not any(is_alive(pid) for pid in pids)
        assert [one.backend for one in done.attempts] == ["a"]
        assert runs_of(tmp_path, "b") == 0
        assert state_of(engine, "a") == "healthy"
        assert engine.snapshot().health[ScopeId("backend:a")].outage is None
