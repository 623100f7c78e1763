"""Real programs and a scripted provider that fail, wait, and fail again."""

from pathlib import Path

from tests.engine.test_http_backends import api, engine_for
from tests.support.clock import ManualClock
from tests.support.provider import provider
from tests.support.running_engine import (
    Agent,
    agent,
    ended,
    engine_in,
    settings,
    state_of,
    tried,
    until,
    work,
)
from tests.support.scripts import runs_of, says, script

from fallbackd.core.records import Attempt, Delegation
from fallbackd.engine.api import Engine
from fallbackd.engine.requests import NewWork

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
BEGINS = says({"type": "thread.started", "thread_id": "t"}, {"type": "turn.started"})
FAILS = says(
    {"type": "error", "message": "Reconnecting... 1/5 (unexpected status 503: overloaded)"}
)
TEXT = says({"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": "hm"}})
ENDS = says({"type": "turn.completed"})
TOOL = {"id": "t", "type": "command_execution", "command": "ls"}
RUNS_A_TOOL = says({"type": "item.started", "item": TOOL}, {"type": "item.completed", "item": TOOL})


def gate(name: str) -> str:
    """A step of a script: wait until the test has made this file."""
    return f'while [ ! -e "$PLACE/{name}" ]; do sleep 0.02; done\n'


def codex(place: Path, body: str) -> Agent:
    head = 'cat >/dev/null\necho >> "$PLACE/a.runs"\n'
    return agent("a", script(place, "a", head + body), "--json", kind="codex")


def other(place: Path) -> Agent:
    return agent("b", script(place, "b", ANSWERS))


async def later(engine: Engine, clock: ManualClock, by_s: float) -> None:
    clock.advance(by_s)
    await engine.look_at_clock()


def last_of(engine: Engine, begun: Delegation) -> Attempt | None:
    found = engine.snapshot().active.get(begun.delegation)
    return None if found is None else found.attempts[-1]


async def is_failing(engine: Engine, begun: Delegation) -> Attempt:
    """Wait until the core knows of the program's failure."""
    found: Attempt = await until(
        lambda: (one := last_of(engine, begun)) and one.failure is not None and one
    )
    return found


async def test_a_retry_of_the_engine_is_not_stopped_while_it_is_answered(tmp_path: Path) -> None:
    clock = ManualClock()
    overloaded = says(
        {"type": "turn.failed", "error": {"message": "unexpected status 503: overloaded"}}
    )
    body = (
        f"{BEGINS}\nif [ ! -e $PLACE/again ]; then touch $PLACE/again\n{overloaded}\nexit 1; fi\n"
    )
    body += gate("go") + TEXT + ENDS
    config = settings(codex(tmp_path, body), other(tmp_path))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", mode="interactive"))
        await until(
            lambda: any(one.failure for one in engine.snapshot().active[begun.delegation].attempts)
        )
        await later(engine, clock, 3)  # the wait may be over already: it is one of two seconds
        await until(lambda: runs_of(tmp_path, "a") == 2)
        await later(engine, clock, 60)
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert tried(done) == [("a", "overloaded"), ("a", None)]
        assert state_of(engine, "a") == "healthy"


async def test_partial_answers_do_not_renew_patience(tmp_path: Path) -> None:
    clock = ManualClock()
    body = BEGINS + FAILS + gate("one") + TEXT + gate("two") + FAILS + "exec sleep 1000\n"
    config = settings(codex(tmp_path, body), other(tmp_path))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", mode="interactive"))
        until_at = (await is_failing(engine, begun)).patience_until_at
        await later(engine, clock, 3)
        (tmp_path / "one").touch()
        await until(lambda: (one := last_of(engine, begun)) and one.answered_at)
        await later(engine, clock, 3)
        assert (still := last_of(engine, begun)) is not None
        assert still.state == "running", "it was answering"
        (tmp_path / "two").touch()
        done = await ended(engine, begun)
        assert tried(done) == [("a", "overloaded"), ("b", None)]
        assert done.attempts[0].patience_until_at == until_at


async def test_a_tool_call_that_ended_renews_patience(tmp_path: Path) -> None:
    clock = ManualClock()
    body = BEGINS + FAILS + gate("one") + RUNS_A_TOOL + gate("two") + FAILS
    body += gate("three") + TEXT + ENDS
    config = settings(codex(tmp_path, body), other(tmp_path))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", mode="interactive"))
        until_at = (await is_failing(engine, begun)).patience_until_at
        await later(engine, clock, 4)
        (tmp_path / "one").touch()
        await until(lambda: (one := last_of(engine, begun)) and one.patience_until_at is None)
        await later(engine, clock, 4)
        (tmp_path / "two").touch()
        assert (await is_failing(engine, begun)).patience_until_at != until_at
        await later(engine, clock, 4)
        (tmp_path / "three").touch()
        assert tried(await ended(engine, begun)) == [("a", None)]


async def test_a_stated_time_is_not_waited_for_beside_a_healthy_backend(tmp_path: Path) -> None:
    async with provider() as p:
        config = settings(api(p, "a", "google-http"), api(p, "b"))
        async with engine_for(tmp_path, config) as engine:
            p.behave("a", "429", retry_after_s=21)
            done = await work(engine, backend="a", mode="interactive")
            assert tried(done) == [("a", "rate_limit"), ("b", None)]
            assert done.attempts[0].failure is not None
            assert done.attempts[0].failure.wait_s == 21
            assert len(p.calls("a")) == 1


async def test_a_stated_time_is_waited_for_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with provider() as p:
        config = settings(api(p, "a"), api(p, "b"))
        async with engine_for(tmp_path, config, clock=clock) as engine:
            p.behave("a", "429", retry_after_s=20)
            begun = await engine.delegate(NewWork(prompt="x", backend="a", mode="batch"))
            await until(lambda: engine.snapshot().active[begun.delegation].state == "waiting")
            await later(engine, clock, 20)
            done = await ended(engine, begun)
            assert tried(done) == [("a", "rate_limit"), ("a", "rate_limit"), ("b", None)]
            assert len(p.calls("a")) == 2
            assert clock.now() - begun.created_at < 40
