"""
A thousand peers that misbehave, beside some that do not, against one real daemon.

It does not crash, well-behaved clients are served, and after each round, when the thousand have
left, the daemon has as many descriptors as before. Its memory stops growing: fragmentation depends
on the highest load so far, so the last round is compared with the highest of the first half.
"""

import random
import resource
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.abc
from tests.soak.frames import broken, frames_of
from tests.support.agents import ECHO, backend_script
from tests.support.daemon import Daemon, running

from fallbackd_client.aio import AsyncClient

CONNECTIONS = 1000
CLIENTS = 6
ENOUGH_S = 600.0
"""For so long the peers misbehave in a whole run; a shorter one says that it was."""
ROUNDS = 6
MOST_ROUNDS = 12
MEMORY_GROWTH = 0.10
DESCRIPTORS = 2048
ACTIVE = 40
"""So many of the thousand send at a time; the others are there, and in the way."""
HOLD_S = 1.0
SERVED_S = 900.0
"""A well-behaved client that waits for longer is not served; the machine may be a busy one."""
SETTLE_S = 5.0
"""After this the daemon has given back what it needs no more."""
WORK = {"prompt": "x", "backend": "echo", "session": "well", "wait": "finished"}
SUBSCRIBE = b'{"jsonrpc":"2.0","id":1,"method":"events.subscribe","params":{}}\n'


