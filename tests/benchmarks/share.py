"""What health shared with other machines costs: a daemon without it, and one with it."""

import statistics
import time
from pathlib import Path

import anyio
from tests.benchmarks.procfs import cpu_s, memory_mib
from tests.benchmarks.rpc import TRIPS, round_trips
from tests.benchmarks.start import CONFIG, SETTLE_S
from tests.benchmarks.table import Row, microseconds, milliseconds, ratio_of, within
from tests.support.daemon import Daemon, running
from tests.support.redis_server import redis_server

ROUNDS = 20
STARTS = 5
GROWTH_MIB = 3.0
SAME = 1.1
"""Of two figures that are to be equal, for what the machine does meanwhile."""
SHARE = '[share]\ngroup = "bench"\nurl_env = "SHARE_URL"\n'


async def measure(place: Path) -> list[Row]:
    with redis_server(place / "server") as server:
        env = {"SHARE_URL": server.url}
        async with (
            running(place / "off", CONFIG) as off,
            running(place / "on", CONFIG + SHARE, env=env) as on,
        ):
            await anyio.sleep(SETTLE_S)
            rows = [memory(off, on), pings(off, on)]
            return [*rows, *await starts(off, on)]


def memory(off: Daemon, on: Daemon) -> Row:
    """What is its own: two daemons share the same libraries."""
    without, whole = memory_mib(off.pid)[0], memory_mib(on.pid)[0]
    return within("share, on: resident beyond off, MiB", whole - without, GROWTH_MIB)


def pings(off: Daemon, on: Daemon) -> Row:
    without: list[float] = []
    beside: list[float] = []
    for _ in range(ROUNDS):
        without.append(round_trips(off.socket, TRIPS))
        beside.append(round_trips(on.socket, TRIPS))
    return Row(
        what="share, on: round trip of a ping p50",
        measured=microseconds(statistics.median(beside)),
        beside=f"off {microseconds(statistics.median(without))}",
        ratio=ratio_of(beside, without),
        at_most=SAME,
    )


async def starts(off: Daemon, on: Daemon) -> list[Row]:
    """Off, it is the start without a word about sharing; so what it costs is what on costs."""
    took: dict[str, list[float]] = {"off": [], "on": []}
    busy: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(STARTS):
        for name, daemon in (("off", off), ("on", on)):
            await daemon.stop()
            before = time.perf_counter()
            await daemon.start()
            took[name].append(time.perf_counter() - before)
            busy[name].append(cpu_s(daemon.pid))
    return [
        Row(
            what=f"share, on: {what}",
            measured=milliseconds(statistics.median(found["on"])),
            beside=f"off {milliseconds(statistics.median(found['off']))}",
            ratio=ratio_of(found["on"], found["off"]),
        )
        for what, found in (
            ("process begun to READY=1", took),
            ("processor time until READY=1", busy),
        )
    ]
