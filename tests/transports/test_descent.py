"""Below which runner a process is."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.transports.programs import (
    collect,
    private_directory,
    read_pid,
    runner_of,
    shell,
    start,
    transport,
    until,
)

from fallbackd.transports.opencode.whose import ProcessOwners
from fallbackd.transports.process.leftovers import is_unproven
from fallbackd.transports.process.orphans import MARK, Started, runner_above
from fallbackd.transports.process.runner import cgroup, tree

READY = "import sys; print('ready', flush=True); sys.stdin.read()"
DEEP = """
import os, sys
for _ in range(int(sys.argv[1])):
    if os.fork():
        os.wait(); os._exit(0)
print(os.getpid(), flush=True); sys.stdin.read()
"""
WITHOUT_VARIABLES = f"""
import subprocess, sys
code = "import os; print(os.getpid(), flush=True); {READY}"
subprocess.run([sys.executable, "-c", code], env={{}})
"""
ORPHAN = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
reaper = os.getpid()
if not os.fork():
    if os.fork():
        os._exit(0)
    os.setsid()
    while os.getppid() != reaper:
        pass
    print(os.getpid(), flush=True); sys.stdin.read(); os._exit(0)
os.wait(); os.wait()
"""

_FORKED = """
import os, sys
if not os.fork():
    {first}
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        pass
    print(os.getpid(), flush=True); sys.stdin.read(); os._exit(0)
os.wait(); sys.stdin.read()
"""
LEFT = _FORKED.format(first="os.setsid()")
ORPHAN_HERE = _FORKED.format(first="")


