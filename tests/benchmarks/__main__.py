"""
Run the benchmarks and print one table.

The exit status tells whether they ran, not how fast: a missed budget is a line of the table.
"""

import importlib
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
from tests.benchmarks.table import Row, render

NAMES = (
    "rpc",
    "decisions",
    "price",
    "hop",
    "start",
    "client",
    "mcp",
    "share",
    "records",
    "stats",
    "classify_speed",
    "classify_figures",
    "gateway_faults",
    "gateway_speed",
    "gateway_outage",
)


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    begun = time.perf_counter()
    load = os.getloadavg()[0]
    rows: list[Row] = []
    for name in wanted or NAMES:
        print(f"{name} …", file=sys.stderr, flush=True)
        module = importlib.import_module(f"tests.benchmarks.{name}")
        with tempfile.TemporaryDirectory(prefix="fallbackd-bench-") as place:
            rows += anyio.run(partial(module.measure, Path(place)))
    print(render(rows))
    missed = sum(row.is_missed for row in rows)
    print(
        f"\n{missed} of {sum(row.at_most is not None for row in rows)} budgets missed;"
        f" {time.perf_counter() - begun:.0f} s on {os.cpu_count()} processors,"
        f" load {load:.1f} before"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
