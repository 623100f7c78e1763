"""What was started is gone before anything follows it."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.support.running_engine import (
    HANG_S,
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
from tests.transports.programs import is_alive, read_pid

from fallbackd.core.decision import WakeWaiting
from fallbackd.core.protocol import Call, Chunk, Exit, ProcessExit
from fallbackd.core.reasons import Reason
from fallbackd.engine.requests import Draining, NewWork

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
HANGS = 'cat >/dev/null; echo $$ > "$PLACE/$(basename $0).pid"; exec sleep 1000'
STUBBORN = """
    cat >/dev/null
    trap '' TERM
    (trap '' TERM; echo $(sh -c 'echo $PPID') > "$PLACE/child.pid"; while :; do sleep 1; done) &
    setsid sh -c 'trap "" TERM; echo $$ > "$0/far.pid"; while :; do sleep 1; done' "$PLACE" &
    while [ ! -s "$PLACE/child.pid" ] || [ ! -s "$PLACE/far.pid" ]; do sleep 0.02; done
    echo $$ > "$PLACE/a.pid"
    echo all of us are there
    while :; do sleep 1; done
    """
LOOKS = """
    cat >/dev/null
    for name in a child far; do
        kill -0 $(cat "$PLACE/$name.pid") 2>/dev/null && echo "$name is there"
    done
    echo looked
    """


async def test_a_stubborn_family_is_gone_before_the_next_one_starts(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", STUBBORN), stall_s=0.2)
    b = agent("b", script(tmp_path, "b", LOOKS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        assert await engine.text(done) == "looked"
        assert done.attempts[0].gone is True
        for name in ("a", "child", "far"):
            assert not is_alive(await read_pid(tmp_path / f"{name}.pid"))


async def test_cancel_returns_when_the_work_is_proven_stopped(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", STUBBORN)), agent("b", "true"))
    async with engine_in(tmp_path, config) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        pids = [await read_pid(tmp_path / f"{name}.pid") for name in ("a", "child", "far")]
        done = await engine.cancel(begun.delegation)
        assert done.state == "cancelled"
        assert done.attempts[0].state == "cancelled"
        assert not any(is_alive(pid) for pid in pids)
        assert state_of(engine, "a") == "healthy"
        assert len(done.attempts) == 1


async def test_cancel_twice_and_at_once_ends_it_once(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", HANGS)))
    async with engine_in(tmp_path, config) as engine:
        ear = Ear(engine)
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.cancel, begun.delegation)
            tasks.start_soon(engine.cancel, begun.delegation)
        done = await engine.cancel(begun.delegation)
        assert done.state == "cancelled"
        assert len(ear.heard("delegation.ended")) == 1


async def test_what_is_cancelled_before_its_start_never_starts(tmp_path: Path) -> None:
    is_looking, may_go_on = threading.Event(), threading.Event()

    def look(directory: str) -> dict[str, tuple[int, int]]:
        is_looking.set()
        assert may_go_on.wait(HANG_S)
        return {}

    config = settings(agent("a", script(tmp_path, "a", HANGS)))
    async with engine_in(tmp_path, config, fingerprint=look) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(is_looking.is_set)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.cancel, begun.delegation)
            await anyio.wait_all_tasks_blocked()
            may_go_on.set()
        done = await engine.delegation(begun.delegation)
        assert done.state == "cancelled"
        assert done.attempts[0].pid is None
        assert not (tmp_path / "a.pid").exists()


async def test_work_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    limited = "cat >/dev/null; echo 'rate limit, try again in 200 seconds' >&2; exit 75"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", limited)))) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", mode="batch"))
        await until(lambda: engine.snapshot().active[begun.delegation].state == "waiting")
        assert (await engine.cancel(begun.delegation)).state == "cancelled"


class _Immortal:
    """A program whose end nobody can prove: the edge that no real process shows on demand."""

    pid = 1
    log_bytes = 0

    def __init__(self) -> None:
        self._stopped = anyio.Event()
        self._is_over = False

    async def chunks(self) -> AsyncIterator[Chunk]:
        yield Chunk("stdout", b"begun\n", 0.0)
        await self._stopped.wait()
        self._is_over = True

    def stop(self, *, grace_s: float) -> None:
        self._stopped.set()

    @property
    def exit(self) -> Exit:
        assert self._is_over
        return ProcessExit(gone=False, stopped=True)


class _Immortals:
    def __init__(self) -> None:
        self.opened = 0

    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> _Immortal:
        self.opened += 1
        return _Immortal()

    async def aclose(self) -> None: ...


async def test_without_proof_of_the_end_nothing_follows(tmp_path: Path) -> None:
    transport = _Immortals()
    config = settings(agent("a", "true", stall_s=0.2), agent("b", "true"))
    async with engine_in(tmp_path, config, transport=transport) as engine:
        done = await work(engine, backend="a")
        assert done.state == "failed"
        assert done.attempts[0].gone is False
        assert transport.opened == 1
        assert done.message is not None
        assert "could not be stopped" in done.message


class _Unread:
    """A program that has answered well, and was stopped before all of it was read."""

    pid = 1
    log_bytes = 0
    exit: Exit = ProcessExit(gone=True, code=0, unread_bytes=1_000_000)

    async def chunks(self) -> AsyncIterator[Chunk]:
        yield Chunk("stdout", b"the beginning of an answer\n", 0.0)

    def stop(self, *, grace_s: float) -> None: ...


class _Unreads:
    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> _Unread:
        return _Unread()

    async def aclose(self) -> None: ...


async def test_the_part_of_an_answer_that_was_read_is_not_told_as_the_answer(
    tmp_path: Path,
) -> None:
    config = settings(agent("a", "true"))
    async with engine_in(tmp_path, config, transport=_Unreads()) as engine:
        done = await work(engine, backend="a", failover=False)
        assert done.state != "succeeded"
        assert done.attempts[0].effects == "possible"  # of what was not read


async def test_the_end_of_the_engine_leaves_no_process(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", STUBBORN)))
    async with engine_in(tmp_path, config) as engine:
        await engine.delegate(NewWork(prompt="x", backend="a"))
        pids = [await read_pid(tmp_path / f"{name}.pid") for name in ("a", "child", "far")]
    assert not any(is_alive(pid) for pid in pids)


async def test_a_draining_engine_takes_nothing_new_and_finishes_what_runs(tmp_path: Path) -> None:
    slow = """
        cat >/dev/null; echo $$ > "$PLACE/a.pid"
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        exit 75
        """
    a = agent("a", script(tmp_path, "a", slow))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await read_pid(tmp_path / "a.pid")
        engine.drain()
        with pytest.raises(Draining, match="draining"):
            await engine.delegate(NewWork(prompt="y", backend="b"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: engine.finish_work(limit_s=HANG_S))
            (tmp_path / "go").touch()
        done = await engine.delegation(begun.delegation)
        assert done.served_by == "b"  # the hop of running work is no new work


async def test_what_does_not_finish_in_time_is_stopped_all_at_once(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", HANGS)))
    async with engine_in(tmp_path, config) as engine:
        begun = [await engine.delegate(NewWork(prompt="x", backend="a")) for _ in range(3)]
        await read_pid(tmp_path / "a.pid")
        engine.drain()
        await engine.finish_work(limit_s=0.1)
        for one in begun:
            found = await engine.delegation(one.delegation)
            assert found.state == "cancelled"
            assert found.message == "stopped with the daemon"
            assert all(attempt.gone for attempt in found.attempts)


async def test_work_that_waits_for_a_directory_ends_with_the_daemon(tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    config = settings(agent("a", script(tmp_path, "a", HANGS)))
    async with engine_in(tmp_path, config) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(place)))
        waits = await engine.delegate(NewWork(prompt="y", backend="a", cwd=str(place)))
        engine.drain()
        with anyio.fail_after(HANG_S):
            await engine.finish_work(limit_s=0)
        assert (await ended(engine, begun)).state == "cancelled"
        assert (await ended(engine, waits)).state == "cancelled"


async def test_a_program_that_is_killed_has_crashed(tmp_path: Path) -> None:
    crashes = "cat >/dev/null; kill -9 $$"
    a = agent("a", script(tmp_path, "a", crashes))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        assert tried(done) == [("a", Reason.CRASH.value), ("b", None)]
        assert done.attempts[0].exit_code == -9


def _pids(place: Path, name: str) -> list[int]:
    path = place / f"{name}.pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


INNER = 'cat >/dev/null; echo $$ >> "$PLACE/inner.pids"; exec sleep 1000'


async def test_nested_work_is_gone_before_its_parent_hops(tmp_path: Path) -> None:
    """While the second one looks, nothing of the first one's nested work is there."""
    limited = """
        cat >/dev/null
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        echo 'Error: 429 Too Many Requests' >&2; exit 1
        """
    looks = """
        cat >/dev/null
        kill -0 $(cat "$PLACE/inner.pids") 2>/dev/null && echo still there
        echo looked
        """
    outer = agent("outer", script(tmp_path, "outer", limited))
    inner = agent("inner", script(tmp_path, "inner", INNER))
    works = agent("works", script(tmp_path, "works", looks))
    place = tmp_path / "work"
    place.mkdir()
    config = settings(outer, inner, works, chain=("works",))
    async with engine_in(tmp_path, config) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="outer", cwd=str(place)))
        child = await engine.delegate(
            NewWork(
                prompt="y",
                backend="inner",
                cwd=str(place),
                parent=f"{begun.delegation}.1",
                failover=False,
            )
        )
        await until(lambda: _pids(tmp_path, "inner"))
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert done.served_by == "works"
        assert await engine.text(done) == "looked"
        assert (await ended(engine, child)).state == "cancelled"


