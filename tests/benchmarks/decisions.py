"""
What a decision costs, and that it does not cost more with more sessions on record.

The events are those of one delegation that falls back: asked for, started, looked at while it
runs, failed (which chooses and orders the next one), answered. `decide` is timed inside the
store's transaction, the transaction (snapshot, decision, commit in memory) around it.
"""

import statistics
import time
from collections import defaultdict
from pathlib import Path

import msgspec
from tests.benchmarks.table import Row, microseconds, within
from tests.support.playbook import T0, delegate, fail, failed, policy_of, started, succeeded

from fallbackd.core.decide import decide
from fallbackd.core.decision import Decision, PutSession
from fallbackd.core.events import Event, HealthCleared, ResolveRequested, Woke
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, SessionId
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Keys, Session, Snapshot
from fallbackd.core.watch import Watch
from fallbackd.engine.loop import keys_of
from fallbackd.stores.memory import MemoryStore

COUNTS = (10, 1_000, 100_000)
ROUNDS = 400
BUSY = 16
"""Delegations that run beside the measured one, with any number of sessions."""
BACKENDS = ("a", "b", "c", "d", "e", "f")
DECISION_S = 0.1e-3
GROWTH = 1.5
"""What the same work may vary by between two measurements of it; a scan would be a thousandfold."""


class Bench:
    """A store with `count` sessions, and the times of what was decided on it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.store = MemoryStore()
        self.policy = policy_of(*BACKENDS, chains={"a": list(BACKENDS[1:])})
        self.now = T0
        self.decide_s: dict[str, list[float]] = defaultdict(list)
        self.transact_s: dict[str, list[float]] = defaultdict(list)
        self.shown: dict[str, Snapshot | None] = {}
        """The last snapshot by kind."""

    async def fill(self) -> None:
        sessions = tuple(
            PutSession(
                session=Session(
                    session=SessionId(f"s{number}"),
                    original=BackendId("a"),
                    current=BackendId("a"),
                    created_at=T0 - 2 * self.count + number,
                    last_used_at=T0 - self.count + number,
                )
            )
            for number in range(self.count)
        )
        await self.store.transact(Keys(), lambda _: Decision(changes=sessions))
        for number in range(BUSY):
            name = f"busy{number}"
            await self.take(delegate(name, backend="f", failover=False))
            await self.take(started(f"{name}.1"))

    async def take(self, event: Event) -> None:
        self.now += 0.01
        took = 0.0
        shown: Snapshot | None = None

        def run(seen: Snapshot) -> Decision:
            nonlocal took, shown
            shown = seen
            before = time.perf_counter()
            decision = decide(seen, event, self.policy, now=self.now)
            took = time.perf_counter() - before
            return decision

        before = time.perf_counter()
        keys = keys_of(event, self.store.peek())
        decision, _ = await self.store.transact(keys, run)
        transacted = time.perf_counter() - before
        if decision.rejection is not None:
            raise RuntimeError(f"refused: {decision.rejection}")
        kind = type(event).__name__
        if kind == "AttemptEnded" and getattr(event, "failure", None) is not None:
            kind = "AttemptEnded, to the next"
        self.decide_s[kind].append(took)
        self.transact_s[kind].append(transacted)
        self.shown[kind] = shown

    async def round(self, number: int) -> None:
        # Spread over all sessions: the oldest are as quick as the newest.
        session = f"s{number * 7919 % self.count}"
        name = f"d{number}"
        await self.take(delegate(name, session=session, backend="a"))
        await self.take(started(f"{name}.1"))
        watch = Watch(started_at=self.now)
        look = Woke(delegation=DelegationId(name), attempt=AttemptId(f"{name}.1"), watch=watch)
        await self.take(look)
        failure = fail(Reason.RATE_LIMIT, at=self.now - T0)
        await self.take(failed(f"{name}.1", failure))
        running = self.store.peek().active[DelegationId(name)].running
        if running is None or running.backend == "a":
            raise RuntimeError("a failure was to lead to the next backend")
        await self.take(started(running.attempt))
        await self.take(succeeded(running.attempt))
        await self.take(ResolveRequested(session=SessionId(session), backend=BackendId("a")))
        await self.take(HealthCleared())

    def forget_warming(self) -> None:
        self.decide_s.clear()
        self.transact_s.clear()


async def measure(place: Path) -> list[Row]:
    benches = [Bench(count) for count in COUNTS]
    for bench in benches:
        await bench.fill()
        for number in range(20):
            await bench.round(number)
        bench.forget_warming()
    for number in range(20, 20 + ROUNDS):
        for bench in benches:
            await bench.round(number)
    rows: list[Row] = []
    for kind in (
        "DelegateRequested",
        "AttemptEnded, to the next",
        "Woke",
        "ResolveRequested",
    ):
        for what, name in (("decide", "decide_s"), ("transaction", "transact_s")):
            found = [statistics.median(getattr(one, name)[kind]) for one in benches]
            rows.append(growth(f"decisions: {kind}, {what}", found))
            if what == "decide":
                rows.append(beside_msgspec(kind, benches[0], found[0]))
                rows.append(
                    within(
                        f"decisions: {kind}, {COUNTS[-1]:,} sessions, us",
                        [one * 1e6 for one in benches[-1].decide_s[kind]],
                        DECISION_S * 1e6,
                        show="{:.1f}",
                    )
                )
    return rows


def beside_msgspec(kind: str, bench: Bench, decide_s: float) -> Row:
    """What `msgspec` takes for the snapshot that was decided on, to JSON and back."""
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Snapshot)
    took = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        decoder.decode(encoder.encode(bench.shown[kind]))
        took.append(time.perf_counter() - before)
    bare = statistics.median(took)
    return Row(
        what=f"decisions: {kind}, beside a bare round trip of its snapshot",
        measured=microseconds(decide_s),
        beside=f"msgspec to JSON and back {microseconds(bare)}",
        ratio=decide_s / bare,
    )


def growth(what: str, found: list[float]) -> Row:
    shown = ", ".join(
        f"{count:,}: {microseconds(one)}" for count, one in zip(COUNTS, found, strict=True)
    )
    return Row(
        what=what,
        measured=microseconds(found[-1]),
        beside=shown,
        ratio=found[-1] / found[0],
        at_most=GROWTH,
    )
