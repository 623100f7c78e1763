"""Work that an earlier engine has left: it runs, it has ended, or it was never started."""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
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
from tests.support.scripts import runs_of, script
from tests.transports.programs import is_alive, read_pid

from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.events import Woke
from fallbackd.core.ids import DelegationId
from fallbackd.core.protocol import (
    Call,
    Chunk,
    CommandLine,
    Evidence,
    Exit,
    Observation,
    Outcome,
    Output,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Retrying,
    Work,
)
from fallbackd.engine.api import Engine
from fallbackd.engine.requests import NewWork
from fallbackd.ports.transport import Running
from fallbackd.transports.process.runner.meeting import EXIT_FILE

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
GATED = """
    cat >/dev/null
    echo $$ > "$PLACE/a.pid"
    echo >> "$PLACE/a.runs"
    echo before
    while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
    echo behind
    . "$PLACE/go"
    """


def gated(place: Path, **more: object) -> Agent:
    """Prints `before`, waits for the file `go`, prints `behind`, and does what `go` says."""
    return agent("a", script(place, "a", GATED), **more)


def other(place: Path) -> Agent:
    return agent("b", script(place, "b", ANSWERS))


def go(place: Path, body: str = "exit 0") -> None:
    part = place / "go.part"
    part.write_text(body)
    part.rename(place / "go")


async def begun(engine: Engine, place: Path, **more: object) -> str:
    """Delegate to `a` and wait until it has printed its first line."""
    found = await engine.delegate(NewWork(prompt="x", backend="a", **more))  # type: ignore[arg-type]
    log = place / "runs" / found.delegation / "1" / "output.log"
    await until(lambda: log.exists() and log.stat().st_size > 0)
    return found.delegation


