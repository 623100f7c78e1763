"""The learned part of classification: what it may decide, and what it may not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fallbackd.classify import model as model_module
from fallbackd.classify.classifier import classify, rule_of
from fallbackd.classify.explaining import WITHOUT_MODEL, Explanation, explain
from fallbackd.classify.features import PARTS, features_of, named_features
from fallbackd.classify.lines import Hit
from fallbackd.classify.model import Model, shipped
from fallbackd.classify.rules import Rule
from fallbackd.classify.weighing import weighed
from fallbackd.core.failures import make_failure
from fallbackd.core.health import MAX_FIRST_WINDOW_S, SURE, doubted, is_doubtful
from fallbackd.core.policy import REASONS
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

NOW = 1_800_000_000.0
UNKNOWN_WORDING = [
    ("no more prompts for you today on this subscription tier", Reason.USAGE_LIMIT),
    ("could not open a connection to the upstream host, the socket was refused", Reason.NETWORK),
    ("the access key that you have sent is not one of ours", Reason.AUTH),
    ("our servers cannot take more work right now, all capacity is in use", Reason.OVERLOADED),
]


@pytest.mark.parametrize(("text", "reason"), UNKNOWN_WORDING)
def test_words_that_no_rule_knows_have_a_reason_where_a_program_has_failed(
    text: str, reason: Reason
) -> None:
    evidence = Evidence(text=text, stream="stderr", exit_code=1)
    assert rule_of(evidence) is None
    failure = classify(evidence, now=NOW)
    assert failure is not None
    assert failure.reason is reason
    assert failure.signature == f"model/{reason.value}"
    assert 0 < failure.confidence_score <= 1


@given(st.sampled_from([text for text, _ in UNKNOWN_WORDING]) | st.text(max_size=400))
def test_a_program_that_ended_well_is_never_doubted(text: str) -> None:
    evidence = Evidence(text=text, stream="stdout", exit_code=0)
    assert weighed(None, evidence, ()) is None


@pytest.mark.parametrize("confidence", ["structured", "exit_code"])
def test_a_structure_and_a_status_stand(confidence: str) -> None:
    hit = Hit(rule=Rule(id="x", reason=Reason.BILLING), text="t", confidence=confidence)  # type: ignore[arg-type]
    text, _ = UNKNOWN_WORDING[0]
    assert weighed(hit, Evidence(text=text, stream="stderr", exit_code=1), ()) is hit


def test_a_signature_of_the_user_stands() -> None:
    mine = Rule(id="mine", reason=Reason.BILLING)
    hit = Hit(rule=mine, text="t", confidence="text")
    text, _ = UNKNOWN_WORDING[0]
    assert weighed(hit, Evidence(text=text, stream="stderr", exit_code=1), (mine,)) is hit


@given(st.text(max_size=3000))
def test_any_text_has_features_and_a_guess(text: str) -> None:
    features_of(text, None)
    guess = shipped().guess(text)
    assert 0 <= guess.failure <= 1
    assert sum(shipped().shares(guess.reasons).values()) == pytest.approx(1)


@given(st.text(max_size=3000) | st.text("ab \n1é限", max_size=300))
def test_what_is_hashed_is_what_an_explanation_names(text: str) -> None:
    hashed, named = features_of(text, 429, "claude"), named_features(text, 429, "claude")
    for part in PARTS:
        assert set(getattr(hashed, part)) == set(named[part])


@pytest.mark.parametrize("content", [b"", b"no weights", b"fallbackd-weights-2\n{}\n"])
def test_what_is_no_file_of_weights_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no file of weights"):
        Model(content)


def test_what_is_guessed_marks_shortly_and_a_long_stated_time_is_not_believed() -> None:
    guessed = make_failure(
        Reason.USAGE_LIMIT,
        now=NOW,
        reset_s=5 * 3600,
        max_wait_s=86_400,
        confidence="text",
        confidence_score=SURE - 0.01,
    )
    assert is_doubtful(guessed)
    failure, policy = doubted(guessed, REASONS[Reason.USAGE_LIMIT], now=NOW)
    assert failure.wait_until_at is None
    assert policy.window_s <= MAX_FIRST_WINDOW_S
    assert policy.growth >= 2
    soon = structs.replace(guessed, wait_until_at=NOW + 30, wait_s=30)
    assert doubted(soon, REASONS[Reason.USAGE_LIMIT], now=NOW)[0].wait_s == 30


def test_what_is_sure_marks_as_its_reason_says() -> None:
    for failure in (
        make_failure(Reason.AUTH, now=NOW, confidence="text", confidence_score=SURE),
        make_failure(Reason.AUTH, now=NOW, confidence="structured", confidence_score=0.2),
    ):
        assert not is_doubtful(failure)


# --- what decided --------------------------------------------------------------------------------


def explanation(evidence: Evidence) -> Explanation:
    return explain(evidence, (), "generic", classify(evidence, now=NOW))


def test_an_explanation_names_what_the_model_weighed_most() -> None:
    text, reason = UNKNOWN_WORDING[0]
    found = explanation(Evidence(text=text, stream="stderr", exit_code=1))
    assert found.reasons[0][0] is reason
    assert found.rule is None
    assert found.statements == (text,)
    assert "model" in found.because
    weights = [abs(one.weight) for one in found.for_reason]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] > 0


def test_the_features_of_an_explanation_add_up_to_the_margin() -> None:
    text, _ = UNKNOWN_WORDING[1]
    model = shipped()
    every = model.deciding(text, count=1_000_000)
    whole = model.head.failure_bias + sum(one.weight for one in every)
    assert whole == pytest.approx(model.guess(text).margin, abs=0.05)


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (Evidence(text="All is well.", stream="unknown"), "is not above"),
        (Evidence(text="429", stream="unknown", exit_code=0), "status 0"),
        (Evidence(text="429", stream="http", http_status=200), "good status"),
        (Evidence(text="", stream="stderr", exit_code=139), "exit status"),
        (Evidence(text="x", stream="http", http_status=429), "structured"),
    ],
)
def test_an_explanation_says_why_there_is_a_failure_or_none(evidence: Evidence, words: str) -> None:
    assert words in explanation(evidence).because


# --- the kind of backend --------------------------------------------------------------------------


def test_the_kind_of_backend_is_weighed_and_a_generic_program_is_one_kind() -> None:
    text = "Service unavailable"
    assert features_of(text, None, "generic-cli") == features_of(text, None, "generic")
    assert features_of(text, None, "openai-http") != features_of(text, None, "generic")
    model = shipped()
    assert model.guess(text, None, "openai-http").margin > model.guess(text, None, "claude").margin


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped"])
def test_damaged_weights_leave_the_rules_to_decide(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(model_module.weights())
    if damage == "flipped":
        content[len(content) // 2] ^= 255
    damaged = {"empty": b"", "cut": bytes(content[: len(content) // 2])}.get(damage, bytes(content))
    monkeypatch.setattr(model_module, "weights", lambda: damaged)
    model_module.shipped.cache_clear()
    model_module.usable.cache_clear()
    try:
        assert model_module.usable() is None
        found = classify(
            Evidence(text="Error: 429 Too Many Requests", stream="stderr", exit_code=1), now=0.0
        )
        assert found is not None
        assert found.reason.value == "rate_limit"
        unknown = classify(Evidence(text="bad day", stream="stderr", exit_code=1), now=0.0)
        assert unknown is not None
        assert unknown.reason.value == "unknown"
        said = explain(Evidence(text="bad day", stream="stderr", exit_code=1), (), "codex", unknown)
        assert said.because == f"the exit status alone says so; {WITHOUT_MODEL}"
        assert (said.statements, said.reasons) == (("bad day",), ())
    finally:
        model_module.shipped.cache_clear()
        model_module.usable.cache_clear()
