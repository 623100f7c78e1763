"""Figures of plans and keys in headers and events, as providers write them."""

import json

from fallbackd.backends.claude_cli import KIND
from fallbackd.backends.figures import in_claude_event, in_claude_usage, in_headers
from fallbackd.backends.spec import Options
from fallbackd.core.figures import Figure
from fallbackd.core.protocol import Chunk, FiguresSeen

NOW = 1_795_340_000.0


def read(**headers: str) -> list[Figure]:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return list(in_headers(named, now=NOW, model="m", credential="work"))


def test_a_plan_of_anthropic_has_windows_in_shares_of_one() -> None:
    found = in_headers(
        {
            "anthropic-ratelimit-unified-status": "allowed",
            "anthropic-ratelimit-unified-5h-utilization": "0.63",
            "anthropic-ratelimit-unified-5h-reset": str(NOW + 60),
            "anthropic-ratelimit-unified-7d-utilization": "0.4",
            "anthropic-ratelimit-unified-7d_opus-utilization": "1.01",
        },
        now=NOW,
        model="m",
        credential=None,
    )
    assert [(one.window_s, one.used_percent, one.model) for one in found] == [
        (18_000.0, 63.0, None),
        (604_800.0, 40.0, None),
        (604_800.0, 101.0, "opus"),
    ]
    assert (found[0].resets_at, found[0].source, found[0].at) == (NOW + 60, "headers", NOW)


def test_the_length_of_a_window_of_codex_says_which_it_is() -> None:
    found = in_headers(
        {
            "x-codex-primary-used-percent": "63",
            "x-codex-primary-window-minutes": "43200",
            "x-codex-primary-reset-after-seconds": "600",
            "x-codex-secondary-used-percent": "41",
        },
        now=NOW,
        model="m",
        credential=None,
    )
    (one,) = found  # a window without a length is none that is known
    assert (one.window_s, one.used_percent) == (2_592_000.0, 63.0)
    assert (one.resets_at, one.model) == (NOW + 600, None)


def test_requests_and_tokens_that_are_left_are_those_of_the_model_and_the_key() -> None:
    found = read(
        x_ratelimit_limit_requests="200",
        x_ratelimit_remaining_requests="150",
        x_ratelimit_reset_requests="1m30s",
        anthropic_ratelimit_input_tokens_limit="1000",
        anthropic_ratelimit_input_tokens_remaining="0",
        x_ratelimit_remaining_tokens="5",
    )
    requests, tokens = found  # a rest without a whole says no share
    assert (requests.unit, requests.used_percent, requests.left) == ("requests", 25.0, 150.0)
    assert (requests.resets_at, requests.model, requests.credential) == (NOW + 90, "m", "work")
    assert (tokens.unit, tokens.used_percent) == ("tokens", 100.0)


def test_headers_that_contradict_themselves_or_are_no_numbers_say_nothing() -> None:
    assert read(x_ratelimit_limit_requests="10", x_ratelimit_remaining_requests="11") == []
    assert read(x_ratelimit_limit_requests="0", x_ratelimit_remaining_requests="0") == []
    assert read(anthropic_ratelimit_unified_5h_utilization="plenty") == []
    assert read(x_codex_primary_used_percent="1e400", x_codex_primary_window_minutes="300") == []
    assert read(content_type="text/plain") == []


def test_an_event_of_claude_says_how_much_is_used_where_it_says_so() -> None:
    info = {
        "status": "allowed_warning",
        "resetsAt": NOW + 99,
        "rateLimitType": "five_hour",
        "utilization": 0.83,
        "unifiedWindows": {"seven_day_opus": {"utilization": 0.2}, "seven_day": {}},
    }
    found = in_claude_event(info, at=NOW)
    assert [(one.window_s, round(one.used_percent), one.model) for one in found] == [
        (18_000.0, 83, None),
        (604_800.0, 20, "opus"),
    ]
    assert in_claude_event({"rateLimitType": "five_hour", "status": "allowed"}, at=NOW) == ()


def test_claude_reports_figures_while_it_works() -> None:
    parser = KIND.parser(Options())
    info = {"status": "allowed", "rateLimitType": "five_hour", "utilization": 0.5}
    line = json.dumps({"type": "rate_limit_event", "rate_limit_info": info}).encode() + b"\n"
    (seen,) = parser.feed(Chunk("stdout", line, NOW))
    assert isinstance(seen, FiguresSeen)
    assert [(one.used_percent, one.at) for one in seen.figures] == [(50.0, NOW)]


def usage(**limits: object) -> dict[str, object]:
    answer = {"rate_limits_available": True, "rate_limits": limits}
    return {"type": "control_response", "response": {"subtype": "success", "response": answer}}


def test_claude_answers_with_percents_when_it_is_asked() -> None:
    model = {"display_name": "Fable", "utilization": 7, "resets_at": None}
    said = usage(
        five_hour={"utilization": 63.0, "resets_at": "2026-11-22T12:00:00+00:00"},
        seven_day={"utilization": None, "resets_at": None},
        seven_day_opus={"utilization": 3, "resets_at": None},
        extra_usage={"is_enabled": False, "utilization": 90},
        model_scoped=[model, {"display_name": None, "utilization": 100}, "Opus"],
    )
    found = in_claude_usage(said, NOW)
    assert [(one.window_s, one.used_percent, one.model) for one in found] == [
        (18_000.0, 63.0, None),
        (604_800.0, 3.0, "opus"),
        (604_800.0, 7.0, "fable"),
    ]
    assert {(one.source, one.at) for one in found} == {("asked", NOW)}
    assert found[0].resets_at == 1_795_348_800.0


def test_claude_without_a_plan_or_a_network_has_no_figure() -> None:
    for said in ({}, usage(), {"response": {"response": {"rate_limits": None}}}, {"response": []}):
        assert in_claude_usage(said, NOW) == ()
