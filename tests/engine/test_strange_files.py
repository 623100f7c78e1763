"""Links, FIFOs and files without end where the daemon keeps its own files."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from tests.support.running_engine import HANG_S, agent, ended, engine_in, settings, tried, work
from tests.support.scripts import script
from tests.transports.programs import is_alive, read_pid, until

from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.engine.requests import NewWork, Unknown
from fallbackd.engine.runs import MadeFile, Runs
from fallbackd.engine.ticker import tick
from fallbackd.transports.process.runner.meeting import EXIT_FILE

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"
WAITS = """
    cat >/dev/null
    echo $$ > "$PLACE/a.pid"
    echo begun
    while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
    """


def put(path: Path, what: str) -> None:
    path.unlink(missing_ok=True)
    if what == "a FIFO":
        os.mkfifo(path)
    elif what == "a link":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 40)


@pytest.mark.parametrize("what", ["a FIFO", "a link", "a file without end"])
@pytest.mark.parametrize("name", ["prompt", "1/output.log", "1/output.idx", "1/exit.json"])
async def test_a_daemon_that_comes_back_answers_and_starts_nothing_beside_what_runs(
    tmp_path: Path, name: str, what: str
) -> None:
    config = settings(
        agent("a", script(tmp_path, "a", WAITS)), agent("b", script(tmp_path, "b", ANSWERS))
    )
    async with engine_in(tmp_path, config, store="sqlite", leaves=True) as first:
        found = await first.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path)))
        pid = await read_pid(tmp_path / "a.pid")
        await until((tmp_path / "runs" / found.delegation / "1" / "attempt.json").exists)
    put(tmp_path / "runs" / found.delegation / name, what)
    async with engine_in(tmp_path, config, store="sqlite") as second:
        (tmp_path / "go").touch()
        done = await ended(second, found.delegation)
        assert done.attempts[0].gone is not None
        assert not is_alive(pid)
        assert [backend for backend, _ in tried(done)][:1] == ["a"]
        assert done.attempts[0].gone or len(done.attempts) == 1
        assert (await work(second, backend="b")).served_by == "b"


async def test_logs_that_cannot_be_read_hold_up_nothing_else(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        log = tmp_path / "runs" / done.delegation / "1" / "output.log"
        await until((log.parent / EXIT_FILE).exists)
        put(log, "a FIFO")

        async def read() -> None:
            with pytest.raises(Unknown, match="cannot be read"):
                await engine.log(done.delegation, attempt=None, offset=0, max_bytes=1000)

        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as readers:
                for _ in range(60):
                    readers.start_soon(read)
            await tick(engine)


async def test_a_file_system_that_hangs_takes_no_thread_of_the_tick(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    read, write = os.pipe()

    def hangs(directory: str, *, offset: int, max_bytes: int) -> tuple[bytes, int, int]:
        os.read(read, 1)
        return b"", 0, 0

    async with engine_in(tmp_path, config, read_log=hangs) as engine:
        done = await work(engine, backend="a")
        async with anyio.create_task_group() as readers:
            for _ in range(60):
                readers.start_soon(
                    lambda: engine.log(done.delegation, attempt=None, offset=0, max_bytes=1000)
                )
            await until(lambda: engine.runs.readers.borrowed_tokens == 8)
            with anyio.fail_after(HANG_S):
                await tick(engine)
                assert (await work(engine, backend="a")).state == "succeeded"
            os.close(write)  # and now every read comes back
    os.close(read)


def test_pruning_follows_no_link_out_of_the_run_directories(tmp_path: Path) -> None:
    from fallbackd.engine.runs import list_directories, tidy_one

    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / "1" / ".x.new").touch()
    runs = Runs(tmp_path / "runs")
    (tmp_path / "runs" / "d1").mkdir(parents=True)
    (tmp_path / "runs" / "d1" / "1").symlink_to(tmp_path / "other" / "1")
    (tmp_path / "runs" / "d2").symlink_to(tmp_path / "other")
    tidy_one(runs.path(DelegationId("d1")))
    assert list_directories(runs.root) == ["d1"]
    assert [one.delegation for one in runs.measure()] == ["d1"]
    runs.remove(DelegationId("d2"))
    assert not (tmp_path / "runs" / "d2").is_symlink()
    assert (tmp_path / "other" / "1" / ".x.new").exists()


def test_a_line_that_was_cut_short_hides_no_file_that_was_made(tmp_path: Path) -> None:
    runs, name = Runs(tmp_path / "runs"), DelegationId("d1")
    runs.create(name, "prompt", b"{}")
    before, after = (MadeFile(backend=BackendId("a"), id=each) for each in ("one", "two"))
    runs.note_made(name, before)
    with (runs.path(name) / "made").open("ab") as file:
        file.write(b'{"backend":"a')
    runs.note_made(name, after)
    assert runs.made(name) == [before, after]


def test_held_answers_are_written_once_by_all_who_try(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs")
    names = [DelegationId(f"d{number}") for number in range(20)]
    for name in names:
        runs.create(name, "prompt", b"{}")
    for name in names:
        (in_the_way := runs.path(name) / "answer").mkdir()
        assert not runs.keep_answer(name, f"answer of {name}")
        in_the_way.rmdir()
    with ThreadPoolExecutor(8) as threads:
        tries = [threads.submit(runs.write_held) for _ in range(8)]
    assert [one.result() for one in tries] == [0] * 8
    for name in names:
        kept = runs.read_answer(name)
        assert kept is not None
        assert kept.text == f"answer of {name}"
