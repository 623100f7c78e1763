"""Every way of saying when a limit ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.classify.reset_fields import read_span
from fallbackd.classify.reset_time import read_sentence, seconds_until_reset

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
        ("Your window will reset at 1pm (Etc/GMT+5).", 8 * 3600),
        ("The plan is used up [retrying in 10h 7m attempt #1]", 36420),
        ("It will reset when the month ends on 9/23/2026.", 4543200),
        ("You can resume at 8/2/2026, 11:45:49 AM.", 92700),
        ("Tente novamente em 10 de ago. de 2026, 11:52", 9 * 86400 + 6720),
        ("free usage is over - next=2026-08-02T00:00:00.000Z)", 14 * 3600),
        ("used up, reset after 19h 24m 10s)", 69850),
        ("Claude AI usage limit reached|1754042400", -31536000),
        ("Usage limit reached · continuing automatically at 4:40pm", 24000),
        ("You can resume using this model at 1:39 PM.", 13140),
        ("monthly quota exceeded, will reset at 2026-08-11\nPlease retry then", 9 * 86400 + 50400),
        ("limit reached · resets 7pm (UTC)\n✻ Worked for 5m 20s", 9 * 3600),
        ("quota is used up: retryDelayMs: 1807388.8, reason", 1807.3888),
        ("429 quota exceeded , retry_delay { seconds: 47 } ]", 47),
        ('429 "X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1785582000000"', 3600),
        ("429 Too Many Requests\nx-ratelimit-reset-requests: 1m30s", 90),
        ('{\\"retryDelay\\": \\"31s\\"}', 31),
        ("Please try again after 1 seconds. Retrying (attempt 3/10)", 1),
        ("Your quota will reset after 2h. Todo 8/10 completed", 7200),
        ("429 quota, Retrying in 2892 seconds", 2892),
        ("429 Too Many Requests retrying in 59 minutes 12 seconds attempt #15", 3552),
        ("Seven-day limit of this seat reached. Opens 2026-08-02T07:00:00Z", 75600),
        ("The token bucket is empty. Refill in 11.4s", 11.4),
        ("The counter restarts 00:00 UTC", 14 * 3600),
        ("the quota will refresh on 31/08/2026, 23:17:28", 30 * 86400 + 47820),
        ("The quota will reset at 08-02 13:17:00 UTC.", 98220),
        ("Please return tomorrow to continue building.", 14 * 3600),
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
        "Waiting for 10 seconds before the next try",
        '{"totalRetryDelay": 39000}',
        "the proxy retries, retry_delay_ms: 4200",
        "All accounts are cooling down: 300s, try again",
        'Too many requests, retry. Headers: {"Date": ["Fri, 31 Jul 2026 19:00:00 GMT"]}',
        "please retry, attempt 4/10",
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


@pytest.mark.parametrize(
    "text",
    [
        "5-hour limit: 100% used, resets 1pm (UTC); weekly limit: 40% used, resets Aug 5",
        "Weekly limit: 60% left, resets Aug 5. You've hit your session limit · resets 1pm (UTC)",
        "5h window 0% remaining, resets at 13:00 UTC, weekly window 37.5% remaining, resets Aug 5",
    ],
)
def test_a_sentence_about_several_windows_states_the_end_of_the_spent_one(text: str) -> None:
    assert read_sentence(text, now=NOW, timezone="UTC") == 3 * 3600


@pytest.mark.parametrize(
    ("spent", "other"),
    [
        ({"status": "rejected"}, {"status": "allowed"}),
        ({"status": "rejected"}, {"status": "allowed_warning"}),
        ({"used_percent": 100}, {"used_percent": 99.5}),
        ({"utilization": 1}, {"utilization": 0.4}),
        ({"remaining": 0}, {"remaining": 3}),
    ],
)
def test_a_field_of_a_window_that_is_not_spent_is_ignored(
    spent: dict[str, Any], other: dict[str, Any]
) -> None:
    body = {
        "windows": {
            "five_hour": {**spent, "resetsAt": int(NOW) + 600},
            "seven_day": {**other, "resetsAt": int(NOW) + 300_000},
        }
    }
    assert seconds_until_reset(bodies=[body], now=NOW) == 600
    unspent = {"windows": {"seven_day": body["windows"]["seven_day"]}}
    assert seconds_until_reset(bodies=[unspent], now=NOW) is None


def test_where_only_unspent_windows_are_listed_the_sentence_counts() -> None:
    headers = {"x-ratelimit-reset-requests": "1h", "x-ratelimit-remaining-requests": "9"}
    texts = ["Please try again in 20s."]
    assert seconds_until_reset(texts=texts, headers=headers, now=NOW) == 20


def test_a_header_of_a_window_in_use_is_ignored_whatever_word_says_so() -> None:
    headers = {
        "anthropic-ratelimit-unified-5h-reset": str(int(NOW) + 600),
        "anthropic-ratelimit-unified-5h-utilization": "1.0",
        "anthropic-ratelimit-unified-7d-reset": str(int(NOW) + 300_000),
        "anthropic-ratelimit-unified-7d-utilization": "0.4",
    }
    assert seconds_until_reset(headers=headers, now=NOW) == 600


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Resets Mon 9am", 169200),
        ("resets Monday at 9:00 AM (UTC)", 169200),
        ("resets Oct 3 at 5pm (America/Los_Angeles)", 5493600),
        ("Opus weekly limit reached ∙ resets Oct 6, 1pm", 5713200),
        ("5-hour limit reached ∙ resets 3am", 61200),
        ("Claude AI usage limit reached|1785600000", 21600),
        ("resets in 3h 12m", 11520),
        ("Resets in 1 hour and 5 minutes", 3900),
        ("Try again in about 2 hours", 7200),
        ("Please try again in ~5 min", 300),
        ("retry after 30s", 30),
        ("Retry-After: 120", 120),
        ("Please retry in 18.3s.", 18.3),
        ("try again in 1d 2h", 93600),
        ("available again in 90 minutes", 5400),
        ("Please wait 58 seconds before trying again", 58),
        ("Please try again in 57 minutes.", 3420),
        ("Access resets at 3:05 PM PDT.", 43500),
        ("resets at 15:00 UTC", 18000),
        ("resets at 15:00 CEST", 10800),
        ("resets 15:00 (GMT+2)", 10800),
        ("resets 15:00 UTC+02:00", 10800),
        ("resets at 4:20am (Europe/Berlin)", 58800),
        ("Limits will reset at 8:00 AM.", 79200),
        ("resets tomorrow at 9am", 82800),
        ("resets at midnight UTC", 50400),
        ("try again tomorrow at 09:00", 82800),
        ("Please try again at 2026-08-01T12:00:00+02:00", 0),
        ("resets on 2026-08-03", 136800),
        ("Your plan renews on August 15, 2026", 1173600),
        ("resets 3 Aug 2026 12:00 UTC", 180000),
        ("resets on 3rd August at 12:00", 180000),
        ("try again after Sat, 01 Aug 2026 12:00:00 GMT", 7200),
        ("Bitte versuchen Sie es in 30 Sekunden erneut.", 30),
        ("Setzt sich um 15:00 zurück.", 18000),
        ("Versuche es in 2 Stunden und 5 Minuten erneut", 7500),
        ("wird am 3. August um 12:00 Uhr zurückgesetzt", 180000),
        ("veuillez réessayer dans 2 minutes", 120),
        ("Réessayez dans 3 heures.", 10800),
        ("réinitialisation à 15h30", 19800),
        ("réinitialisé dans 1 jour et 4 heures", 100800),
        ("Inténtelo de nuevo en 20 segundos.", 20),
        ("Se restablece en 2 horas.", 7200),
        ("se restablecerá a las 15:00", 18000),
        ("Vuelve a intentarlo en 3 días", 259200),
        ("Tente novamente em 1 minuto.", 60),
        ("Tente novamente em 4 horas.", 14400),
        ("será redefinido às 15:00", 18000),
        ("30秒後にもう一度お試しください。", 30),
        ("3時間後にリセットされます。", 10800),
        ("2時間30分後に再試行してください", 9000),
        ("15:00 にリセットされます", 18000),
        ("请在 30 秒后重试", 30),
        ("请 5 分钟后再试", 300),
        ("将于 2026-08-01 12:00:00 重置", 7200),
        ("3小时20分钟后重置", 12000),
        ("额度将于 15:00 恢复", 18000),
        ("请在两小时后重试", 7200),
        ("2天后恢复", 172800),
        ("حاول مرة أخرى بعد 3 ساعات.", 10800),
        ("أعد المحاولة بعد ٣٠ ثانية", 30),
        ("حاول مرة أخرى بعد 5 دقائق", 300),
        ("Повторите попытку через 5 минут", 300),
        ("free quota used (30/5h). Resets in 2h 3m", 7380),
        ("Rate limit resets at 1785582000", 3600),
        ("resetsAt: 1785582000000", 3600),
    ],
)
def test_a_time_is_read_in_whatever_form_and_language(text: str, seconds: float) -> None:
    assert read_sentence(text, now=NOW, timezone="UTC") == pytest.approx(seconds, abs=61.0)


@pytest.mark.parametrize(
    "text",
    [
        "If you created the deployment within the last 5 minutes, please wait a moment "
        "and try again.",
        "Retrying in 5 seconds… (attempt 3/10)",
        "Attempt 2 failed. Retrying after 5000ms...",
        "timeout value=20.0, time taken=20.26 seconds",
        "Request timed out after 30s",
        "Limit 40000 tokens per min, please slow down",
        "if you just verified, it can take up to 15 minutes for access to propagate. "
        "Please try again later.",
        "retrying in 7s - attempt #3",
        "You can retry your request, or contact us within 24 hours",
        "No response after 180s. Reconnecting in 3s",
        "Wait time exceeded 60 seconds",
        "used 120 requests in the last 5 hours",
    ],
)
def test_a_number_that_is_no_end_of_a_limit_states_none(text: str) -> None:
    assert read_sentence(text, now=NOW, timezone="UTC") is None


@pytest.mark.parametrize(
    ("now", "text", "seconds"),
    [
        # Clocks go back an hour in the night to 2026-10-25, and forward in that to 2026-03-29.
        (1792872000.0, "resets 9am (Europe/Berlin)", 12 * 3600),
        (1792872000.0, "resets tomorrow at 9am (Europe/Berlin)", 12 * 3600),
        (1774699200.0, "resets 9am (Europe/Berlin)", 19 * 3600),
        # A date without a year is the next one, over the end of a year too.
        (1798711200.0, "resets Jan 2, 10am (UTC)", 2 * 86400),
    ],
)
def test_days_of_other_lengths_and_years_are_counted_right(
    now: float, text: str, seconds: float
) -> None:
    found = read_sentence(text, now=now, timezone="UTC")
    assert found == pytest.approx(seconds, abs=1.0)


@pytest.mark.parametrize(
    "text",
    [
        "[2026-08-01T10:00:00Z] agent: failed after 3 retries\n[2026-08-01T10:00:01Z] agent: 429",
        "2026-08-01T11:00:00Z ERROR try again later\n2026-08-01T11:00:00Z INFO shutting down",
        "2026-08-01 18:00:00 ERROR try again later\n2026-08-01 18:00:01 INFO shutting down",
        "18:00:00 ERROR rate limited, try again\n18:00:01.250 INFO shutting down",
        "Aug  1 18:00:00 host agent[7]: try again\nAug  1 18:00:01 host agent[7]: bye",
        "2026/08/01 18:00:00 try again\n2026/08/01 18:00:01 exit status 1",
        "INFO 2026-08-01 18:00:00 try again later\nINFO 2026-08-01 18:00:01 bye",
        "E0801 18:00:00.123456 12 main.go:7] try again\nE0801 18:00:01.000001 12 main.go:9] bye",
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_the_time_of_a_log_line_is_no_end_of_a_limit(text: str, zone: str) -> None:
    assert read_sentence(text, now=NOW, timezone=zone) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-08-01 09:59:59 ERROR quota used up, try again in 2 hours", 7200),
        ("[2026-08-01T09:59:59Z] resets at 2026-08-01T12:00:00Z", 7200),
        ("Your limit will reset at\n2026-08-01 12:00:00 UTC. Upgrade for more.", 7200),
    ],
)
def test_a_time_that_a_log_line_states_counts(text: str, seconds: float) -> None:
    assert read_sentence(text, now=NOW, timezone="UTC") == pytest.approx(seconds)
