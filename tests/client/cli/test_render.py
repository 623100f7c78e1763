import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd_client.cli.output import (
    Style,
    clean,
    clock,
    display_width,
    duration,
    one_line,
    safe,
    table,
    when,
    wrapped,
)

PLAIN = Style(enabled=False)


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (0, "0s"),
        (-5, "0s"),
        (0.4, "0s"),
        pytest.param(59, "59s", id="002-461"),
        (59.6, "1m"),
        (60, "1m"),
        pytest.param(125, "2m 5s", id="002-463"),
        (250, "4m 10s"),
        (3600, "1h"),
        (3605, "1h"),
        (7380, "2h 3m"),
        (86400, "1d"),
        (86400 + 59 * 60, "1d"),
        (90000, "1d 1h"),
        (8 * 86400, "8d"),
    ],
)
def test_durations_show_their_two_largest_units(seconds: float, wanted: str) -> None:
    assert duration(seconds) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "plain"),
        ("two\nlines\tand tab", "two\nlines\tand tab"),
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice\x1b\\x", "x"),
        ("\x9b2Jx", "x"),
        ("over\rwritten\x08\x7f", "overwritten"),
        ("bell\x07nul\x00", "bellnul"),
        ("ab\u202ecd\u2066e\u200bf\ufeff", "abcdef"),
        ("tag\U000e0041", "tag"),
        ("\ud800", "\ufffd"),
        ("é 日本 🙂", "é 日本 🙂"),
        ("\x1b", ""),
        ("\x1b]0;never ended", ""),
    ],
)
def test_only_what_is_harmless_reaches_a_terminal(text: str, wanted: str) -> None:
    assert safe(text) == wanted


@given(st.text())
def test_nothing_harmful_survives(text: str) -> None:
    found = safe(text)
    assert all(char in "\n\t" or char >= " " for char in found)
    assert not any("\x7f" <= char <= "\x9f" for char in found)
    found.encode()
    assert safe(found) == found


def test_every_string_of_a_document_is_cleaned() -> None:
    document = {"a\x1b[1m": ["\x07b", {"c": "d\r"}, 1, None, True]}
    assert clean(document) == {"a": ["b", {"c": "d"}, 1, None, True]}


def test_a_cell_is_one_line() -> None:
    assert one_line("  a\n\tb  \x1b[2Kc ") == "a b c"


@pytest.fixture
def _utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_utc")
def test_times_of_another_day_carry_their_date() -> None:
    noon = 1_700_049_600.0
    assert clock(noon, noon + 60) == "12:00:00"
    assert clock(noon, noon + 86400) == "2023-11-15 12:00:00"
    assert when(noon + 250, noon) == "12:04:10 (in 4m 10s)"
    assert when(noon, noon + 125) == "12:00:00 (2m 5s ago)"


def test_a_table_is_aligned_and_ends_without_blanks() -> None:
    text = table(
        ["A", "STATE", "WHY"], [["x", "healthy", ""], ["longer", "broken", "no\nkey"]], PLAIN
    )
    assert text.splitlines() == [
        "A       STATE    WHY",
        "x       healthy",
        "longer  broken   no key",
    ]


def test_a_table_is_coloured_only_where_colours_are_on() -> None:
    rows = [["x", "healthy", ""]]
    assert "\x1b" not in table(["A", "STATE", "WHY"], rows, PLAIN)
    assert "\x1b[32mhealthy\x1b[0m" in table(["A", "STATE", "WHY"], rows, Style(enabled=True))


@pytest.mark.parametrize("width", [20, 33, 80])
def test_a_sentence_is_broken_where_the_terminal_ends_wide_characters_included(width: int) -> None:
    words = "ローカル reported a server error: 接続できません and so on, for a line of text"
    lines = wrapped(words, Style(enabled=False, width=width))
    assert " ".join(lines) == words
    assert all(display_width(line) <= width for line in lines)
