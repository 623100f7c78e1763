"""Exit 0 does not make a limit notice an answer, and words do not make an answer a notice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


CODEX_LIMIT = "You've hit your usage limit. Try again in 7 days."
CLAUDE_LIMIT = "You've hit your limit · resets Dec 3 at 9pm (UTC)"


def printing(*events: Mapping[str, Any]) -> str:
    lines = "\n".join(json.dumps(one) for one in events)
    return f"cat >/dev/null\ncat <<'END'\n{lines}\nEND"


def codex(text: str) -> str:
    return printing(
        {"type": "item.completed", "item": {"id": "0", "type": "agent_message", "text": text}},
        {"type": "turn.completed", "usage": {"input_tokens": 1200, "output_tokens": 19}},
    )


def claude(text: str, model: str) -> str:
    said = {"role": "assistant", "model": model, "content": [{"type": "text", "text": text}]}
    return printing(
        {"type": "assistant", "message": said},
        {"type": "result", "subtype": "success", "is_error": False, "result": text},
    )


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("codex", codex(CODEX_LIMIT), CODEX_LIMIT),
        ("claude", claude(CLAUDE_LIMIT, "claude-opus-5"), CLAUDE_LIMIT),
        ("generic-cli", printing({"result": "Rate limit exceeded"}), "Rate limit exceeded"),
    ],
)
async def test_an_answer_that_the_program_states_as_data_may_be_any_text(
    tmp_path: Path, kind: str, body: str, text: str
) -> None:
    """A translation, or a sentence that a page told the model to say."""
    options = {"output": "jsonl"} if kind == "generic-cli" else {}
    one = agent("a", script(tmp_path, "a", body), "--json", kind=kind, options=options)
    async with engine_in(tmp_path, settings(one)) as engine:
        done = await work(engine, backend="a")
        assert tried(done) == [("a", None)]
        assert await engine.text(done) == text
        assert state_of(engine, "a") == "healthy"


async def test_a_notice_that_no_model_has_said_is_a_failure(tmp_path: Path) -> None:
    """claude prints some notices as a success, in a message of its own making."""
    body = claude(CLAUDE_LIMIT, "<synthetic>")
    one = agent("a", script(tmp_path, "a", body), "--json", kind="claude")
    async with engine_in(tmp_path, settings(one)) as engine:
        assert tried(await work(engine, backend="a")) == [("a", "usage_limit")]
