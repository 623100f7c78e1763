"""Killed at every failpoint of the source, under load. Several daemons at the same time."""

from pathlib import Path

import pytest
from tests.support.survival.points import AFTER, DAEMON, FIRST_START, RUNNER
from tests.support.survival.scene import Chain, shuffled, survive_all

SEED = "1"
AT_ONCE = 5
CHAINS = 6


def chains() -> list[Chain]:
    """Every point at every wanted hit, once; the runner's apart, since they cost answers."""
    found: list[Chain] = [[] for _ in range(CHAINS)]
    found[0] = [(name, 1) for name in sorted(FIRST_START)]
    plain = [name for name in DAEMON if name not in FIRST_START]
    for place, name in enumerate(shuffled(plain, SEED)):
        chain = found[place % CHAINS]
        for hit in DAEMON[name]:
            if name in AFTER:
                chain.append((AFTER[name], 1))
            chain.append((name, hit))
    found.append([(name, hit) for name in shuffled(list(RUNNER), SEED) for hit in RUNNER[name]])
    return found


@pytest.mark.timeout(1200)  # many deaths
async def test_nothing_is_lost_and_nothing_happens_twice_wherever_it_dies(tmp_path: Path) -> None:
    assert await survive_all(tmp_path, chains(), seed=SEED, at_once=AT_ONCE) == {}


def test_the_chains_hold_every_point() -> None:
    assert {name for chain in chains() for name, _ in chain} == {*DAEMON, *RUNNER}
