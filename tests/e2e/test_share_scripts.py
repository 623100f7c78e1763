"""The scripts of the server against the rules of the core, on histories that chance made."""

import random
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.redis_server import RedisServer, redis_server

from fallbackd.core.ids import ScopeId
from fallbackd.core.reasons import Reason
from fallbackd.core.share import PersonWord, SharedLease, SharedMark, SharedRecord, in_force, join
from fallbackd.ports.store import Card, Failing, Leased, ShareReading
from fallbackd.stores.share_redis.store import RedisShare, ShareAddress

SCOPE = ScopeId("quota:plan")
LIMIT_S = 30.0
HISTORIES, STEPS = 60, 25


class Model:
    """What the core's rules make of the same history: one mark is kept, the one in force."""

    def __init__(self) -> None:
        self.record = SharedRecord(scope=SCOPE)

    def _keep(self, record: SharedRecord, *, now: float, ends_lease: bool = True) -> None:
        best = in_force(record, now=now)
        marks = frozenset() if best is None else frozenset({best})
        lease = None if ends_lease else record.lease
        self.record = structs.replace(record, marks=marks, lease=lease, gen=self.record.gen + 1)

    def is_held(self, now: float) -> bool:
        word = self.record.word
        if word is None or word.action not in ("mark", "pause"):
            return False
        return word.until_at is None or word.until_at > now

    def fail(self, mark: SharedMark, began_at: float, now: float) -> None:
        record = self.record
        if self.is_held(now) or (record.proven_at or -1.0) >= mark.since_at:
            return
        for old in record.marks:
            if began_at < old.since_at and (old.stated or not mark.stated):
                return
        told = SharedRecord(scope=SCOPE, marks=frozenset({mark}))
        both = structs.replace(record, marks=record.marks | told.marks)
        if in_force(both, now=now) != mark:
            return
        known = join(record, told)
        if in_force(known, now=now) is None:
            return
        self._keep(structs.replace(both, lease=record.lease), now=now)

    def succeed(self, began_at: float, now: float) -> None:
        record = self.record
        if record == SharedRecord(scope=SCOPE) and record.gen == 0:
            return
        if any(began_at < old.since_at for old in record.marks):
            return
        if not record.marks and record.lease is None and (record.proven_at or 0.0) >= began_at:
            return
        self._keep(join(record, SharedRecord(scope=SCOPE, proven_at=began_at)), now=now)

    def lease(self, owner: str, ttl_s: float, *, early: bool, now: float) -> bool:
        lease = self.record.lease
        if self.is_held(now):
            return False
        if lease is not None and lease.until_at > now and lease.owner != owner:
            return False
        best = in_force(self.record, now=now)
        runs = best is not None and (best.until_at is None or best.until_at > now)
        if runs and not early:
            return False
        held = SharedLease(owner=owner, until_at=now + ttl_s)
        self._keep(structs.replace(self.record, lease=held), now=now, ends_lease=False)
        return True

    def owns(self, owner: str, gen: int) -> bool:
        lease = self.record.lease
        return lease is not None and lease.owner == owner and self.record.gen == gen


def shown(record: SharedRecord) -> object:
    word = record.word
    return (
        sorted(
            (one.state, one.reason, one.since_at, one.until_at, one.cooldown_s, one.count,
             one.stated, one.source) for one in record.marks
        ),
        record.proven_at,
        None if word is None else (word.action, word.at, word.until_at),
        record.lease,
        record.gen,
    )  # fmt: skip


def server_of(found: ShareReading | Leased) -> tuple[float, SharedRecord]:
    seen = found.seen if isinstance(found, Leased) else found
    assert not seen.ignored
    return seen.at, seen.records[0]


