"""No sign of life from a daemon whose loop, writer or tick stands still."""

import socket
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from fallbackd.app.lifecycle import Watchdog
from fallbackd.core.decision import PutStory
from fallbackd.core.ids import DelegationId
from fallbackd.lib.sdnotify import Notifier
from fallbackd.stores.memory import MemoryStore

HANG_S = 30.0
LONG_S = 1e6


class Writer(MemoryStore):
    """A store whose way to the disk may be closed, or broken."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = anyio.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.asked = 0

    async def story(self, delegation: DelegationId) -> Sequence[PutStory]:
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return await super().story(delegation)


@contextmanager
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.setblocking(False)
        yield ear


def heard(ear: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(ear.recv(100))
        except BlockingIOError:
            return found


async def test_a_daemon_that_is_well_pings(tmp_path: Path) -> None:
    with manager(tmp_path) as ear:
        dog = Watchdog(Notifier(str(tmp_path / "notify")), Writer(), every_s=1.0)
        assert await dog.look()
        assert heard(ear) == [b"WATCHDOG=1"]


async def test_a_writer_that_does_not_answer_holds_the_ping_back(tmp_path: Path) -> None:
    with manager(tmp_path) as ear:
        writer = Writer()
        writer.answers = anyio.Event()
        dog = Watchdog(Notifier(str(tmp_path / "notify")), writer, every_s=1.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dog.look)
            await anyio.wait_all_tasks_blocked()
            assert writer.asked == 1
            assert heard(ear) == []
            writer.answers.set()
        assert heard(ear) == [b"WATCHDOG=1"]


@pytest.mark.parametrize("error", [OSError("gone"), sqlite3.OperationalError("disk I/O error")])
async def test_a_disk_that_fails_is_no_daemon_that_hangs(error: Exception, tmp_path: Path) -> None:
    with manager(tmp_path) as ear:
        writer = Writer()
        writer.error = error
        assert await Watchdog(Notifier(str(tmp_path / "notify")), writer, every_s=1.0).look()
        assert heard(ear) == [b"WATCHDOG=1"]


async def test_a_tick_that_is_overdue_holds_the_ping_back_until_it_comes(tmp_path: Path) -> None:
    with manager(tmp_path) as ear:
        notifier = Notifier(str(tmp_path / "notify"))
        dog = Watchdog(notifier, Writer(), every_s=1.0, tick_s=0.0)
        await anyio.sleep(0.001)
        assert not await dog.look()
        assert heard(ear) == []
        dog = Watchdog(notifier, Writer(), every_s=1.0, tick_s=LONG_S)
        dog.ticked()
        assert await dog.look()
        assert heard(ear) == [b"WATCHDOG=1"]


async def test_pings_go_on_at_the_interval_that_was_asked_for(tmp_path: Path) -> None:
    with manager(tmp_path) as ear:
        dog = Watchdog(Notifier(str(tmp_path / "notify")), Writer(), every_s=1.25)
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                scope.cancel()
            await anyio.lowlevel.checkpoint()

        with anyio.CancelScope() as scope:
            await dog.run(sleep=sleep)
        assert waits == [1.25] * 3
        assert heard(ear) == [b"WATCHDOG=1"] * 3


async def test_nobody_is_told_where_nobody_watches(tmp_path: Path) -> None:
    with manager(tmp_path) as ear, anyio.fail_after(HANG_S):
        await Watchdog(Notifier(str(tmp_path / "notify")), Writer(), every_s=None).run()
        assert heard(ear) == []
