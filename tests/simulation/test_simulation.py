"""The laws hold in a thousand worlds; and where a rule is broken, a world shows it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulation.many import Tally, play_many
from tests.simulation.run import play, somewhere

MEMORY_SEEDS = range(1000)
SQLITE_SEEDS = range(10_000, 10_100)
FOUND_SEEDS = (459208976, 910003828, 910006380, 8268183, 8269759, 8502223)
"""
Failed once, in a longer run: 459208976 by a program that had no network and delegated. In others
the laws were wrong: a program was missing inside a longer window, and a wait that was stated was
given up for a backend that had become usable.
"""
HANG_S = 3600
"""They take a minute on one core; only a hang takes so long on a machine with much else to do."""
ROOT = Path(__file__).parents[2]
Tell = Callable[[str], None]


def require_all_hold(tally: Tally, count: int) -> None:
    assert not tally.failures, "\n".join(tally.failures[:20])
    assert tally.plays == count


@pytest.mark.timeout(HANG_S)
def test_the_laws_hold_on_the_memory_store(tell: Tell) -> None:
    tally = play_many(MEMORY_SEEDS)
    tell(f"memory store, {tally}")
    require_all_hold(tally, len(MEMORY_SEEDS))
    assert tally.lives > tally.plays


@pytest.mark.timeout(HANG_S)
def test_the_laws_hold_on_the_sqlite_store(tell: Tell) -> None:
    tally = play_many(SQLITE_SEEDS, sqlite=True)
    tell(f"SQLite store, {tally}")
    require_all_hold(tally, len(SQLITE_SEEDS))
    assert tally.lives > tally.plays


@pytest.mark.parametrize("seed", FOUND_SEEDS)
def test_a_seed_that_failed_once_holds(seed: int) -> None:
    with somewhere() as place:
        assert not play(seed, place).broken


@pytest.mark.parametrize("sqlite", [False, True])
def test_the_same_seed_is_the_same_play(*, sqlite: bool) -> None:
    with somewhere() as place:
        for seed in range(8):
            one, other = (play(seed, place, sqlite=sqlite) for _ in range(2))
            assert one.trace == other.trace
            assert one.digest == other.digest
        assert play(1, place).digest != play(2, place).digest


def test_a_play_depends_on_no_order_of_hashes() -> None:
    """In other processes, as somebody replays it who was shown a failing seed."""
    told = []
    for hashes in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "42", "--trace"],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        told.append(done.stdout)
    assert told[0] == told[1]
    assert "AttemptEnded" in told[0]
