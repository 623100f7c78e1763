"""
`status` with thousands of ended delegations on record beside one with ten.

Two daemons with the same configuration are asked in turn, over connections that stay open.
"""

import json
import socket
import statistics
import time
from pathlib import Path

from tests.benchmarks.rpc import connect
from tests.benchmarks.table import Row, milliseconds, ratio_of
from tests.stores.records import an_ended, deciding
from tests.support.daemon import running

from fallbackd.core.decision import PutDelegation
from fallbackd.core.records import Keys
from fallbackd.stores.sqlite import open_sqlite

FEW, MANY = 10, 5_000
ROUNDS = 200
GROWTH = 1.2
STATUS = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "status"}).encode() + b"\n"


async def measure(place: Path) -> list[Row]:
    for count in (FEW, MANY):
        await fill(place / str(count), count)
    async with running(place / str(FEW)) as few, running(place / str(MANY)) as many:
        with connect(few.socket) as one, connect(many.socket) as other:
            took: dict[int, list[float]] = {FEW: [], MANY: []}
            for number in range(ROUNDS + 10):
                for count, line in ((FEW, one), (MANY, other)):
                    spent_s = asked(line)
                    if number >= 10:
                        took[count].append(spent_s)
    return [
        Row(
            what=f"records: status with {MANY:,} delegations on record",
            measured=milliseconds(statistics.median(took[MANY])),
            beside=f"with {FEW} {milliseconds(statistics.median(took[FEW]))}",
            ratio=ratio_of(took[MANY], took[FEW]),
            at_most=GROWTH,
        )
    ]


async def fill(place: Path, count: int) -> None:
    path = place / "home" / ".local" / "state" / "fallbackd" / "fallbackd.db"
    path.parent.mkdir(parents=True, mode=0o700)
    now = time.time()
    store = await open_sqlite(path, now=now)
    ended = tuple(PutDelegation(an_ended(f"d{number}", at=now)) for number in range(count))
    await store.transact(Keys(), deciding(*ended))
    await store.aclose()


def asked(line: socket.socket) -> float:
    before = time.perf_counter()
    line.sendall(STATUS)
    answer = b""
    while not answer.endswith(b"\n"):
        answer += line.recv(65_536)
    spent_s = time.perf_counter() - before
    if b'"result"' not in answer:
        raise RuntimeError(f"no status: {answer!r}")
    return spent_s
