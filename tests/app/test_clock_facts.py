"""A clock that is set while a daemon runs or while none does moves every window once."""

import json
import time
from pathlib import Path

import pytest
from msgspec import structs
from tests.stores.records import an_outage
from tests.support.running_engine import engine_in, settings

from fallbackd.app.places import Places, find_places
from fallbackd.app.wiring import INSTANT_KEY, clock_facts, open_records, say_alive
from fallbackd.core.decision import Decision, PutHealth
from fallbackd.core.health import view
from fallbackd.core.records import Keys
from fallbackd.engine.api import Engine
from fallbackd.lib.clock import Instant, SystemClock
from fallbackd.ports.store import Store

SCOPE = "backend:a"


def places_in(tmp_path: Path) -> Places:
    return find_places({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})


async def kept(store: Store, *, since_at: float, until_at: float) -> None:
    mark = an_outage(SCOPE)
    assert mark.outage is not None
    outage = structs.replace(mark.outage, since_at=since_at, until_at=until_at)
    mark = structs.replace(mark, outage=outage)
    await store.transact(Keys(), lambda _: Decision(changes=(PutHealth(mark),)))


def until_at(store: Store) -> float:
    outage = store.peek().health[SCOPE].outage  # type: ignore[index]
    assert outage is not None
    return outage.until_at or 0.0


@pytest.mark.parametrize("ahead_s", [7200.0, -7200.0], ids=["set back", "set forward"])
async def test_a_clock_that_was_set_while_no_daemon_ran(tmp_path: Path, ahead_s: float) -> None:
    """The records are of a clock that was that much ahead."""
    places = places_in(tmp_path)
    store, clock = await open_records(places)
    now = time.time()
    await kept(store, since_at=now + ahead_s - 10, until_at=now + ahead_s + 290)
    here = clock.instant()
    await store.set_meta(INSTANT_KEY, here._replace(at=here.at + ahead_s).encode())
    await store.aclose()
    store, clock = await open_records(places)
    assert view(store.peek().health[SCOPE], now=clock.now()).state == "rate_limited"  # type: ignore[index]
    async with engine_in(tmp_path, settings(), store=store, clock=clock) as engine:
        engine.clock_facts = lambda: clock_facts(clock)
        await engine.look_at_clock()
        assert until_at(store) == pytest.approx(now + 290, abs=60)
    await store.aclose()
    store, clock = await open_records(places)
    assert clock.step() == 0.0
    assert until_at(store) == pytest.approx(now + 290, abs=60)
    await store.aclose()


class Wall:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.set_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.set_s


async def set_and_killed(engine: Engine, clock: SystemClock, wall: Wall, by_s: float) -> None:
    engine.clock_facts = lambda: clock_facts(clock)
    wall.set_s = by_s
    await engine.look_at_clock()


@pytest.mark.parametrize("by_s", [86_400.0, -86_400.0])
async def test_a_clock_that_is_set_shortly_before_a_kill_is_no_long_stop(
    tmp_path: Path, by_s: float
) -> None:
    places = places_in(tmp_path)
    wall = Wall()
    store, _ = await open_records(places)
    clock = SystemClock(wall=wall)
    await say_alive(store, clock)
    now = time.time()
    await kept(store, since_at=now - 10, until_at=now + 290)
    async with engine_in(tmp_path, settings(), store=store, clock=clock) as engine:
        await set_and_killed(engine, clock, wall, by_s)
    await store.aclose()  # nothing more is said: it was killed
    store, clock = await open_records(places, SystemClock(wall=wall))
    assert view(store.peek().health[SCOPE], now=clock.now()).state == "rate_limited"  # type: ignore[index]
    assert until_at(store) == pytest.approx(now + by_s + 290, abs=60)
    await store.aclose()


async def test_the_facts_of_an_earlier_version_are_understood(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    store, clock = await open_records(places)
    await store.set_meta("alive_at", str(clock.now() + 7200))
    await store.set_meta("boot_id", clock.boot_id())
    await store.set_meta("clock_offset_s", str(clock.offset_s + 7200))
    await store.aclose()
    store, later = await open_records(places)
    assert later.step() == pytest.approx(-7200, abs=60)
    await store.aclose()


@pytest.mark.parametrize("text", [None, "", "no JSON", "{}", "[]", json.dumps({"at": "x"})])
def test_an_instant_that_cannot_be_read_is_none(text: str | None) -> None:
    assert Instant.decode(text) is None


def test_after_a_boot_the_wall_clock_is_believed() -> None:
    clock = SystemClock()
    last = clock.instant()._replace(boot_id="another", at=clock.now() - 500, elapsed_s=9e9)
    assert clock.follow(last) == pytest.approx(500, abs=60)
    assert clock.step() == 0.0
