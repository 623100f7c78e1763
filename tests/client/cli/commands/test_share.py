"""What `share` and `status` show of machines that share health."""

import time

import pytest

from fallbackd_client.cli.commands.share import NOT_SHARED, sharing_line, status_view
from fallbackd_client.cli.output import Style

PLAIN = Style(enabled=False, width=80)
AWAY = {
    "state": "unreachable",
    "group": "home",
    "machine": "laptop",
    "problem": "connection refused",
    "arbiter_away": True,
    "alone_at": 0.0,
    "alone_scopes": ["quota:plan"],
}


def test_nothing_is_shared_says_how_to_begin() -> None:
    assert status_view({"share": None}, PLAIN) == NOT_SHARED


def test_an_arbiter_that_is_away_is_said_where_a_person_looks() -> None:
    assert "share unreachable · arbiter away · group home" in sharing_line(AWAY, PLAIN)
    away = {**AWAY, "alone_at": time.time() - 180.0}
    lines = status_view({"share": away, "scopes": ["quota:plan"]}, PLAIN).splitlines()
    assert "  arbiter away: machines that are cut off take turns of a minute to probe" in lines
    assert "  last probe without the server: 3m ago (quota:plan)" in lines


@pytest.mark.parametrize("state", ["connected", "off"])
def test_it_is_not_said_where_there_is_one_or_none_is_used(state: str) -> None:
    there = {**AWAY, "state": state, "arbiter_away": state == "off"}
    assert "arbiter" not in sharing_line(there, PLAIN)
