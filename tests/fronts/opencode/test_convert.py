"""Events of several versions of opencode servers, as facts."""

import json
from pathlib import Path
from typing import Any

import pytest

from fallbackd.core.protocol import Usage
from fallbackd.fronts.opencode.convert import (
    Answered,
    Asked,
    Compacted,
    Completed,
    Deleted,
    Errored,
    Idle,
    Retried,
    Stopped,
    ToolUsed,
    facts,
    model_of,
    parts_again,
    split_model,
    written_of,
)

RECORDED = Path(__file__).parents[2] / "backends" / "data" / "opencode_events"
S = "ses_1"
REPLY = {
    "id": "msg_2",
    "sessionID": S,
    "role": "assistant",
    "parentID": "msg_1",
    "providerID": "openrouter",
    "modelID": "google/gemini-3-pro",
    "agent": "build",
}


def said(kind: str, **properties: Any) -> Any:
    return facts({"type": kind, "properties": properties}, now=1000.0)


def test_a_model_is_asked_once_its_message_exists() -> None:
    (asked,) = said("message.updated", info=REPLY)
    assert asked == Asked(
        session=S,
        message="msg_1",
        reply="msg_2",
        model="openrouter/google/gemini-3-pro",
        agent="build",
    )


def test_a_message_that_is_complete_has_its_usage_and_its_first_instant() -> None:
    info = {
        **REPLY,
        "time": {"created": 5000, "completed": 6000},
        "tokens": {"input": 3, "output": 4, "reasoning": 1, "cache": {"read": 2, "write": 0}},
        "cost": 0.5,
        "finish": "stop",
    }
    _, answered, completed = said("message.updated", info=info)
    assert answered == Answered(session=S, reply="msg_2")
    assert isinstance(completed, Completed)
    assert completed.usage == Usage(input_tokens=5, output_tokens=5, cost_usd=0.5)
    assert completed.at == 5.0
    assert not completed.is_unfinished


def test_summaries_and_messages_of_the_user_ask_no_model() -> None:
    assert said("message.updated", info={**REPLY, "mode": "compaction"}) == ()
    assert said("message.updated", info={**REPLY, "role": "user"}) == ()


def test_sessions_are_found_wherever_a_version_names_them() -> None:
    assert said("session.deleted", info={"id": S}) == (Deleted(session=S),)
    assert said("session.deleted", sessionID=S) == (Deleted(session=S),)
    assert said("session.idle", session_id=S) == (Idle(session=S, is_first=False),)
    assert facts({"type": "session.compacted", "data": {"sessionID": S}}, now=0) == (
        Compacted(session=S),
    )
    assert said("session.status", sessionID=S, status={"type": "idle"}) == (Idle(session=S),)


def test_retries_come_as_a_state_or_as_a_part() -> None:
    (state,) = said("session.status", sessionID=S, status={"type": "retry", "message": "no"})
    assert isinstance(state, Retried)
    assert state.evidence.text == "no"
    part = {
        "type": "retry",
        "sessionID": S,
        "messageID": "msg_2",
        "attempt": 2,
        "error": {"name": "APIError", "data": {"message": "no", "statusCode": 429}},
    }
    (one,) = said("message.part.updated", part=part)
    assert isinstance(one, Retried)
    assert (one.attempt, one.reply, one.evidence.http_status) == (2, "msg_2", 429)


WAITS = [(1, 2.4, False), (4, 19, False), (1, 5, True), (3, 60, True)]


@pytest.mark.parametrize(("attempt", "wait_s", "is_stated"), WAITS)
def test_only_a_wait_beyond_its_own_back_off_is_a_providers_word(
    attempt: int, wait_s: float, is_stated: bool
) -> None:
    status = {
        "type": "retry", "attempt": attempt, "message": "", "next": (1000.0 + wait_s) * 1000,
    }  # fmt: skip
    (found,) = said("session.status", sessionID=S, status=status)
    assert ("retry-after" in found.evidence.headers) == is_stated


def test_an_abort_is_no_failure() -> None:
    error = {"name": "MessageAbortedError", "data": {"message": "x"}}
    assert said("session.error", sessionID=S, error=error) == (Stopped(session=S),)
    (found,) = said("session.error", sessionID=S, error={"name": "UnknownError", "data": {}})
    assert isinstance(found, Errored)


