"""Who is told what happens: nothing missed, nothing twice, nobody waited for."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.front import HANG_S, Front, Peer, front

from fallbackd.fronts.rpc.connection import ConnectionLimits
from fallbackd.fronts.rpc.subscriptions import MAX_OF_CONNECTION


async def subscribed(peer: Peer, **params: Any) -> dict[str, Any]:
    found = await peer.call("events.subscribe", **params)
    result: dict[str, Any] = found["result"]
    return result


async def events(peer: Peer, count: int) -> list[dict[str, Any]]:
    found = []
    while len(found) < count:
        message = await peer.line()
        assert message["method"] == "event"
        assert "id" not in message
        found.append(message["params"])
    return found


async def test_an_event_carries_its_place_and_what_it_is_about() -> None:
    async with front() as served, served.peer() as peer:
        result = await subscribed(peer)
        await served.engine.happen("health.moved", backend="codex", fields={"to": "broken"})
        (found,) = await events(peer, 1)
        assert found == {
            "subscription": result["subscription"],
            "seq": 1,
            "at": pytest.approx(1.8e9),
            "kind": "health.moved",
            "backend": "codex",
            "to": "broken",
        }


async def test_kinds_and_session_filter() -> None:
    async with front() as served, served.peer() as peer:
        await subscribed(peer, kinds=["attempt.started"], session="s1")
        await served.engine.happen("attempt.ended", session="s1")
        await served.engine.happen("attempt.started", session="s2")
        await served.engine.happen("attempt.started")
        await served.engine.happen("attempt.started", session="s1")
        (found,) = await events(peer, 1)
        assert (found["seq"], found["session"]) == (4, "s1")


async def test_progress_comes_only_where_it_is_named_and_has_no_place() -> None:
    async with front() as served, served.peer() as peer, served.peer() as named:
        await subscribed(peer)
        await subscribed(named, kinds=["attempt.output"])
        served.engine.progress(100)
        await served.engine.happen("delegation.ended")
        (found,) = await events(peer, 1)
        assert found["kind"] == "delegation.ended"
        (found,) = await events(named, 1)
        assert (found["kind"], found["offset"], "seq" in found) == ("attempt.output", 100, False)


async def test_replay_and_live_join_without_a_gap_or_a_double() -> None:
    async with front() as served, served.peer() as peer:
        for _ in range(1200):
            await served.engine.happen("health.moved")
        result = await subscribed(peer, since=100)
        assert result["seq"] == 1200

        async def go_on() -> None:
            for _ in range(300):
                await served.engine.happen("health.moved")
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            found = await events(peer, 1400)
        assert [one["seq"] for one in found] == list(range(101, 1501))


async def test_a_place_beyond_the_end_means_from_now_on_and_is_said() -> None:
    async with front() as served, served.peer() as peer:
        await served.engine.happen("health.moved")
        assert "warning" not in await subscribed(peer, since=1, kinds=["config.reloaded"])
        found = await subscribed(peer, since=5000, colour="red")
        assert found["seq"] == 1
        assert "no event 5000 yet, the last one is 1: the journal was begun" in found["warning"]
        assert "`colour`" in found["warning"]
        await served.engine.happen("health.moved")
        (found,) = await events(peer, 1)
        assert found["seq"] == 2


async def test_nothing_comes_after_unsubscribing() -> None:
    async with front() as served, served.peer() as peer:
        name = (await subscribed(peer))["subscription"]
        ended = await peer.call("events.unsubscribe", subscription=name)
        assert ended["result"] == {"ended": True}
        await served.engine.happen("health.moved")
        # Answers and events share one order: an event would come before this answer.
        await peer.ask("last", "events.unsubscribe", subscription=name)
        assert await peer.line() == {
            "jsonrpc": "2.0",
            "id": "last",
            "result": {"ended": False},
        }


async def test_a_subscription_is_ended_by_its_own_connection_alone() -> None:
    async with front() as served, served.peer() as peer, served.peer() as other:
        result = await subscribed(peer)
        ended = await other.call("events.unsubscribe", subscription=result["subscription"])
        assert ended["result"]["ended"] is False
        await served.engine.happen("health.moved")
        (found,) = await events(peer, 1)
        assert found["kind"] == "health.moved"


async def test_subscriptions_of_one_connection_are_limited() -> None:
    async with front() as served, served.peer() as peer:
        for _ in range(MAX_OF_CONNECTION):
            await subscribed(peer)
        found = await peer.call("events.subscribe")
        assert found["error"]["code"] == -32008
        assert found["error"]["data"]["kind"] == "too_many_subscriptions"


async def flood(served: Front, count: int) -> None:
    for _ in range(count):
        await served.engine.happen("health.moved", fields={"text": "x" * 10_000})
        await anyio.lowlevel.checkpoint()


async def test_a_subscriber_that_does_not_read_is_dropped_and_slows_nobody() -> None:
    limits = ConnectionLimits(send_s=HANG_S)
    async with front(limits) as served, served.peer() as lazy, served.peer() as eager:
        await subscribed(lazy)
        await subscribed(eager)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood, served, 400)
            assert len(await events(eager, 400)) == 400
        seen = []
        while not seen or seen[-1]["kind"] != "subscription.dropped":
            seen += await events(lazy, 1)
        assert 0 < len(seen) < 400
        assert "seq" not in seen[-1]
        assert f"`since`: {seen[-2]['seq']}" in seen[-1]["text"]
        # The connection itself is as good as before, and misses nothing when it asks again.
        await subscribed(lazy, since=seen[-2]["seq"])
        rest = await events(lazy, 400 - seen[-2]["seq"])
        assert [one["seq"] for one in rest] == list(range(seen[-2]["seq"] + 1, 401))


async def test_a_subscriber_that_vanishes_is_forgotten() -> None:
    async with front() as served:
        async with served.peer() as peer:
            await subscribed(peer)
        await served.until(connections=0)
        await served.engine.happen("health.moved")
        async with served.peer() as other:
            assert (await subscribed(other, since=0))["seq"] == 1
            assert len(await events(other, 1)) == 1
