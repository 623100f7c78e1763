"""A short piece of `make soak`."""

from pathlib import Path

import pytest
from tests.soak import fuzz
from tests.soak.__main__ import DEFAULT_S, SHARES
from tests.soak.kills import kill_again_and_again


def test_its_usual_time_is_enough_for_what_has_a_time_of_its_own() -> None:
    assert DEFAULT_S * SHARES["fuzz"] / sum(SHARES.values()) >= fuzz.ENOUGH_S


@pytest.mark.root  # the daemon hides its descriptors from its own user
@pytest.mark.timeout(1200)  # the limit of the kills is in them
async def test_killed_at_random_instants_nothing_is_lost_and_nothing_leaks(tmp_path: Path) -> None:
    problems = await kill_again_and_again(tmp_path, seed="1", limit_s=600, rounds=6, callers=12)
    assert problems == []
