"""A file of opencode becomes tables that give the same decisions."""

import json

import pytest
from msgspec import structs

from fallbackd.backends import KINDS
from fallbackd.classify.classifier import classify
from fallbackd.config.fallback_file import NEWER, OLDER, read_fallbacks, read_opencode_file
from fallbackd.config.load import load
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

FILE = {
    "enabled": False,
    "defaults": {
        "fallbackOn": ["rate_limit", "5xx"],
        "cooldownMs": 120_000,
        "retryOriginalAfterMs": 300_000,
        "maxFallbackDepth": 2,
    },
    "agents": {
        "build": {"fallbackModels": ["a/1", "openrouter/google/gemini-3-pro"]},
        "*": {"fallbackModels": ["a/2", "nonsense"]},
    },
    "patterns": ["acme is tired"],
    "unknown": 1,
}


def test_what_was_taken_can_be_loaded_and_what_was_not_is_named() -> None:
    found = read_opencode_file(json.dumps(FILE), path=NEWER, home="/home/u")
    loaded = load(found.toml(), path="config.toml")
    assert (loaded.errors, loaded.warnings) == ((), ())
    role = loaded.policy.roles["build"]
    assert [one.backend for one in role.chain] == ["a/1", "openrouter/google/gemini-3-pro"]
    assert role.fallback_on == {Reason.RATE_LIMIT, Reason.USAGE_LIMIT, Reason.SERVER_ERROR}
    assert (role.max_fallback_depth, role.return_policy) == (2, "new_session")
    assert [one.backend for one in loaded.policy.roles["*"].chain] == ["a/2"]
    limit = loaded.policy.reasons[Reason.RATE_LIMIT]
    assert (limit.window_s, limit.cooldown_s) == (120, 180)
    assert not loaded.policy.rescues
    assert [(one.rule.reason, one.rule.yields) for one in loaded.signatures] == [
        (Reason.UNKNOWN, True)
    ]
    said = " ".join(one.what for one in found.left)
    assert "unknown" in said
    assert "agents.*.fallbackModels" in said


def test_the_older_form_is_said_to_be_migrated() -> None:
    found = read_opencode_file('{"fallbackModel": "a/1"}', path=OLDER, home="/home/u")
    assert ("migrated from the older form") in [one.to for one in found.taken]
    assert load(found.toml(), path="config.toml").policy.roles["*"].chain[0].backend == "a/1"


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("429 You exceeded your current quota. insufficient_quota", 429, Reason.BILLING),
        (
            "prompt is too long: 240000 tokens > 200000 maximum rate limit",
            400,
            Reason.CONTEXT_OVERFLOW,
        ),
        ("Invalid API key. To raise your rate limit, log in.", 401, Reason.AUTH),
        ("HTTP 404 model gpt-429 not found", 404, Reason.MODEL_NOT_FOUND),
        ("the tank is empty", None, Reason.USAGE_LIMIT),
    ],
)
def test_patterns_decide_only_where_the_built_in_signatures_say_nothing(
    text: str, status: int | None, reason: Reason
) -> None:
    patterns = ["rate limit", "429", "tank is empty"]
    file = json.dumps({"patterns": patterns})
    rules = tuple(
        structs.replace(one, reason=Reason.USAGE_LIMIT) if "tank" in one.pattern else one
        for one in read_fallbacks(file, path=NEWER, home="/home/u").rules
    )
    evidence = Evidence(text=text, stream="jsonl", http_status=status)
    found = classify(evidence, rules + KINDS["opencode"].rules, now=0.0, kind="opencode")
    assert found is not None
    assert found.reason is reason
