"""The report over time: exact for a history that is known, and read beside all other work."""

import threading
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest
from msgspec import to_builtins
from tests.stores.contract import NONE
from tests.stores.records import deciding
from tests.support.playbook import (
    T0,
    Playbook,
    delegate,
    fail,
    failed,
    policy_of,
    started,
    succeeded,
)

from fallbackd.api.stats import Parts, Report, chains_of
from fallbackd.core.decision import PutHour
from fallbackd.core.events import Ticked
from fallbackd.core.history import HourUse, Move
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason
from fallbackd.stores.sqlite import open_sqlite
from fallbackd_client.wire.methods.stats import FailoverRow, OutageRow, ShareRow, StatsResult

HOUR = 3600.0
POLICY = policy_of("a", "b", "c", chains={"a": ["b"]}, roles={"judge": ["a", "b"]})
USED = Usage(input_tokens=1000, output_tokens=100, cost_usd=0.125)


def thirty() -> Playbook:
    """
    Thirty delegations, one each ten minutes, 20 s each. From the eleventh on `a` is out for 50
    minutes (a limit that states its end), then recovers for ten; `b` serves what is asked of it.
    """
    play = Playbook(POLICY)
    for number in range(30):
        at, name = number * 600.0, f"d{number}"
        play.at(at).when(Ticked())
        asked = {"role": "judge"} if number % 2 else {"backend": "a"}
        play.when(delegate(name, cwd="/srv/app" if number < 20 else "/srv/lib", **asked))
        play.when(started(f"{name}.1"))
        if number == 10:
            limit = fail(Reason.USAGE_LIMIT, wait_s=3000, at=at + 5)
            play.at(at + 5).when(failed(f"{name}.1", limit), started(f"{name}.2"))
            play.at(at + 25).when(succeeded(f"{name}.2", usage=USED))
        elif number == 29:
            play.at(at + 20).when(failed(f"{name}.1", fail(Reason.TASK_FAILED)))
        else:
            play.at(at + 20).when(succeeded(f"{name}.1", usage=USED))
    return play.at(5 * HOUR).when(Ticked())


def report(play: Playbook, *, since: float, buckets: int = 5) -> StatsResult:
    made = Report(Parts(T0 + since, play.wall, buckets), chains_of(play.policy), now=play.wall)
    made.add_all(play.memory.hours)
    made.add_all(one.hour for one in play.peek().meters.values() if one.hour is not None)
    return made.result()


def test_thirty_delegations_give_exactly_this_report() -> None:
    found = report(thirty(), since=0)
    assert (found.requests, found.answered, found.rescued) == (30, 29, 7)
    a, b = found.backends
    assert (a.backend, a.calls, a.answered, a.failed) == ("a", 24, 22, 2)
    assert a.reasons == {"usage_limit": 1, "task_failed": 1}
    assert (a.mean_s, a.longest_s) == (20.0, 20.0)
    assert (a.input_tokens, a.output_tokens, a.cost_usd) == (22_000, 2200, 22 * 0.125)
    # The first call ends after 20 s: nothing is known before. The tick finds what time has done.
    assert a.seconds == {"healthy": 13_785.0, "rate_limited": 3595.0, "cooldown": 600.0}
    assert a.availability == pytest.approx(14_385 / 17_980)
    assert a.strip == ("healthy", "rate_limited", "rate_limited", "healthy", "healthy")
    assert a.calls_by == (6, 5, 1, 6, 6)
    assert a.failed_by == (0, 1, 0, 0, 1)
    assert (b.backend, b.calls, b.answered, b.failed) == ("b", 7, 7, 0)
    assert b.calls_by == (0, 2, 5, 0, 0)
    assert found.outages == (
        OutageRow(
            backend="a",
            state="rate_limited",
            reason="usage_limit",
            began_at=T0 + 6005,
            ended_at=T0 + 9600,
        ),
    )
    assert found.failovers == (FailoverRow(left="a", to="b", reason="usage_limit", count=7),)
    [chain] = found.chains
    assert (chain.chain, chain.backends, chain.availability) == ("a", ("a", "b"), 1.0)
    roles = {one.name: (one.requests, one.answered, one.rescued) for one in found.roles}
    assert roles == {"": (15, 15, 4), "judge": (15, 14, 3)}
    assert found.projects[1] == ShareRow(
        name="/srv/lib",
        requests=10,
        answered=9,
        input_tokens=9000,
        output_tokens=900,
        cost_usd=9 * 0.125,
    )


