"""Fresh seeds of the simulation, for as long as there is time."""

import time
from random import SystemRandom

from tests.simulation.many import Tally, play_all, play_many

AT_ONCE = 200
SQLITE_SHARE = 10
"""One of so many is played on the SQLite store."""
FIRST_FRESH = 1_000_000
"""Below are the seeds of the tests."""


def run(seconds: float) -> int:
    """Play for about so long. Returns how many seeds failed; each is printed with its replay."""
    first = SystemRandom().randrange(FIRST_FRESH, 10**9)
    print(f"simulation: from seed {first}")
    until = time.monotonic() + seconds
    tally = Tally()
    seed = first
    while time.monotonic() < until:
        tally.add(play_many(range(seed, seed + AT_ONCE)))
        tally.add(play_all(range(seed, seed + AT_ONCE // SQLITE_SHARE), sqlite=True))
        seed += AT_ONCE
    for failure in tally.failures:
        print(failure)
    print(f"simulation: {tally}, {len(tally.failures)} failed")
    return len(tally.failures)
