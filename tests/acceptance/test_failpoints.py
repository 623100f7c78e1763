"""Killed between what is kept and what is done, under load. Every point: tests/e2e."""

from pathlib import Path

from tests.support.survival.scene import survive_all

CHAINS = [
    [("store.commit.after", 12), ("answer.written", 2)],
    [("order.before", 2), ("fence.claimed", 1)],
    [("runner.met", 1)],
]


async def test_what_was_acknowledged_is_answered_once_and_nothing_is_left(tmp_path: Path) -> None:
    assert await survive_all(tmp_path, CHAINS, seed="1") == {}
