"""
From the end of a failing attempt to the start of the next, over a real daemon and real processes.

The failing program writes the time as the last thing that it does, the next one as the first.
Between the two lie what any starter pays (the first process ends, the second begins and loads its
shell) and what is ours. The same two programs, started one after the other by a plain shell,
give the first part; it is taken off pair by pair.

The rows below the budget say where the time goes, by the daemon's own records:

    time written ──▶ runner has seen the end ──▶ decision ──▶ program begun ──▶ time written
"""

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import anyio
from tests.benchmarks.table import Row, milliseconds, within
from tests.support.daemon import HANG_S, Daemon, running

from fallbackd.transports.process.recording import read_exit

HOPS = 25
FAILING_S = 0.1
OWN_S = 5e-3

# Both write their times outside of their directories. What the rules of a confinement cost is paid
# by each start, the first one too, and grows with the directories of the machine.
CONFIG = """\
[defaults]
confine = false

[backends.failing]
kind = "generic-cli"
command = ["{failing}"]

[backends.working]
kind = "generic-cli"
command = ["{working}"]

[chains]
failing = ["working"]
"""


async def measure(place: Path) -> list[Row]:
    bash = shutil.which("bash")
    if bash is None:
        raise RuntimeError("bash is needed: it tells the time without another process")
    stamps = place / "stamps"
    # It lives long enough for its own start to be on record: that is not part of the hop.
    stamp = f'echo "$EPOCHREALTIME" >>{stamps}'
    failing = program(place / "failing", bash, f"sleep {FAILING_S}; {stamp}; exit 75")
    working = program(place / "working", bash, f"{stamp}; echo done")
    raw: list[float] = []
    plain: list[float] = []
    seen: list[float] = []
    decided: list[float] = []
    begun: list[float] = []
    async with running(place, CONFIG.format(failing=failing, working=working)) as daemon:
        for number in range(HOPS + 2):
            stamps.write_text("")
            subprocess.run(["/bin/sh", "-c", f"{failing}; {working}"], stdout=subprocess.DEVNULL)
            plain_s = gap(stamps)[1]
            stamps.write_text("")
            found = await hop(daemon)
            ended_at, raw_s = gap(stamps)
            if number < 2:  # the launcher is started with the first
                continue
            raw.append(raw_s)
            plain.append(plain_s)
            first, second = found["attempts"]
            exit_at = await exit_of(str(Path(first["log_path"]).parent))
            seen.append(exit_at - ended_at)
            decided.append(second["started_at"] - exit_at)
            begun.append(ended_at + raw_s - second["started_at"])
    own = [one - other for one, other in zip(raw, plain, strict=True)]
    rows = [
        within(
            "hop: end of a failing attempt to the next, our own, ms",
            [one * 1e3 for one in own],
            OWN_S * 1e3,
        ),
        Row(
            what="hop: the same with what any starter pays",
            measured=milliseconds(statistics.median(raw)),
            beside=f"plain shell {milliseconds(statistics.median(plain))}",
        ),
    ]
    for what, times in (
        ("until the runner has seen the end", seen),
        ("from there to the decision", decided),
        ("from there to the first line of the next", begun),
    ):
        rows.append(Row(what=f"hop: … {what}", measured=milliseconds(statistics.median(times))))
    rows.append(
        Row(
            what="hop: for comparison, one durable write of this disk",
            measured=milliseconds(durable_write(place / "durable")),
        )
    )
    return rows


def program(path: Path, bash: str, body: str) -> Path:
    path.write_text(f"#!{bash}\n{body}\n")
    path.chmod(0o755)
    return path


async def hop(daemon: Daemon) -> dict[str, Any]:
    await daemon.client.call("health", {"action": "clear"})
    found = await daemon.client.call(
        "delegate", {"prompt": "x", "backend": "failing", "wait": "finished"}
    )
    if found["served_by"] != "working" or len(found["attempts"]) != 2:
        raise RuntimeError(f"one hop was to happen: {found}")
    return dict(found)


async def exit_of(directory: str) -> float:
    """When the runner saw the end. The record is written after the daemon was told."""
    with anyio.fail_after(HANG_S):
        while (found := read_exit(directory)) is None:
            await anyio.sleep(0.005)
    return found.at


def gap(stamps: Path) -> tuple[float, float]:
    """When the first program ended, and how long after that the second began."""
    first, second = (float(one.replace(",", ".")) for one in stamps.read_text().split())
    return first, second - first


def durable_write(path: Path) -> float:
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(20):
            before = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - before)
    return statistics.median(took)
