"""What one transport leaves, another one takes up."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from tests.transports.programs import (
    HANG_S,
    collect,
    is_alive,
    private_directory,
    python,
    read_pid,
    shell,
    start,
    text_of,
    transport,
    until,
)

from fallbackd.core.protocol import NotStarted, ProcessExit
from fallbackd.transports.process import leftovers
from fallbackd.transports.process.leftovers import end_leftover
from fallbackd.transports.process.recording import read_exit
from fallbackd.transports.process.runner import tree
from fallbackd.transports.process.running import RunnerLimits, RunningProcess
from fallbackd.transports.process.transport import ProcessTransport
from fallbackd.transports.systemd_jobs import is_restart, is_restarted, unit_of

COUNTS = """
    echo $$ > {place}/pid
    n=0
    while [ ! -e {place}/go ]; do n=$((n + 1)); echo $n; sleep 0.01; done
    exit 3
    """


async def left_behind(place: Path, code: str = COUNTS, **call: object) -> str:
    """An attempt whose transport has gone away; its directory."""
    directory = private_directory(place)
    by = ProcessTransport(limits=RunnerLimits(stop_grace_s=0.2))
    await start(by, shell(code.format(place=place)), directory, **call)  # type: ignore[arg-type]
    await by.detach()
    await until((Path(directory) / "attempt.json").exists)
    return directory


async def taken_up(by: ProcessTransport, directory: str) -> RunningProcess:
    found = await by.attach(attempt="d1.1", directory=directory)
    assert found is not None
    return found


async def test_it_is_read_from_its_beginning_and_followed_to_its_end(tmp_path: Path) -> None:
    directory = await left_behind(tmp_path)
    pid = await read_pid(tmp_path / "pid")
    log = Path(directory) / "output.log"
    await until(lambda: log.stat().st_size > 20)
    async with transport() as by:
        running = await taken_up(by, directory)
        assert running.pid == pid
        assert running.recorded_bytes >= 20
        (tmp_path / "go").touch()
        lines = [int(line) for line in text_of(await collect(running)).split()]
        assert lines == list(range(1, len(lines) + 1))
        assert running.log_bytes == log.stat().st_size
        assert isinstance(running.exit, ProcessExit)
        assert (running.exit.code, running.exit.gone) == (3, True)
    assert not list(tmp_path.glob("attempt/line")), "the meeting place is removed"


async def test_one_after_another_may_take_it_up(tmp_path: Path) -> None:
    directory = await left_behind(tmp_path)
    for _ in range(3):
        by = ProcessTransport()
        running = await taken_up(by, directory)
        chunks = running.chunks()
        assert (await anext(chunks)).data.startswith(b"1\n")
        await by.detach()
    async with transport(limits=RunnerLimits(stop_grace_s=0.2)) as last:
        running = await taken_up(last, directory)
        running.stop(grace_s=0.2)
        await collect(running)
        assert isinstance(running.exit, ProcessExit)
        assert running.exit.stopped
        assert running.exit.gone


async def test_closing_ends_what_was_taken_up_and_never_read(tmp_path: Path) -> None:
    directory = await left_behind(tmp_path)
    pid = await read_pid(tmp_path / "pid")
    async with transport(limits=RunnerLimits(stop_grace_s=0.2)) as by:
        await taken_up(by, directory)
    assert not is_alive(pid)


async def test_a_log_longer_than_its_bound_is_caught_up_with(tmp_path: Path) -> None:
    code = """
        import os, pathlib, time
        place = pathlib.Path("{place}")
        for n in range(4000):
            print("%099d" % n, flush=n % 100 == 0)
        print("written", flush=True)
        (place / "written").touch()
        while not (place / "go").exists():
            time.sleep(0.01)
        """
    directory = private_directory(tmp_path)
    by = ProcessTransport(limits=RunnerLimits(max_log_bytes=131_072))
    await start(by, python(code.replace("{place}", str(tmp_path))), directory)
    await by.detach()
    await until((tmp_path / "written").exists)
    async with transport() as by:
        running = await taken_up(by, directory)
        seen = b""
        async for chunk in running.chunks():
            seen += chunk.data
            if running.log_bytes >= running.recorded_bytes:
                (tmp_path / "go").touch()
        assert b"bytes of output were dropped" in seen
        assert seen.rstrip().endswith(b"written")


async def test_where_nothing_was_started_nothing_will_be(tmp_path: Path) -> None:
    async with transport() as by:
        missing = str(tmp_path / "missing")
        assert await by.attach(attempt="d1.1", directory=missing) is None
        directory = private_directory(tmp_path)
        stale = os.open(directory, os.O_RDONLY)
        assert await by.attach(attempt="d1.1", directory=directory) is None
        assert not Path(directory).exists(), "its name is free for the attempt to be made"
        with pytest.raises(FileExistsError):
            leftovers.claim(stale)  # a runner that had found the directory before
        os.close(stale)


async def test_a_fence_that_was_half_made_is_made_whole(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    handle = os.open(directory, os.O_RDONLY)
    leftovers.claim(handle, by="daemon")
    os.close(handle)
    async with transport() as by:
        assert await by.attach(attempt="d1.1", directory=directory) is None
    assert not Path(directory).exists()


async def test_a_runner_does_not_start_what_was_fenced(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    handle = os.open(directory, os.O_RDONLY)
    leftovers.claim(handle, by="daemon")
    os.close(handle)
    async with transport() as by:
        running = await start(by, shell(f"touch {tmp_path}/ran"), directory)
        await collect(running)
        assert isinstance(running.exit, NotStarted | ProcessExit)
    assert not (tmp_path / "ran").exists()


async def test_a_runner_that_died_before_it_wrote_a_record_leaves_no_proof(tmp_path: Path) -> None:
    directory = await left_behind(tmp_path)
    pid = await read_pid(tmp_path / "pid")
    record = json.loads((Path(directory) / "attempt.json").read_text())
    os.kill(record["runner"], signal.SIGKILL)
    (Path(directory) / "attempt.json").unlink()
    async with transport(limits=RunnerLimits(stop_grace_s=0.2)) as by:
        running = await taken_up(by, directory)
        await collect(running)
        assert isinstance(running.exit, ProcessExit)
        assert (running.exit.code, running.exit.signal, running.exit.gone) == (None, None, False)
    assert not is_alive(pid)


async def test_a_runner_whose_records_are_damaged_is_met_all_the_same(tmp_path: Path) -> None:
    for number, damage in enumerate(("", "no JSON", "[]", '{"runner": "x"}', '{"runner": 1}')):
        place = tmp_path / str(number)
        place.mkdir()
        directory = await left_behind(place)
        pid = await read_pid(place / "pid")
        await until((Path(directory) / "line").exists)
        for name in ("attempt.json", "claim"):
            (Path(directory) / name).write_text(damage)
        async with transport() as by:
            running = await taken_up(by, directory)
            assert running.pid == pid
            (place / "go").touch()
            await collect(running)
            assert isinstance(running.exit, ProcessExit)
            assert (running.exit.code, running.exit.gone) == (3, True)


async def test_a_runner_that_is_not_met_is_held_while_its_program_is_ended(tmp_path: Path) -> None:
    """Nothing in its directory can be read, so its own record proves nothing either."""
    directory = Path(await left_behind(tmp_path))
    pid = await read_pid(tmp_path / "pid")
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path / "moved")
    async with transport() as by:
        with pytest.raises(OSError, match=r"symbolic|directory"):
            await by.attach(attempt="d1.1", directory=str(directory))
    ended = await end_leftover(str(directory), grace_s=0.2, bound_s=HANG_S)
    assert isinstance(ended, ProcessExit)
    assert ended.gone
    assert not is_alive(pid)


async def test_a_directory_that_was_removed_hides_nothing_that_runs(tmp_path: Path) -> None:
    directory = Path(await left_behind(tmp_path))
    pid = await read_pid(tmp_path / "pid")
    directory.rename(tmp_path / "moved")
    async with transport() as by:
        running = await taken_up(by, str(directory))
        await collect(running)
        assert isinstance(running.exit, ProcessExit)
        assert running.exit.gone, "its runner was held meanwhile"
    assert not is_alive(pid)


async def test_a_record_of_another_boot_is_no_process_of_this_one(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    record = {"runner": os.getpid(), "runner_start": 0, "pid": os.getpid(), "start": 0}
    record |= {"token": "t", "boot_id": "another"}  # type: ignore[dict-item]
    (Path(directory) / "attempt.json").write_text(json.dumps(record))
    (Path(directory) / "claim").write_text(json.dumps(record))
    async with transport() as by:
        running = await taken_up(by, directory)
        assert await collect(running) == []
        assert isinstance(running.exit, ProcessExit)
        assert running.exit.rebooted


async def test_what_ran_is_ended_where_the_kernel_no_longer_tells_its_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await left_behind(tmp_path)
    pid = await read_pid(tmp_path / "pid")
    monkeypatch.setattr(tree, "boot_id", lambda: "")  # /proc/sys is hidden from this daemon
    async with transport() as by:
        running = await taken_up(by, directory)
        await collect(running)
        assert isinstance(running.exit, ProcessExit)
        assert not running.exit.rebooted
    assert not is_alive(pid)


@pytest.mark.root
async def test_a_stranger_at_the_meeting_place_is_sent_away(tmp_path: Path) -> None:
    """Nobody else reaches the private directory; and if he did, he would learn nothing."""
    directory = await left_behind(tmp_path)
    place = Path(directory) / "line"
    await until(place.exists)
    Path(directory).chmod(0o755)
    place.chmod(0o777)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(directory)
            os.setuid(4242)
            line = socket.socket(socket.AF_UNIX)
            line.settimeout(HANG_S)
            line.connect(place.name)
            theirs.send(b"heard " + line.recv(100))
        except OSError as error:
            theirs.send(f"refused: {error}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    with ours, theirs:
        assert ours.recv(100) == b"heard "
    (tmp_path / "go").touch()
    async with transport() as by:
        running = await taken_up(by, directory)
        await collect(running)
        assert isinstance(running.exit, ProcessExit)
        assert running.exit.code == 3


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/f.service\n",
            ("f.service", True),
        ),
        ("0::/system.slice/f.service\n", ("f.service", False)),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope\n", (None, True)),
        ("0::/\n", (None, False)),
        ("", (None, False)),
    ],
)
def test_the_unit_is_read_from_the_control_group(
    cgroup: str, unit: tuple[str | None, bool]
) -> None:
    assert unit_of(cgroup) == unit


@pytest.mark.parametrize(
    ("jobs", "restarted"),
    [
        ("12 f.service restart running\n", True),
        ("12 f.service stop running\n", False),
        ("12 g.service restart running\n13 f.service stop running\n", False),
        ("", False),
        ("no jobs running.\n", False),
    ],
)
def test_a_restart_is_told_by_the_list_of_jobs(jobs: str, *, restarted: bool) -> None:
    assert is_restarted(jobs, "f.service") is restarted


async def test_without_a_manager_nothing_is_a_restart() -> None:
    assert not await is_restart({}, inheritable={})


FORGED = {"code": 0, "signal": None, "gone": True, "stopped": False, "at": 1, "note": ""}


@pytest.mark.parametrize("met", [True, False])
async def test_a_record_of_an_end_is_none_while_the_runner_of_the_claim_lives(
    tmp_path: Path, *, met: bool
) -> None:
    directory = Path(await left_behind(tmp_path))
    pid = await read_pid(tmp_path / "pid")
    await until((directory / "line").exists)
    (directory / "exit.json").write_text(json.dumps(FORGED))
    if not met:
        (directory / "line").unlink()
        ended = await end_leftover(str(directory), grace_s=0.2, bound_s=HANG_S)
        assert isinstance(ended, ProcessExit)
        assert ended.at != FORGED["at"]
        assert not is_alive(pid)
        return
    async with transport() as by:
        running = await taken_up(by, str(directory))
        assert is_alive(pid)
        (tmp_path / "go").touch()
        await collect(running)
        assert isinstance(running.exit, ProcessExit)
        assert running.exit.code == 3


@pytest.mark.parametrize("forgets", [True, False])
async def test_a_record_of_an_end_is_none_while_something_of_the_attempt_lives(
    tmp_path: Path, *, forgets: bool
) -> None:
    """Its runner was killed, and its claim says that there never was one."""
    directory = Path(await left_behind(tmp_path, "echo $$ > {place}/pid; exec sleep 600"))
    pid = await read_pid(tmp_path / "pid")
    record = json.loads((directory / "attempt.json").read_text())
    os.kill(record["runner"], signal.SIGKILL)
    (directory / "exit.json").write_text(json.dumps(FORGED))
    if forgets:
        for name in ("attempt.json", "claim"):
            (directory / name).write_text(json.dumps({**record, "runner": 1, "runner_start": 1}))
    async with transport(limits=RunnerLimits(stop_grace_s=0.2)) as by:
        running = await taken_up(by, str(directory))
        await collect(running)
        assert isinstance(running.exit, ProcessExit)
        assert not running.exit.gone
    assert not is_alive(pid)


@pytest.mark.parametrize(
    "record",
    [
        {**FORGED, "code": "x"},
        {**FORGED, "signal": []},
        {**FORGED, "gone": 7},
        {**FORGED, "at": "y"},
        {**FORGED, "at": float("inf")},
        {**FORGED, "note": None},
        {**FORGED, "left": [1]},
        {"code": 0},
        {"refused": {"error": 1, "text": "", "path": "", "at": 1}},
        {"refused": 7},
        {"refused": {}},
    ],
)
def test_a_record_of_other_types_is_none(tmp_path: Path, record: dict[str, object]) -> None:
    directory = Path(private_directory(tmp_path))
    (directory / "exit.json").write_text(json.dumps(record))
    assert read_exit(str(directory)) is None


async def test_a_program_that_waits_in_the_place_of_its_runner_is_not_heard(
    tmp_path: Path,
) -> None:
    directory = Path(await left_behind(tmp_path))
    pid = await read_pid(tmp_path / "pid")
    await until((directory / "line").exists)
    (directory / "line").unlink()
    with socket.socket(socket.AF_UNIX) as fake:
        fake.bind(str(directory / "line"))
        fake.listen()
        async with transport(limits=RunnerLimits(stop_grace_s=0.2)) as by:
            running = await taken_up(by, str(directory))
            await collect(running)
            assert isinstance(running.exit, ProcessExit)
    assert not is_alive(pid), "it was ended by its own runner"
