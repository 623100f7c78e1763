"""A short run of what `make soak` does for ten minutes, with other seeds each time."""

import pytest
from tests.soak import fuzz

SEED = 20_261_124


@pytest.mark.root  # the daemon hides its descriptors from its own user
@pytest.mark.timeout(3600)  # the limits are in it
def test_a_thousand_peers_that_misbehave_leave_nothing_behind() -> None:
    assert fuzz.run(15.0, SEED, enough_s=15.0) == 0
