"""Evidence of every kind, against what shall be made of it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.backends import KINDS
from fallbackd.classify.classifier import classify
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

NOW = 1785578400.0
CASES: list[dict[str, Any]] = msgspec.json.decode(
    (Path(__file__).parent / "data" / "classify_cases.json").read_bytes()
)


def judge(evidence: Evidence, kind: str = "generic", **more: Any) -> Failure | None:
    rules = KINDS[kind].rules if kind in KINDS else ()
    return classify(evidence, more.pop("rules", ()) + rules, now=more.pop("now", NOW), **more)


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_evidence_is_classified_as_the_case_says(case: dict[str, Any]) -> None:
    evidence = msgspec.convert(case["evidence"], Evidence)
    failure = judge(
        evidence, case["kind"], now=case.get("now_at", NOW), timezone=case.get("timezone")
    )
    expected = case["expect"]
    if expected is None:
        assert failure is None
        return
    assert failure is not None
    got = msgspec.to_builtins(failure)
    one_of = expected.get("reason_one_of", [expected.get("reason", got["reason"])])
    assert got["reason"] in one_of, failure
    for key, value in expected.items():
        if key in ("reason", "reason_one_of"):
            continue
        if isinstance(value, float | int) and not isinstance(value, bool):
            assert got[key] == pytest.approx(value, abs=1.0), key
        else:
            assert got[key] == value, key


def test_a_users_signature_is_asked_before_the_built_in_ones() -> None:
    rule = Rule(
        id="acme-limit",
        reason=Reason.USAGE_LIMIT,
        pattern="ACME limit reached",
        streams=("stderr",),
        anywhere=True,
    )
    evidence = Evidence(text="sorry: ACME limit reached, 429", stream="stderr", exit_code=1)
    failure = judge(evidence, rules=(rule,))
    assert failure is not None
    assert (failure.reason, failure.signature) == (Reason.USAGE_LIMIT, "acme-limit")


def test_a_signature_of_one_channel_is_not_searched_in_another() -> None:
    rule = Rule(id="acme", reason=Reason.BILLING, pattern="ACME", streams=("stderr",))
    evidence = Evidence(text="ACME", stream="stdout", exit_code=1)
    failure = judge(evidence, rules=(rule,))
    assert failure is not None
    assert failure.reason is Reason.UNKNOWN


def test_a_stated_time_is_bounded_by_reason_and_kept_as_it_was_said() -> None:
    evidence = Evidence(stream="http", http_status=429, headers={"Retry-After": "90000"})
    failure = judge(evidence, max_wait_s=lambda reason: 21600.0 if reason == "rate_limit" else None)
    assert failure is not None
    assert failure.reason is Reason.RATE_LIMIT
    assert (failure.stated_reset_s, failure.wait_s) == (90000.0, 21600.0)
    assert failure.wait_until_at == NOW + 21600.0


def test_nothing_waits_for_a_stated_time_that_is_long_over() -> None:
    text = "You've hit your usage limit. Try again at Jul 5th, 2026 8:19 PM."
    failure = judge(Evidence(text=text, stream="stderr", exit_code=1), timezone="UTC")
    assert failure is not None
    assert failure.stated_reset_at == 1783282740.0
    assert failure.stated_reset_s == 0.0
    assert (failure.wait_until_at, failure.wait_s) == (None, None)


def test_the_last_of_several_error_lines_decides() -> None:
    text = "Error: connection refused\nretrying\nError: Insufficient credits"
    failure = judge(Evidence(text=text, stream="stderr", exit_code=1))
    assert failure is not None
    assert failure.reason is Reason.BILLING


def test_evidence_that_is_shown_holds_no_secret_and_is_short() -> None:
    text = "Error: invalid api key sk-proj-abcdefghijklmnop1234 for user " + "x" * 1000
    failure = judge(Evidence(text=text, stream="stderr", exit_code=1))
    assert failure is not None
    assert "abcdefgh" not in failure.evidence
    assert len(failure.evidence) <= 400


@given(
    text=st.text(max_size=300),
    stream=st.sampled_from(["stdout", "stderr", "jsonl", "http", "exception", "unknown"]),
    exit_code=st.sampled_from([None, 0, 1, 75, 137]),
)
def test_no_text_makes_the_classifier_raise(text: str, stream: str, exit_code: int | None) -> None:
    failure = judge(Evidence(text=text, stream=stream, exit_code=exit_code))
    assert failure is None or failure.reason in Reason


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["error", "message", "code", "type", "status", "details", "headers",
                         "resets_at", "retryDelay", "data", "properties", "reason"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(body=json_values, status=st.sampled_from([None, 200, 400, 429, 503]))
def test_no_body_makes_the_classifier_raise(body: Any, status: int | None) -> None:
    failure = judge(Evidence(stream="http", http_status=status, body=body))
    if status is not None and status >= 400:
        assert failure is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Allow this command? [y/n] ", Reason.APPROVAL_REQUIRED),
        ("npm test\nRun it now? (yes/no/always): ", Reason.APPROVAL_REQUIRED),
        ("Proceed? [Y/n]\nno answer, so I did not", Reason.UNKNOWN),
        ("I asked whether to proceed [y/n]", Reason.UNKNOWN),
    ],
)
def test_a_program_that_ends_at_a_question_for_leave_needs_a_person(
    text: str, reason: Reason
) -> None:
    failure = judge(Evidence(text=text, stream="stdout", exit_code=1))
    assert failure is not None
    assert failure.reason is reason


def per_day(*, delay: str | None, now: float, quota: str = "PerDay") -> Failure:
    details: list[dict[str, Any]] = [
        {
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [{"quotaId": f"GenerateRequests{quota}PerProjectPerModel-FreeTier"}],
        }
    ]
    if delay is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    error = {"code": 429, "message": "You exceeded your current quota.", "details": details}
    evidence = Evidence(stream="http", http_status=429, body={"error": error})
    failure = judge(evidence, "google-http", now=now)
    assert failure is not None
    return failure


# 22:00 of the same day, in winter and in summer: midnight of the Pacific is two hours away.
@pytest.mark.parametrize("now", [1764309600.0, 1751605200.0])
@pytest.mark.parametrize("delay", ["47s", None])
def test_a_quota_of_a_day_lasts_until_the_day_of_its_vendor_ends(
    now: float, delay: str | None
) -> None:
    failure = per_day(delay=delay, now=now)
    assert failure.reason is Reason.USAGE_LIMIT
    assert failure.wait_s == 7200.0
    assert failure.wait_until_at == now + 7200.0
    assert failure.stated_reset_s == (None if delay is None else 47.0)  # as it was said
    assert not failure.retryable


def test_a_longer_time_than_the_day_is_believed() -> None:
    failure = per_day(delay="36000s", now=1764309600.0)
    assert failure.wait_s == 36000.0
    short = per_day(delay="47s", now=1764309600.0, quota="PerMinute")
    assert (short.reason, short.wait_s) == (Reason.RATE_LIMIT, 47.0)


def test_an_unknown_failure_shows_the_line_that_was_not_named() -> None:
    text = "step 1 of 2\n" * 40 + "quack 4711: no more ducks\n\n"
    failure = judge(Evidence(text=text, stream="stdout", exit_code=3))
    assert failure is not None
    assert (failure.reason, failure.evidence) == (Reason.UNKNOWN, "quack 4711: no more ducks")
