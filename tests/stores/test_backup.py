"""A copy of the files is a backup."""

import shutil
from pathlib import Path

import anyio
from tests.stores.contract import NONE
from tests.stores.records import NOW, a_note, a_session, deciding

from fallbackd.core.decision import PutSession
from fallbackd.core.ids import SessionId
from fallbackd.stores.sqlite import open_sqlite


async def test_after_a_checkpoint_a_copy_of_the_one_file_has_everything(tmp_path: Path) -> None:
    path, copy = tmp_path / "fallbackd.db", tmp_path / "copy" / "fallbackd.db"
    copy.parent.mkdir()
    store = await open_sqlite(path, now=NOW)
    await store.transact(NONE, deciding(PutSession(a_session("s1")), a_note("one")))
    await store.checkpoint()
    shutil.copy(path, copy)
    await store.transact(NONE, deciding(PutSession(a_session("s2")), a_note("two")))
    restored = await open_sqlite(copy, now=NOW)
    assert (restored.problem, restored.set_aside) == (None, ())
    assert await restored.session(SessionId("s1")) == a_session("s1")
    assert await restored.session(SessionId("s2")) is None
    await restored.aclose()
    await store.aclose()


async def test_a_copy_of_file_and_log_under_load_has_what_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "fallbackd.db"
    store = await open_sqlite(path, now=NOW)
    acknowledged = 0
    is_over = False
    folding = anyio.Lock()  # a copy made in the moment of a checkpoint may be torn

    async def load() -> None:
        nonlocal acknowledged
        while not is_over:
            notes = [a_note("n", text="x" * 2000) for _ in range(5)]
            await store.transact(NONE, deciding(*notes))
            acknowledged += 5
            if acknowledged % 50 == 0 and not folding.locked():  # one of every tick, in earnest
                async with folding:
                    await store.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load)
        for number in range(20):
            wanted = acknowledged + 20
            while acknowledged < wanted:
                await anyio.lowlevel.checkpoint()
            before = acknowledged
            copy = tmp_path / f"copy{number}" / "fallbackd.db"
            copy.parent.mkdir()
            async with folding:
                await anyio.to_thread.run_sync(copy_both, path, copy)
            restored = await open_sqlite(copy, now=NOW)
            assert (restored.problem, restored.set_aside) == (None, ())
            assert restored.last_seq >= before
            assert len(await restored.journal(after_seq=0, limit=100_000)) == restored.last_seq
            await restored.aclose()
        is_over = True
    await store.aclose()


def copy_both(path: Path, copy: Path) -> None:
    """As `cp fallbackd.db fallbackd.db-wal …` does, while others write."""
    shutil.copy(path, copy)
    shutil.copy(f"{path}-wal", f"{copy}-wal")
