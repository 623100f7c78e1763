"""A limit closes what it names: one model, one key; a limit that names nothing is the plan's."""

from typing import Any

import pytest

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import Evidence

NOW = 1785578400.0  # 2026-08-01 10:00 UTC


def google(*quotas: str, model: str | None = "gemini-2.5-pro") -> dict[str, Any]:
    where = {} if model is None else {"quotaDimensions": {"location": "global", "model": model}}
    return {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota, please check your plan and billing.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{"quotaId": one, **where} for one in quotas],
                }
            ],
        }
    }


def window(claim: str, **windows: str) -> dict[str, Any]:
    spent = {name: {"status": status, "resetsAt": NOW + 9e4} for name, status in windows.items()}
    return {
        "status": "rejected",
        "rateLimitType": claim,
        "resetsAt": NOW + 2e5,
        **({"unifiedWindows": spent} if spent else {}),
    }


UNIFIED = "anthropic-ratelimit-unified"
API_429 = {"error": {"type": "rate_limit_error", "message": "This request would exceed your limit"}}
OPENAI = "Rate limit reached for {} in organization org-x on {}: Limit 200, Used 200."

TEXTS = [
    ("claude", "You've hit your Opus limit · resets Oct 1, 9pm (America/Sao_Paulo)", "model"),
    ("claude", "You've hit your Sonnet limit · resets 9pm (UTC) · progress saved", "model"),
    ("claude", "You've hit your weekly Opus limit · resets 9pm (UTC)", "model"),
    ("claude", "You've reached your Opus 5 weekly limit", "model"),
    ("claude", "Opus weekly limit reached ∙ resets Oct 6, 1pm", "model"),
    ("claude", "you've hit your limit for this model", "model"),
    ("claude", "You've hit your limit · resets 9pm (UTC)", None),
    ("claude", "You've hit your session limit · resets 7:45pm (UTC)", None),
    ("claude", "Weekly limit reached · resets 4pm (UTC)", None),
    (
        "codex",
        "You've hit your usage limit for GPT-5.3-Codex-Spark. Try again in 2 h.",
        "model",
    ),
    ("codex", "You've hit your usage limit. Try again in 3 hours 10 minutes.", None),
    ("codex", "You've hit your usage limit for your plan. Try again in 3 hours.", None),
    (
        "gemini",
        "[API Error: You have exhausted your capacity on this model. Your quota will reset after"
        " 46m11s.]",
        "model",
    ),
    ("gemini", "[API Error: You have exhausted your daily quota.]", None),
    ("generic", "You have reached the quota limit for this model. Resets at 7:39 PM.", "model"),
    ("generic", "Reached message rate limit for this model. Resets in: 30m0s", "model"),
    ("opencode", "The usage limit has been reached", None),
    ("opencode", "Rate limit exceeded: free-models-per-day. Add 10 credits", None),
    ("opencode", OPENAI.format("gpt-5.2", "requests per day (RPD)"), "model"),
]


@pytest.mark.parametrize(("kind", "text", "named"), TEXTS)
def test_a_sentence_of_an_agent_names_the_model_or_nothing(
    kind: str, text: str, named: str | None
) -> None:
    stream = "stdout" if kind == "claude" else "stderr"
    for evidence in (
        Evidence(text=text, stream=stream, exit_code=1),
        Evidence(text=text, stream="jsonl", http_status=429),
    ):
        found = classify(evidence, SIGNATURES[kind], now=NOW, timezone="UTC")
        assert found is not None
        assert found.reason.value in ("usage_limit", "rate_limit")
        assert found.scope == named


@pytest.mark.parametrize(
    ("kind", "body", "named"),
    [
        ("claude", window("seven_day_opus"), "model"),
        ("claude", window("seven_day_sonnet"), "model"),
        ("claude", window("seven_day_overage_included"), "model"),
        ("claude", window("seven_day"), None),
        ("claude", window("five_hour"), None),
        ("claude", window("seven_day_oauth_apps"), None),
        ("claude", window("seven_day_opus", seven_day_opus="rejected"), "model"),
        ("claude", window("seven_day_opus", seven_day="rejected"), None),
        ("google", google("GenerateRequestsPerDayPerProjectPerModel-FreeTier"), "model"),
        ("google", google("GenerateContentInputTokensPerModelPerMinute-FreeTier"), "model"),
        ("google", google("GenerateRequestsPerDayPerProject", model=None), "credential"),
        (
            "google",
            google("GenerateRequestsPerDayPerProjectPerModel", "GenerateRequestsPerDayPerProject"),
            "credential",
        ),
        ("openai", {"error": {"message": OPENAI.format("gpt-5.2", "RPD")}}, "model"),
        ("openai", {"error": {"message": OPENAI.format("o3", "tokens per min (TPM)")}}, "model"),
        (
            "openai",
            {"error": {"message": OPENAI.format("model `llama-3.3-70b`", "tokens per day (TPD)")}},
            "model",
        ),
        ("openai", {"error": {"code": "insufficient_quota", "message": "You exceeded"}}, None),
        ("anthropic", API_429, None),
    ],
)
def test_a_body_names_the_model_the_key_or_nothing(
    kind: str, body: dict[str, Any], named: str | None
) -> None:
    evidence = Evidence(stream="http", http_status=429, body=body)
    found = classify(evidence, SIGNATURES.get(kind, ()), now=NOW)
    assert found is not None
    assert found.scope == named


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({f"{UNIFIED}-representative-claim": "seven_day_opus"}, "model"),
        ({f"{UNIFIED}-representative-claim": "five_hour"}, None),
        ({f"{UNIFIED}-7d_oi-status": "rejected", f"{UNIFIED}-7d-status": "allowed"}, "model"),
        (
            {
                f"{UNIFIED}-representative-claim": "seven_day_opus",
                f"{UNIFIED}-7d-status": "rejected",
            },
            None,
        ),
        ({"x-codex-active-limit": "codex_bengalfox"}, "model"),
        ({"x-codex-active-limit": "codex"}, None),
    ],
)
def test_headers_name_the_window_that_is_spent(headers: dict[str, str], named: str | None) -> None:
    evidence = Evidence(stream="http", http_status=429, body=API_429, headers=headers)
    found = classify(evidence, now=NOW)
    assert found is not None
    assert found.scope == named


def test_an_overload_of_a_model_is_no_limit_and_names_nothing() -> None:
    evidence = Evidence(
        text="API Error: 529 Overloaded for this model", stream="stdout", exit_code=1
    )
    found = classify(evidence, SIGNATURES["claude"], now=NOW)
    assert found is not None
    assert (found.reason.value, found.scope) == ("overloaded", None)
