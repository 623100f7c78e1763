"""How a delegation goes from backend to backend."""

from pathlib import Path

import anyio
from tests.support.clock import ManualClock
from tests.support.running_engine import (
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
from tests.support.scripts import runs_of, script

from fallbackd.core.reasons import Reason, ReasonPolicy
from fallbackd.engine import feedback
from fallbackd.engine.requests import NewWork

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
NO_COOLDOWN = ReasonPolicy(window_s=300, cooldown_s=0, max_window_s=3600)
LIMITED = 'cat >/dev/null; echo >> "$PLACE/$(basename $0).runs"; echo too many >&2; exit 75'


async def test_an_answer_comes_from_the_backend_that_was_asked(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        assert done.state == "succeeded"
        assert done.served_by == "a"
        assert done.hops == ()
        assert tried(done) == [("a", None)]
        assert await engine.text(done) == "answer of a"


async def test_exit_75_marks_the_backend_and_the_next_one_answers(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", LIMITED))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        assert tried(done) == [("a", "rate_limit"), ("b", None)]
        assert done.attempts[0].exit_code == 75
        (hop,) = done.hops
        assert (hop.from_backend, hop.to_backend) == ("a", "b")
        assert (hop.trigger, hop.reason) == ("reactive", "rate_limit")
        assert state_of(engine, "a") == "rate_limited"
        # The one decision that ends the first orders the second: nothing lies between them.
        assert done.attempts[1].started_at == done.attempts[0].ended_at


async def test_a_backend_that_is_out_is_skipped_without_an_attempt(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", LIMITED))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        await work(engine, backend="a")
        done = await work(engine, backend="a")
        assert tried(done) == [("b", None)]
        assert [(hop.trigger, hop.reason) for hop in done.hops] == [("preemptive", "rate_limit")]
        assert runs_of(tmp_path, "a") == 1


async def test_programs_that_refuse_the_flags_end_no_walk_and_are_not_tried_again(
    tmp_path: Path,
) -> None:
    refuses = """cat >/dev/null; echo >> "$PLACE/$(basename $0).runs"
        echo "error: unexpected argument '--json' found" >&2; exit 2"""
    old = [agent(name, script(tmp_path, name, refuses)) for name in ("a", "b")]
    c = agent("c", script(tmp_path, "c", ANSWERS))
    async with engine_in(tmp_path, settings(*old, c)) as engine:
        done = await work(engine, backend="a")
        assert tried(done) == [("a", "not_configured"), ("b", "not_configured"), ("c", None)]
        failure = done.attempts[0].failure
        assert failure is not None
        assert failure.detail == "version"
        assert state_of(engine, "a") == state_of(engine, "b") == "broken"
        assert tried(await work(engine, backend="a")) == [("c", None)]
        assert runs_of(tmp_path, "a") == 1


async def test_an_overloaded_backend_is_tried_once_more_and_then_left(tmp_path: Path) -> None:
    overloaded = 'cat >/dev/null; echo "HTTP 529 overloaded_error: Overloaded" >&2; exit 1'
    a = agent("a", script(tmp_path, "a", overloaded))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    config = settings(a, b, defaults={"backoff_base_s": 0.3})
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        assert tried(done) == [("a", "overloaded"), ("a", "overloaded"), ("b", None)]
        first, second, _ = done.attempts
        assert second.retry_of == first.attempt
        assert first.ended_at is not None
        assert second.started_at - first.ended_at >= 0.3
        assert [hop.to_backend for hop in done.hops] == ["b"]


async def test_a_stated_time_within_the_threshold_is_waited_for(tmp_path: Path) -> None:
    clock = ManualClock()
    once = """
        cat >/dev/null
        if [ -e "$PLACE/was" ]; then echo back again; exit 0; fi
        touch "$PLACE/was"
        echo "rate limit reached, try again in 40 seconds" >&2
        exit 75
        """
    a = agent("a", script(tmp_path, "a", once))
    async with engine_in(tmp_path, settings(a), clock=clock) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", mode="batch"))
        ear = Ear(engine)
        await until(lambda: engine.snapshot().active[begun.delegation].state == "waiting")
        waiting = await engine.delegation(begun.delegation)
        assert waiting.waiting is not None
        clock.advance(41)
        await engine.look_at_clock()
        done = await ended(engine, begun)
        assert done.served_by == "a"
        assert tried(done) == [("a", "rate_limit"), ("a", None)]
        assert done.hops == ()
        assert ear.heard("delegation.ended")


async def test_fifty_at_the_end_of_a_window_put_one_on_the_backend(tmp_path: Path) -> None:
    clock = ManualClock()
    a = agent("a", script(tmp_path, "a", LIMITED))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    config = settings(a, b, reasons={Reason.RATE_LIMIT: NO_COOLDOWN})
    async with engine_in(tmp_path, config, clock=clock) as engine:
        await work(engine, backend="a")
        assert runs_of(tmp_path, "a") == 1
        clock.advance(301)
        found = []

        async def one() -> None:
            found.append(await work(engine, backend="a"))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(one)
        assert [done.served_by for done in found] == ["b"] * 50
        assert runs_of(tmp_path, "a") == 2
        assert state_of(engine, "a") == "rate_limited"


async def test_fifty_who_have_nobody_else_wait_for_one_trial_and_are_told_when(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    config = settings(
        agent("a", script(tmp_path, "a", LIMITED)), reasons={Reason.RATE_LIMIT: NO_COOLDOWN}
    )
    async with engine_in(tmp_path, config, clock=clock) as engine:
        await work(engine, backend="a")
        clock.advance(301)
        begun = [await engine.delegate(NewWork(prompt="x", backend="a")) for _ in range(50)]
        found = [await ended(engine, one) for one in begun]
        assert {done.state for done in found} == {"refused"}
        assert all(done.retry_at is not None for done in found)
        assert sum(len(done.attempts) for done in found) == 1
        assert runs_of(tmp_path, "a") == 2


async def test_ten_parallel_failures_count_as_one(tmp_path: Path) -> None:
    together = """
        cat >/dev/null
        echo >> "$PLACE/a.runs"
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        exit 75
        """
    a = agent("a", script(tmp_path, "a", together))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        begun = [await engine.delegate(NewWork(prompt="x", backend="a")) for _ in range(10)]
        await until(lambda: runs_of(tmp_path, "a") == 10)
        (tmp_path / "go").touch()
        for one in begun:
            assert (await ended(engine, one)).served_by == "b"
        outage = engine.snapshot().health["backend:a"].outage  # type: ignore[index]
        assert outage is not None
        assert outage.count == 1


async def test_a_success_that_began_before_the_mark_clears_nothing(tmp_path: Path) -> None:
    waits = """
        cat >/dev/null
        echo >> "$PLACE/a.runs"
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        echo late
        """
    config = settings(agent("a", script(tmp_path, "a", waits)))
    async with engine_in(tmp_path, config) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: runs_of(tmp_path, "a") == 1)
        await feedback.mark(engine, "a", reason="rate_limit", ttl_s=None, note=None)
        (tmp_path / "go").touch()
        assert (await ended(engine, begun)).state == "succeeded"
        assert state_of(engine, "a") == "rate_limited"


async def test_a_prompt_that_every_program_dies_of_marks_nobody(tmp_path: Path) -> None:
    dies = "cat >/dev/null; exit 1"
    agents = [agent(name, script(tmp_path, name, dies)) for name in ("a", "b", "c")]
    async with engine_in(tmp_path, settings(*agents)) as engine:
        done = await work(engine, backend="a")
        assert done.state == "failed"
        assert [backend for backend, _ in tried(done)] == ["a", "b"]
        assert {state_of(engine, name) for name in ("a", "b", "c")} == {"healthy"}


async def test_the_next_backend_is_told_what_was_changed(tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    a = agent("a", script(tmp_path, "a", "cat >/dev/null; echo half > made.txt; exit 75"))
    b = agent("b", script(tmp_path, "b", "cat"))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, "the task itself", backend="a", cwd=str(place))
        first = done.attempts[0]
        assert first.effects == "seen"
        assert first.changed_files == ("made.txt",)
        text = await engine.text(done)
        assert text is not None
        assert "It was a, and it ended with rate_limit." in text
        assert "made.txt" in text
        assert text.startswith("the task itself\n\nNote:")


async def test_work_that_was_begun_ends_the_walk_where_the_caller_wants_it(
    tmp_path: Path,
) -> None:
    place = tmp_path / "project"
    place.mkdir()
    a = agent("a", script(tmp_path, "a", "cat >/dev/null; echo half > made.txt; exit 75"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a", cwd=str(place), on_partial="fail")
        assert done.state == "failed"
        assert done.failure is not None
        assert done.failure.reason is Reason.RATE_LIMIT
        assert tried(done) == [("a", "rate_limit")]


async def test_a_caller_that_wants_no_fallback_gets_none(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", LIMITED))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a", failover=False)
        assert done.state == "refused"
        assert tried(done) == [("a", "rate_limit")]
        assert done.retry_at is not None


async def test_nobody_left_is_refused_with_the_earliest_return(tmp_path: Path) -> None:
    stated = "cat >/dev/null; echo 'usage limit reached, try again in 2 hours' >&2; exit 75"
    a = agent("a", script(tmp_path, "a", LIMITED))
    b = agent("b", script(tmp_path, "b", stated))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        assert done.state == "refused"
        assert tried(done) == [("a", "rate_limit"), ("b", "usage_limit")]
        assert done.retry_at is not None
        assert 200 < done.retry_at - engine.clock.now() < 301
        verdicts = {one.backend: one.until_at for one in done.verdicts}
        assert verdicts["b"] is not None
        assert 7000 < verdicts["b"] - engine.clock.now() < 7201


async def test_the_story_tells_why_each_step_was_taken(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", LIMITED))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        outcomes = [one.outcome for one in await engine.story(done.delegation)]
        assert any("leaves a: rate_limit" in one for one in outcomes)
        assert any(one.startswith(f"starts {done.delegation}.2 on b") for one in outcomes)
        assert outcomes[-1] == "succeeded"
