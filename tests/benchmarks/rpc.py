"""
Round trips of `daemon.ping` against two bare line echoes, each server in its own process.

The same blocking load goes to each in turn, in short rounds, so that what else the machine does
hits all three. Round trips of one connection are measured on one processor: on two, the waking of
an idle one costs more than any of the servers.
"""

import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct
from tests.benchmarks.procfs import cpu_s
from tests.benchmarks.table import Row, microseconds, ratio_of
from tests.support.daemon import running

HERE = Path(__file__).parent
PING = b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\n'
ROUNDS = 30
TRIPS = 400
CONNECTIONS = 64
REQUESTS = 2_500
TRIP = 1.3
"""A round trip over one of the bare anyio echo."""
SHARE = 0.6
"""Requests per second over many connections: of those that the bare anyio echo serves."""
OURS, ANYIO, ASYNCIO = "daemon.ping", "anyio echo", "asyncio echo"


class Server(Struct, kw_only=True):
    name: str
    path: str
    pid: int
    trip_s: list[float] = []
    crossed_s: list[float] = []
    """With the client on another processor."""
    request_s: list[float] = []
    """Elapsed per request over many connections."""
    cpu_s: list[float] = []
    """Of the server, per request over many connections."""


async def measure(place: Path) -> list[Row]:
    async with running(place) as daemon, echo(place, "anyio") as one, echo(place, "asyncio") as two:
        servers = [
            Server(name=OURS, path=daemon.socket, pid=daemon.pid),
            Server(name=ANYIO, path=one[0], pid=one[1]),
            Server(name=ASYNCIO, path=two[0], pid=two[1]),
        ]
        for each in servers:
            round_trips(each.path, TRIPS)  # warm
        for number in range(ROUNDS):
            # Another one begins each round: whoever follows a pause is a little slower.
            order = servers[number % 3 :] + servers[: number % 3]
            for each in order:
                with_one_processor(each)
            for each in order:
                each.crossed_s.append(round_trips(each.path, TRIPS))
            for each in order:
                before = cpu_s(each.pid)
                each.request_s.append(flood(each.path) / REQUESTS)
                each.cpu_s.append((cpu_s(each.pid) - before) / REQUESTS)
    ours, bare, least = servers
    rows = []
    for what, name, budget in (
        ("round trip p50, one processor", "trip_s", TRIP),
        ("round trip p50, two processors", "crossed_s", TRIP),
        (f"elapsed per request, {CONNECTIONS} connections", "request_s", 1 / SHARE),
        ("processor time per request of these", "cpu_s", 1.5),
    ):
        mine = getattr(ours, name)
        for other in (bare, least):
            theirs = getattr(other, name)
            rows.append(
                Row(
                    what=f"rpc: {what}",
                    measured=microseconds(statistics.median(mine)),
                    beside=f"{other.name} {microseconds(statistics.median(theirs))}",
                    ratio=ratio_of(mine, theirs),
                    at_most=budget if other is bare else None,
                )
            )
    rows.append(
        Row(
            what=f"rpc: requests/s, {CONNECTIONS} connections",
            measured=f"{1 / statistics.median(ours.request_s):,.0f}",
            beside=", ".join(
                f"{one.name} {1 / statistics.median(one.request_s):,.0f}" for one in (bare, least)
            ),
        )
    )
    return rows


def with_one_processor(server: Server) -> None:
    everywhere = os.sched_getaffinity(0)
    one = {min(everywhere)}
    os.sched_setaffinity(0, one)
    os.sched_setaffinity(server.pid, one)
    try:
        server.trip_s.append(round_trips(server.path, TRIPS))
    finally:
        os.sched_setaffinity(0, everywhere)
        os.sched_setaffinity(server.pid, everywhere)


def connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return connection


def round_trips(path: str, count: int) -> float:
    """The median of `count` round trips on one connection, in seconds."""
    took = []
    clock = time.perf_counter
    with connect(path) as connection:
        for _ in range(count):
            before = clock()
            connection.sendall(PING)
            answer = connection.recv(65_536)
            took.append(clock() - before)
            assert answer.endswith(b"\n"), answer
    return statistics.median(took)


def flood(path: str) -> float:
    """Seconds for `REQUESTS` requests over `CONNECTIONS` connections, one open on each."""
    by_handle = {one.fileno(): one for one in (connect(path) for _ in range(CONNECTIONS))}
    poll = select.epoll()
    try:
        for one in by_handle.values():
            poll.register(one, select.EPOLLIN)
            one.sendall(PING)  # not counted: the server has just accepted it
        for one in by_handle.values():
            assert one.recv(65_536).endswith(b"\n")
        before = time.perf_counter()
        for one in by_handle.values():
            one.sendall(PING)
        sent, answered = CONNECTIONS, 0
        while answered < REQUESTS:
            for handle, _ in poll.poll():
                one = by_handle[handle]
                assert one.recv(65_536).endswith(b"\n")
                answered += 1
                if sent < REQUESTS:
                    one.sendall(PING)
                    sent += 1
        return time.perf_counter() - before
    finally:
        poll.close()
        for one in by_handle.values():
            one.close()


@asynccontextmanager
async def echo(place: Path, kind: str) -> AsyncIterator[tuple[str, int]]:
    """A bare echo server: its socket and its process."""
    path = str(place / f"{kind}.sock")
    server = subprocess.Popen(
        [sys.executable, str(HERE / f"echo_{kind}.py"), path], stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the {kind} echo did not start")
        yield path, server.pid
    finally:
        server.kill()
        server.communicate()