async def one_step(rng: random.Random, share: RedisShare, model: Model) -> SharedRecord:
    machine = rng.choice(["laptop", "desktop", "voice"])
    kind = rng.choice(["fail"] * 5 + ["ok", "lease", "lease", "renew", "release", "say", "read"])
    age_s = rng.choice([0.0, 0.5, 5.0, 60.0])
    match kind:
        case "fail":
            window_s = rng.choice([None, 0.25, 30.0, 55.5, 300.0])
            began_ago_s = age_s + rng.choice([0.0, 1.0, 30.0])
            mark = SharedMark(
                state=rng.choice(["rate_limited", "broken"]),  # type: ignore[arg-type]
                reason=rng.choice([Reason.RATE_LIMIT, Reason.BILLING]),
                since_at=0.0,
                until_at=None,
                cooldown_s=rng.choice([0.0, 10.0]),
                count=rng.randint(1, 5),
                stated=window_s is not None and rng.random() < 0.5,
                source=f"{machine}/codex",
            )
            failing = Failing(mark=mark, age_s=age_s, began_ago_s=began_ago_s, window_s=window_s)
            now, record = server_of(await share.report_failure(SCOPE, failing, limit_s=LIMIT_S))
            since_at = exact(now - age_s)
            mark = structs.replace(
                mark,
                since_at=since_at,
                until_at=None if window_s is None else exact(since_at + window_s),
                cooldown_s=0.0 if window_s is None else mark.cooldown_s,
            )
            model.fail(mark, exact(now - began_ago_s), now)
        case "ok":
            found = await share.report_success(
                SCOPE, began_ago_s=age_s, source=machine, limit_s=LIMIT_S
            )
            now, record = server_of(found)
            model.succeed(exact(now - age_s), now)
        case "lease":
            early = rng.random() < 0.2
            granted = await share.lease(
                SCOPE, owner=machine, ttl_s=60.0, early=early, limit_s=LIMIT_S
            )
            now, record = server_of(granted)
            assert granted.granted == model.lease(machine, 60.0, early=early, now=now)
        case "renew" | "release":
            gen = model.record.gen - rng.choice([0, 0, 1])
            owns = model.owns(machine, gen)
            if kind == "renew":
                renewed = await share.renew(
                    SCOPE, owner=machine, gen=gen, ttl_s=90.0, limit_s=LIMIT_S
                )
                assert renewed == owns
            else:
                released = await share.release(SCOPE, owner=machine, gen=gen, limit_s=LIMIT_S)
                assert released == owns
            now, record = server_of(await share.read([SCOPE], limit_s=LIMIT_S))
            if owns and kind == "renew":
                lease = record.lease
                assert lease is not None
                assert 0 <= now + 90.0 - lease.until_at < LIMIT_S
                model.record = structs.replace(model.record, lease=lease)
            elif owns:
                gen = model.record.gen + 1
                model.record = structs.replace(model.record, lease=None, gen=gen)
        case "say":
            action = rng.choice(["mark", "clear", "pause", "resume", "resume", "clear"])
            window_s = 30.0 if action == "mark" else None
            word = PersonWord(id="", action=action, at=0.0)  # type: ignore[arg-type]
            now, record = server_of(
                await share.say(SCOPE, word, window_s=window_s, limit_s=LIMIT_S)
            )
            said = structs.replace(
                word, at=now, until_at=None if window_s is None else exact(now + window_s)
            )
            after = structs.replace(model.record, word=said, gen=model.record.gen + 1)
            if action == "clear":
                after = structs.replace(after, marks=frozenset(), lease=None, proven_at=now)
            model.record = after
        case _:
            _, record = server_of(await share.read([SCOPE], limit_s=LIMIT_S))
    return record


def exact(at: float) -> float:
    return round(at * 1000) / 1000


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


async def test_the_server_folds_as_the_core_does(server: RedisServer) -> None:
    for seed in range(HISTORIES):
        rng, model = random.Random(seed), Model()
        share = RedisShare(ShareAddress(url=server.url), group=f"seed{seed}")
        done: list[object] = []
        try:
            for _ in range(STEPS):
                record = await one_step(rng, share, model)
                done.append(shown(record))
                assert shown(record) == shown(model.record), (seed, done)
        finally:
            await share.aclose()


async def test_a_late_generation_ends_no_later_lease(tmp_path: Path, server: RedisServer) -> None:
    share = RedisShare(ShareAddress(url=server.url), group="late")
    try:
        first = await share.lease(SCOPE, owner="a", ttl_s=60, early=False, limit_s=LIMIT_S)
        again = await share.lease(SCOPE, owner="a", ttl_s=60, early=False, limit_s=LIMIT_S)
        assert not await share.release(SCOPE, owner="a", gen=first.gen, limit_s=LIMIT_S)
        other = await share.lease(SCOPE, owner="b", ttl_s=60, early=False, limit_s=LIMIT_S)
        assert not other.granted
        assert await share.release(SCOPE, owner="a", gen=again.gen, limit_s=LIMIT_S)
        other = await share.lease(SCOPE, owner="b", ttl_s=60, early=False, limit_s=LIMIT_S)
        assert other.granted
    finally:
        await share.aclose()


async def test_two_machines_of_one_name_see_each_other(server: RedisServer) -> None:
    share = RedisShare(ShareAddress(url=server.url), group="twins")
    try:
        seen = []
        for instance in ("one", "two", "one", "one"):
            card = Card(name="laptop", instance=instance)
            _, cards = await share.present(card, limit_s=LIMIT_S)
            seen.append(sorted(one.instance for one in cards))
        assert seen == [["one"], ["one", "two"], ["one", "two"], ["one"]]
    finally:
        await share.aclose()