def test_tools_tell_whether_they_may_have_written() -> None:
    def uses(tool: str, status: str) -> ToolUsed:
        part = {
            "type": "tool", "sessionID": S, "messageID": "m", "tool": tool,
            "state": {"status": status},
        }  # fmt: skip
        found = said("message.part.updated", part=part)[-1]
        assert isinstance(found, ToolUsed)
        return found

    assert uses("write", "running").may_write
    assert uses("a-tool-of-a-plugin", "completed").may_write
    assert not uses("write", "pending").may_write
    assert not uses("read", "completed").may_write


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": "catalog.updated", "properties": {}},
        {"type": 3},
        {"type": "message.updated"},
        {"type": "message.updated", "properties": {"info": "no"}},
        {"type": "session.status", "properties": {"status": {"type": "retry"}}},
        {"type": "session.error", "properties": {"sessionID": S, "error": []}},
        {"type": "message.part.updated", "properties": {"part": {"type": "tool"}}},
    ],
)
def test_what_cannot_be_understood_is_no_fact(event: dict[str, Any]) -> None:
    assert not facts(event, now=0.0)


def test_models_are_read_in_every_form() -> None:
    assert model_of({"model": "a/b/c"}) == "a/b/c"
    assert model_of({"model": {"providerID": "a", "modelID": "b"}}) == "a/b"
    assert model_of({"model": {"providerID": "a", "id": "b"}}) == "a/b"
    assert model_of({"providerID": "a"}) is None
    assert split_model("openrouter/google/gemini") == {
        "providerID": "openrouter",
        "modelID": "google/gemini",
    }


def test_parts_keep_what_the_user_gave_and_lose_what_the_server_added() -> None:
    parts = [
        {"type": "file", "id": "p", "messageID": "m", "mime": "text/plain", "url": "file:///x"},
        {"type": "agent", "id": "p", "name": "plan", "source": {"value": "@plan"}},
        {"type": "step-start"},
        None,
        "x",
    ]
    assert parts_again(parts) == [
        {"type": "file", "mime": "text/plain", "url": "file:///x"},
        {"type": "agent", "name": "plan", "source": {"value": "@plan"}},
    ]
    assert parts_again(None) == []


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda one: one.stem)
def test_recorded_events_are_read_without_a_word_of_trouble(path: Path) -> None:
    found: list[Any] = []
    for line in path.read_text().splitlines():
        found.extend(facts(json.loads(line)["event"], now=0.0) or ())
    assert found


CREATED_MS = 1795713715826
MADE_THERE = "msg_218e0ce72001Yv0AmD8VCiAr4f"
"""By opencode 1.18.33 in that millisecond."""
CHOSEN = "msg_218e0ce63001Yv0AmD8VCiAr4f"
"""By an interface, shortly before."""


def said_by(role: str, name: str) -> dict[str, Any]:
    return {"info": {"id": name, "role": role, "time": {"created": CREATED_MS}}}


def test_a_message_whose_id_is_older_than_itself_was_named_by_its_writer() -> None:
    at = CREATED_MS / 1000
    (one,) = written_of([said_by("user", MADE_THERE)], MADE_THERE)
    assert (one.at, one.named_at) == (at, None)
    (one,) = written_of([said_by("user", CHOSEN)], CHOSEN)
    assert (one.at, one.named_at) == (at, (CREATED_MS - 15) / 1000)
    (one,) = written_of([said_by("user", "msg_mine")], "msg_mine")
    assert (one.at, one.named_at) == (at, 0.0)


def test_only_messages_of_the_user_from_the_asked_one_on_are_looked_at() -> None:
    messages = [said_by("user", CHOSEN), said_by("user", MADE_THERE), {}]
    messages.append(said_by("assistant", "msg_218e0ce80001Yv0AmD8VCiAr4f"))
    request = said_by("user", "msg_218e0ce90001Yv0AmD8VCiAr4f")
    messages.append({**request, "parts": [{"type": "compaction", "auto": False}]})
    assert len(written_of(messages, MADE_THERE)) == 1
    assert len(written_of(messages, CHOSEN)) == 2
