"""
Machines of one group behind networks that pass, drop, delay and reset, and a server that is killed.

What has to hold: no resolution takes much longer than the limit of a lease, nobody is refused work,
and when the network is whole again all machines know the same.
"""

import os
import random
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from tests.support.partition import Mode, Partition, partition
from tests.support.redis_server import RedisServer, redis_server
from tests.support.sharing_group import Machine, Provider, group

MACHINES = 4
LIMIT_S = 0.25
WINDOW_S = 3.0
SETTLE_S = 90.0
STORM_S = 60.0
"""No storm takes longer, but one that hangs."""
MODES: tuple[Mode, ...] = ("pass", "pass", "drop", "delay", "reset")


class Weather:
    """The network and the server of one run, as chance has it."""

    def __init__(self, rng: random.Random, server: RedisServer, ways: list[Partition]) -> None:
        self.rng = rng
        self.server = server
        self.ways = ways

    def change(self) -> None:
        way = self.rng.choice(self.ways)
        way.set(self.rng.choice(MODES), delay_s=self.rng.choice([0.05, 0.2, 0.6]))
        if self.rng.random() < 0.05:
            self.server.kill()
            self.server.start()

    def clear(self) -> None:
        for way in self.ways:
            way.set("reset")  # what was dropped on the way is never answered
            way.set("pass")


async def work(machine: Machine, provider: Provider, seen: list[float]) -> None:
    began = time.monotonic()
    found = await machine.resolve()
    seen.append(time.monotonic() - began)
    assert found.backend is not None, "refused, though the second one always works"
    await machine.report(found, provider)


async def agree(machines: list[Machine]) -> bool:
    """
    Whether all know the same of the plan, once the network is whole. An outage that ended while its
    finder was cut off is told to nobody: that one machine alone has not proven the plan since.
    """
    for one in machines:
        one.sharing.look_now()
    with anyio.move_on_after(SETTLE_S):
        while True:
            states = {one.view().state for one in machines}
            is_told = all(one.shown.outbox == 0 for one in machines)
            if len(states) == 1 and is_told and all(_is_connected(one) for one in machines):
                return True
            await anyio.sleep(0.1)
    return False


def _is_connected(one: Machine) -> bool:
    return one.shown.state == "connected"


async def storm(seed: int, seconds: float, place: Path) -> int:
    rng, problems = random.Random(seed), 0
    provider = Provider(takes_s=0.05)
    seen: list[float] = []
    rounds = calls = 0
    until = time.monotonic() + seconds
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server(place / "server"))
        ways = [await stack.enter_async_context(partition(server.socket)) for _ in range(MACHINES)]
        machines = list(
            await stack.enter_async_context(
                group(
                    place,
                    MACHINES,
                    url=lambda number: ways[number].url,
                    window_s=WINDOW_S,
                    limit_s=LIMIT_S,
                    hang_s=seconds + STORM_S + SETTLE_S,
                )
            )
        )
        weather = Weather(rng, server, ways)
        while time.monotonic() < until:
            rounds += 1
            for _ in range(rng.randint(5, 20)):
                weather.change()
                provider.works = rng.random() < 0.5
                async with anyio.create_task_group() as tasks:
                    for _ in range(rng.randint(1, 6)):
                        calls += 1
                        tasks.start_soon(work, rng.choice(machines), provider, seen)
                await anyio.sleep(rng.choice([0.0, 0.1, 1.0]))
            weather.clear()
            if not await agree(machines):
                problems += 1
                shown = [(one.name, one.view(), one.shown.state) for one in machines]
                print(f"sharing: seed {seed}, round {rounds}: they differ: {shown}", flush=True)
    seen.sort()
    slowest = seen[-1] if seen else 0.0
    print(
        f"sharing: seed {seed}: {rounds} storms, {calls} calls, {len(provider.hits)} of them to "
        f"the plan; resolved within {seen[len(seen) // 2] * 1000:.0f} ms (half), "
        f"{slowest * 1000:.0f} ms (all)",
        flush=True,
    )
    return problems


def run(seconds: float) -> int:
    seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"sharing: SOAK_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fbd-soak-share-") as place:
        return anyio.run(storm, seed, seconds, Path(place))
