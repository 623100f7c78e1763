"""What is kept on disk of an attempt's output, and how it is read again."""

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.transports.programs import (
    collect,
    private_directory,
    python,
    shell,
    start,
    text_of,
    transport,
)

from fallbackd.core.protocol import Chunk, ProcessExit
from fallbackd.transports.process.recording import Follower, list_parts, read_chunks, read_log
from fallbackd.transports.process.runner.recorder import Recorder, marker
from fallbackd.transports.process.running import RunnerLimits

CAP = 256 * 1024


@contextmanager
def recorder(directory: str, *, max_log_bytes: int = CAP) -> Iterator[Recorder]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Recorder(handle, max_log_bytes=max_log_bytes)
    finally:
        os.close(handle)


def numbered(count: int) -> bytes:
    return b"".join(b"%09d\n" % n for n in range(count))


def on_disk(directory: str) -> int:
    return sum(
        entry.stat().st_size for entry in os.scandir(directory) if entry.name.startswith("output")
    )


async def test_reading_again_gives_the_same_chunks(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    async with transport() as by:
        running = await start(
            by, shell("for n in 1 2 3 4 5; do echo $n; echo -$n >&2; done"), directory
        )
        seen = await collect(running)
    assert list(read_chunks(directory)) == seen
    assert running.log_bytes == sum(len(chunk.data) for chunk in seen)


def test_reading_goes_on_from_any_offset(tmp_path: Path) -> None:
    directory = str(tmp_path)
    with recorder(directory) as writes:
        writes.write("o", b"abc", at=1.0)
        writes.write("e", b"defg", at=2.0)
    assert list(read_chunks(directory, offset=3)) == [Chunk("stderr", b"defg", 2.0)]
    assert list(read_chunks(directory, offset=5)) == [Chunk("stderr", b"fg", 2.0)]
    assert list(read_chunks(directory, offset=7)) == []


def test_a_growing_recording_is_read_as_it_grows(tmp_path: Path) -> None:
    directory = str(tmp_path)
    follower = Follower(directory)
    assert follower.read() == []
    with recorder(directory) as writes:
        assert follower.read() == []
        writes.write("o", b"abc", at=1.0)
        assert follower.read() == [Chunk("stdout", b"abc", 1.0)]
        assert follower.read() == []
        # Half an index line is not there yet.
        with open(tmp_path / "output.log", "ab") as log, open(tmp_path / "output.idx", "ab") as idx:
            log.write(b"xy")
            idx.write(b"2.000000 o 2")
            idx.flush()
            log.flush()
            assert follower.read() == []
            idx.write(b" 5\n")
        assert follower.read() == [Chunk("stdout", b"xy", 2.0)]
    follower.close()


async def test_the_cap_keeps_head_and_tail_while_the_follower_sees_all(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    code = """
        import sys
        for n in range(300_000):
            sys.stdout.write("%09d\\n" % n)
    """
    async with transport(limits=RunnerLimits(max_log_bytes=CAP)) as by:
        running = await start(by, python(code), directory)
        seen = text_of(await collect(running))
    everything = numbered(300_000)
    assert seen == everything
    assert running.log_bytes == len(everything)

    head = list_parts(directory)[0]
    tail = list_parts(directory)[1:]
    dropped = len(everything) - sum(
        len(chunk.data) for chunk in read_chunks(directory) if chunk.stream == "stdout"
    )
    assert 0 < dropped < len(everything)
    first = Path(head.log_path).read_bytes()
    kept = first.removesuffix(marker(dropped))
    assert len(kept) < len(first)  # the marker at its end says exactly how much
    assert everything.startswith(kept)
    newest = b"".join(Path(part.log_path).read_bytes() for part in tail)
    assert everything.endswith(newest)
    assert len(kept) + dropped + len(newest) == len(everything)
    assert on_disk(directory) <= CAP + len(marker(0))
    assert min(len(kept), len(newest)) > CAP // 4
    for name in os.listdir(directory):
        assert stat.S_IMODE(os.stat(f"{directory}/{name}").st_mode) == 0o600


@pytest.mark.parametrize("size", [1, 10, 700, 4096])
def test_the_cap_holds_for_chunks_of_any_size(tmp_path: Path, size: int) -> None:
    directory = str(tmp_path)
    total = 0
    with recorder(directory, max_log_bytes=65_536) as writes:
        while total < 300_000:
            writes.write("o", b"x" * size, at=1_700_000_000.0)
            total += size
            if size < 10 and total > 30_000:
                break
        assert on_disk(directory) <= 65_536 + len(marker(0))
        kept = sum(len(chunk.data) for chunk in read_chunks(directory) if chunk.stream == "stdout")
        assert kept + writes.dropped_bytes == total
        assert writes.dropped_bytes > 0


def test_a_follower_that_lags_is_told_what_it_missed(tmp_path: Path) -> None:
    directory = str(tmp_path)
    everything = numbered(40_000)
    follower = Follower(directory)
    seen: list[Chunk] = []
    with recorder(directory) as writes:
        writes.write("o", everything[:100], at=1.0)
        seen += follower.read()
        for start_at in range(100, len(everything), 1000):
            writes.write("o", everything[start_at : start_at + 1000], at=1.0)
        while chunks := follower.read():
            seen += chunks
    gaps = [number for number, chunk in enumerate(seen) if chunk.stream == "stderr"]
    assert len(gaps) == 1
    before, after = seen[: gaps[0]], seen[gaps[0] + 1 :]
    missed = int(seen[gaps[0]].data.split(b"fallbackd: ")[1].split()[0])
    assert missed > 0
    assert everything.startswith(text_of(before))
    assert everything.endswith(text_of(after))
    assert len(text_of(before)) + missed + len(text_of(after)) == len(everything)
    assert follower.offset == len(everything)
    follower.close()


def test_a_part_that_is_being_read_stays_whole_when_it_is_thrown_away(tmp_path: Path) -> None:
    directory = str(tmp_path)
    everything = numbered(40_000)
    follower = Follower(directory)
    seen = b""
    with recorder(directory) as writes:
        for start_at in range(0, len(everything), 1000):
            drops = writes.drops_next(1000)
            # What a runner waits for: the follower holds what is about to go.
            while drops is not None and follower.part_start < drops:
                seen += text_of(follower.read())
            writes.write("o", everything[start_at : start_at + 1000], at=1.0)
        assert writes.dropped_bytes > 0
        while chunks := follower.read():
            assert {chunk.stream for chunk in chunks} == {"stdout"}
            seen += text_of(chunks)
    assert seen == everything
    follower.close()


def test_the_log_is_read_in_pieces_with_one_marker_for_what_is_gone(tmp_path: Path) -> None:
    directory = str(tmp_path)
    everything = numbered(40_000)
    with recorder(directory) as writes:
        for start_at in range(0, len(everything), 1000):
            writes.write("o", everything[start_at : start_at + 1000], at=1.0)
        gone = writes.dropped_bytes
    pieces, offset, dropped = b"", 0, 0
    while True:
        piece = read_log(directory, offset=offset, max_bytes=7_777)
        if piece.next_offset == offset:
            break
        assert len(piece.data) <= 7_777 + len(marker(0))
        pieces += piece.data
        dropped += piece.dropped_bytes
        offset = piece.next_offset
    assert offset == piece.end_offset == len(everything)
    assert dropped == gone > 0
    head, found, tail = pieces.partition(marker(gone))
    assert found
    assert everything.startswith(head)
    assert everything.endswith(tail)
    assert len(head) + gone + len(tail) == len(everything)


def test_reading_a_log_behind_its_end_or_of_nothing_gives_nothing(tmp_path: Path) -> None:
    assert read_log(str(tmp_path)).data == b""
    assert read_log(str(tmp_path / "absent")).end_offset == 0
    with recorder(str(tmp_path)) as writes:
        writes.write("o", b"abc", at=1.0)
    piece = read_log(str(tmp_path), offset=10)
    assert (piece.data, piece.next_offset, piece.end_offset) == (b"", 10, 3)
    assert read_log(str(tmp_path), offset=1, max_bytes=1).data == b"b"


async def test_a_disk_that_takes_no_more_costs_the_record_only(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    everything = numbered(200_000)
    limit = 300_000
    async with transport() as by:
        await collect(await start(by, ("true",), private_directory(tmp_path, "first")))
        assert by.launcher_pid is not None
        launcher = by.launcher_pid
        # A limit on file sizes refuses writes as a full disk does. Runners inherit it; the one
        # in stock was forked before, so one attempt passes first.
        resource.prlimit(launcher, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        await collect(await start(by, ("true",), private_directory(tmp_path, "second")))
        running = await start(by, python("for n in range(200_000): print('%09d' % n)"), directory)
        chunks = await collect(running)
    assert text_of(chunks) == everything
    ended = running.exit
    assert isinstance(ended, ProcessExit)
    assert ended.code == 0
    assert "EFBIG" in ended.note
    recorded = b"".join(chunk.data for chunk in read_chunks(directory))
    assert everything.startswith(recorded)
    assert 0 < len(recorded) <= limit
    assert f"{len(everything) - len(recorded)} bytes not on disk, 0 of them" in ended.note
    assert (Path(directory) / "output.log").stat().st_size == len(recorded)


def test_a_directory_that_takes_no_file_is_noted_and_nothing_raises(tmp_path: Path) -> None:
    (tmp_path / "output.log").touch()
    with recorder(str(tmp_path)) as writes:
        assert not writes.write("o", b"abc", at=1.0)
        assert writes.error == "EEXIST"
        assert writes.lost_bytes == 3
        assert writes.drops_next(100_000) is None


def test_an_end_that_does_not_say_whether_its_processes_are_gone_is_none() -> None:
    with pytest.raises(msgspec.ValidationError, match="gone"):
        msgspec.convert({"code": 0}, ProcessExit)
