"""Whatever is started is ended and proven gone: stops, lost runners, lost launchers."""

import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import anyio
import pytest
from tests.transports.programs import (
    HANG_S,
    collect,
    is_alive,
    pids_with,
    private_directory,
    python,
    read_pid,
    runner_of,
    shell,
    start,
    text_of,
    transport,
    unique_mark,
    until,
)

from fallbackd.core.protocol import NotStarted, ProcessExit
from fallbackd.transports.process.leftovers import end_leftover
from fallbackd.transports.process.orphans import Family, end_family, find_members
from fallbackd.transports.process.recording import read_exit
from fallbackd.transports.process.running import RunnerLimits, RunningProcess

STUBBORN_FAMILY = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    def sleeper():
        while True:
            time.sleep(600)
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(1, b"r")
                sleeper()
            os._exit(0)
        os.write(1, b"r")
        sleeper()
    if os.fork() == 0:
        os.setsid()
        os.write(1, b"r")
        sleeper()
    os.write(1, b"r")
    sleeper()
"""


async def test_a_family_that_ignores_term_is_gone_when_the_exit_is_told(tmp_path: Path) -> None:
    mark = unique_mark()
    async with transport() as by:
        running = await start(
            by, python(STUBBORN_FAMILY), private_directory(tmp_path), env={"MARK": mark}
        )
        ready = 0
        async for chunk in running.chunks():
            ready += len(chunk.data)
            if ready == 4:
                assert len(pids_with(mark)) == 4
                running.stop(grace_s=0.2)
        assert pids_with(mark) == []
    ended = running.exit
    assert isinstance(ended, ProcessExit)
    assert (ended.code, ended.signal) == (None, signal.SIGKILL)
    assert ended.gone
    assert ended.stopped


async def test_a_polite_program_ends_on_the_first_word_and_hears_it_once(tmp_path: Path) -> None:
    code = """
        import os, signal, time
        def stop(*_):
            os.write(1, b"T")
            time.sleep(0.05)
            os._exit(9)
        signal.signal(signal.SIGTERM, stop)
        os.write(1, b"r")
        while True:
            time.sleep(600)
    """
    async with transport() as by:
        running = await start(by, python(code), private_directory(tmp_path))
        printed = b""
        async for chunk in running.chunks():
            printed += chunk.data
            running.stop(grace_s=HANG_S)
            running.stop(grace_s=HANG_S)
    assert printed == b"rT"
    ended = running.exit
    assert isinstance(ended, ProcessExit)
    assert (ended.code, ended.stopped) == (9, True)


async def test_a_child_that_outlives_its_polite_parent_hears_it_once_too(tmp_path: Path) -> None:
    code = """
        import os, signal, time
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"c"))
            os.write(1, b"r")
            while True:
                time.sleep(600)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        os.write(1, b"r")
        while True:
            time.sleep(600)
    """
    async with transport() as by:
        running = await start(by, python(code), private_directory(tmp_path))
        printed = b""
        async for chunk in running.chunks():
            printed += chunk.data
            if printed == b"rr":
                running.stop(grace_s=HANG_S)
    assert printed == b"rrc"
    assert isinstance(running.exit, ProcessExit)
    assert running.exit.gone


async def test_a_second_stop_may_shorten_the_grace(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(
            by,
            shell("trap '' TERM; echo r; while :; do sleep 1; done"),
            private_directory(tmp_path),
        )
        async for _ in running.chunks():
            running.stop(grace_s=100_000)
            running.stop(grace_s=0)
    assert isinstance(running.exit, ProcessExit)
    assert running.exit.signal == signal.SIGKILL


async def test_a_stopped_program_is_woken_to_hear_of_its_end(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(
            by,
            shell("trap 'exit 4' TERM; echo r; kill -STOP $$; exit 5"),
            private_directory(tmp_path),
        )
        async for _ in running.chunks():
            pid = running.pid
            await until(lambda: ") T " in Path(f"/proc/{pid}/stat").read_text())  # noqa: B023
            running.stop(grace_s=HANG_S)
    assert isinstance(running.exit, ProcessExit)
    assert running.exit.code == 4


async def test_who_holds_the_pipes_after_the_end_is_stopped(tmp_path: Path) -> None:
    mark = unique_mark()
    async with transport() as by:
        running = await start(
            by,
            python("""
                import os, time
                if os.fork() == 0:
                    os.setsid()
                    while True:
                        time.sleep(600)
                os.write(1, b"answer")
                os._exit(0)
            """),
            private_directory(tmp_path),
            env={"MARK": mark},
        )
        assert text_of(await collect(running)) == b"answer"
        assert pids_with(mark) == []
    ended = running.exit
    assert isinstance(ended, ProcessExit)
    assert (ended.code, ended.gone, ended.stopped) == (0, True, False)


async def test_a_grandchild_may_finish_its_last_words(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(
            by,
            shell("(trap '' TERM; sleep 0.05; echo late) & exit 0"),
            private_directory(tmp_path),
        )
        assert text_of(await collect(running)) == b"late\n"


async def test_a_killed_runner_leaves_nobody_that_is_found_and_no_proof(tmp_path: Path) -> None:
    mark = unique_mark()
    async with transport() as by:
        running = await start(
            by, python(STUBBORN_FAMILY), private_directory(tmp_path), env={"MARK": mark}
        )
        ready = 0
        async for chunk in running.chunks():
            ready += len(chunk.data)
            if ready == 4:
                assert running.pid is not None
                os.kill(runner_of(running.pid), signal.SIGKILL)
        assert pids_with(mark) == []
    ended = running.exit
    assert isinstance(ended, ProcessExit)
    assert (ended.code, ended.signal) == (None, None)
    assert not ended.gone
    assert "runner" in ended.note


async def test_a_killed_launcher_costs_no_attempt(tmp_path: Path) -> None:
    async with transport() as by:
        first = await start(
            by, shell("cat; echo first"), private_directory(tmp_path, "a"), stdin=b"x"
        )
        for number in range(3):
            assert by.launcher_pid is not None
            os.kill(by.launcher_pid, signal.SIGKILL)
            directory = private_directory(tmp_path, f"b{number}")
            later = await start(by, shell("echo later"), directory)
            assert text_of(await collect(later)) == b"later\n"
        assert text_of(await collect(first)) == b"xfirst\n"


async def test_closing_the_transport_ends_what_nobody_follows(tmp_path: Path) -> None:
    mark = unique_mark()
    directory = private_directory(tmp_path)
    async with transport(limits=RunnerLimits(stop_grace_s=0.1)) as by:
        await start(
            by, shell("trap '' TERM; while :; do sleep 600; done"), directory, env={"MARK": mark}
        )
        launcher = by.launcher_pid
    assert pids_with(mark) == []
    assert launcher is not None
    assert not is_alive(launcher)
    ended = read_exit(directory)
    assert isinstance(ended, ProcessExit)
    assert ended.stopped


async def test_closing_the_transport_lets_a_follower_see_the_end(tmp_path: Path) -> None:
    ended: list[object] = []
    async with transport(limits=RunnerLimits(stop_grace_s=0.1)) as by:
        running = await start(by, shell("echo r; sleep 600"), private_directory(tmp_path))
        reading = anyio.Event()

        async def follow() -> None:
            async for _ in running.chunks():
                reading.set()
            ended.append(running.exit)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await reading.wait()
            await by.aclose()
    assert isinstance(ended[0], ProcessExit)
    assert ended[0].stopped


async def test_a_cancelled_start_leaves_nobody(tmp_path: Path) -> None:
    mark = unique_mark()
    async with transport(limits=RunnerLimits(stop_grace_s=0.1)) as by:
        await collect(await start(by, ("true",), private_directory(tmp_path, "first")))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await start(
                by, shell("sleep 600"), private_directory(tmp_path), env={"MARK": mark}, stdin=b"x"
            )
        assert scope.cancelled_caught
    assert pids_with(mark) == []


async def test_a_start_whose_runner_answers_at_once_is_cancelled_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = unique_mark()
    begin = RunningProcess.begin

    async def unasked(self: RunningProcess, order: bytes) -> bool:
        """As where the answer is there before it is waited for."""
        with anyio.CancelScope(shield=True):
            return await begin(self, order)

    monkeypatch.setattr(RunningProcess, "begin", unasked)
    async with transport(limits=RunnerLimits(stop_grace_s=0.1)) as by:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await start(by, shell("sleep 600"), private_directory(tmp_path), env={"MARK": mark})
        assert scope.cancelled_caught
    assert pids_with(mark) == []


async def test_a_start_that_is_cancelled_half_way_starts_nothing(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    started = tmp_path / "started"
    async with transport(limits=RunnerLimits(stop_grace_s=0.1)) as by:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await start(by, shell(f"touch {started}"), directory, stdin=b"x" * 5_000_000)
        assert scope.cancelled_caught
        again = await start(by, shell("echo r"), private_directory(tmp_path, "again"))
        assert text_of(await collect(again)) == b"r\n"
    assert not started.exists()
    assert os.listdir(directory) == []


async def test_who_cannot_be_killed_in_time_is_named(tmp_path: Path) -> None:
    mark = unique_mark()
    async with transport(limits=RunnerLimits(kill_bound_s=0)) as by:
        running = await start(
            by, python(STUBBORN_FAMILY), private_directory(tmp_path), env={"MARK": mark}
        )
        ready = 0
        async for chunk in running.chunks():
            ready += len(chunk.data)
            if ready == 4:
                running.stop(grace_s=0)
        left = pids_with(mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    ended = running.exit
    assert isinstance(ended, ProcessExit)
    assert len(left) == 4
    assert not ended.gone
    assert (ended.code, ended.signal) == (None, None)
    assert all(str(pid) in ended.note for pid in left)


async def test_a_runner_outlives_the_daemon_and_records_the_end(tmp_path: Path) -> None:
    go, directory = tmp_path / "go", private_directory(tmp_path)
    pid_file = tmp_path / "pid"
    driver = textwrap.dedent(f"""
        import sys
        sys.path.extend({sys.path!r})
        import anyio
        from fallbackd.core.protocol import CommandLine
        from fallbackd.transports.process.transport import ProcessTransport
        async def main():
            by = ProcessTransport()
            code = ("echo $$ > {pid_file}; while ! [ -e {go} ]; do sleep 0.01; done;"
                    "echo end; exit 6")
            await by.open(CommandLine(argv=("/bin/sh", "-c", code), cwd="/"),
                          attempt="d1.1", directory={directory!r}, env={{}})
            await anyio.sleep_forever()
        anyio.run(main)
    """)
    daemon = await anyio.open_process([sys.executable, "-c", driver])
    pid = await read_pid(pid_file)
    runner = runner_of(pid)
    daemon.kill()
    await daemon.wait()
    await daemon.aclose()
    assert is_alive(pid)
    go.touch()
    ended = await until(lambda: read_exit(directory))
    assert isinstance(ended, ProcessExit)
    assert (ended.code, ended.gone, ended.stopped) == (6, True, False)
    assert (Path(directory) / "output.log").read_bytes() == b"end\n"
    record = json.loads((Path(directory) / "exit.json").read_text())
    assert record["pid"] == pid
    assert record["boot_id"]
    await until(lambda: not is_alive(runner))


async def test_an_attempt_of_a_lost_daemon_can_be_ended_by_its_directory(tmp_path: Path) -> None:
    mark = unique_mark()
    directory = private_directory(tmp_path)
    async with transport(limits=RunnerLimits(stop_grace_s=0.2)) as by:
        running = await start(by, python(STUBBORN_FAMILY), directory, env={"MARK": mark})
        ready = 0
        async for chunk in running.chunks():
            ready += len(chunk.data)
            if ready == 4:
                await until((Path(directory) / "attempt.json").exists)
                ended = await end_leftover(directory, grace_s=HANG_S, bound_s=HANG_S)
        assert pids_with(mark) == []
    assert isinstance(ended, ProcessExit)
    assert ended.stopped
    assert ended.gone
    assert await end_leftover(directory, grace_s=1, bound_s=1) == ended


async def test_a_leftover_without_its_runner_is_found_by_its_marks(tmp_path: Path) -> None:
    mark = unique_mark()
    directory = private_directory(tmp_path)
    async with transport() as by:
        running = await start(by, python(STUBBORN_FAMILY), directory, env={"MARK": mark})
        await until(lambda: len(pids_with(mark)) == 4)
        await until((Path(directory) / "attempt.json").exists)
        assert running.pid is not None
        os.kill(runner_of(running.pid), signal.SIGKILL)
        ended = await end_leftover(directory, grace_s=0.1, bound_s=HANG_S)
        assert pids_with(mark) == []
        assert isinstance(ended, ProcessExit)
        assert not ended.gone, "one that has shed its marks would not have been found"
        assert ended.code is None


async def test_nothing_to_end_where_nothing_was_started(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    assert await end_leftover(directory, grace_s=1, bound_s=1) is None
    async with transport() as by:
        await collect(await start(by, ("no-such-program",), directory))
    assert isinstance(await end_leftover(directory, grace_s=1, bound_s=1), NotStarted)


async def test_an_unknown_family_has_no_members() -> None:
    nobody = Family(token=unique_mark(), pid=0, start=0)
    assert find_members(nobody) == []
    reused = Family(token=unique_mark(), pid=os.getsid(0), start=-1)
    assert find_members(reused) == []
    assert await end_family(nobody, grace_s=1, bound_s=1) == []
