"""Tables that fit the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd_client.cli.output import Style, display_width, shorten, table

HEADERS = ["BACKEND", "STATE", "REASON"]
ROWS = [["codex", "rate_limited", "a reason that is long"], ["日本語の名前", "healthy", ""]]


def test_columns_line_up_below_wide_characters() -> None:
    lines = table(HEADERS, ROWS, Style(enabled=False)).splitlines()
    assert lines == [
        "BACKEND       STATE         REASON",
        "codex         rate_limited  a reason that is long",
        "日本語の名前  healthy",
    ]


def test_the_last_column_is_cut_at_the_edge_of_the_terminal() -> None:
    lines = table(HEADERS, ROWS, Style(enabled=False, width=40)).splitlines()
    assert lines[1] == "codex         rate_limited  a reason th…"


@given(
    rows=st.lists(st.lists(st.text(max_size=30), min_size=3, max_size=3), max_size=4),
    width=st.integers(min_value=12, max_value=90),
)
def test_no_line_is_wider_than_the_terminal(rows: list[list[str]], width: int) -> None:
    text = table(HEADERS, rows, Style(enabled=False, width=width))
    assert all(display_width(line) <= width for line in text.split("\n"))
    assert len(text.split("\n")) == 1 + len(rows)


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 2, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_text_is_shortened_to_columns(text: str, width: int, shown: str) -> None:
    assert shorten(text, width) == shown
