"""Exit 0 does not make a limit notice an answer, and words do not make an answer a notice."""

from pathlib import Path

import pytest
from tests.support.running_engine import agent, engine_in, settings, state_of, tried, work
from tests.support.scripts import script

ANSWERS = "cat >/dev/null; echo answer of b"


@pytest.mark.parametrize(
    ("notice", "reason"),
    [
        ("You have hit your usage limit. Try again at 7:45pm (UTC).", "usage_limit"),
        ("Rate limit exceeded", "rate_limit"),
        ("Credit balance is too low", "billing"),
    ],
)
async def test_a_limit_notice_as_the_whole_answer_is_a_failure(
    tmp_path: Path, notice: str, reason: str
) -> None:
    a = agent("a", script(tmp_path, "a", f"cat >/dev/null; echo '{notice}'"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        assert tried(done) == [("a", reason), ("b", None)]


@pytest.mark.parametrize(
    "answer",
    [
        "The handler now answers HTTP 429 and says when the rate limit resets.",
        "The page says: subscription required. I changed the text.",
    ],
)
async def test_an_answer_may_hold_any_words(tmp_path: Path, answer: str) -> None:
    a = agent("a", script(tmp_path, "a", f"cat >/dev/null; echo '{answer}'"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a")
        assert tried(done) == [("a", None)]
        assert state_of(engine, "a") == "healthy"
