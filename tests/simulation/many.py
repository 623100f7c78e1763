"""Many seeds, on every core that there is."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from msgspec import Struct
from tests.simulation.run import play, somewhere

BATCH = 25


class Tally(Struct):
    """What many plays came to."""

    plays: int = 0
    delegations: int = 0
    attempts: int = 0
    lives: int = 0
    failures: list[str] = []
    """For each failing seed: what broke first, and how to see it again."""

    def add(self, other: "Tally") -> None:
        self.plays += other.plays
        self.delegations += other.delegations
        self.attempts += other.attempts
        self.lives += other.lives
        self.failures += other.failures

    def __str__(self) -> str:
        return (
            f"{self.plays} seeds: {self.delegations} delegations, {self.attempts} attempts, "
            f"{self.lives} lives of the daemon"
        )


def play_all(seeds: Sequence[int], *, sqlite: bool = False) -> Tally:
    """One after the other, in this process."""
    tally = Tally()
    with somewhere() as place:
        for seed in seeds:
            played = play(seed, place, sqlite=sqlite)
            tally.plays += 1
            tally.delegations += played.delegations
            tally.attempts += played.attempts
            tally.lives += played.lives
            if played.broken:
                again = f"python -m tests.simulation {seed}{' --sqlite' if sqlite else ''} --trace"
                tally.failures.append(f"{played.broken[0]}\n    see: {again}")
    return tally


def play_many(seeds: Sequence[int], *, sqlite: bool = False) -> Tally:
    """Which process plays a seed makes no difference to it."""
    tally = Tally()
    batches = [seeds[begin : begin + BATCH] for begin in range(0, len(seeds), BATCH)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for each in [pool.submit(play_all, batch, sqlite=sqlite) for batch in batches]:
            tally.add(each.result())
    return tally
