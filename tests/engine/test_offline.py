"""This machine without a way out: nobody is marked, what is on it is used."""

from pathlib import Path

from tests.support.running_engine import agent, engine_in, settings, state_of, tried, work
from tests.support.scripts import script

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
