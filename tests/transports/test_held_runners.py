"""Runners and launchers that live and do nothing: every wait for one has an end."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    runner_of,
    shell,
    start,
    text_of,
    transport,
    unique_mark,
    until,
)
from tests.transports.test_endings import STUBBORN_FAMILY

from fallbackd.core.protocol import ProcessExit
from fallbackd.transports.process.running import RunnerLimits, RunningProcess
from fallbackd.transports.process.transport import ProcessTransport

BRIEF = RunnerLimits(stop_grace_s=0.1, kill_bound_s=1.0, answer_s=1.0)
ROOT = Path(__file__).parents[2] / "daemon"
GREETS = """
    import socket, sys, time
    sys.path.append(sys.argv[1])
    from fallbackd.transports.process.runner.meeting import Peer
    Peer(socket.socket(fileno=int(sys.argv[2]))).greet()
    time.sleep(600)
    """


@contextmanager
def held(pid: int) -> Iterator[None]:
    """Stopped again and again, as by a debugger: a SIGCONT does not last until it lets go."""
    over = threading.Event()

    def hold() -> None:
        with suppress(ProcessLookupError):  # it may end at any moment
            while not over.is_set() and is_alive(pid):
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.001)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def stubborn(by: ProcessTransport, place: Path, mark: str) -> RunningProcess:
    running = await start(by, python(STUBBORN_FAMILY), private_directory(place), env={"MARK": mark})
    await until(lambda: len(pids_with(mark)) == 4)
    return running


async def test_a_stopped_runner_is_woken_to_end_its_program(tmp_path: Path) -> None:
    mark = unique_mark()
    async with transport() as by:
        running = await stubborn(by, tmp_path, mark)
        assert running.pid is not None
        os.kill(runner_of(running.pid), signal.SIGSTOP)
        running.stop(grace_s=0.1)
        await collect(running)
    assert isinstance(running.exit, ProcessExit)
    assert (running.exit.signal, running.exit.gone) == (signal.SIGKILL, True)
    assert pids_with(mark) == []


async def test_below_a_runner_that_is_held_everything_is_ended_and_proven(tmp_path: Path) -> None:
    mark = unique_mark()
    async with transport(limits=BRIEF) as by:
        running = await stubborn(by, tmp_path, mark)
        assert running.pid is not None
        runner = runner_of(running.pid)
        with held(runner):
            running.stop(grace_s=0.1)
            await collect(running)
    await until(lambda: not is_alive(runner))
    assert isinstance(running.exit, ProcessExit)
    assert (running.exit.gone, running.exit.stopped) == (True, True)
    assert pids_with(mark) == []


async def test_closing_the_transport_ends_what_a_held_runner_has(tmp_path: Path) -> None:
    mark = unique_mark()
    async with transport(limits=BRIEF) as by:
        running = await stubborn(by, tmp_path, mark)
        assert running.pid is not None
        runner = runner_of(running.pid)
        with held(runner):
            await by.aclose()
        assert pids_with(mark) == []
    await until(lambda: not is_alive(runner))


@pytest.mark.parametrize("who", ["launcher", "stock", "both"])
async def test_a_held_launcher_is_replaced(tmp_path: Path, who: str) -> None:
    async with transport(limits=BRIEF) as by:
        directory = private_directory(tmp_path, "first")
        await collect(await start(by, ("true",), directory))
        leaving = json.loads(Path(directory, "attempt.json").read_bytes())["runner"]
        launcher = by.launcher_pid
        assert launcher is not None
        children = Path(f"/proc/{launcher}/task/{launcher}/children")
        stock = await until(
            lambda: [pid for pid in map(int, children.read_text().split()) if pid != leaving]
        )
        for pid in {"launcher": [launcher], "stock": stock, "both": [launcher, *stock]}[who]:
            os.kill(pid, signal.SIGSTOP)
        for number in range(3):
            directory = private_directory(tmp_path, str(number))
            running = await start(by, shell("echo r"), directory)
            assert text_of(await collect(running)) == b"r\n"
        for pid in stock:
            if is_alive(pid):
                os.kill(pid, signal.SIGCONT)  # and now it must not start anything any more
                await until(lambda: not is_alive(pid))  # noqa: B023


async def test_a_runner_that_is_held_before_its_start_has_started_nothing(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    program = [*python(GREETS), str(ROOT), str(theirs.fileno())]
    runner = subprocess.Popen(program, pass_fds=(theirs.fileno(),), executable=sys.executable)
    theirs.close()
    directory = private_directory(tmp_path)
    running = RunningProcess(ours, directory, "token", BRIEF, lambda: 1.0)
    with anyio.fail_after(HANG_S):
        await anyio.wait_readable(ours)  # it has greeted: how long it loads is not what is tried
        assert await running.begin(b"an order")
        assert await collect(running) == []
    assert isinstance(running.exit, ProcessExit)
    assert running.exit.gone
    assert runner.wait() == -signal.SIGKILL
    running.release()


async def test_a_runner_that_is_held_is_met_all_the_same(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    go = tmp_path / "go"
    first = ProcessTransport(limits=BRIEF)
    code = f"echo r; while [ ! -e {go} ]; do sleep 0.01; done; exit 3"
    running = await start(first, shell(code), directory)
    assert running.pid is not None
    runner = runner_of(running.pid)
    await first.detach()
    await until((Path(directory) / "line").exists)
    os.kill(runner, signal.SIGSTOP)
    async with transport() as by:
        found = await by.attach(attempt="d1.1", directory=directory)
        assert found is not None
        go.touch()
        assert text_of(await collect(found)) == b"r\n"
        assert isinstance(found.exit, ProcessExit)
        assert (found.exit.code, found.exit.gone) == (3, True)
