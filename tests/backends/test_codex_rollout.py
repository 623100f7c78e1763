"""What codex writes of a person's session; the lines were recorded with codex 0.169.0."""

import json
from typing import Any

import pytest

from fallbackd.backends.codex_cli import read
from fallbackd.backends.spec import SessionSeen
from fallbackd.core.figures import Figure
from fallbackd_conversations import codex
from fallbackd_conversations.turns import Utterance

PERSON = b'{"type":"session_meta","payload":{"originator":"codex-tui","source":"vscode"}}\n'
PROGRAM = b'{"type":"session_meta","payload":{"originator":"codex_exec","source":"exec"}}\n'
WORDS = "You\u2019ve hit your usage limit. Upgrade to Pro or try again at 7:16 PM."
LIMITS = {
    "limit_id": "codex",
    "primary": {"used_percent": 100.0, "window_minutes": 300, "resets_at": 1795461379},
    "secondary": {"used_percent": 80.0, "window_minutes": 10080, "resets_at": None},
    "plan_type": None,
}


NOW = 1_795_447_507.0
STAMP = "2026-11-23T15:25:07.162Z"
AT = 1_795_447_507.162


def line(type: str, *, at: str = STAMP, **payload: Any) -> bytes:
    event = {"timestamp": at, "type": "event_msg", "payload": {"type": type, **payload}}
    return json.dumps(event).encode()


USED = line("token_count", info=None, rate_limits=LIMITS)
FAILED = line(
    "task_complete",
    turn_id="t1",
    error={"message": WORDS, "codex_error_info": "usage_limit_exceeded"},
)


def test_a_limit_is_heard_with_its_end(tmp_path: object) -> None:
    seen = read(PERSON, [USED, FAILED], NOW)
    assert seen.turn == "t1"
    assert seen.failure is not None
    assert (seen.failure.code, seen.failure.text) == ("usagelimitexceeded", WORDS)
    assert seen.failure.body == {
        "error": {"type": "usage_limit_reached", "resets_at": 1795461379.0}
    }
    assert seen.windows == (
        Figure(window_s=18_000, used_percent=100.0, resets_at=1795461379.0, at=AT),
        Figure(window_s=604_800, used_percent=80.0, at=AT),
    )


def test_a_session_that_was_written_for_a_person_is_heard() -> None:
    said = (Utterance(role="user", text="x"),)
    for owner, is_heard in (("person", True), ("program", False)):
        head = codex.render(said, id="i", cwd="/w", now=NOW, provider="openai", owner=owner)  # type: ignore[arg-type]
        assert (read(head, [USED, FAILED], NOW).failure is not None) == is_heard


def test_a_session_of_a_program_says_nothing_but_its_figures() -> None:
    seen = read(PROGRAM, [USED, FAILED], NOW)
    assert [one.used_percent for one in seen.windows] == [100.0, 80.0]
    assert seen == SessionSeen(windows=seen.windows)


def test_a_turn_that_was_begun_after_it_ends_a_failure() -> None:
    assert read(PERSON, [FAILED, line("task_started", turn_id="t2")], NOW).failure is None
    whole = line("task_complete", turn_id="t2", last_agent_message="done")
    assert read(PERSON, [FAILED, whole], NOW).failure is None


@pytest.mark.parametrize("at", ["2026-11-22T15:25:07.162Z", "2027-01-01T00:00:00Z", "", "soon"])
def test_what_is_old_says_nothing(at: str) -> None:
    failed = line("task_complete", at=at, turn_id="t1", error={"message": WORDS})
    assert read(PERSON, [line("token_count", at=at, rate_limits=LIMITS), failed], NOW) == (
        SessionSeen()
    )


def test_limits_of_one_model_say_nothing_of_the_plan() -> None:
    spark = line("token_count", rate_limits={**LIMITS, "limit_id": "codex_spark"})
    assert read(PERSON, [spark], NOW).windows == ()


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"{",
        b'{"type":"event_msg","payload":[]}',
        b'{"type":"event_msg","payload":{"type":"token_count","rate_limits":{"primary":7}}}',
        b'{"type":"event_msg","payload":{"type":"task_complete","error":"no"}}',
        b'"event_msg"' + b"[" * 100_000,
        line("token_count", rate_limits={"primary": {"used_percent": True, "window_minutes": "x"}}),
        b'\xff"event_msg"\x00',
    ],
)
def test_what_is_not_understood_says_nothing(odd: bytes) -> None:
    seen = read(PERSON, [odd], NOW)
    assert (seen.windows, seen.failure) == ((), None)


def free(percent: float = 2.0) -> dict[str, Any]:
    windows = {"used_percent": percent, "window_minutes": 300, "resets_at": 1795461379}
    return {"limit_id": "codex", "primary": windows, "secondary": None}


def test_a_turn_that_ended_well_and_figures_below_the_limit_say_that_it_works() -> None:
    whole = line("task_complete", turn_id="t", last_agent_message="done")
    at = NOW + 0.162
    assert read(PERSON, [whole], NOW).worked_at == pytest.approx(at)
    assert read(PERSON, [line("token_count", rate_limits=free())], NOW).worked_at is not None
    assert read(PERSON, [line("token_count", rate_limits=free(100.0))], NOW).worked_at is None
    assert read(PERSON, [whole, FAILED], NOW).worked_at is None
    assert read(PROGRAM, [whole], NOW).worked_at is None


def test_the_model_of_a_turn_is_read() -> None:
    event = {"timestamp": STAMP, "type": "turn_context", "payload": {"model": "gpt-5.3-codex"}}
    assert read(PERSON, [json.dumps(event).encode(), FAILED], NOW).model == "gpt-5.3-codex"
