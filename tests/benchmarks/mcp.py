"""The MCP server: how soon it lists its tools, and what it weighs, with a daemon and without."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.procfs import memory_mib
from tests.benchmarks.table import Row, milliseconds, within
from tests.support.daemon import running

RUNS = 15
READY_S = 0.15
RESIDENT_MIB = 25.0
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
ASKED = "".join(
    json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
    for number, (method, params) in enumerate([("initialize", HELLO), ("tools/list", {})])
)


async def measure(place: Path) -> list[Row]:
    async with running(place) as daemon:
        rows = figures(daemon.socket, "with a daemon")
    return [*rows, *figures(str(place / "none.sock"), "without a daemon"), bare()]


def figures(socket: str, when: str) -> list[Row]:
    program = str(Path(sys.executable).with_name("fallbackd-client"))
    found = [one_start([program, "--socket", socket, "mcp"]) for _ in range(RUNS + 1)][1:]
    return [
        within(
            f"mcp, {when}: process begun to tools/list answered, seconds",
            [elapsed_s for elapsed_s, _ in found],
            READY_S,
            show="{:.3f}",
        ),
        within(
            f"mcp, {when}: resident, MiB",
            [resident_mib for _, resident_mib in found],
            RESIDENT_MIB,
            show="{:.1f}",
        ),
    ]


def one_start(command: list[str]) -> tuple[float, float]:
    """Seconds to the second answer, and MiB then."""
    before = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(ASKED.encode())
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        elapsed_s = time.perf_counter() - before
        assert answers[1]["result"]["tools"]
        resident_mib, _ = memory_mib(process.pid)
        process.stdin.close()
        process.wait()
    return elapsed_s, resident_mib


def bare() -> Row:
    """An interpreter that loads nothing of ours and does nothing."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    elapsed: list[float] = []
    resident: list[float] = []
    for _ in range(RUNS):
        before = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            elapsed.append(time.perf_counter() - before)
            resident.append(memory_mib(process.pid)[0])
            process.stdin.close()
            process.wait()
    return Row(
        what="mcp: a bare interpreter beside it",
        measured=milliseconds(statistics.median(elapsed)),
        beside=f"{statistics.median(resident):.1f} MiB",
    )
