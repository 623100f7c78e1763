"""
A provider that refuses, seen through each real CLI: the right reason, and how soon others go on.

The table that is printed at the end holds seconds from the first failing answer, by the log of
the provider, to the start of the next backend.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.e2e.scenes import BACKENDS, NEXT, ROUTES, Scene, scene
from tests.support.provider_frames import TEXT
from tests.support.saying import say

PATIENCE_S = 5.0
"""Of interactive work, by default."""
ON_TOP_S = 1.0
HANG_S = 60.0


class Case(Struct, frozen=True, kw_only=True):
    behaviour: str
    retry_after_s: float | None = None
    reasons: frozenset[str]
    state: str
    """Of the backend afterwards."""
    expected_s: float


CASES = {
    "401": Case(behaviour="401", reasons=frozenset({"auth"}), state="broken", expected_s=ON_TOP_S),
    "429": Case(
        behaviour="429",
        reasons=frozenset({"rate_limit"}),
        state="rate_limited",
        expected_s=PATIENCE_S + ON_TOP_S,
    ),
    "429, 1 h": Case(
        behaviour="429",
        retry_after_s=3600,
        reasons=frozenset({"rate_limit"}),
        state="rate_limited",
        expected_s=PATIENCE_S + ON_TOP_S,
    ),
    "503": Case(
        behaviour="503",
        reasons=frozenset({"overloaded", "server_error"}),
        state="rate_limited",
        expected_s=PATIENCE_S + ON_TOP_S,
    ),
}


class Measured(Struct, frozen=True, kw_only=True):
    gap_s: float
    calls: int


@pytest.fixture(scope="module")
def table() -> Iterator[dict[tuple[str, str], Measured]]:
    found: dict[tuple[str, str], Measured] = {}
    yield found
    say("\n\nfirst failing answer to start of the next backend, seconds (provider calls)")
    say(f"{'':14}" + "".join(f"{case:>20}" for case in CASES))
    for name in BACKENDS:
        cells = ""
        for case, of in CASES.items():
            one = found.get((name, case))
            word = "-"
            if one is not None:
                verdict = "ok" if one.gap_s <= of.expected_s else "late"
                word = f"{one.gap_s:.2f} ({one.calls}) {verdict}"
            cells += f"{word:>20}"
        say(f"{name:14}{cells}")
    bounds = ", ".join(f"{case}: {of.expected_s:g}" for case, of in CASES.items())
    say(f"expected at most: {bounds}")


@pytest.mark.parametrize("name", BACKENDS)
async def test_the_next_backend_answers_where_the_provider_of_one_refuses(
    tmp_path: Path, name: str, table: dict[tuple[str, str], Measured]
) -> None:
    async with scene(tmp_path) as s:
        for case in CASES:
            table[name, case] = await measure(s, name, CASES[case])
        for case in CASES:
            assert table[name, case].gap_s < HANG_S, case


async def measure(s: Scene, name: str, case: Case) -> Measured:
    await s.forget_failures()
    s.provider.log.clear()
    s.provider.behave(ROUTES[name], case.behaviour, retry_after_s=case.retry_after_s)
    done = await s.delegate(name, then=NEXT[name])
    check(done, name, case)
    health = (await s.daemon.client.call("health", {"action": "list"}))["health"]
    assert health[name]["state"] == case.state
    assert health[NEXT[name]]["state"] == "healthy"
    failing = s.provider.first_failure(ROUTES[name])
    assert failing is not None
    following = next(one for one in done["attempts"] if one["backend"] == NEXT[name])
    return Measured(
        gap_s=following["started_at"] - failing.at, calls=len(s.provider.calls(ROUTES[name]))
    )


def check(done: dict[str, Any], name: str, case: Case) -> None:
    assert done["state"] == "succeeded", done
    assert done["text"] == TEXT
    assert done["requested"] == name
    assert done["served_by"] == NEXT[name]
    assert done["fallback_from"] == name
    (hop,) = done["hops"]
    assert (hop["from"], hop["to"]) == (name, NEXT[name])
    assert hop["trigger"] == "reactive"
    assert hop["reason"] in case.reasons
    for attempt in done["attempts"][:-1]:
        assert attempt["backend"] == name
        assert attempt["failure"]["reason"] in case.reasons, attempt
    assert done["attempts"][-1]["state"] == "succeeded"


@pytest.mark.parametrize("name", ["opencode", "gemini"])
async def test_a_throttle_that_is_over_within_patience_is_left_to_the_program(
    tmp_path: Path, name: str
) -> None:
    async with scene(tmp_path, patience_s=30) as s:
        s.provider.behave(ROUTES[name], "429", "ok", retry_after_s=1)
        done = await s.delegate(name, then=NEXT[name])
        assert done["served_by"] == name, s.daemon.log()
        assert [one["state"] for one in done["attempts"]] == ["succeeded"]
        assert done["text"] == TEXT


async def test_a_backend_that_was_throttled_is_not_asked_again(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.provider.behave("codex", "429", retry_after_s=None)
        assert (await s.delegate("codex", then="opencode"))["served_by"] == "opencode"
        asked = len(s.provider.calls("codex"))
        done = await s.delegate("codex", then="opencode")
        assert done["served_by"] == "opencode"
        assert done["text"] == TEXT
        assert [hop["trigger"] for hop in done["hops"]] == ["preemptive"]
        assert [one["backend"] for one in done["attempts"]] == ["opencode"]
        assert len(s.provider.calls("codex")) == asked
