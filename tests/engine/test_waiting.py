"""Work that waits for something, and callers that wait for work."""

from pathlib import Path

import anyio
import pytest
from msgspec import structs
from tests.support.clock import ManualClock
from tests.support.running_engine import (
    HANG_S,
    Agent,
    Ear,
    agent,
    ended,
    engine_in,
    settings,
    until,
    work,
)
from tests.support.scripts import runs_of, script

from fallbackd.core.ids import DelegationId
from fallbackd.engine import feedback
from fallbackd.engine.requests import NewWork, Refused, Unknown

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
GATED = """
    cat >/dev/null
    echo >> "$PLACE/a.runs"
    while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
    echo done
    """


def gated(place: Path) -> Agent:
    """Answers once the file `go` is there."""
    return agent("a", script(place, "a", GATED))


async def test_work_in_a_directory_waits_for_the_work_before_it(tmp_path: Path) -> None:
    place = tmp_path / "project"
    (place / "below").mkdir(parents=True)
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(gated(tmp_path), b)) as engine:
        first = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(place)))
        await until(lambda: runs_of(tmp_path, "a") == 1)
        second = await engine.delegate(NewWork(prompt="x", backend="b", cwd=str(place / "below")))
        assert (second.state, second.blocked_by) == ("queued", first.delegation)
        (tmp_path / "go").touch()
        done = await ended(engine, second)
        assert (done.served_by, done.blocked_by) == ("b", None)
        one = await engine.delegation(first.delegation)
        assert one.ended_at is not None
        assert done.attempts[0].started_at is not None
        assert done.attempts[0].started_at >= one.ended_at


async def test_work_that_waits_for_a_directory_outlives_the_daemon(tmp_path: Path) -> None:
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as engine:
        first = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path)))
        await until(lambda: runs_of(tmp_path, "a") == 1)
        second = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path)))
    async with engine_in(tmp_path, config, store="sqlite") as later:
        assert (await later.delegation(second.delegation)).blocked_by == first.delegation
        (tmp_path / "go").touch()
        assert (await ended(later, first)).state == "succeeded"
        assert (await ended(later, second)).state == "succeeded"


async def test_a_directory_that_is_in_use_is_refused_at_once_where_the_caller_wants_that(
    tmp_path: Path,
) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        first = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path)))
        with pytest.raises(Refused) as refused:
            await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path), queue=False))
        assert refused.value.rejection.kind == "workspace"
        assert refused.value.rejection.data["delegation"] == first.delegation
        (tmp_path / "go").touch()
        assert (await ended(engine, first)).state == "succeeded"


async def test_a_directory_is_waited_for_until_the_deadline_of_the_work(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path)))
        late = await work(engine, backend="a", cwd=str(tmp_path), timeout_s=0.2)
        assert late.state == "failed"
        assert late.attempts == ()


async def test_work_without_the_lock_shares_a_directory(tmp_path: Path) -> None:
    config = settings(gated(tmp_path), defaults={"workspace_lock": "off"})
    async with engine_in(tmp_path, config) as engine:
        begun = [
            await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path)))
            for _ in range(2)
        ]
        await until(lambda: runs_of(tmp_path, "a") == 2)
        (tmp_path / "go").touch()
        assert {(await ended(engine, one)).state for one in begun} == {"succeeded"}


async def test_work_from_inside_an_attempt_shares_its_directory(tmp_path: Path) -> None:
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(gated(tmp_path), b)) as engine:
        outer = await engine.delegate(
            NewWork(prompt="x", backend="a", cwd=str(tmp_path), session="s")
        )
        inner = await work(engine, backend="b", cwd=str(tmp_path), parent=outer.delegation)
        assert inner.served_by == "b"
        assert inner.nesting == 1
        assert inner.session != "s"
        (tmp_path / "go").touch()
        await ended(engine, outer)


async def test_work_of_a_process_that_several_share_is_that_of_each(tmp_path: Path) -> None:
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(gated(tmp_path), b)) as engine:
        outer = [
            await engine.delegate(
                NewWork(prompt="x", backend="a", permissions="read", timeout_s=limit_s)
            )
            for limit_s in (9000, 5000)
        ]
        attempts = [f"{one.delegation}.1" for one in outer]
        for each in outer:
            await until(lambda each=each: engine.store.peek().active[each.delegation].running)
        both, one = engine.authority_of(tuple(attempts)), engine.authority_of((attempts[0],))
        asked = NewWork(prompt="y", backend="b", permissions="read", request_id="r")
        made = await engine.delegate(asked, authority=both)
        assert made.above == tuple(each.delegation for each in outer)
        assert both.has_begun(made)
        assert made.deadline_at == outer[1].deadline_at
        assert (await engine.delegate(asked, authority=one)).delegation == made.delegation
        alone = structs.replace(asked, request_id="r2")
        own = await engine.delegate(alone, authority=one)
        assert (await engine.delegate(alone, authority=both)).delegation != own.delegation
        (tmp_path / "go").touch()
        for each in (made, *outer):
            await ended(engine, each)


async def test_work_from_inside_goes_two_levels_deep(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        parent = None
        begun = []
        for nesting in range(3):
            made = await engine.delegate(NewWork(prompt="x", backend="a", parent=parent))
            assert made.nesting == nesting
            begun.append(made)
            parent = f"{made.delegation}.1"  # as an attempt's environment names it
        with pytest.raises(Refused) as refused:
            await engine.delegate(NewWork(prompt="x", backend="a", parent=parent))
        assert refused.value.rejection.kind == "nesting"
        (tmp_path / "go").touch()
        for one in begun:
            await ended(engine, one)


async def test_children_know_which_delegation_they_belong_to(tmp_path: Path) -> None:
    body = "cat >/dev/null; echo $FALLBACKD_DELEGATION $FALLBACKD_ATTEMPT"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, backend="a")
        assert await engine.text(done) == f"{done.delegation} {done.delegation}.1"


