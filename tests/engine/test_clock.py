"""Instants: wakes, clocks that are set, the tick."""

from pathlib import Path

import anyio
import pytest
from tests.support.clock import ManualClock
from tests.support.running_engine import (
    HANG_S,
    Agent,
    Ear,
    agent,
    ended,
    engine_in,
    settings,
    state_of,
    until,
    work,
)
from tests.support.scripts import runs_of, script

from fallbackd.core.decision import WakeAt
from fallbackd.core.events import Reported
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.protocol import Evidence
from fallbackd.engine import callers
from fallbackd.engine.requests import NewWork
from fallbackd.engine.ticker import run_ticker, tick
from fallbackd.engine.timers import Wakes

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
LIMITED = "cat >/dev/null; echo too many >&2; exit 75"
WAITS = "cat >/dev/null; echo 'rate limit, try again in 200 seconds' >&2; exit 75"
DAY_S = 86_400.0
GATED = """
    cat >/dev/null
    echo begun
    echo >> "$PLACE/a.runs"
    while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
    echo done
    """


def of(place: Path, name: str, body: str, **more: float) -> Agent:
    return agent(name, script(place, name, body), **more)


class Woken:
    """What `Wakes` calls."""

    def __init__(self) -> None:
        self.purposes: list[tuple[str, str]] = []
        self._came = anyio.Event()

    async def __call__(self, wake: WakeAt) -> None:
        self.purposes.append((wake.delegation, wake.purpose))
        self._came.set()
        self._came = anyio.Event()

    async def times(self, number: int) -> None:
        with anyio.fail_after(HANG_S):
            while len(self.purposes) < number:
                await self._came.wait()


def wake(delegation: str, at: float, purpose: str = "wait") -> WakeAt:
    return WakeAt(at=at, delegation=DelegationId(delegation), purpose=purpose)  # type: ignore[arg-type]


async def test_wakes_come_in_the_order_of_their_instants() -> None:
    clock, woken = ManualClock(), Woken()
    wakes = Wakes(clock, woken)
    now = clock.now()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wakes.run)
        for name, in_s in (("late", 300), ("early", 100), ("middle", 200), ("never", 9000)):
            wakes.set(wake(name, now + in_s))
        await anyio.wait_all_tasks_blocked()
        assert woken.purposes == []
        clock.advance(301)
        wakes.look()
        await woken.times(3)
        assert [name for name, _ in woken.purposes] == ["early", "middle", "late"]
        tasks.cancel_scope.cancel()


async def test_a_later_order_for_the_same_thing_replaces_the_earlier_one() -> None:
    clock, woken = ManualClock(), Woken()
    wakes = Wakes(clock, woken)
    now = clock.now()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wakes.run)
        wakes.set(wake("d", now + 100))
        wakes.set(wake("d", now + 500))
        wakes.set(wake("d", now + 200, "deadline"))
        wakes.set(wake("gone", now + 50))
        wakes.forget("gone")
        clock.advance(300)
        wakes.look()
        await woken.times(1)
        clock.advance(300)
        wakes.look()
        await woken.times(2)
        assert woken.purposes == [("d", "deadline"), ("d", "wait")]
        tasks.cancel_scope.cancel()


async def test_a_wake_that_is_due_comes_by_itself() -> None:
    clock, woken = ManualClock(), Woken()
    wakes = Wakes(clock, woken)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wakes.run)
        await anyio.wait_all_tasks_blocked()
        wakes.set(wake("d", clock.now() + 0.05))
        await woken.times(1)
        tasks.cancel_scope.cancel()


