"""
`kill -9` at random instants, also while it starts, under callers that do not give up.

The plan (who asks for what, when it dies) comes from the seed; what the machine makes of it does
not.
"""

import os
import re
import secrets
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import anyio
from tests.support.survival.audit import Audit, descriptors
from tests.support.survival.scene import Scene, scene

from fallbackd_client.aio import AsyncClient

ROUNDS = 200
CALLERS = 32
AUDIT_S = 60.0
"""Kept for the end: settling and looking at everything."""
SERVING_S = 1.5
"""Longest life after it serves. The shortest ends while it starts."""
AT_ONCE = 24


def run(seconds: float) -> int:
    seed = os.environ.get("SOAK_SEED") or str(secrets.randbelow(10**9))
    print(f"kills: seed {seed} (again: SOAK_SEED={seed} python -m tests.soak kills)", flush=True)
    with tempfile.TemporaryDirectory(prefix="fallbackd-soak-") as place:

        async def play() -> list[str]:
            return await kill_again_and_again(
                Path(place), seed=seed, limit_s=seconds - AUDIT_S, rounds=ROUNDS, callers=CALLERS
            )

        problems = anyio.run(play)
    for problem in problems:
        print(f"kills: {problem[:2000]}", flush=True)
    return len(problems)


async def kill_again_and_again(
    place: Path, *, seed: str, limit_s: float, rounds: int, callers: int
) -> list[str]:
    """Returns what is wrong in the end. Prints what was done."""
    chance = Random(seed)
    until = time.monotonic() + limit_s
    async with scene(place, seed=seed, callers=callers, pause_s=0.5) as play:
        begun = time.monotonic()
        await play.rise()
        start_s = time.monotonic() - begun
        await play.daemon.kill()
        while play.deaths < rounds and time.monotonic() < until:
            await play.die_after(chance.uniform(0.3 * start_s, start_s + SERVING_S))
        await play.rise()
        await play.settle()
        audit = Audit(play.daemon, play.said, is_spared=True)
        await audit.run()
        leaks = await _leaks(play)
    said = play.said
    attempts = sum(len(one["attempts"]) for one in audit.delegations.values())
    wrong = audit.problems + leaks
    if play.deaths < rounds:
        wrong.append(f"time was over after {play.deaths} of {rounds} rounds")
    print(
        f"kills: {play.deaths} rounds under {callers} callers; {len(said.taken)} delegations"
        f" acknowledged, {len(said.ends)} answers, {attempts} attempts, {audit.events} events,"
        f" {len(said.marks)} marks; {len(wrong)} problems",
        flush=True,
    )
    return wrong


async def _leaks(play: Scene) -> list[str]:
    """What a daemon holds open after much work that it did not after little."""
    await play.daemon.restart()
    async with AsyncClient(play.daemon.socket) as client:
        await client.call("health", {"action": "clear", "target": "works"})
        await _work(client)
        before = _kinds(play.daemon.pid)

        async def visit() -> None:
            async with AsyncClient(play.daemon.socket) as visitor:
                await _work(visitor)
                await visitor.call("events.subscribe", {})

        for _ in range(4):
            async with anyio.create_task_group() as visits:
                for _ in range(AT_ONCE):
                    visits.start_soon(visit)
        with anyio.move_on_after(AUDIT_S):
            while True:
                await _work(client)  # what has ended is let go when the next one begins
                after = _kinds(play.daemon.pid)
                if after <= before:
                    return []
                await anyio.sleep(0.1)
    return [f"held open after {4 * AT_ONCE} visits: {dict(after - before)}"]


async def _work(client: AsyncClient) -> None:
    await client.call("delegate", {"prompt": "x", "backend": "works", "wait": "finished"})


def _kinds(pid: int) -> "Counter[str]":
    return Counter(re.sub(r"\d+", "N", name) for name in descriptors(pid))
