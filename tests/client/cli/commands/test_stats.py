"""`stats`: what a person reads about the last days."""

import re

import pytest
from tests.client.conftest import RunCli

from fallbackd_client.cli.commands.stats import MARKS, view
from fallbackd_client.cli.output import Style, display_width, percent, usd

UNTIL = 1767268800.0
FOUND = {
    "since_at": UNTIL - 7 * 86_400.0,
    "until_at": UNTIL,
    "bucket_s": 10_800.0,
    "hours": 20,
    "known_since_at": UNTIL - 86_400.0,
    "requests": 30,
    "answered": 29,
    "rescued": 6,
    "backends": [
        {
            "backend": "codex",
            "availability": 0.99996,
            "calls": 25,
            "failed": 2,
            "reasons": {"task_failed": 1, "usage_limit": 1},
            "mean_s": 20.0,
            "input_tokens": 1000,
            "output_tokens": 100,
            "cost_usd": 0.125,
            "strip": ["", "stopped", *["healthy"] * 40, "rate_limited", "broken", "cooldown"],
        },
        {
            "backend": "a-name-that-is-long/and-goes-on",
            "availability": None,
            "calls": 0,
            "failed": 0,
            "reasons": {},
            "input_tokens": 0,
            "output_tokens": 0,
            "strip": ["paused"] * 45,
        },
    ],
    "chains": [{"chain": "codex", "backends": ["codex", "claude"], "availability": 1.0}],
    "outages": [
        {
            "backend": "codex",
            "state": "rate_limited",
            "reason": "usage_limit",
            "began_at": UNTIL - 7200.0,
            "ended_at": None,
        }
    ]
    * 12,
    "outages_total": 12,
    "failovers": [{"left": "codex", "to": "claude", "reason": "usage_limit", "count": 6}],
    "roles": [{"name": "judge", "requests": 15, "answered": 14, "rescued": 3}],
    "projects": [{"name": "/srv/app\x1b[31m", "requests": 30, "answered": 29, "rescued": 6}],
}
for row in (*FOUND["roles"], *FOUND["projects"]):  # type: ignore[misc]
    row.update(input_tokens=5, output_tokens=5, cost_usd=0.001)  # type: ignore[attr-defined]


def test_the_report_says_what_was_answered_and_what_was_out(run_cli: RunCli) -> None:
    out = run_cli(["stats"], {"stats": FOUND}).out
    assert "1d: 29 of 30 requests answered, 6 of them by another backend" in out
    assert re.search(r"codex .*█.*▄▁▆ +99.9%", out)
    assert "outages (the last 10 of 12)" in out
    assert re.search(r"rate_limited +usage_limit +2h, still out", out)
    assert re.search(r"codex +claude +usage_limit +6", out)
    assert re.search(r"ROLE +REQUESTS", out)
    assert re.search(r"judge +15 +14 +3 +10 +<\$0.01", out)
    assert "\x1b" not in out


def test_it_asks_for_a_week_in_as_many_parts_as_fit(run_cli: RunCli) -> None:
    server = run_cli(["stats"], {"stats": FOUND}).server
    [asked] = [one["params"] for one in server.requests if one["method"] == "stats"]
    assert asked["buckets"] == 56
    server = run_cli(["stats", "--since", "1700000000"], {"stats": FOUND}).server
    [asked] = [one["params"] for one in server.requests if one["method"] == "stats"]
    assert asked["since_at"] == 1700000000


@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_a_terminal_of_eighty_columns(ascii_only: bool) -> None:
    text = view(FOUND, Style(enabled=False, width=80), ascii_only=ascii_only)
    assert max(map(display_width, text.splitlines())) <= 80


def test_ascii_stands_in_for_blocks_and_tells_every_state_apart() -> None:
    text = view(FOUND, Style(enabled=False, width=80), ascii_only=True)
    strip = next(line for line in text.splitlines() if line.startswith("codex"))
    assert strip.partition(" ")[2].strip().startswith(". " + "#" * 40 + "-x+")
    for kind in (0, 1):
        assert len({marks[kind] for marks in MARKS.values()}) == len(MARKS)


def test_a_time_without_figures_says_so(run_cli: RunCli) -> None:
    ran = run_cli(["stats"], {"stats": {"since_at": 1.0, "until_at": 2.0, "backends": []}})
    assert ran.out.startswith("nothing is known of this time yet")


def test_an_availability_is_never_rounded_up_to_all() -> None:
    assert [percent(one) for one in (None, 0.0, 0.5, 0.99999, 1.0)] == [
        "?",
        "0%",
        "50.0%",
        "99.9%",
        "100%",
    ]


def test_a_small_cost_is_not_nothing() -> None:
    assert [usd(one) for one in (None, 0.0, 0.004, 1.5)] == ["", "$0.00", "<$0.01", "$1.50"]
