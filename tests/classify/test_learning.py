"""What a machine's own samples teach, and what they leave as it is."""

import pytest

from fallbackd.classify.classifier import classify
from fallbackd.classify.model import Additions, Model, shipped, weights
from fallbackd.classify.weighing import Lesson, can_learn, learn
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

NOW = 1785578400.0
SAMPLE = "frobnicator: the ducats of this guild are gone, ask the steward (F-17)"
LIKE_IT = "frobnicator: the ducats of that guild are gone, ask your steward (F-23)"


def reason_of(text: str, model: Model | None = None, exit_code: int | None = 1) -> Reason | None:
    evidence = Evidence(text=text, stream="unknown", exit_code=exit_code)
    failure = classify(evidence, now=NOW, kind="generic", model=model)
    return None if failure is None else failure.reason


def test_a_lesson_is_known_afterwards_and_what_is_worded_like_it() -> None:
    assert reason_of(SAMPLE) is not Reason.BILLING
    taught = learn([Lesson(text=SAMPLE, reason=Reason.BILLING)])
    assert reason_of(SAMPLE, taught) is Reason.BILLING
    assert reason_of(LIKE_IT, taught) is Reason.BILLING
    assert reason_of(SAMPLE, taught, exit_code=None) is Reason.BILLING


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Error: Invalid API key", Reason.AUTH),
        ("HTTP 429 Too Many Requests", Reason.RATE_LIMIT),
        ("All 214 tests pass. The parser keeps the last window.", None),
    ],
)
def test_what_is_not_like_a_lesson_is_judged_as_before(text: str, reason: Reason | None) -> None:
    taught = learn([Lesson(text=SAMPLE, reason=Reason.BILLING)])
    assert reason_of(text, taught, exit_code=None) is reason


def test_nothing_is_added_to_the_shipped_model_itself() -> None:
    before = shipped().guess(SAMPLE)
    learn([Lesson(text=SAMPLE, reason=Reason.BILLING)])
    assert shipped().guess(SAMPLE) == before


def test_additions_know_the_file_that_they_belong_to() -> None:
    assert Additions.to(weights()).base != Additions.to(b"other").base


def test_reasons_that_the_model_does_not_tell_apart_cannot_be_learned() -> None:
    assert can_learn(Reason.BILLING)
    assert can_learn(Reason.TLS)
    assert not can_learn(Reason.CANCELLED)
