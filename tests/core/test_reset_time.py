"""Every way of saying when a limit ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.core.reset_time import read_sentence, read_span, seconds_until_reset

NOW = 1785578400.0
"""2026-08-01 10:00:00 UTC, a Saturday."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("try again in 4 hours 12 minutes", 15120),
        ("Try again in 4 days 20 hours 9 minutes.", 418140),
        ("Please try again in 3.5s", 3.5),
        ("Please try again in 6ms.", 0.006),
        ("Your quota will reset after 18h7m24s.", 65244),
        ("It will reset in 2 days 17 hours.", 234000),
        ("Resets in 143h57m55s.", 518275),
        ("please retry after 7 seconds", 7),
        ("Please wait 2 minutes before trying again", 120),
        ("resets 7:45pm (UTC)", 9 * 3600 + 45 * 60),
        ("resets 1pm (Europe/Lisbon)", 7200),
        ("or try again at 7:09 PM.", 9 * 3600 + 9 * 60),
        ("resets 9am", 23 * 3600),
        ("Your limit will reset at 2026-08-01 12:30:00", 9000),
        ("Your usage window resets at 2026-08-02T00:00:00Z", 14 * 3600),
        ("You will regain access on 2026-08-03 at 00:00 UTC.", 38 * 3600),
        ("try again at Aug 2nd, 2026 8:19 PM.", 34 * 3600 + 19 * 60),
        ("resets Aug 7, 11am (Asia/Seoul)", 5 * 86400 + 16 * 3600),
        ("您的限额将在 2026-08-01 12:30:00 重置。", 9000),
        ('{"resets_in_seconds":602705}', 602705),
        ('"retryDelay": "47s"', 47),
        ("or try a\ngain at 7:09 PM.", 9 * 3600 + 9 * 60),
    ],
)
def test_a_sentence_states_a_time(text: str, seconds: float) -> None:
    assert read_sentence(text, now=NOW, timezone="UTC") == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "Please try again later",
        "Retrying after 14877231ms...",
        "Retrying in 4 seconds… (attempt 4/10)",
        "Your limit will reset at 2026",
        "Limit 30000, Used 29000, Requested 2000",
        "HTTP 429 Too Many Requests",
        "the 5-hour window is spent",
    ],
)
def test_a_sentence_states_none(text: str) -> None:
    assert read_sentence(text, now=NOW, timezone="UTC") is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "120"}, 120),
        ({"Retry-After": "Sat, 01 Aug 2026 10:05:00 GMT"}, 300),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-remaining-requests": "0"}, 90),
        ({"x-ratelimit-reset": "1785578700"}, 300),
        ({"x-ratelimit-reset": "1785578700000"}, 300),
        ({"anthropic-ratelimit-tokens-reset": "2026-08-01T10:01:00Z"}, 60),
        ({"x-codex-primary-reset-after-seconds": "4000"}, 4000),
    ],
)
def test_headers_state_a_time(headers: dict[str, str], seconds: float) -> None:
    assert seconds_until_reset(headers=headers, now=NOW) == pytest.approx(seconds)


def test_the_reset_of_a_spent_window_goes_before_the_advice_to_retry() -> None:
    headers = {
        "retry-after": "20",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2026-08-01T11:00:00Z",
    }
    assert seconds_until_reset(headers=headers, now=NOW) == 3600


def test_windows_that_are_not_spent_are_ignored() -> None:
    headers = {
        "retry-after": "20",
        "x-ratelimit-remaining-requests": "998",
        "x-ratelimit-reset-requests": "24h",
    }
    assert seconds_until_reset(headers=headers, now=NOW) == 20


def test_of_several_spent_windows_the_longest_counts() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "10s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert seconds_until_reset(headers=headers, now=NOW) == 360


def test_a_window_that_is_over_does_not_hide_the_advice_to_retry() -> None:
    headers = {
        "retry-after": "2094",
        "anthropic-ratelimit-unified-5h-status": "rejected",
        "anthropic-ratelimit-unified-5h-reset": str(NOW - 86400),
    }
    assert seconds_until_reset(headers=headers, now=NOW) == 2094


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"error": {"resets_at": 1785578460, "resets_in_seconds": 60}}, 60),
        ({"error": {"details": [{"retryDelay": "5.5s"}]}}, 5.5),
        ({"error": {"details": [{"metadata": {"quotaResetDelay": "3h51m12s"}}]}}, 13872),
        ({"resetsAt": 1785579000}, 600),
        ({"resets_at": "2026-08-01T10:10:00Z"}, 600),
        ({"data": {"responseHeaders": {"retry-after": "30"}}}, 30),
    ],
)
def test_fields_of_a_body_state_a_time(body: dict[str, Any], seconds: float) -> None:
    assert seconds_until_reset(bodies=[body], now=NOW) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [0, -5, None, "", "soon", True, [], 1e300])
def test_a_field_without_a_time_states_none(value: object) -> None:
    assert seconds_until_reset(bodies=[{"resets_at": value}], now=NOW) is None


def test_a_time_that_has_passed_is_kept_as_it_was_said() -> None:
    assert seconds_until_reset(bodies=[{"resets_at": NOW - 60}], now=NOW) == -60


def test_a_clock_time_without_a_zone_is_read_in_the_zone_that_is_given() -> None:
    assert read_sentence("resets 8:50pm", now=NOW, timezone="Europe/Berlin") == 31800


def test_an_unknown_zone_does_not_raise() -> None:
    assert read_sentence("resets 8pm (Nowhere/Land)", now=NOW, timezone="No/Zone") is not None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h2m3s", 3723),
        ("2 days 17 hours", 234000),
        ("250ms", 0.25),
        ("nonsense", None),
        ("", None),
    ],
)
def test_a_span_is_read(text: str, seconds: float | None) -> None:
    assert read_span(text) == seconds


@given(st.text(max_size=200))
def test_no_text_makes_it_raise(text: str) -> None:
    seconds = read_sentence(f"resets at {text}", now=NOW, timezone="UTC")
    assert seconds is None or isinstance(seconds, float)
