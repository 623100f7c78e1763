"""Durations as people type them."""

import argparse

import pytest

from fallbackd_client.cli.commands.standby import not_before
from fallbackd_client.cli.parsing import duration_s, limit_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("2.5", 2.5),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1d2h", 93_600),
        ("1.5h", 5400),
        (" 3s ", 3),
    ],
)
def test_a_duration_is_units_or_seconds(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "m", "5x", "1h30", "-5", "-5s", "nan", "inf", "1e999s"]
)
def test_anything_else_is_said(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write 90s, 5m, 1h30m"):
        duration_s(text)


@pytest.mark.parametrize("text", ["0", "0s", "0h0m"])
def test_a_limit_of_no_time_is_none(text: str) -> None:
    assert limit_s("1s") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="greater than zero"):
        limit_s(text)


def test_the_begin_of_work_is_a_duration_or_a_time_of_the_clock() -> None:
    assert not_before("1h30m") == {"not_before_s": 5400.0}
    assert not_before("2026-11-28 07:30").keys() == {"not_before_at"}
    assert not_before("0s") == {}