def test_a_report_of_the_last_hours_leaves_out_what_was_before() -> None:
    found = report(thirty(), since=3 * HOUR, buckets=2)
    assert (found.requests, found.outages, found.known_since_at) == (12, (), T0 + 3 * HOUR)
    assert found.backends[0].seconds == {"healthy": 2 * HOUR}


def test_an_outage_that_lasts_has_no_end_and_begins_with_the_report_at_the_earliest() -> None:
    one = HourUse(
        backend=BackendId("a"),
        hour=int(T0 / HOUR),
        moves=(Move(at=T0 + 60, state="broken", reason="auth"),),
    )
    made = Report(Parts(T0 + 600, T0 + 1200, 1), {}, now=T0 + 1200)
    made.add(one)
    [row] = made.result().outages
    assert (row.began_at, row.ended_at) == (T0 + 600, None)


def test_an_outage_that_lasts_over_a_stop_of_the_daemon_is_one() -> None:
    moves = ((0, "broken"), (600, "stopped"), (900, "broken"), (1200, "healthy"), (1800, "broken"))
    one = HourUse(
        backend=BackendId("a"),
        hour=int(T0 / HOUR),
        moves=tuple(Move(at=T0 + at, state=state) for at, state in moves),
    )
    made = Report(Parts(T0, T0 + HOUR, 1), {}, now=T0 + 2 * HOUR)
    made.add(one)
    found = [(row.began_at - T0, row.ended_at) for row in made.result().outages]
    assert found == [(1800, None), (0, T0 + 1200)]


def test_a_chain_is_available_while_one_of_its_backends_is() -> None:
    hour = int(T0 / HOUR)

    def one(backend: str, out_from: float, out_until: float) -> HourUse:
        moves = ((T0, "healthy"), (T0 + out_from, "broken"), (T0 + out_until, "healthy"))
        return HourUse(
            backend=BackendId(backend),
            hour=hour,
            moves=tuple(Move(at=at, state=state) for at, state in moves),
        )

    made = Report(Parts(T0, T0 + HOUR, 1), {"a": ["a", "b", "x"]}, now=T0 + 2 * HOUR)
    made.add_all([one("a", 0, 1800), one("b", 900, 2700)])
    [chain] = made.result().chains
    assert chain.availability == 0.75
    assert chain.backends == ("a", "b")


async def test_the_loop_goes_on_while_a_report_is_read(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "fallbackd.db", now=T0)
    one = HourUse(backend=BackendId("a"), hour=int(T0 / HOUR), calls=1)
    await store.transact(NONE, deciding(PutHour(one)))
    is_reading, may_end = threading.Event(), threading.Event()

    def slow(hours: Iterable[HourUse]) -> int:
        found = len(list(hours))
        is_reading.set()
        assert may_end.wait(60)
        return found

    found: list[int] = []

    async def read() -> None:
        found.append(await store.hours(slow, since_hour=0))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            while not is_reading.is_set():
                await anyio.sleep(0.001)
            # Neither the loop nor the thread that writes waits for it.
            await store.transact(NONE, deciding(PutHour(one)))
            assert await store.delegations() == []
            assert found == []
            may_end.set()
    assert found == [1]
    await store.aclose()


def test_a_report_says_only_what_json_can_say() -> None:
    assert to_builtins(report(thirty(), since=0))["bucket_s"] == HOUR
