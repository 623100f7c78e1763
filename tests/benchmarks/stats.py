"""
A report over a year in which eight backends served 100,000 delegations, and `ping` meanwhile.
"""

import json
import socket
import statistics
import time
from pathlib import Path

import anyio.to_thread
from tests.benchmarks.rpc import connect
from tests.benchmarks.table import Row, milliseconds, ratio_of
from tests.stores.records import deciding
from tests.support.daemon import running

from fallbackd.core.decision import PutHour
from fallbackd.core.history import HourUse, Move, Share, hour_of
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage
from fallbackd.core.records import Keys
from fallbackd.stores.sqlite import open_sqlite

HOURS, BACKENDS, DELEGATIONS = 365 * 24, 8, 100_000
ENOUGH_S = 3.0
ROUNDS = 5
PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "daemon.ping"}).encode() + b"\n"
SLOWER = 3.0
"""Allowed for the slowest ping of a hundred, against those of a daemon that makes no report."""


async def measure(place: Path) -> list[Row]:
    await fill(place)
    async with running(place) as daemon:
        with connect(daemon.socket) as line, connect(daemon.socket) as other:
            quiet = [ping(line) for _ in range(500)]
            took: list[float] = []
            beside: list[float] = []
            for _ in range(ROUNDS):
                is_done = [False]

                def report(is_done: list[bool] = is_done) -> None:
                    took.append(stats(other))
                    is_done[0] = True

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anyio.to_thread.run_sync, report)
                    while not is_done[0]:
                        beside.append(ping(line))
                        await anyio.sleep(0.001)
    worst, usual = statistics.quantiles(beside, n=100)[98], statistics.quantiles(quiet, n=100)[98]
    return [
        Row(
            what=f"stats: a year of {DELEGATIONS:,} delegations",
            measured=milliseconds(statistics.median(took)),
            beside=f"at most {milliseconds(ENOUGH_S)}",
            ratio=ratio_of(took, [ENOUGH_S] * len(took)),
            at_most=1.0,
        ),
        Row(
            what="stats: p99 of ping while that is read",
            measured=milliseconds(worst),
            beside=f"without {milliseconds(usual)}",
            ratio=ratio_of([worst], [usual]),
            at_most=SLOWER,
        ),
    ]


async def fill(place: Path) -> None:
    path = place / "home" / ".local" / "state" / "fallbackd" / "fallbackd.db"
    path.parent.mkdir(parents=True, mode=0o700)
    now = time.time()
    last, each = hour_of(now) - 1, DELEGATIONS // (HOURS * BACKENDS) + 1
    store = await open_sqlite(path, now=now)
    for backend in range(BACKENDS):
        hours = [an_hour(f"b{backend}", last - ago, each) for ago in range(HOURS)]
        await store.transact(Keys(), deciding(*map(PutHour, hours)))
    await store.aclose()


def an_hour(backend: str, hour: int, calls: int) -> HourUse:
    at, used = hour * 3600.0, Usage(input_tokens=9000, output_tokens=900, cost_usd=0.01)
    return HourUse(
        backend=BackendId(backend),
        hour=hour,
        moves=(
            Move(at=at, state="healthy"),
            Move(at=at + 1200, state="rate_limited", reason="rate_limit"),
            Move(at=at + 1500, state="healthy"),
        ),
        calls=calls,
        answered=calls,
        failures={"rate_limit": 1},
        took_s=20.0 * calls,
        longest_s=40.0,
        usage=used,
        hops=(("b1", "rate_limit", 1),),
        shares=tuple(
            Share(role="build", project=f"/srv/{number}", requests=1, answered=1, usage=used)
            for number in range(calls)
        ),
    )


def ping(line: socket.socket) -> float:
    before = time.perf_counter()
    line.sendall(PING)
    line.recv(65_536)
    return time.perf_counter() - before


def stats(line: socket.socket) -> float:
    since_at = time.time() - HOURS * 3600.0
    request = {"jsonrpc": "2.0", "id": 1, "method": "stats", "params": {"since_at": since_at}}
    before = time.perf_counter()
    line.sendall(json.dumps(request).encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        answer += line.recv(65_536)
    if b'"result"' not in answer:
        raise RuntimeError(f"no report: {answer!r}")
    return time.perf_counter() - before
