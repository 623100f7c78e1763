"""The record of a call of the gateway, which its answer is noted in."""

from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage
from fallbackd.engine.exchanges import MAX_ASKED_CHARS, MAX_TEXT_CHARS, ExchangeRecord, Exchanges


def begun(asked: str = "team") -> ExchangeRecord:
    return Exchanges().begin("1", api="messages", asked=asked, at=1.0)


def test_an_answer_is_noted_with_its_backend_its_model_and_what_was_used() -> None:
    record = begun()
    used = Usage(input_tokens=12, output_tokens=5)
    record.answered(BackendId("two"), "model-of-two", used, at=2.0)
    assert (record.served_by, record.model, record.usage) == ("two", "model-of-two", used)
    (step,) = record.steps
    assert (step.at, step.event) == (2.0, "Answered")
    assert step.text == "two answered with model-of-two: 12 tokens in, 5 out"


def test_an_answer_without_a_count_or_a_model_is_noted_without_them() -> None:
    record = begun()
    record.answered(BackendId("two"), None, Usage(), at=2.0)
    assert [step.text for step in record.steps] == ["two answered"]


def test_a_long_name_of_a_model_is_kept_in_part() -> None:
    record = begun("m" * 70_000)
    assert record.asked == "m" * MAX_ASKED_CHARS
    assert MAX_ASKED_CHARS == 200
    record.note("Resolved", "no backend for " + "m" * 70_000, at=2.0)
    assert len(record.steps[0].text) == MAX_TEXT_CHARS


def test_a_call_that_is_under_way_while_the_clock_is_set_lasts_as_long_as_it_did() -> None:
    kept = Exchanges()
    before = kept.begin("1", api="messages", asked="team", at=1.0)
    kept.end(before, "succeeded", at=2.0)
    running = kept.begin("2", api="messages", asked="team", at=10.0)
    kept.shift(7200.0)
    assert (before.began_at, running.began_at) == (1.0, 7210.0)