async def test_an_attempt_that_runs_is_followed_to_its_end(tmp_path: Path) -> None:
    config = settings(gated(tmp_path), other(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path, session="s", cwd=str(tmp_path), request_id="r")
        pid = await read_pid(tmp_path / "a.pid")
    assert is_alive(pid)
    async with engine_in(tmp_path, config, store="sqlite") as second:
        again = NewWork(prompt="x", backend="a", session="s", cwd=str(tmp_path), request_id="r")
        assert (await second.delegate(again)).delegation == name
        assert (await second.session("s")).running == name
        go(tmp_path)
        done = await ended(second, name)
        assert done.state == "succeeded"
        assert await second.text(done) == "before\nbehind"
        assert [one.attempt for one in done.attempts] == [f"{name}.1"]
        assert done.attempts[0].exit_code == 0
        log = await second.log(name, attempt=None, offset=0, max_bytes=1000)
        assert log.text == "before\nbehind\n"
        assert (await second.session("s")).running is None
    assert runs_of(tmp_path, "a") == 1


async def test_it_hops_from_there_as_from_anywhere_else(tmp_path: Path) -> None:
    config = settings(gated(tmp_path), other(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path, cwd=str(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite") as second:
        go(tmp_path, "echo 'rate limit reached' >&2; exit 75")
        done = await ended(second, name)
        assert tried(done) == [("a", "rate_limit"), ("b", None)]
        assert await second.text(done) == "answer of b"
        assert state_of(second, "a") == "rate_limited"


@pytest.mark.parametrize(("body", "state"), [("exit 0", "succeeded"), ("exit 1", "failed")])
async def test_one_that_ended_meanwhile_is_judged_by_its_record(
    tmp_path: Path, body: str, state: str
) -> None:
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path)
    go(tmp_path, body)
    await until((tmp_path / "runs" / name / "1" / EXIT_FILE).exists)
    async with engine_in(tmp_path, config, store="sqlite") as second:
        done = await ended(second, name)
        assert done.attempts[0].state == state
        assert done.attempts[0].exit_code == (0 if state == "succeeded" else 1)


async def test_an_answer_that_was_being_written_is_gone_where_the_work_ends_without_one(
    tmp_path: Path,
) -> None:
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path)
    draft = tmp_path / "runs" / name / "answer.part"
    draft.write_text("answer o")
    async with engine_in(tmp_path, config, store="sqlite") as second:
        go(tmp_path, "exit 1")
        assert (await ended(second, name)).attempts[0].state == "failed"
        assert not draft.exists()


async def test_one_without_its_runner_is_ended_and_nothing_follows(tmp_path: Path) -> None:
    config = settings(gated(tmp_path), other(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path, cwd=str(tmp_path))
        pid = await read_pid(tmp_path / "a.pid")
    known = tmp_path / "runs" / name / "1" / "attempt.json"
    await until(known.exists)
    record = json.loads(known.read_text())
    os.kill(record["runner"], signal.SIGKILL)
    async with engine_in(tmp_path, config, store="sqlite") as second:
        done = await ended(second, name)
        assert not is_alive(pid)
        assert tried(done) == [("a", "unknown")]
        assert (done.state, done.attempts[0].gone) == ("failed", False)
        assert str(pid) in (done.message or "")
        assert done.attempts[0].exit_code is None


OVERLAP = """
    cat >/dev/null
    kill -0 "$(cat "$PLACE/a.pid")" 2>/dev/null && echo beside it >> "$PLACE/overlap"
    echo answer of b
    """


@pytest.mark.parametrize("damage", ["no JSON", "{}", '{"runner": "x", "boot_id": 4}', None])
@pytest.mark.parametrize("replaced", ["records", "link", "link elsewhere", "gone", "a file"])
async def test_whatever_keeps_an_attempt_from_being_found_again_starts_nothing_beside_it(
    tmp_path: Path, replaced: str, damage: str | None
) -> None:
    config = settings(gated(tmp_path), agent("b", script(tmp_path, "b", OVERLAP)))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path, cwd=str(tmp_path))
        pid = await read_pid(tmp_path / "a.pid")
    directory = tmp_path / "runs" / name / "1"
    for made in ("line", "attempt.json"):
        await until((directory / made).exists)
    for record in ("attempt.json", "claim"):
        if damage is None:
            (directory / record).unlink()
            (directory / record).symlink_to("/dev/zero")
        else:
            (directory / record).write_text(damage)
    if replaced != "records":
        directory.rename(tmp_path / "elsewhere")
    if replaced.startswith("link"):
        directory.symlink_to(tmp_path / ("home" if "elsewhere" in replaced else "elsewhere"))
    if replaced == "a file":
        directory.touch()
    async with engine_in(tmp_path, config, store="sqlite") as second:
        if replaced == "records" and damage is not None:
            await until(
                lambda: any(live.running is not None for live in second._running._live.values())
            )
            go(tmp_path)
            done = await ended(second, name)
            assert tried(done) == [("a", None)]
        else:
            done = await ended(second, name)
        assert not is_alive(pid)
        assert done.attempts[0].gone is (done.state != "failed")
    assert not (tmp_path / "overlap").exists()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_while_the_machine_runs_short_it_is_found_again_as_soon_as_there_is_room(
    tmp_path: Path, number: int
) -> None:
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path)
    asked = []

    async def attach(**named: str) -> Running | None:
        asked.append(named)
        if len(asked) < 3:
            raise OSError(number, os.strerror(number))
        return await second.world.transports.command.attach(**named)

    async with engine_in(tmp_path, config, store="sqlite", attach=attach) as second:
        await until(
            lambda: any(live.running is not None for live in second._running._live.values())
        )
        go(tmp_path)
        assert tried(await ended(second, name)) == [("a", None)]
    assert runs_of(tmp_path, "a") == 1


async def test_a_transport_that_breaks_after_its_start_leaves_nothing_beside_the_next(
    tmp_path: Path,
) -> None:
    """What it had started by then is found by its directory."""
    config = settings(gated(tmp_path), agent("b", script(tmp_path, "b", OVERLAP)))
    async with engine_in(tmp_path, config) as engine:
        command = engine.world.transports.command
        opened = command.open

        async def breaks(call: Call, **named: Any) -> Running:
            running = await opened(call, **named)
            if call.argv[0].endswith("/a"):  # type: ignore[union-attr]
                await read_pid(tmp_path / "a.pid")
                raise RuntimeError("a bug")
            return running

        command.open = breaks  # type: ignore[method-assign]
        done = await work(engine, backend="a", cwd=str(tmp_path))
        assert tried(done) == [("a", "crash"), ("b", None)]
        assert not is_alive(await read_pid(tmp_path / "a.pid"))
    assert not (tmp_path / "overlap").exists()


async def never_started(place: Path, config: object, *, directory: bool) -> str:
    """A delegation whose attempt was ordered by an engine that died before it could start it."""
    async with engine_in(place, config, store="sqlite", leaves=True) as first:  # type: ignore[arg-type]
        first._perform = lambda _: None  # type: ignore[method-assign]
        found = await first.delegate(NewWork(prompt="x", backend="a"))
        if directory:
            first.runs.prepare(found.attempts[0].attempt)
        return found.delegation


@pytest.mark.parametrize("directory", [False, True])
async def test_one_that_was_never_started_is_started_under_its_own_name(
    tmp_path: Path, directory: bool
) -> None:
    config = settings(gated(tmp_path))
    name = await never_started(tmp_path, config, directory=directory)
    go(tmp_path)
    clock = ManualClock()
    began_at = clock.now()
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as second:
        done = await ended(second, name)
        assert [(one.attempt, one.state) for one in done.attempts] == [(f"{name}.1", "succeeded")]
        assert done.attempts[0].started_at >= began_at, "its limits are counted from now"
    assert runs_of(tmp_path, "a") == 1


async def test_after_a_boot_nothing_is_started_again_and_nobody_is_marked(tmp_path: Path) -> None:
    config = settings(gated(tmp_path), other(tmp_path))
    name = await never_started(tmp_path, config, directory=False)
    async with engine_in(tmp_path, config, store="sqlite", boot_id="another") as second:
        done = await ended(second, name)
        assert done.state == "failed"
        assert done.failure is not None
        assert (done.failure.reason.value, done.failure.detail) == ("crash", "reboot")
        assert state_of(second, "a") == "healthy"
        go(tmp_path)
        assert (await work(second, backend="a")).state == "succeeded"
    assert runs_of(tmp_path, "a") == 1


async def test_a_record_of_before_the_boot_counts(tmp_path: Path) -> None:
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path)
    go(tmp_path)
    await until((tmp_path / "runs" / name / "1" / EXIT_FILE).exists)
    async with engine_in(tmp_path, config, store="sqlite", boot_id="another") as second:
        assert (await ended(second, name)).state == "succeeded"