class Fuzz:
    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.luck = random.Random(seed)
        self.corpus = frames_of(seed)
        self.done: Counter[str] = Counter()
        self.waits_s: list[float] = []
        self.until = 0.0
        self.all_open = anyio.Event()
        """Once, at the start; from then on they come and go."""
        self.door = anyio.Semaphore(ACTIVE)
        self.turn = anyio.Semaphore(ACTIVE)
        self._open = 0
        self.most_open = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    async def rage(self, seconds: float) -> None:
        """All at once, for so long; then every connection is closed."""
        self.until = float("inf")
        async with anyio.create_task_group() as tasks:
            for _ in range(CONNECTIONS):
                tasks.start_soon(self._misbehave)
            with anyio.move_on_after(SERVED_S):
                await self.all_open.wait()
            self.all_open.set()
            self.until = time.monotonic() + seconds
            for number in range(CLIENTS):
                tasks.start_soon(self._behave, number)

    async def _misbehave(self) -> None:
        ways: list[Callable[[anyio.abc.SocketStream], Awaitable[None]]] = [
            self.frames,
            self.frames,
            self.broken_frames,
            self.bytes,
            self.half_a_line,
            self.silence,
            self.flood,
            self.subscribe_and_sleep,
            self.http,
            self.too_long,
            self.vanish,
        ]
        while not self.is_over:
            way = self.luck.choice(ways)
            try:
                async with self.door:  # beyond the backlog a caller would spin
                    stream = await anyio.connect_unix(self.daemon.socket)
                async with stream:
                    self._open += 1
                    self.most_open = max(self.most_open, self._open)
                    if self._open >= CONNECTIONS:
                        self.all_open.set()
                    try:
                        await self.all_open.wait()
                        async with self.turn:
                            with anyio.move_on_after(HOLD_S):
                                await way(stream)
                        await anyio.sleep(HOLD_S * self.luck.random() * 2)
                    finally:
                        self._open -= 1
            except (OSError, anyio.BrokenResourceError, anyio.EndOfStream):
                self.done["turned away"] += 1
            self.done[way.__name__] += 1

    async def _behave(self, number: int) -> None:
        async with AsyncClient(self.daemon.socket, timeout_s=SERVED_S) as client:
            while not self.is_over:
                began = time.monotonic()
                with anyio.fail_after(SERVED_S):
                    await client.call("daemon.ping")
                    await client.call("status")
                    if number == 0:
                        found = await client.call("delegate", WORK)
                        if found["state"] != "succeeded":
                            raise AssertionError(f"well-behaved work: {found}")
                self.waits_s.append(time.monotonic() - began)
                await anyio.sleep(0.05)

    # --- ways to misbehave -----------------------------------------------------------------

    async def _read_some(self, stream: anyio.abc.SocketStream) -> None:
        with anyio.move_on_after(0.2):
            while True:
                await stream.receive(65_536)

    async def frames(self, stream: anyio.abc.SocketStream) -> None:
        for _ in range(self.luck.randint(1, 10)):
            await stream.send(self.luck.choice(self.corpus))
        await self._read_some(stream)

    async def broken_frames(self, stream: anyio.abc.SocketStream) -> None:
        for _ in range(self.luck.randint(1, 10)):
            await stream.send(broken(self.luck.choice(self.corpus), self.luck))
        await self._read_some(stream)

    async def bytes(self, stream: anyio.abc.SocketStream) -> None:
        for _ in range(self.luck.randint(1, 5)):
            await stream.send(self.luck.randbytes(self.luck.randint(1, 5000)))
        await self._read_some(stream)

    async def half_a_line(self, stream: anyio.abc.SocketStream) -> None:
        frame = self.luck.choice(self.corpus)
        await stream.send(frame[: max(1, len(frame) // 2)].rstrip(b"\n") or b"{")

    async def silence(self, stream: anyio.abc.SocketStream) -> None:
        pass

    async def flood(self, stream: anyio.abc.SocketStream) -> None:
        """Ask for much, and read nothing."""
        while True:
            await stream.send(b'{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}\n' * 20)

    async def subscribe_and_sleep(self, stream: anyio.abc.SocketStream) -> None:
        await stream.send(SUBSCRIBE * 20)

    async def http(self, stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + self.luck.choice(self.corpus))
        await self._read_some(stream)

    async def too_long(self, stream: anyio.abc.SocketStream) -> None:
        """Mostly just a long line; now and then one beyond the limit."""
        size = 5_000_000 if self.luck.random() < 0.1 else 100_000
        await stream.send(b"[" + b"1," * (size // 2))
        await self._read_some(stream)

    async def vanish(self, stream: anyio.abc.SocketStream) -> None:
        await stream.send(b'{"jsonrpc":"2.0","id":1,"method":"status"}\n' * 10)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has no memory")


async def settled(daemon: Daemon) -> tuple[int, int]:
    """Descriptors and memory, once the last connection is gone."""
    with anyio.fail_after(SERVED_S):
        while (await daemon.client.call("status"))["daemon"]["connections"] > 1:
            await anyio.sleep(0.05)
    await anyio.sleep(SETTLE_S)
    async with AsyncClient(daemon.socket) as caller:
        await caller.call(
            "daemon.ping"
        )  # a new caller lets go of the runner of work that has ended
    with anyio.fail_after(SERVED_S):
        while (await daemon.client.call("status"))["daemon"]["connections"] > 1:
            await anyio.sleep(0.05)
    return descriptors(daemon.pid), memory_kib(daemon.pid)


def has_grown(kib: list[int]) -> bool:
    """Since the first rounds, for good: what one long line took may be given back later."""
    first, later = kib[: ROUNDS // 2], kib[ROUNDS // 2 :]
    return min(later) > max(first) * (1 + MEMORY_GROWTH)


async def fuzz(seconds: float, seed: int, place: Path) -> list[str]:
    """Returns what is wrong, in sentences."""
    wrong: list[str] = []
    async with running(place, backend_script(place / "bin", "echo", ECHO)) as daemon:
        pid = daemon.pid
        # SQLite keeps the descriptor of the connection that read it for the next one.
        await daemon.client.call("stats")
        rounds: list[Fuzz] = []
        fds: list[int] = []
        kib: list[int] = []
        while len(rounds) < ROUNDS or (has_grown(kib) and len(rounds) < MOST_ROUNDS):
            rounds.append(Fuzz(daemon, seed + len(rounds)))
            await rounds[-1].rage(seconds / ROUNDS)
            count, size = await settled(daemon)
            fds.append(count)
            kib.append(size)
        done = sum((one.done for one in rounds), Counter[str]())
        waits_s = sorted(wait_s for one in rounds for wait_s in one.waits_s)
        most_open = min(one.most_open for one in rounds)
        print(f"fuzz: {sum(done.values())} connections, {most_open} open at once")
        print("fuzz: " + ", ".join(f"{count} {name}" for name, count in sorted(done.items())))
        print(
            f"fuzz: {len(waits_s)} rounds of well-behaved clients,"
            f" median {statistics.median(waits_s) * 1000:.0f} ms,"
            f" longest {waits_s[-1] * 1000:.0f} ms"
        )
        print(f"fuzz: descriptors after each round: {', '.join(map(str, fds))}")
        print(f"fuzz: KiB after each round: {', '.join(map(str, kib))}")
        if daemon.process is None or daemon.process.poll() is not None or daemon.pid != pid:
            wrong.append("the daemon has ended")
        if fds[-1] > fds[0]:
            wrong.append(f"{fds[-1] - fds[0]} descriptors were not given back")
        if most_open < CONNECTIONS:
            wrong.append(f"only {most_open} connections were open at once")
        if has_grown(kib):
            wrong.append("memory has grown, and does not come back")
        for word in ("Traceback", "rpc.failed", "connection.failed"):
            if word in daemon.log():
                at = daemon.log().index(word)
                wrong.append(f"the log shows {word}: {daemon.log()[max(0, at - 500) : at + 3000]}")
                break
    return wrong


def run(seconds: float, seed: int | None = None, *, enough_s: float = ENOUGH_S) -> int:
    """How many things are wrong. Prints figures, and the seed that repeats the run."""
    number = random.SystemRandom().randrange(2**32) if seed is None else seed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS * 2, hard), hard))
    print(f"fuzz: seed {number}, {seconds:g} s")
    place = Path(tempfile.mkdtemp(prefix="fbd-fuzz-"))
    try:
        wrong = anyio.run(fuzz, seconds, number, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if seconds < enough_s:
        wrong.append(f"time was over after {seconds:g} of {enough_s:g} s")
    for one in wrong:
        print(f"fuzz: WRONG: {one} (seed {number})")
    return len(wrong)