@contextmanager
def process(code: str, *arguments: str, new_session: bool = False) -> Iterator[tuple[int, str]]:
    """(its pid, its first line) of a Python program that ends when its input does."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    ) as made:
        assert made.stdin is not None
        assert made.stdout is not None
        try:
            yield made.pid, made.stdout.readline().strip()
        finally:
            made.stdin.close()


def runners(pid: int, *, later: int = 0) -> Mapping[int, Started]:
    found = tree.process(pid)
    assert found is not None
    runner = found._replace(start=found.start + later)
    return {pid: Started(attempt="d1.1", directory="/runs/d1/1", runner=runner)}


@pytest.mark.parametrize("depth", [0, 1, 40])
def test_a_runner_is_found_however_many_processes_are_between(depth: int) -> None:
    with process(DEEP, str(depth)) as (pid, line):
        found = runner_above(int(line), runners(pid))
        assert found is not None
        assert found.attempt == "d1.1"


def test_below_more_processes_than_are_looked_at_nothing_can_be_told() -> None:
    with process(DEEP, "80") as (pid, line), pytest.raises(OSError, match="more than 64"):
        runner_above(int(line), runners(pid))


def test_a_process_that_names_an_attempt_is_no_persons_whatever_is_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as inside:
        inside.setenv(MARK, "d1.1")
        with process(READY) as (pid, _):
            assert runner_above(pid, {}) is None, "the daemon is part of that attempt as well"
            inside.delenv(MARK)
            with pytest.raises(PermissionError, match="part of an attempt"):
                runner_above(pid, {})


def test_a_process_above_an_earlier_caller_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, looks = tree.process, list[int]()

    def counted(pid: int) -> tree.Process | None:
        looks.append(pid)
        return look(pid)

    monkeypatch.setattr(tree, "process", counted)
    seen: dict[int, tree.Process] = {}
    with process(DEEP, "1") as (pid, line):
        child = int(line)
        assert runner_above(child, {}, seen=seen) is None
        assert looks == [child, pid, child, pid]
        assert runner_above(child, {}, seen=seen) is None
        assert looks[4:] == [child, pid, child]
        assert runner_above(child, runners(pid), seen=seen) is not None, "a runner is seen anew"


@pytest.mark.parametrize("other", [{}, {"start": 1}, {"parent": 1}])
def test_an_earlier_look_counts_for_the_same_process_below_the_same_parent(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, int]
) -> None:
    with monkeypatch.context() as inside:
        inside.setenv(MARK, "d1.1")
        with process(WITHOUT_VARIABLES) as (pid, line):
            inside.delenv(MARK)
            with pytest.raises(PermissionError, match="part of an attempt"):
                runner_above(int(line), {})
            above = tree.process(pid)
            assert above is not None
            seen = {pid: above._replace(**other)}
            if other:
                with pytest.raises(PermissionError, match="part of an attempt"):
                    runner_above(int(line), {}, seen=seen)
            else:
                assert runner_above(int(line), {}, seen=seen) is None
            with pytest.raises(PermissionError, match="part of an attempt"):
                runner_above(pid, {}, seen=seen)  # the caller itself may be another program by now


def test_of_a_process_whose_parents_change_all_the_time_nothing_can_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with process(DEEP, "1") as (pid, line):
        look, starts = tree.process, itertools.count()

        def changed(one: int) -> tree.Process | None:
            found = look(one)
            return found._replace(start=next(starts)) if found and one == pid else found

        monkeypatch.setattr(tree, "process", changed)
        with pytest.raises(OSError, match="change all the time"):
            runner_above(int(line), {})


def test_a_process_in_the_control_group_of_an_attempt_is_no_persons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with process(READY) as (pid, _):
        monkeypatch.setattr(
            cgroup, "groups_of", lambda one: {"attempt-d1"} if one == pid else set()
        )
        with pytest.raises(PermissionError, match="part of an attempt"):
            runner_above(pid, {})


def test_an_orphan_is_a_persons_as_long_as_no_runner_was_killed() -> None:
    with process(LEFT) as (pid, line):
        orphan, first = tree.process(int(line)), tree.process(pid)
        assert orphan is not None
        assert first is not None
        assert runner_above(orphan.pid, {}) is None
        assert runner_above(orphan.pid, {}, lost_since=orphan.start + 1) is None
        with pytest.raises(PermissionError, match="was killed"):
            runner_above(orphan.pid, {}, lost_since=first.start)


@pytest.mark.parametrize("is_outside", [False, True], ids=["leader", "of another namespace"])
def test_a_process_of_a_session_before_the_killed_runner_is_a_persons(
    monkeypatch: pytest.MonkeyPatch, *, is_outside: bool
) -> None:
    with process(ORPHAN_HERE, new_session=True) as (leader, line):
        seen = tree.process

        def look(pid: int) -> tree.Process | None:
            found = seen(pid)
            if found is None:
                return None
            # The kernel names the session 0 where its leader is in none of this namespace.
            session = 0 if is_outside and found.session == leader else found.session
            return found._replace(session=session, start=0 if pid == leader else found.start + 1)

        monkeypatch.setattr(tree, "process", look)
        assert runner_above(int(line), {}, lost_since=1) is None


def test_a_process_whose_parent_has_exited_stays_below_its_reaper() -> None:
    with process(ORPHAN) as (pid, line):
        assert runner_above(int(line), runners(pid)) is not None


def test_a_process_beside_a_runner_is_not_below_it() -> None:
    with process(READY) as (pid, _), process(READY) as (other, _):
        assert runner_above(other, runners(pid)) is None
        assert runner_above(os.getpid(), runners(pid)) is None
        assert runner_above(os.getppid(), runners(pid)) is None


def test_a_runner_whose_number_was_given_to_another_process_is_not_believed() -> None:
    with process(DEEP, "1") as (pid, line):
        assert runner_above(int(line), runners(pid, later=1)) is None


def test_of_a_process_that_has_exited_nothing_can_be_told() -> None:
    with process(READY) as (pid, _):
        known = runners(pid)
    with pytest.raises(ProcessLookupError):
        runner_above(pid, known)


def test_a_process_that_is_hidden_and_of_this_user_leaves_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with process(READY) as (runner, _), process(DEEP, "1") as (pid, line):
        seen = tree.process
        monkeypatch.setattr(tree, "process", lambda one: None if one == pid else seen(one))
        with pytest.raises(OSError, match="hidden"):
            runner_above(int(line), runners(runner))


def test_a_process_that_is_hidden_and_of_another_user_is_no_part_of_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(pid: int, number: int) -> None:
        raise PermissionError

    with process(READY) as (runner, _), process(DEEP, "1") as (pid, line):
        seen = tree.process
        monkeypatch.setattr(tree, "process", lambda one: None if one == pid else seen(one))
        monkeypatch.setattr(os, "kill", refuses)
        assert runner_above(int(line), runners(runner)) is None


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_has_lost_all_its_supervisors_is_not_a_persons(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    left = tmp_path / "left"
    leaves = f"(env -i setsid sh -c 'echo $$ > {left}; exec sleep 600' &) ; exec sleep 600"
    directory = private_directory(tmp_path)
    async with transport() as first, transport() as second:
        running = await start(first, shell(leaves), directory)
        pid = await read_pid(left)
        assert running.pid is not None
        runner = runner_of(running.pid)
        launcher = first.launcher_pid
        assert launcher is not None
        now = first
        if is_restarted:
            await first.detach()
            now = second
            now.expect("d1.1", directory)
            assert now.above(pid) is not None
        else:
            os.kill(launcher, signal.SIGKILL)
        try:
            os.kill(runner, signal.SIGKILL)
            await until(lambda: runner_of(pid) not in (runner, launcher))
            with pytest.raises(PermissionError, match="was killed"):
                now.above(pid)
        finally:
            for each in (pid, running.pid):
                os.kill(each, signal.SIGKILL)


async def test_what_a_killed_runner_has_left_is_known_to_the_next_daemon_while_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"
    leaves = f"(env -i setsid sh -c 'echo $$ > {left}; exec sleep 600' &) ; exec sleep 600"
    directory = private_directory(tmp_path)
    async with transport() as first:
        running = await start(first, shell(leaves), directory)
        pid = await read_pid(left)
        assert running.pid is not None
        os.kill(runner_of(running.pid), signal.SIGKILL)
        await collect(running)
        assert running.is_gone is False
    # Others of this machine may look like it.
    monkeypatch.setattr(tree, "processes", lambda: [one for one in [tree.process(pid)] if one])
    async with transport() as second, transport() as third:
        assert is_unproven(directory)
        second.expect("d1.1", directory)
        second.settle()
        with pytest.raises(PermissionError, match="was killed"):
            second.above(pid)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{pid}").exists())
        third.expect("d1.1", directory)
        third.settle()
        with process(LEFT) as (_, line):
            with pytest.raises(PermissionError, match="was killed"):
                second.above(int(line))
            assert third.above(int(line)) is None


async def test_what_has_ended_with_proof_is_not_remembered(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    async with transport() as by:
        assert not is_unproven(directory)
        await collect(await start(by, shell("exit 0"), directory))
        await until(lambda: not is_unproven(directory))


async def test_an_attempt_that_has_ended_leaves_nothing_in_doubt(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(by, shell("exit 0"), private_directory(tmp_path))
        with process(LEFT) as (_, line):
            await collect(running)
            assert by.above(int(line)) is None


async def test_what_a_killed_runner_has_left_is_not_a_persons(tmp_path: Path) -> None:
    """It carries no mark by which it would be ended, and has a session of its own."""
    left = tmp_path / "left"
    leaves = f"env -i setsid sh -c 'echo $$ > {left}; exec sleep 600' & exec sleep 600"
    async with transport() as by:
        running = await start(by, shell(leaves), private_directory(tmp_path))
        pid = await read_pid(left)
        program = runner_of(pid)
        try:
            assert program == running.pid
            assert by.above(pid) is not None
            os.kill(runner_of(program), signal.SIGKILL)
            await until(lambda: runner_of(program) == by.launcher_pid)
            with pytest.raises(PermissionError, match="was killed"):
                by.above(pid)
            assert ProcessOwners(by.above).owner(pid) == "engine"
        finally:
            for each in (pid, program):
                os.kill(each, signal.SIGKILL)
