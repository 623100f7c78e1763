"""Output waits for its reader, whatever starts or ends meanwhile."""

from pathlib import Path

import anyio
from tests.transports.programs import (
    HANG_S,
    collect,
    private_directory,
    shell,
    start,
    text_of,
    transport,
    until,
)

from fallbackd.core.protocol import ProcessExit
from fallbackd.transports.process.recording import recorded_bytes

MUCH_BYTES = 8_000_000


async def test_another_start_leaves_the_output_of_an_ended_program_to_be_read(
    tmp_path: Path,
) -> None:
    async with transport() as by:
        first = await start(by, shell("echo answer"), private_directory(tmp_path, "first"))
        chunks = first.chunks()
        assert (await anext(chunks)).data == b"answer\n"  # and does not go on reading for now
        with anyio.fail_after(HANG_S):
            await first.wait_gone()
        second = await start(by, shell("echo other"), private_directory(tmp_path, "second"))
        rest = [chunk async for chunk in chunks]
        assert rest == []
        assert first.exit.gone
        assert text_of(await collect(second)) == b"other\n"


async def test_an_end_that_is_known_at_the_start_loses_no_output(tmp_path: Path) -> None:
    async with transport() as by:
        directories = [private_directory(tmp_path, f"of-{number}") for number in range(30)]
        opened = [await start(by, shell("echo answer"), directory) for directory in directories]
        with anyio.fail_after(HANG_S):
            for one in opened:
                await one.wait_gone()
        last = await start(by, shell("echo last"), private_directory(tmp_path, "last"))
        assert [text_of(await collect(one)) for one in opened] == [b"answer\n"] * 30
        assert text_of(await collect(last)) == b"last\n"


async def test_what_is_stopped_is_over_before_all_that_it_printed_is_read(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    async with transport() as by:
        running = await start(
            by, shell(f"head -c {MUCH_BYTES} /dev/zero; exec sleep 1000"), directory
        )
        chunks = running.chunks()
        first = await anext(chunks)  # and does not go on reading for now
        await until(lambda: recorded_bytes(directory) == MUCH_BYTES)
        running.stop(grace_s=0)
        with anyio.fail_after(HANG_S):
            await running.wait_gone()
        rest = sum([len(chunk.data) async for chunk in chunks])
        assert rest < MUCH_BYTES // 2
        assert isinstance(running.exit, ProcessExit)
        assert running.exit.gone
        assert running.exit.unread_bytes == MUCH_BYTES - len(first.data) - rest


async def test_what_has_ended_before_it_is_stopped_is_not_read_to_its_end_either(
    tmp_path: Path,
) -> None:
    async with transport() as by:
        directory = private_directory(tmp_path)
        running = await start(by, shell(f"head -c {MUCH_BYTES} /dev/zero"), directory)
        chunks = running.chunks()
        await anext(chunks)
        with anyio.fail_after(HANG_S):
            await running.wait_gone()
        running.stop(grace_s=0)
        assert sum([len(chunk.data) async for chunk in chunks]) < MUCH_BYTES // 2
        assert isinstance(running.exit, ProcessExit)
        assert running.exit.unread_bytes > 0


async def test_a_stop_keeps_the_last_words_of_a_program_that_has_said_little(
    tmp_path: Path,
) -> None:
    async with transport() as by:
        talks = "echo begun; trap 'echo last words; exit 1' TERM; while :; do sleep 0.02; done"
        running = await start(by, shell(talks), private_directory(tmp_path))
        chunks = running.chunks()
        assert (await anext(chunks)).data == b"begun\n"
        running.stop(grace_s=HANG_S)
        with anyio.fail_after(HANG_S):
            await running.wait_gone()
        assert text_of([chunk async for chunk in chunks]) == b"last words\n"
        assert isinstance(running.exit, ProcessExit)
        assert running.exit.unread_bytes == 0
