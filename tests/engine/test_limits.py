"""Attempts that show nothing, too much of the same, or that somebody has no time for."""

from pathlib import Path

import anyio
import pytest
from tests.support.clock import ManualClock
from tests.support.running_engine import (
    Agent,
    Ear,
    agent,
    ended,
    engine_in,
    settings,
    state_of,
    tried,
    until,
    work,
)
from tests.support.scripts import says, script

from fallbackd.core.reasons import Reason
from fallbackd.engine.api import Engine
from fallbackd.engine.requests import Draining, NewWork

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
HANGS = "exec sleep 1000\n"
RECONNECTS = says(
    {"type": "thread.started", "thread_id": "t"},
    {"type": "turn.started"},
    {"type": "error", "message": "Reconnecting... 1/5 (unexpected status 503: overloaded)"},
)
ANSWERED = {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": "hm"}}


def codex(place: Path, body: str, **more: float) -> Agent:
    path = script(place, "a", "cat >/dev/null\n" + body)
    return agent("a", path, "--json", kind="codex", **more)


def generic(place: Path, name: str, body: str = ANSWERS, **more: float) -> Agent:
    return agent(name, script(place, name, body), **more)


async def later(engine: Engine, clock: ManualClock, by_s: float) -> None:
    clock.advance(by_s)
    await engine.look_at_clock()


async def test_silence_is_a_timeout_and_the_next_one_answers(tmp_path: Path) -> None:
    config = settings(generic(tmp_path, "a", HANGS, first_answer_s=0.3), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        failure = done.attempts[0].failure
        assert failure is not None
        assert (failure.reason, failure.detail) == (Reason.TIMEOUT, "first_output")


async def test_a_banner_is_not_the_answer_that_is_waited_for(tmp_path: Path) -> None:
    body = says({"type": "thread.started", "thread_id": "t"}) + HANGS
    clock = ManualClock()
    config = settings(codex(tmp_path, body, first_answer_s=120), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await ear.until(lambda heard: heard.shown("attempt.output"))
        await later(engine, clock, 121)
        done = await ended(engine, begun)
        assert done.served_by == "b"
        failure = done.attempts[0].failure
        assert failure is not None
        assert (failure.reason, failure.detail) == (Reason.STALLED, "first_answer")


async def test_silence_after_output_is_a_stall(tmp_path: Path) -> None:
    clock = ManualClock()
    body = "cat >/dev/null; echo begun; exec sleep 1000"
    config = settings(generic(tmp_path, "a", body, stall_s=450), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await ear.until(lambda heard: heard.shown("attempt.output"))
        await later(engine, clock, 300)  # past the limit of the first answer: there was output
        assert not (await engine.delegation(begun.delegation)).is_ended
        await later(engine, clock, 160)
        done = await ended(engine, begun)
        assert done.served_by == "b"
        failure = done.attempts[0].failure
        assert failure is not None
        assert (failure.reason, failure.detail) == (Reason.STALLED, "silent")


async def test_a_tool_that_runs_long_is_no_stall(tmp_path: Path) -> None:
    clock = ManualClock()
    tool = {"id": "t", "type": "command_execution", "command": "make"}
    body = says({"type": "item.started", "item": tool}) + HANGS
    config = settings(codex(tmp_path, body, stall_s=100, busy_stall_s=1200), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await ear.until(lambda heard: heard.shown("attempt.output"))
        await later(engine, clock, 400)
        await later(engine, clock, 700)
        assert not (await engine.delegation(begun.delegation)).is_ended
        await later(engine, clock, 200)
        failure = (await ended(engine, begun)).attempts[0].failure
        assert failure is not None
        assert (failure.reason, failure.detail) == (Reason.STALLED, "busy")


async def test_silence_after_a_tool_is_a_stall_at_its_own_limit(tmp_path: Path) -> None:
    clock = ManualClock()
    tool = {"id": "t", "type": "command_execution", "command": "make"}
    body = says({"type": "item.started", "item": tool})
    body += 'while [ ! -e "$PLACE/go" ]; do sleep 0.02; done\n'
    body += says({"type": "item.completed", "item": tool}) + HANGS
    config = settings(codex(tmp_path, body, stall_s=450, busy_stall_s=1200), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await ear.until(lambda heard: heard.shown("attempt.output"))
        await later(engine, clock, 130)  # looked at while the tool runs
        await anyio.wait_all_tasks_blocked()
        (tmp_path / "go").touch()
        await ear.until(lambda heard: len(heard.shown("attempt.output")) > 1)
        await later(engine, clock, 460)
        await anyio.wait_all_tasks_blocked()
        await later(engine, clock, 1)
        failure = (await ended(engine, begun)).attempts[0].failure
        assert failure is not None
        assert (failure.reason, failure.detail) == (Reason.STALLED, "silent")


async def test_output_that_comes_late_is_watched_from_then_on(tmp_path: Path) -> None:
    body = """
        cat >/dev/null
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        echo begun
        exec sleep 1000
        """
    config = settings(generic(tmp_path, "a", body, stall_s=0.2), generic(tmp_path, "b"))
    looks = 0

    def luck() -> float:  # is asked for with every look
        nonlocal looks
        looks += 1
        return 0.0

    async with engine_in(tmp_path, config, luck=luck) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: looks > 2)
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert done.attempts[0].failure is not None
        assert done.attempts[0].failure.detail == "silent"


async def test_the_same_step_again_and_again_is_a_loop(tmp_path: Path) -> None:
    steps = [
        {
            "type": "item.completed",
            "item": {"id": f"i{n}", "type": "command_execution", "command": "ls"},
        }
        for n in range(20)
    ]
    config = settings(codex(tmp_path, says(*steps) + HANGS), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        failure = done.attempts[0].failure
        assert failure is not None
        assert (failure.reason, failure.detail) == (Reason.STALLED, "loop")


async def test_different_steps_are_no_loop(tmp_path: Path) -> None:
    steps = [
        {
            "type": "item.completed",
            "item": {"id": f"i{n}", "type": "command_execution", "command": f"ls {n}"},
        }
        for n in range(30)
    ]
    usage = {"input_tokens": 5, "output_tokens": 7}
    body = says(*steps, ANSWERED, {"type": "turn.completed", "usage": usage})
    async with engine_in(tmp_path, settings(codex(tmp_path, body))) as engine:
        done = await work(engine, backend="a")
        assert done.state == "succeeded"
        assert (done.usage.input_tokens, done.usage.output_tokens) == (5, 7)


async def test_patience_with_a_programs_own_retries_ends(tmp_path: Path) -> None:
    waits = RECONNECTS.replace("1/5", "waiting for network")  # for how long it does not say
    config = settings(
        codex(tmp_path, waits + HANGS), generic(tmp_path, "b"), defaults={"patience_s": 0.4}
    )
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        assert tried(done)[0] == ("a", "overloaded")


async def test_a_retry_that_helps_ends_the_patience(tmp_path: Path) -> None:
    clock = ManualClock()
    body = RECONNECTS + says(ANSWERED) + 'while [ ! -e "$PLACE/go" ]; do sleep 0.02; done\n'
    body += says({"type": "turn.completed"})
    config = settings(codex(tmp_path, body), generic(tmp_path, "b"), defaults={"patience_s": 30})
    async with engine_in(tmp_path, config, clock=clock) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: engine.snapshot().active[begun.delegation].attempts[0].answered_at)
        await later(engine, clock, 60)
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert tried(done) == [("a", None)]
        assert await engine.text(done) == "hm"


async def test_a_stated_wait_beyond_patience_ends_the_attempt_at_once(tmp_path: Path) -> None:
    body = says(
        {"type": "error", "message": "Reconnecting... 1/5 (rate limit, try again in 1 hour)"}
    )
    config = settings(
        codex(tmp_path, body + HANGS), generic(tmp_path, "b"), defaults={"patience_s": 30}
    )
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")  # a manual clock never gets 30 s further
        assert done.served_by == "b"
        assert state_of(engine, "a") == "rate_limited"


async def test_a_program_that_gave_up_and_lingers_is_stopped(tmp_path: Path) -> None:
    failed = {"type": "turn.failed", "error": {"message": "You've hit your usage limit."}}
    config = settings(codex(tmp_path, says(failed) + HANGS), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        assert tried(done)[0] == ("a", "usage_limit")


async def test_the_callers_deadline_stops_the_work_and_marks_nobody(tmp_path: Path) -> None:
    config = settings(generic(tmp_path, "a", HANGS), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a", timeout_s=0.4)
        assert done.state == "failed"
        assert done.failure is not None
        assert (done.failure.reason, done.failure.detail) == (Reason.TIMEOUT, "deadline")
        assert [one.backend for one in done.attempts] == ["a"]
        assert done.attempts[0].gone is True
        assert state_of(engine, "a") == "healthy"


async def test_the_callers_deadline_ends_a_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    limited = "cat >/dev/null; echo 'rate limit, try again in 200 seconds' >&2; exit 75"
    async with engine_in(
        tmp_path, settings(generic(tmp_path, "a", limited)), clock=clock
    ) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", timeout_s=250, mode="batch"))
        await until(lambda: engine.snapshot().active[begun.delegation].state == "waiting")
        await later(engine, clock, 260)
        done = await ended(engine, begun)
        assert done.state in ("failed", "refused")
        assert len(done.attempts) == 1


# --- a machine that runs short -------------------------------------------------------------------


async def test_a_shortage_that_an_agent_reports_leaves_it_in_rotation(
    tmp_path: Path,
) -> None:
    short = "cat >/dev/null; echo 'Error: Too many open files (os error 24)' >&2; exit 1"
    config = settings(generic(tmp_path, "a", short), generic(tmp_path, "b"))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        assert state_of(engine, "a") == "healthy"


async def test_attempts_begin_one_after_another_where_few_descriptors_are_left(
    tmp_path: Path,
) -> None:
    body = """
        cat >/dev/null
        mkdir "$PLACE/runs-now" || echo overlap >>"$PLACE/overlaps"
        sleep 0.1
        rmdir "$PLACE/runs-now"
        echo done
    """
    config = settings(generic(tmp_path, "a", body))
    async with engine_in(tmp_path, config, has_room=lambda beginning: False) as engine:
        begun = []
        for name in "xyz":
            (tmp_path / name).mkdir()
            work_there = NewWork(prompt="x", backend="a", cwd=str(tmp_path / name))
            begun.append(await engine.delegate(work_there))
        states = [(await ended(engine, one)).state for one in begun]
        assert states == ["succeeded"] * 3
        assert not (tmp_path / "overlaps").exists()


async def test_work_is_refused_for_want_of_descriptors_before_it_is_accepted(
    tmp_path: Path,
) -> None:
    def shortage(beginning: int) -> str | None:
        return None if beginning < 1 else "20 of 24 file descriptors are in use"

    config = settings(generic(tmp_path, "a", HANGS))
    async with engine_in(tmp_path, config, shortage=shortage) as engine:
        engine.admitting = 1  # another caller's work, accepted a moment ago
        with pytest.raises(Draining, match="file descriptors are in use"):
            await engine.delegate(NewWork(prompt="x", backend="a"))