async def test_cancel_returns_when_nested_work_is_gone_too(tmp_path: Path) -> None:
    outer = agent("outer", script(tmp_path, "outer", HANGS))
    inner = agent("inner", script(tmp_path, "inner", INNER))
    async with engine_in(tmp_path, settings(outer, inner)) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="outer", cwd=str(tmp_path)))
        await read_pid(tmp_path / "outer.pid")
        child = await engine.delegate(
            NewWork(prompt="y", backend="inner", cwd=str(tmp_path), parent=begun.delegation)
        )
        await until(lambda: _pids(tmp_path, "inner"))
        assert (await engine.cancel(begun.delegation)).state == "cancelled"
        assert not any(is_alive(pid) for pid in _pids(tmp_path, "inner"))
        assert (await engine.delegation(child.delegation)).state == "cancelled"


async def test_what_is_decided_after_its_end_is_left_to_the_next_process(tmp_path: Path) -> None:
    """A tick that was under way when it was stopped, and a request."""
    config = settings(agent("a", script(tmp_path, "a", "echo >> $PLACE/a.runs")))
    async with engine_in(tmp_path, config) as engine:
        pass
    engine._perform(WakeWaiting())
    begun = await engine.delegate(NewWork(prompt="x", backend="a"))
    assert engine.snapshot().active[begun.delegation].running is not None
    assert runs_of(tmp_path, "a") == 0


async def test_what_would_begin_while_the_daemon_stops_its_work_begins_with_the_next_one(
    tmp_path: Path,
) -> None:
    """As of work whose question about an outage is closed in that moment."""
    config = settings(agent("a", script(tmp_path, "a", 'echo >> "$PLACE/a.runs"\n' + ANSWERS)))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as engine:
        await engine.finish_work(limit_s=0)
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await engine.waking.wake_waiting()
    assert runs_of(tmp_path, "a") == 0
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        assert (await ended(engine, begun)).state == "succeeded"
    assert runs_of(tmp_path, "a") == 1
