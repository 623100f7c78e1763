"""
What a whole delegation costs beside the same work without the daemon, side by side in one run.

Over HTTP: a chat API on loopback that answers at once is asked over a kept connection, then
through `delegate`. As a command: `cat` by a plain shell, then through `delegate`. What is taken off
pair by pair is what anybody would pay. A daemon that is traced counts what each asks of the disk.
"""

import http.client
import json
import re
import shutil
import socket
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tests.benchmarks.procfs import cpu_s
from tests.benchmarks.programs import serving
from tests.benchmarks.rpc import connect
from tests.benchmarks.table import Row, milliseconds, within
from tests.support.daemon import Daemon, running

HERE = Path(__file__).parent
ROUNDS = 40
WARM = 5
CLIENTS = 64
MANY = 448
TRACED = 20
HTTP_S = 6e-3
CLI_S = 8e-3
SYNCS = 3.0
PAGES = 30.0
PER_SECOND = 150.0
SYNC_CALLS = ("fsync", "fdatasync", "sync_file_range")

CONFIG = """\
[defaults]
max_running = 64
confine = false

[backends.chat]
kind = "openai-http"
base_url = "http://127.0.0.1:{port}/v1"
model = "m"

[backends.cat]
kind = "generic-cli"
command = ["/bin/cat"]
"""

_numbers = count(1)


async def measure(place: Path) -> list[Row]:
    with serving("chat_provider") as (port, _):
        config = CONFIG.format(port=port)
        async with running(place / "priced", config) as daemon:
            rows = one_at_a_time(daemon, port)
            rows += many_at_once(daemon)
        rows += await traced(place, config)
    return rows


def one_at_a_time(daemon: Daemon, port: int) -> list[Row]:
    direct = http.client.HTTPConnection("127.0.0.1", port)
    with connect(daemon.socket) as line:
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "HTTP": (lambda: asked(direct), lambda: delegated(line, "chat")),
            "CLI": (shell, lambda: delegated(line, "cat")),
        }
        bare: dict[str, list[float]] = {name: [] for name in pairs}
        ours: dict[str, list[float]] = {name: [] for name in pairs}
        busy: dict[str, list[float]] = {name: [] for name in pairs}
        for number in range(WARM + ROUNDS):
            for name, (without, through) in pairs.items():
                bare_s = elapsed(without)
                before = cpu_s(daemon.pid)
                ours_s = elapsed(through)
                if number >= WARM:
                    bare[name].append(bare_s)
                    ours[name].append(ours_s)
                    busy[name].append(cpu_s(daemon.pid) - before)
    direct.close()
    rows = []
    for name, budget_s, beside in (
        ("HTTP", HTTP_S, "asked directly"),
        ("CLI", CLI_S, "a plain shell"),
    ):
        own = [(a - b) * 1e3 for a, b in zip(ours[name], bare[name], strict=True)]
        rows += [
            within(f"price: one {name} delegation, our own, ms", own, budget_s * 1e3),
            Row(
                what=f"price: … {name}, all of it",
                measured=milliseconds(statistics.median(ours[name])),
                beside=f"{beside} {milliseconds(statistics.median(bare[name]))}",
            ),
            Row(
                what=f"price: … {name}, processor time of the daemon",
                measured=milliseconds(statistics.median(busy[name])),
                beside=f"least {milliseconds(min(busy[name]))}",
            ),
        ]
    return rows


def many_at_once(daemon: Daemon) -> list[Row]:
    lines = [connect(daemon.socket) for _ in range(CLIENTS)]
    try:
        before, begun = cpu_s(daemon.pid), time.perf_counter()
        for _ in range(MANY // CLIENTS):
            for line in lines:
                line.sendall(call("chat"))
            for line in lines:
                require_success(line)
        took_s, busy_s = time.perf_counter() - begun, cpu_s(daemon.pid) - before
    finally:
        for line in lines:
            line.close()
    per_second = MANY / took_s
    return [
        Row(
            what=f"price: HTTP delegations/s, {CLIENTS} clients",
            measured=f"{per_second:.0f}",
            beside=f"budget {PER_SECOND:.0f}, processor {milliseconds(busy_s / MANY)} each",
            ratio=PER_SECOND / per_second,
            at_most=1.0,
        )
    ]


async def traced(place: Path, config: str) -> list[Row]:
    """What the kernel was asked for: exact counts, whatever else the machine does."""
    strace = shutil.which("strace")
    if strace is None:
        return [Row(what="price: calls of the kernel", measured="unknown", beside="no strace here")]
    words = ",".join((*SYNC_CALLS, "pwrite64", "epoll_wait", "epoll_pwait"))
    log = place / "trace"
    shown = ("-qq", "-e", "signal=none", "-e", f"trace={words}", "-o", str(log))
    rows = []
    async with running(place / "traced", config, wrapper=(strace, "-D", "-f", *shown)) as daemon:
        with connect(daemon.socket) as line:
            for name, backend in (("HTTP", "chat"), ("CLI", "cat")):
                for _ in range(WARM):
                    delegated(line, backend)
                before = calls(log)
                for _ in range(TRACED):
                    delegated(line, backend)
                found = calls(log) - before
                each = {name: number / TRACED for name, number in found.items()}
                synced = sum(each.get(one, 0.0) for one in SYNC_CALLS)
                # A page of the database's log is written in two parts, its head and itself.
                pages = each.get("pwrite64", 0.0) / 2
                turns = each.get("epoll_wait", 0.0) + each.get("epoll_pwait", 0.0)
                rows += [
                    within(f"price: … {name}, synchronous writes", synced, SYNCS, show="{:.1f}"),
                    within(f"price: … {name}, page writes", pages, PAGES, show="{:.1f}"),
                    Row(what=f"price: … {name}, turns of the loop", measured=f"{turns:.1f}"),
                ]
    return rows


def calls(log: Path) -> Counter[str]:
    return Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))


def elapsed(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def asked(direct: http.client.HTTPConnection) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"content-type": "application/json"}
    direct.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    if b"done" not in direct.getresponse().read():
        raise RuntimeError("the provider did not answer")


def shell() -> None:
    subprocess.run(["/bin/sh", "-c", "exec /bin/cat"], input=b"hello", stdout=subprocess.DEVNULL)


def call(backend: str) -> bytes:
    """As the clients of this project ask: with an id, so that it may be asked again."""
    number = next(_numbers)
    params = {
        "prompt": "hello",
        "backend": backend,
        "wait": "finished",
        "request_id": f"price-{number}",
    }
    words = {"jsonrpc": "2.0", "id": number, "method": "delegate", "params": params}
    return json.dumps(words).encode() + b"\n"


def delegated(line: socket.socket, backend: str) -> None:
    line.sendall(call(backend))
    require_success(line)


def require_success(line: socket.socket) -> None:
    answer = b""
    while not answer.endswith(b"\n"):
        answer += line.recv(65_536)
    found: dict[str, Any] = json.loads(answer)
    if found.get("result", {}).get("state") != "succeeded":
        raise RuntimeError(f"a delegation failed: {answer!r}")
