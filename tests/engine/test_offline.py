"""This machine without a way out: nobody is marked, what is on it is used."""

from pathlib import Path

from tests.support.clock import ManualClock
from tests.support.running_engine import (
    agent,
    ended,
    engine_in,
    settings,
    state_of,
    tried,
    until,
    work,
)
from tests.support.scripts import says, script

from fallbackd.engine.requests import NewWork

UNREACHABLE = "cat >/dev/null; echo 'Error: getaddrinfo ENOTFOUND api.example.com' >&2; exit 1"
ANSWERS = "cat >/dev/null; echo answer of the local one"


async def test_without_a_default_route_local_candidates_are_used(tmp_path: Path) -> None:
    far = agent("far", script(tmp_path, "far", UNREACHABLE))
    other = agent("other", script(tmp_path, "other", UNREACHABLE))
    near = agent("near", script(tmp_path, "near", ANSWERS), loopback=True)
    config = settings(far, other, near)
    async with engine_in(tmp_path, config, has_route=lambda: False) as engine:
        done = await work(engine, backend="far")
        assert tried(done) == [("far", "local_network"), ("near", None)]
        assert state_of(engine, "far") == "healthy"


async def test_with_a_route_the_same_failure_is_the_provider_s(tmp_path: Path) -> None:
    far = agent("far", script(tmp_path, "far", UNREACHABLE))
    async with engine_in(tmp_path, settings(far)) as engine:
        done = await work(engine, backend="far")
        assert tried(done) == [("far", "network"), ("far", "network")]
        assert state_of(engine, "far") == "rate_limited"


async def test_a_route_that_is_back_at_the_end_does_not_make_it_the_provider_s(
    tmp_path: Path,
) -> None:
    """Codex fails while the machine is offline, and is stopped when patience is over."""
    clock = ManualClock()
    why = "stream disconnected before completion: error sending request for url (https://a.example)"
    begins = says({"type": "thread.started", "thread_id": "t"})
    retries = says({"type": "error", "message": f"Reconnecting... 1/5 ({why})"})
    body = f"cat >/dev/null\n{begins}{retries}exec sleep 1000"
    far = agent("far", script(tmp_path, "far", body), "--json", kind="codex")
    way_out = tmp_path / "way out"
    config = settings(far)
    async with engine_in(tmp_path, config, clock=clock, has_route=way_out.exists) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="far", mode="interactive"))
        await until(lambda: engine.snapshot().active[begun.delegation].attempts[-1].failure)
        way_out.touch()
        clock.advance(300)
        await engine.look_at_clock()
        done = await ended(engine, begun)
        assert tried(done) == [("far", "local_network")]
        assert state_of(engine, "far") == "healthy"
