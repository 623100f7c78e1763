"""What the gateway adds to a call, beside a bare pass-through; what many streams cost it."""

import asyncio
import http.client
import json
import statistics
import time
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from tests.benchmarks.awake import kept_awake
from tests.benchmarks.gateway_floor import BACKEND
from tests.benchmarks.procfs import cpu_s, memory_mib
from tests.benchmarks.programs import serving
from tests.benchmarks.table import Row, ratio_of, within
from tests.support.daemon import Daemon, in_process, running
from tests.support.gateway import free_port, listening

from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry
from fallbackd.engine import callers

PAIRS = 400
WARM = 20
STREAMS = 200
STREAMS_S = 20
PINGS = 100
P50_MS, P99_MS, PER_PIECE_MS = 1.0, 3.0, 0.1
MEMORY_MIB, PING_MS = 20.0, 20.0
PIECES = 100
LINES, CALLS, ROUNDS = 32, 15, 5

CONFIG = f"[gateway]\nenabled = true\nport = {{at}}\n{BACKEND}"
PATH = "/v1/chat/completions"


async def measure(place: Path) -> list[Row]:
    at = free_port()
    rows: list[Row] = []
    with serving("chat_provider") as (port, _):
        async with running(place / "calls", CONFIG.format(port=port, at=at)) as daemon:
            await listening(at)
            with (
                serving("gateway_bare", str(port)) as (beside, pid),
                serving("gateway_floor", str(port), str(place / "floor")) as (floor, _),
            ):
                rows += await anyio.to_thread.run_sync(calls, daemon, port, at, beside, pid)
                rows += await many_calls(token_of(daemon), at, beside, floor)
    rows += await decisions_alone(place / "alone")
    with serving("stream_provider") as (port, _):
        async with running(place / "streams", CONFIG.format(port=port, at=at)) as daemon:
            await listening(at)
            with serving("gateway_bare", str(port)) as (beside, _):
                rows += await pieces(daemon, port, at, beside)
            rows += await many(daemon, at)
    return rows


def token_of(daemon: Daemon) -> str:
    return (Path(daemon.state_dir) / "gateway.token").read_text().strip()


def calls(daemon: Daemon, port: int, at: int, beside: int, pid: int) -> list[Row]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {token_of(daemon)}"}
    said = "x" * 2000
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": said}]})
    lines = [http.client.HTTPConnection("127.0.0.1", one) for one in (port, at, beside)]
    took: list[list[float]] = [[], [], []]
    before = bare_before = 0.0
    for number in range(WARM + PAIRS):
        if number == WARM:
            before, bare_before = cpu_s(daemon.pid), cpu_s(pid)
        for line, into in zip(lines, took, strict=True):
            begun = time.perf_counter()
            line.request("POST", PATH, body, headers)
            if b"done" not in line.getresponse().read():
                raise RuntimeError("no answer")
            if number >= WARM:
                into.append(time.perf_counter() - begun)
    busy_ms = (cpu_s(daemon.pid) - before) / PAIRS * 1e3
    bare_busy_ms = (cpu_s(pid) - bare_before) / PAIRS * 1e3
    for line in lines:
        line.close()
    direct, through, least = (sorted(one) for one in took)
    added = [(b - a) * 1e3 for a, b in zip(took[0], took[1], strict=True)]
    bare_ms = statistics.median(b - a for a, b in zip(took[0], took[2], strict=True)) * 1e3
    tail = at_99(through) - at_99(direct)
    return [
        within("gateway: added to a call, p50, ms", statistics.median(added), P50_MS),
        within("gateway: added to a call, p99, ms", tail * 1e3, P99_MS),
        Row(
            what="gateway: … the call itself, ms",
            measured=f"{statistics.median(through) * 1e3:.2f}",
            beside=f"direct {statistics.median(direct) * 1e3:.2f}, "
            f"bare {statistics.median(least) * 1e3:.2f}, which adds {bare_ms:.2f}",
        ),
        Row(
            what="gateway: … processor time, ms",
            measured=f"{busy_ms:.2f}",
            beside=f"bare pass-through {bare_busy_ms:.2f}",
            ratio=busy_ms / bare_busy_ms,
        ),
    ]


def at_99(ordered: list[float]) -> float:
    return ordered[int(len(ordered) * 0.99)]


