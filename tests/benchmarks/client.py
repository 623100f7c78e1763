"""`fallbackd-client status` against an interpreter that only loads what it cannot do without."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.table import Row, milliseconds, ratio_of
from tests.support.daemon import running

RUNS = 30


async def measure(place: Path) -> list[Row]:
    async with running(place) as daemon:
        status = [str(Path(sys.executable).with_name("fallbackd-client")), "status"]
        least = [sys.executable, "-c", "import argparse, json, socket"]
        # As a person has it: no PYTHONPATH, the package as it is installed.
        env = {
            "HOME": str(daemon.home),
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "FALLBACKD_SOCKET": daemon.socket,
        }
        for command in (status, least):
            elapsed(command, env)  # compiled modules are written once
        ours, theirs = [], []
        for _ in range(RUNS):
            ours.append(elapsed(status, env))
            theirs.append(elapsed(least, env))
    return [
        Row(
            what="client: fallbackd-client status",
            measured=milliseconds(statistics.median(ours)),
            beside=f"python -c 'import argparse, json, socket' "
            f"{milliseconds(statistics.median(theirs))}",
            ratio=ratio_of(ours, theirs),
            at_most=2.0,
        )
    ]


def elapsed(command: list[str], env: dict[str, str]) -> float:
    before = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - before
