"""The store in memory."""

from pathlib import Path

import pytest
from tests.stores.contract import StoreContract
from tests.stores.records import a_session, deciding

from fallbackd.core.decision import PutSession
from fallbackd.core.records import Keys
from fallbackd.ports.store import StoreUnwritable
from fallbackd.stores.memory import MemoryStore


class TestMemoryStore(StoreContract):
    def url(self, tmp_path: Path) -> str:
        return "memory:"


async def test_it_can_play_a_store_that_cannot_be_written() -> None:
    store = MemoryStore()
    store.unwritable = "the disk is full"
    with pytest.raises(StoreUnwritable, match="the disk is full"):
        await store.transact(Keys(), deciding(PutSession(a_session())))
    assert store.peek().session_count == 0
    await store.transact(Keys(), deciding(PutSession(a_session())), must_keep=False)
    assert store.peek().session_count == 1
    assert store.problem == "the disk is full"
    assert await store.flush() is False
    store.unwritable = None
    assert await store.flush() is True
    assert store.problem is None