async def listen(port: int, token: str, *, count: int, every_s: float) -> list[float]:
    """How long each piece was on its way: one clock counts for all processes of a machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = {"model": "m", "stream": True, "max_tokens": count, "top_p": every_s}
    body = json.dumps({**asked, "messages": [{"role": "user", "content": "x"}]}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
    took = []
    while line := await reader.readline():
        if line.startswith(b'data: {"choices": [{"delta": {"content": '):
            now = time.perf_counter()
            said = json.loads(line[6:])["choices"][0]["delta"]["content"]
            took.append(now - float(said))
        if line.startswith(b"data: [DONE]"):
            break
    writer.close()
    if len(took) != count:
        raise RuntimeError(f"{len(took)} of {count} pieces came")
    return took


async def many_calls(token: str, at: int, beside: int, floor: int) -> list[Row]:
    """Calls a second over many connections, in turns."""
    rates: dict[int, list[float]] = {at: [], beside: [], floor: []}
    for number in range(ROUNDS + 1):
        for port, found in rates.items():
            begun = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for _ in range(LINES):
                    tasks.start_soon(calling, port, token)
            if number:
                found.append(LINES * CALLS / (time.perf_counter() - begun))
    ours, theirs, least = (statistics.median(found) for found in rates.values())
    return [
        Row(
            what=f"gateway: calls a second, {LINES} connections",
            measured=f"{ours:.0f}",
            beside=f"bare pass-through {theirs:.0f}",
            ratio=ratio_of(rates[beside], rates[at]),
            at_most=2.0,
        ),
        Row(
            what="gateway: … with nothing but reading, deciding and passing on",
            measured=f"{least:.0f}",
            beside=f"bare pass-through {theirs:.0f}",
            ratio=ratio_of(rates[beside], rates[floor]),
        ),
    ]


async def decisions_alone(place: Path) -> list[Row]:
    """What a call asks of the engine, without any of its bytes: `resolve` and `report`."""
    chosen = ResolveRequested(chain=(Entry(backend=BackendId("chat")),))
    took: list[float] = []
    async with in_process(place, CONFIG.format(port=1, at=free_port())) as daemon:
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(PAIRS):
                found = await callers.resolve(daemon.engine, chosen, lease=True, outlives="nothing")
                said = Reported(
                    chain=chosen.chain,
                    backend=BackendId("chat"),
                    model=found.model,
                    lease=found.lease_id,
                    turn=found.turn,
                    outcome="success",
                    started_at=daemon.engine.clock.now(),
                )
                await callers.report(daemon.engine, said, outlives="nothing")
            took.append((time.perf_counter() - begun) / PAIRS)
    return [
        Row(
            what="gateway: … the two decisions of a call alone, ms",
            measured=f"{statistics.median(took) * 1e3:.3f}",
            beside="no byte is read or written",
        )
    ]


async def calling(port: int, token: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 2000}]})
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    for _ in range(CALLS):
        writer.write((head + body).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        named = [line.partition(b":") for line in answer.lower().splitlines()]
        size = next(int(value) for name, _, value in named if name == b"content-length")
        said = await reader.readexactly(size)
        if not answer.startswith(b"HTTP/1.1 200 ") or b"done" not in said:
            raise RuntimeError(f"no answer: {answer[:60]!r} {said[:200]!r}")
    writer.close()


async def pieces(daemon: Daemon, port: int, at: int, beside: int) -> list[Row]:
    token = token_of(daemon)
    took: dict[int, list[float]] = {port: [], at: [], beside: []}
    with kept_awake():
        for _ in range(ROUNDS):
            for one, medians in took.items():
                waits = await listen(one, token, count=PIECES, every_s=0.005)
                medians.append(statistics.median(waits) * 1e3)
    direct, through, least = map(min, took.values())  # the clock of a processor goes up and down
    added, bare_ms = through - direct, least - direct
    return [
        within("gateway: added to a piece of a stream, ms", added, PER_PIECE_MS),
        Row(
            what="gateway: … beside a bare pass-through, ms",
            measured=f"{added:.2f}",
            beside=f"bare {bare_ms:.2f}",
            ratio=added / bare_ms,
        ),
    ]


async def many(daemon: Daemon, at: int) -> list[Row]:
    token = token_of(daemon)
    before, _ = memory_mib(daemon.pid)
    waits: list[float] = []
    most = before
    async with anyio.create_task_group() as tasks:
        for _ in range(STREAMS):
            tasks.start_soon(partial(listen, at, token, count=STREAMS_S, every_s=1.0))
            await anyio.sleep(1 / STREAMS)  # providers do not write in step
        await anyio.sleep(1)
        for _ in range(PINGS):
            begun = time.perf_counter()
            await daemon.client.call("daemon.ping", {})
            waits.append(time.perf_counter() - begun)
            most = max(most, memory_mib(daemon.pid)[0])
            await anyio.sleep((STREAMS_S - 4) / PINGS)
    return [
        within(f"gateway: {STREAMS} streams, memory, MiB", most - before, MEMORY_MIB),
        within("gateway: … a ping beside them, p99, ms", at_99(sorted(waits)) * 1e3, PING_MS),
    ]
