"""How soon a daemon is there, and what it costs while nothing happens."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import anyio
from tests.benchmarks.procfs import children, cpu_s, memory_mib
from tests.benchmarks.rpc import PING, connect
from tests.benchmarks.table import Row, milliseconds, ratio_of, within
from tests.support.daemon import Daemon, running

STARTS = 6
SETTLE_S = 2.0
IDLE_S = 5.0
READY_S = 0.4
IDLE_MIB = 40.0
IDLE_CPU = 1e-3
"""Of one processor: less than a person's tools show, and less than a timer of a few per second."""
IMPORTS = "import anyio, anyio._backends._asyncio, msgspec, sqlite3, structlog, watchfiles"

CONFIG = """\
[backends.one]
kind = "generic-cli"
command = ["/bin/cat"]
"""


async def measure(place: Path) -> list[Row]:
    rows = await starts(place / "starts")
    async with running(place / "idle", CONFIG) as daemon:
        rows += await idle(daemon, "without work so far")
        await daemon.client.call(
            "delegate", {"prompt": "hello", "backend": "one", "wait": "finished"}
        )
        rows += await idle(daemon, "after work")
        rows += launchers(daemon.pid)
    return rows


async def starts(place: Path) -> list[Row]:
    ready: list[float] = []
    answered: list[float] = []
    imports: list[float] = []
    busy: list[float] = []
    async with running(place, CONFIG) as daemon:  # the first start writes compiled modules
        for _ in range(STARTS):
            await daemon.stop()
            before = time.perf_counter()
            await daemon.start()
            ready.append(time.perf_counter() - before)
            busy.append(cpu_s(daemon.pid))
            with connect(daemon.socket) as connection:
                connection.sendall(PING)
                connection.recv(65_536)
            answered.append(time.perf_counter() - before)
            before = time.perf_counter()
            subprocess.run([sys.executable, "-c", IMPORTS], check=True)
            imports.append(time.perf_counter() - before)
    return [
        within(
            "start: process begun to READY=1, seconds",
            ready,
            READY_S,
            show="{:.3f}",
        ),
        within(
            "start: process begun to the first ping answered, seconds",
            answered,
            READY_S,
            show="{:.3f}",
        ),
        Row(
            what="start: processor time until READY=1",
            measured=milliseconds(statistics.median(busy)),
            beside="the rest it waits for the disk and for others",
        ),
        Row(
            what="start: against the loading of its libraries alone",
            measured=milliseconds(statistics.median(ready)),
            beside=f"python -c 'import …' {milliseconds(statistics.median(imports))}",
            ratio=ratio_of(ready, imports),
        ),
    ]


async def idle(daemon: Daemon, when: str) -> list[Row]:
    await anyio.sleep(SETTLE_S)
    before, begun = cpu_s(daemon.pid), time.perf_counter()
    await anyio.sleep(IDLE_S)
    share = (cpu_s(daemon.pid) - before) / (time.perf_counter() - begun)
    resident, fair = memory_mib(daemon.pid)
    return [
        within(f"idle, {when}: resident, MiB", resident, IDLE_MIB, show="{:.1f}"),
        Row(what=f"idle, {when}: fair share of that (PSS)", measured=f"{fair:.1f} MiB"),
        within(f"idle, {when}: processor, %", share * 100, IDLE_CPU * 100, show="{:.3f}"),
    ]


def launchers(pid: int) -> list[Row]:
    """Beside the daemon: the launcher of agent CLIs and the runner that it keeps in stock."""
    rows = []
    for name, found in (
        ("the launcher", children(pid)),
        ("the runner in stock", [one for each in children(pid) for one in children(each)]),
    ):
        for one in found:
            resident, fair = memory_mib(one)
            rows.append(
                Row(
                    what=f"idle, after work: {name}",
                    measured=f"{resident:.1f} MiB",
                    beside=f"PSS {fair:.1f} MiB",
                )
            )
    return rows
