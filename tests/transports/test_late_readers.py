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
)


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
