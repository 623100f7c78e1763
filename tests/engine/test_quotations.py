"""Nothing of what was asked is kept with a failure, also where its provider repeats it."""

from pathlib import Path

import pytest
from tests.support.playbook import policy_of
from tests.support.running_engine import agent, engine_in, settings, work
from tests.support.scripts import script
from tests.support.watching import watching

from fallbackd.core.events import Reported
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd.engine import callers
from fallbackd.engine.judging import texts_in, without_quotations

DIARY = "Dear diary, today I have met\nsomebody new."


def failure(evidence: str) -> Failure:
    return make_failure(Reason.SERVER_ERROR, now=0.0, evidence=evidence)


@pytest.mark.parametrize(
    ("evidence", "kept"),
    [
        (f"crashed on prompt: {DIARY}", "crashed on prompt: […]"),
        ("cannot parse 'today I have met' in it", "cannot parse '[…]' in it"),
        ("429 Too Many Requests", "429 Too Many Requests"),
        ("diary", "diary"),
    ],
)
def test_what_a_provider_repeats_of_the_prompt_is_left_out(evidence: str, kept: str) -> None:
    found = without_quotations(failure(evidence), DIARY)
    assert found is not None
    assert found.evidence == kept


LONG = " ".join(f"word{number} of a long story" for number in range(40))


@pytest.mark.parametrize(
    ("evidence", "kept"),
    [
        (f"no {LONG[100:300]}, in input", "no […], in input"),
        ('bad value "word7 of a long" at 12', 'bad value "[…]" at 12'),
        ("near: word7 of a lo...", "near: […]..."),
        ("at [word9 of a long story word10]", "at [[…]]"),
        ("no word7 of a long story for you", "no word7 of a long story for you"),
    ],
)
def test_a_part_of_the_prompt_is_a_quotation_where_it_is_long_or_stands_apart(
    evidence: str, kept: str
) -> None:
    found = without_quotations(failure(evidence), LONG)
    assert found is not None
    assert found.evidence == kept


def test_every_line_and_every_sentence_of_the_prompt_is_a_quotation() -> None:
    asked = "First I went home. Then I slept!\nx = 1\ny = x + 2\n" + LONG
    text = "oops First I went home. and Then I slept! and x = 1\ny = x + 2 too, First I went home"
    found = without_quotations(failure(text), asked)
    assert found is not None
    assert found.evidence == "oops […] and […] and […] too, […]"


@pytest.mark.parametrize(
    "said",
    [
        "Your account has exceeded the current quota, please check your plan and billing details",
        "Rate limit reached for this model in your organization, please try again in 20s.",
    ],
)
def test_a_provider_keeps_its_own_words_where_the_prompt_has_some_of_them(said: str) -> None:
    asked = (
        "Please write docs: the current quota, please check your plan before you begin, and why a"
        " rate limit reached for this model in your organization, please try again later"
    )
    found = without_quotations(failure(said), asked)
    assert found is not None
    assert found.evidence == said


def test_of_a_request_the_words_count_and_no_names() -> None:
    body = b'{"model":"gpt-5.2-codex-max","messages":[{"role":"user","content":"my long diary"}]}'
    assert texts_in(body) == "my long diary"
    found = without_quotations(failure("gpt-5.2-codex-max: no my long diary"), texts_in(body))
    assert found is not None
    assert found.evidence == "gpt-5.2-codex-max: no […]"
    assert texts_in(b"\xff no JSON") == "\N{REPLACEMENT CHARACTER} no JSON"


async def test_the_records_of_a_delegation_hold_nothing_of_its_prompt(tmp_path: Path) -> None:
    body = 'echo "Error: 500 crashed on: $(cat)" >&2; exit 1'
    config = settings(agent("a", script(tmp_path, "a", body)))
    async with engine_in(tmp_path, config, store="sqlite") as engine:
        done = await work(engine, "SENTINEL-7781 my diary", backend="a")
        attempt = done.attempts[0]
        assert attempt.failure is not None
        assert "crashed on" in attempt.failure.evidence
    kept = [one for one in tmp_path.rglob("records.sqlite*") if b"SENTINEL" in one.read_bytes()]
    assert kept == []


async def test_the_record_of_a_call_that_a_caller_reports_holds_nothing_of_its_prompt(
    tmp_path: Path,
) -> None:
    seen = Evidence(text=f"Error: 500 crashed on prompt: {DIARY}", http_status=500)
    async with engine_in(tmp_path, settings(agent("a", kind="openai-http"))) as engine:
        reported = Reported(outcome="failure", backend=BackendId("a"))
        answer = await callers.report(engine, reported, evidence=seen, asked=DIARY)
        assert answer.failure is not None
        assert answer.failure.evidence.endswith("crashed on prompt: […]")


async def test_the_record_of_a_turn_in_opencode_holds_nothing_of_its_prompt(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy_of(roles={"build": ["b/m"]})) as w:
        parts = [{"type": "text", "text": DIARY}]
        w.server.begins("ses_1", "msg_1f9b96055001aaaaaaaaaaaaaa", "a/m", parts=parts)
        w.server.retries("ses_1", f"Too many requests for: {DIARY}")
        await w.rest()
        kept = repr((await w.session(), w.engine.store.peek().health))
        assert "Too many requests for: […]" in kept
        assert "today I have met" not in kept