async def test_what_was_being_stopped_is_stopped(tmp_path: Path) -> None:
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path)
        pid = await read_pid(tmp_path / "a.pid")
        for live in first._running._live.values():
            live.stop = lambda _: None  # type: ignore[method-assign]
        first.tasks.start_soon(first.cancel, name)  # type: ignore[union-attr, arg-type]
        await until(lambda: first.snapshot().active[name].attempts[0].state == "stopping")  # type: ignore[index]
    async with engine_in(tmp_path, config, store="sqlite") as second:
        done = await ended(second, name)
        assert done.state == "cancelled"
        assert not is_alive(pid)


async def test_work_that_waited_waits_on(tmp_path: Path) -> None:
    clock = ManualClock()
    waits = """
        cat >/dev/null
        echo >> "$PLACE/a.runs"
        [ -e "$PLACE/go" ] && exec echo done
        echo 'rate limit, try again in 200 seconds' >&2; exit 75
        """
    config = settings(agent("a", script(tmp_path, "a", waits)))
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as first:
        found = await first.delegate(NewWork(prompt="x", backend="a", session="s", mode="batch"))
        name = found.delegation
        await until(lambda: first.snapshot().active[name].state == "waiting")
    go(tmp_path)
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as second:
        assert (await second.delegation(name)).state == "waiting"
        clock.advance(201)
        await second.look_at_clock()
        assert (await ended(second, name)).state == "succeeded"
    assert runs_of(tmp_path, "a") == 2