async def test_more_than_may_run_is_queued_until_there_is_a_place(tmp_path: Path) -> None:
    config = settings(gated(tmp_path), defaults={"max_running": 2})
    async with engine_in(tmp_path, config) as engine:
        begun = [await engine.delegate(NewWork(prompt="x", backend="a")) for _ in range(5)]
        await until(lambda: runs_of(tmp_path, "a") == 2)
        states = [one.state for one in engine.snapshot().active.values()]
        assert sorted(states) == ["queued"] * 3 + ["running"] * 2
        (tmp_path / "go").touch()
        for one in begun:
            assert (await ended(engine, one)).state == "succeeded"
        assert runs_of(tmp_path, "a") == 5


async def test_one_session_has_one_delegation_at_a_time(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a", session="s"))
        with pytest.raises(Refused) as refused:
            await engine.delegate(NewWork(prompt="y", backend="a", session="s", queue=False))
        assert refused.value.rejection.kind == "busy"
        assert refused.value.rejection.data["delegation"] == begun.delegation
        (tmp_path / "go").touch()
        await ended(engine, begun)
        again = await work(engine, backend="a", session="s")
        assert again.state == "succeeded"


async def test_work_that_waited_for_its_directory_keeps_its_session(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        first, second = [
            await engine.delegate(NewWork(prompt="x", backend="a", session=name, cwd=str(tmp_path)))
            for name in ("one", "two")
        ]
        assert (first.state, second.state) == ("running", "queued")
        (tmp_path / "go").touch()
        assert (await ended(engine, second)).state == "succeeded"
        assert (await engine.session("two")).current == "a"


async def test_the_same_request_is_the_same_delegation(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        asked = NewWork(prompt="x", backend="a", request_id="r1")
        found = []

        async def ask() -> None:
            found.append((await engine.delegate(asked)).delegation)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ask)
        assert len(set(found)) == 1
        (tmp_path / "go").touch()
        await ended(engine, found[0])
        later = await engine.delegate(
            NewWork(prompt="x", backend="a", request_id="r1", wait="accepted")
        )
        assert later.delegation == found[0]
        assert later.state == "succeeded"
        assert runs_of(tmp_path, "a") == 1
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [found[0]]


async def test_the_same_request_id_for_something_else_is_refused(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config) as engine:
        await work(engine, "one", backend="a", request_id="r1")
        with pytest.raises(Refused) as refused:
            await engine.delegate(NewWork(prompt="other", backend="a", request_id="r1"))
        assert refused.value.rejection.kind == "request_id"


async def test_settled_is_the_first_output(tmp_path: Path) -> None:
    body = """
        cat >/dev/null
        echo begun
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        """
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        found, is_over = await engine.wait(begun.delegation, until="settled", timeout_s=HANG_S)
        assert is_over
        assert found.state == "running"
        (tmp_path / "go").touch()
        await ended(engine, begun)


async def test_settled_is_the_end_where_there_is_no_output(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", "cat >/dev/null; exit 75")))
    async with engine_in(tmp_path, config) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        found, is_over = await engine.wait(begun.delegation, until="settled", timeout_s=HANG_S)
        assert is_over
        assert found.is_ended


async def test_the_end_of_a_wait_is_not_the_end_of_the_work(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        found, is_over = await engine.wait(begun.delegation, until="finished", timeout_s=0.05)
        assert not is_over
        assert not found.is_ended
        (tmp_path / "go").touch()
        assert (await ended(engine, begun)).state == "succeeded"


async def test_work_goes_on_when_its_caller_is_gone(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        ear = Ear(engine)

        async def call() -> None:
            await work(engine, backend="a")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: runs_of(tmp_path, "a") == 1)
            tasks.cancel_scope.cancel()
        (tmp_path / "go").touch()
        note = (await ear.hears("delegation.ended")).note
        assert note.fields["state"] == "succeeded"
        assert note.delegation is not None
        assert await engine.text(await engine.delegation(note.delegation)) == "done"


async def test_a_caller_that_goes_while_it_is_admitted_leaves_nothing_half(
    tmp_path: Path,
) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        ear = Ear(engine)
        for checkpoints in range(6):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.delegate, NewWork(prompt="x", backend="a"))
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        accepted = {one.note.delegation for one in ear.heard("delegation.accepted")}
        await ear.hears("delegation.ended", times=len(accepted))
        assert {path.name for path in (tmp_path / "runs").iterdir()} == accepted
        assert engine.snapshot().active == {}


async def test_where_a_trial_is_under_way_others_wait_for_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with engine_in(tmp_path, settings(gated(tmp_path)), clock=clock) as engine:
        await feedback.mark(engine, "a", reason="timeout", ttl_s=None, note=None)
        clock.advance(120)
        trial = await engine.delegate(NewWork(prompt="x", backend="a"))
        others = [await engine.delegate(NewWork(prompt="y", backend="a")) for _ in range(3)]
        assert trial.attempts[0].trial
        assert [one.state for one in others] == ["waiting"] * 3
        await until(lambda: runs_of(tmp_path, "a") == 1)
        (tmp_path / "go").touch()
        for one in (trial, *others):
            assert (await ended(engine, one)).state == "succeeded"


async def test_nobody_knows_what_never_was(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(gated(tmp_path))) as engine:
        with pytest.raises(Unknown):
            await engine.wait(DelegationId("d0"), until="finished", timeout_s=None)
        with pytest.raises(Unknown):
            await engine.cancel(DelegationId("d0"))
