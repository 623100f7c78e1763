"""Ten machines and one server: one wall, one trial, and what happens when the server is away."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import pytest
from tests.support.redis_server import RedisServer, redis_server
from tests.support.saying import say
from tests.support.sharing_group import HANG_S, Machine, Provider, group

from fallbackd.core.callers.lease import Resolution


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


def is_out(one: Machine) -> bool:
    return one.view().state == "rate_limited"


def is_unproven(one: Machine) -> bool:
    return one.view().unproven


async def hit_the_wall(one: Machine, provider: Provider) -> None:
    found = await one.resolve()
    assert found.backend == "first"
    await one.report(found, provider)
    assert is_out(one)


async def callers(machines: Sequence[Machine], provider: Provider, *, each: int) -> None:
    """So many callers on every machine are told at once where to call; then all of them call."""
    told: list[tuple[Machine, Resolution]] = []

    async def one(machine: Machine) -> None:
        told.append((machine, await machine.resolve()))

    async with anyio.create_task_group() as tasks:
        for machine in machines:
            for _ in range(each):
                tasks.start_soon(one, machine)
    async with anyio.create_task_group() as tasks:
        for machine, found in told:
            tasks.start_soon(machine.report, found, provider)


async def test_one_wall_is_hit_once_and_known_to_all_within_a_second(
    tmp_path: Path, server: RedisServer
) -> None:
    provider = Provider()
    took: list[float] = []
    async with group(tmp_path, 10, url=server.url) as machines:
        await hit_the_wall(machines[0], provider)
        began = time.monotonic()

        async def learns(one: Machine) -> None:
            await one.until(is_out)
            took.append(time.monotonic() - began)

        async with anyio.create_task_group() as tasks:
            for one in machines[1:]:
                tasks.start_soon(learns, one)
        await callers(machines, provider, each=20)
        assert provider.hits == ["m0"]
        ends = [one.view().until_at for one in machines]
        assert max(ends) - min(ends) < 1.0  # type: ignore[type-var, operator]
    say(f"\nknown to all after {max(took) * 1000:.0f} ms at most")
    assert max(took) < HANG_S


async def test_the_end_of_a_window_is_tried_once_over_all_machines(
    tmp_path: Path, server: RedisServer
) -> None:
    provider = Provider()
    async with group(tmp_path, 10, url=server.url, window_s=3.0) as machines:
        await hit_the_wall(machines[0], provider)
        for one in machines:
            await one.until(is_out)
        for one in machines:
            await one.until(is_unproven)
        provider.works = True
        await callers(machines, provider, each=50)
        assert len(provider.hits) == 2, provider.hits
        for one in machines:  # and the success of one ends it for all
            await one.until(lambda each: not is_unproven(each))
            assert one.view().state == "healthy"


async def test_the_trial_of_a_machine_that_dies_is_anothers_when_its_lease_ends(
    tmp_path: Path, server: RedisServer
) -> None:
    provider = Provider()
    async with group(tmp_path, 2, url=server.url, window_s=1.0, lease_s=10.0) as (one, other):
        await hit_the_wall(one, provider)
        await other.until(is_out)
        await one.until(is_unproven)
        await other.until(is_unproven)
        assert (await one.resolve()).lease_id is not None
        assert (await other.resolve()).backend == "second"
        with anyio.fail_after(HANG_S):  # the holder renews every 20 s, and is as good as dead
            while (found := await other.resolve()).backend != "first":
                await anyio.sleep(0.05)
        assert found.lease_id is not None


async def test_clocks_that_are_wrong_by_an_hour_move_no_window_by_a_second(
    tmp_path: Path, server: RedisServer
) -> None:
    provider = Provider()
    skews = {1: 3600.0, 2: -3600.0}
    async with group(tmp_path, 3, url=server.url, skews_s=skews) as machines:
        await hit_the_wall(machines[0], provider)
        left = []
        for number, one in enumerate(machines):
            await one.until(is_out)
            until_at = one.view().until_at
            assert until_at is not None
            left.append(until_at - skews.get(number, 0.0))
        assert max(left) - min(left) < 1.0


async def test_a_clock_that_is_set_moves_no_window(tmp_path: Path, server: RedisServer) -> None:
    provider = Provider()
    async with group(tmp_path, 2, url=server.url) as (one, other):
        await hit_the_wall(one, provider)
        await other.until(is_out)
        left_s = (other.view().until_at or 0.0) - other.clock.now()
        other.clock.set_wall(7200.0)
        await other.engine.look_at_clock()
        other.sharing.look_now()
        await anyio.sleep(0.2)
        now_left_s = (other.view().until_at or 0.0) - other.clock.now()
        assert abs(left_s - now_left_s) < 2.0