async def test_the_deadline_of_the_caller_holds_on(tmp_path: Path) -> None:
    clock = ManualClock()
    config = settings(gated(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", clock=clock, leaves=True) as first:
        name = await begun(first, tmp_path, timeout_s=100)
        pid = await read_pid(tmp_path / "a.pid")
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as second:
        clock.advance(101)
        await second.look_at_clock()
        done = await ended(second, name)
        assert done.failure is not None
        assert (done.state, done.failure.detail) == ("failed", "deadline")
        assert not is_alive(pid)


async def test_silence_is_counted_from_the_last_output(tmp_path: Path) -> None:
    clock = ManualClock()
    config = settings(gated(tmp_path, stall_s=100.0), other(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", clock=clock, leaves=True) as first:
        name = await begun(first, tmp_path)
    clock.advance(60)
    async with engine_in(tmp_path, config, store="sqlite", clock=clock) as second:
        clock.advance(41)
        await second.look_at_clock()
        assert tried(await ended(second, name)) == [("a", "stalled"), ("b", None)]


@pytest.mark.parametrize("is_asleep", [True, False])
async def test_an_agent_that_slept_with_the_machine_was_not_silent(
    tmp_path: Path, *, is_asleep: bool
) -> None:
    clock = ManualClock()
    config = settings(gated(tmp_path, stall_s=100.0), other(tmp_path))
    async with engine_in(tmp_path, config, clock=clock) as engine:
        name = await begun(engine, tmp_path)
        await until(lambda: all(one.watch.last_output_at for one in engine._running._live.values()))
        (clock.sleep if is_asleep else clock.advance)(3600)
        await engine.look_at_clock()
        if is_asleep:
            await engine.handle(Woke(delegation=DelegationId(name)))
            go(tmp_path)
            assert tried(await ended(engine, name)) == [("a", None)]
        else:
            assert tried(await ended(engine, name)) == [("a", "stalled"), ("b", None)]


async def test_without_its_prompt_it_ends_where_it_is(tmp_path: Path) -> None:
    config = settings(gated(tmp_path), other(tmp_path))
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path)
    (tmp_path / "runs" / name / "prompt").unlink()
    async with engine_in(tmp_path, config, store="sqlite") as second:
        go(tmp_path, "echo 'rate limit reached' >&2; exit 75")
        done = await ended(second, name)
        assert tried(done) == [("a", "rate_limit"), ("b", "crash")]
        assert done.failure is not None
        assert (done.state, done.failure.detail) == ("failed", "no_prompt")
        assert state_of(second, "b") == "healthy"


@pytest.mark.parametrize("is_known", [True, False])
async def test_what_the_caller_set_is_read_back_from_the_attempt(
    tmp_path: Path, is_known: bool
) -> None:
    b = agent("b", script(tmp_path, "b", 'cat >/dev/null; echo "$WORD"'), allow_env=("WORD",))
    a = gated(tmp_path, allow_env=("WORD",) if is_known else ())
    config = settings(a, b)
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path, env={"WORD": "hush"})
    async with engine_in(tmp_path, config, store="sqlite") as second:
        await until(
            lambda: any(live.running is not None for live in second._running._live.values())
        )
        go(tmp_path, "echo 'rate limit reached' >&2; exit 75")
        done = await ended(second, name)
        if is_known:
            assert await second.text(done) == "hush"
        else:
            assert tried(done) == [("a", "rate_limit"), ("b", "not_configured")]
            assert "WORD" in done.attempts[1].failure.evidence  # type: ignore[union-attr]
            assert state_of(second, "b") == "healthy"
    assert b"hush" not in b"".join(
        path.read_bytes() for path in tmp_path.glob("records.sqlite*")
    ), "values of variables are never stored"


async def test_files_that_were_changed_are_told_to_the_next(tmp_path: Path) -> None:
    place = tmp_path / "tree"
    place.mkdir()
    b = agent("b", script(tmp_path, "b", "cat"))
    config = settings(gated(tmp_path), b)
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path, cwd=str(place))
    async with engine_in(tmp_path, config, store="sqlite") as second:
        go(tmp_path, f"echo x > {place}/new.txt; echo 'rate limit reached' >&2; exit 75")
        done = await ended(second, name)
        assert done.attempts[0].effects == "seen"
        assert "Changed files: new.txt" in (await second.text(done) or "")


async def test_a_backend_that_is_no_longer_configured_is_stopped(tmp_path: Path) -> None:
    both = settings(gated(tmp_path), other(tmp_path))
    async with engine_in(tmp_path, both, store="sqlite", leaves=True) as first:
        name = await begun(first, tmp_path)
        pid = await read_pid(tmp_path / "a.pid")
    only = settings(other(tmp_path))
    async with engine_in(tmp_path, only, store="sqlite") as second:
        done = await ended(second, name)
        assert tried(done)[0] == ("a", "not_configured")
        assert not is_alive(pid)


class Lines:
    """Each line is a word: `limit` is a retry that the program says, anything else an answer."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def feed(self, chunk: Chunk) -> list[Observation]:
        words = chunk.data.decode().split()
        self.words += words
        return [
            Retrying(evidence=Evidence(text="rate limit reached", stream="stderr"))
            if word == "limit"
            else ProviderAnswered()
            if word == "answer"
            else Output()
            for word in words
        ]

    def finish(self, exit: Exit) -> Outcome:
        assert isinstance(exit, ProcessExit)
        if exit.code == 0:
            return Reply(text=" ".join(self.words))
        return Evidence(text="rate limit reached", stream="stderr", exit_code=exit.code)


def telling(place: Path, first: str) -> tuple[Agent, dict[str, BackendKind]]:
    body = GATED.replace("echo before", f"printf '{first}'")
    a = agent("a", script(place, "a", body), kind="telling", plain_output=False)
    kind = BackendKind(
        name="telling",
        start=_start,
        parser=lambda _: Lines(),
        program=lambda options: options.command[0],
        structured=True,
    )
    return a, {"telling": kind}


def _start(work: Work, options: Options) -> CommandLine:
    return CommandLine(argv=options.command, cwd=work.cwd, stdin=work.prompt.encode())


async def test_a_throttle_that_has_passed_is_none(tmp_path: Path) -> None:
    clock = ManualClock()
    a, kinds = telling(tmp_path, "limit\\nlimit\\nanswer\\n")
    config = settings(a, other(tmp_path))
    async with engine_in(
        tmp_path, config, store="sqlite", kinds=kinds, clock=clock, leaves=True
    ) as first:
        first._perform = _without_a_parser(first)  # type: ignore[method-assign]
        name = await begun(first, tmp_path, mode="interactive")
    clock.advance(20)
    async with engine_in(tmp_path, config, store="sqlite", kinds=kinds, clock=clock) as second:
        await until(lambda: second.snapshot().active[name].attempts[0].answered_at is not None)  # type: ignore[index]
        go(tmp_path)
        done = await ended(second, name)
        assert await second.text(done) == "limit limit answer behind"


async def test_patience_counts_from_the_first_retry_that_nobody_heard(tmp_path: Path) -> None:
    clock = ManualClock()
    a, kinds = telling(tmp_path, "limit\\n")
    config = settings(a, other(tmp_path))
    async with engine_in(
        tmp_path, config, store="sqlite", kinds=kinds, clock=clock, leaves=True
    ) as first:
        first._perform = _without_a_parser(first)  # type: ignore[method-assign]
        name = await begun(first, tmp_path, mode="interactive")
    clock.advance(20)
    async with engine_in(tmp_path, config, store="sqlite", kinds=kinds, clock=clock) as second:
        assert tried(await ended(second, name)) == [("a", "rate_limit"), ("b", None)]


def _without_a_parser(engine: Engine):  # type: ignore[no-untyped-def]
    """An engine that starts its work and dies before it reads a byte."""
    perform = engine._perform

    def performed(effect: object) -> None:
        engine.world.kinds["telling"]
        engine.handle = _deaf  # type: ignore[method-assign]
        perform(effect)  # type: ignore[arg-type]

    return performed


async def _deaf(event: object) -> None:
    return None