async def test_nothing_to_come_is_waited_for_without_a_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, woken = ManualClock(), Woken()
    wakes = Wakes(clock, woken)
    limits: list[float | None] = []
    move_on_after = anyio.move_on_after

    def noted(delay: float | None, **more: bool) -> anyio.CancelScope:
        limits.append(delay)
        return move_on_after(delay, **more)

    monkeypatch.setattr("fallbackd.engine.timers.anyio.move_on_after", noted)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wakes.run)
        await anyio.wait_all_tasks_blocked()
        wakes.set(wake("d", clock.now() + 9000))
        await anyio.wait_all_tasks_blocked()
        wakes.forget("d")
        wakes.look()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert limits[0] is None
    assert limits[1] is not None
    assert limits[1:] == [pytest.approx(9000), None]


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S])
async def test_a_clock_that_is_set_while_work_runs_loses_nothing(
    tmp_path: Path, by_s: float
) -> None:
    clock = ManualClock()
    config = settings(of(tmp_path, "a", GATED, stall_s=450), of(tmp_path, "b", LIMITED))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        ear = Ear(engine)
        await work(engine, backend="b", failover=False)
        before = engine.snapshot().health["backend:b"].outage  # type: ignore[index]
        begun = await engine.delegate(NewWork(prompt="x", backend="a", timeout_s=5000))
        await ear.until(lambda heard: heard.shown("attempt.output"))
        clock.set_wall(by_s)
        await engine.look_at_clock()
        after = engine.snapshot().health["backend:b"].outage  # type: ignore[index]
        assert before is not None
        assert after is not None
        assert before.until_at is not None
        assert after.until_at == pytest.approx(before.until_at + by_s)
        assert state_of(engine, "b") == "rate_limited"
        running = engine.snapshot().active[begun.delegation]
        assert running.deadline_at == pytest.approx(clock.now() + 5000, abs=60)
        await engine.look_at_clock()
        assert not (await engine.delegation(begun.delegation)).is_ended
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert done.state == "succeeded"
        assert [one.state for one in done.attempts] == ["succeeded"]


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S])
async def test_limits_hold_on_after_the_clock_was_set(tmp_path: Path, by_s: float) -> None:
    clock = ManualClock()
    config = settings(of(tmp_path, "a", GATED, stall_s=450), of(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await ear.until(lambda heard: heard.shown("attempt.output"))
        clock.set_wall(by_s)
        await engine.look_at_clock()
        clock.advance(300)
        await engine.look_at_clock()
        await anyio.wait_all_tasks_blocked()
        assert not (await engine.delegation(begun.delegation)).is_ended
        clock.advance(200)
        await engine.look_at_clock()
        done = await ended(engine, begun)
        assert done.served_by == "b"
        assert done.attempts[0].failure is not None
        assert done.attempts[0].failure.detail == "silent"


async def test_a_clock_that_was_set_just_before_a_look_at_an_agent_is_no_silence_of_it(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    config = settings(of(tmp_path, "a", GATED, stall_s=450))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await ear.until(lambda heard: heard.shown("attempt.output"))
        clock.advance(400)  # its first look is due
        clock.set_wall(DAY_S)
        engine._wakes.look()
        await anyio.wait_all_tasks_blocked()
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert [one.failure for one in done.attempts] == [None]


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S])
async def test_a_clock_that_is_set_while_work_waits_moves_the_wait(
    tmp_path: Path, by_s: float
) -> None:
    clock = ManualClock()
    once = f'if [ -e "$PLACE/was" ]; then {ANSWERS}; exit; fi; touch "$PLACE/was"; {WAITS}'
    async with engine_in(tmp_path, settings(of(tmp_path, "a", once)), clock=clock) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", mode="batch"))
        await until(lambda: engine.snapshot().active[begun.delegation].state == "waiting")
        clock.set_wall(by_s)
        await engine.look_at_clock()
        clock.advance(150)
        await engine.look_at_clock()
        await anyio.wait_all_tasks_blocked()
        assert engine.snapshot().active[begun.delegation].state == "waiting"
        clock.advance(60)
        await engine.look_at_clock()
        done = await ended(engine, begun)
        assert done.state == "succeeded"
        assert len(done.attempts) == 2


async def test_a_machine_that_slept_is_right_at_the_first_request(tmp_path: Path) -> None:
    clock = ManualClock()
    once = f'if [ -e "$PLACE/was" ]; then {ANSWERS}; exit; fi; touch "$PLACE/was"; {LIMITED}'
    config = settings(of(tmp_path, "a", once), of(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        assert (await work(engine, backend="a")).served_by == "b"
        clock.advance(3600)
        assert (await work(engine, backend="a")).served_by == "a"
        assert state_of(engine, "a") == "healthy"


async def test_the_tick_tells_what_time_has_done(tmp_path: Path) -> None:
    clock = ManualClock()
    config = settings(of(tmp_path, "a", LIMITED), of(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        await work(engine, backend="a", session="s")
        ear = Ear(engine)
        await tick(engine)
        assert ear.heard("health.moved") == []
        for by_s, state in ((301, "cooldown"), (601, "healthy")):
            clock.advance(by_s)
            await tick(engine)
            assert ear.heard("health.moved")[-1].note.fields["to"] == state
        assert [one.note.session for one in ear.heard("session.notice")] == ["s"]
        await tick(engine)
        assert len(ear.heard("session.notice")) == 1
        assert engine.last_tick_at is not None


async def test_the_tick_finds_what_was_installed(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(agent("a", str(tmp_path / "a")))) as engine:
        assert state_of(engine, "a") == "broken"
        script(tmp_path, "a", ANSWERS)
        await tick(engine)
        assert state_of(engine, "a") == "healthy"


async def test_the_tick_drops_what_is_too_old(tmp_path: Path) -> None:
    clock = ManualClock()
    config = settings(of(tmp_path, "a", ANSWERS), of(tmp_path, "b", GATED))
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as engine:
        old = await work(engine, backend="a", session="old")
        clock.advance(8 * DAY_S)
        fresh = await work(engine, backend="a", session="fresh")
        await tick(engine, prune=True)
        assert [one.session for one in await engine.sessions()] == ["fresh"]
        assert await engine.text(old) == "answer of a"
        clock.advance(23 * DAY_S)
        await tick(engine, prune=True)
        assert [one.delegation for one in await engine.delegations()] == [fresh.delegation]
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [fresh.delegation]


async def test_the_ticker_goes_on_when_records_cannot_be_written(tmp_path: Path) -> None:
    from fallbackd.stores.memory import MemoryStore

    store = MemoryStore()
    async with engine_in(tmp_path, settings(of(tmp_path, "a", ANSWERS)), store=store) as engine:
        store.unwritable = "the disk is full"
        ticks = 0
        came = anyio.Event()

        def count() -> None:
            nonlocal ticks
            ticks += 1
            if ticks == 3:
                came.set()

        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: run_ticker(engine, every_s=0.01, on_tick=count))
                await came.wait()
                tasks.cancel_scope.cancel()


async def test_ended_work_leaves_nothing_behind_in_the_engine(tmp_path: Path) -> None:
    config = settings(of(tmp_path, "a", LIMITED), of(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, config) as engine:
        for _ in range(5):
            await work(engine, backend="a", timeout_s=1000)
        assert engine.snapshot().active == {}
        assert engine._held == {}
        assert engine._running._live == {}
        assert engine._wakes._current == {}
        assert runs_of(tmp_path, "a") == 0


@pytest.mark.parametrize("by_s", [DAY_S, -7200.0])
async def test_what_a_provider_states_counts_from_the_clock_as_it_is_set_by_then(
    tmp_path: Path, by_s: float
) -> None:
    clock = ManualClock()
    seen = Reported(outcome="failure", backend=BackendId("a"))
    limited = Evidence(http_status=429, headers={"retry-after": "600"}, stream="http")
    async with engine_in(tmp_path, settings(of(tmp_path, "a", ANSWERS)), clock=clock) as engine:
        clock.set_wall(by_s)
        await callers.report(engine, seen, evidence=limited)
        (until_at,) = (
            one.outage.until_at for one in engine.store.peek().health.values() if one.outage
        )
        assert until_at == pytest.approx(clock.now() + 600, abs=HANG_S)
