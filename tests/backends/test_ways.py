"""Lines of programs that stay: what is asked of them, and what theirs mean for turns."""

import json
from typing import Any

from fallbackd.backends import KINDS
from fallbackd.backends.residents import WAYS, Heard, Way, first_line
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import (
    AgentText,
    Chunk,
    Conversation,
    Evidence,
    FiguresSeen,
    Observation,
    ProcessExit,
    Reply,
    Retrying,
    ToolStarted,
)

THREAD, TURN = "01a21b0f-de6b", "01a21b10-5c76"
RESULT = {"thread": {"id": THREAD}}


def lines(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in messages)


def said(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": {"threadId": THREAD, **params}, "emittedAtMs": 1}


def asked(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def hear(way: Way, *messages: dict[str, Any]) -> list[Heard]:
    return [way.read(line) for line in lines(*messages).splitlines(keepends=True)]


def opened(way: Way) -> Heard:
    (first,) = asked(way.ready("m"))
    assert first["method"] == "initialize"
    (heard,) = hear(way, {"id": first["id"], "result": {}})
    *_, thread = asked(heard.answer)
    return hear(way, {"id": thread["id"], "result": RESULT})[0]


def test_codex_is_ready_once_it_has_a_thread() -> None:
    way = WAYS["codex"]({"sandbox": "read-only"}, None)
    (first,) = asked(way.ready("m"))
    (heard,) = hear(way, {"id": first["id"], "result": {}})
    known, thread = asked(heard.answer)
    assert known["method"] == "initialized"
    assert thread["method"] == "thread/start"
    assert thread["params"] == {"approvalPolicy": "never", "sandbox": "read-only"}
    assert hear(way, {"id": thread["id"], "result": RESULT}) == [Heard(mark="m")]
    (turn,) = asked(way.prompt(b"say pong"))
    assert turn["params"]["threadId"] == THREAD


def test_a_codex_that_was_made_ready_takes_any_conversation() -> None:
    way = WAYS["codex"]({}, None)
    opened(way)
    (sign,) = asked(way.before("b", THREAD))
    assert sign["method"] == "thread/loaded/list"
    (sign,) = asked(way.before("c", "01a2"))
    assert (sign["method"], sign["params"]["threadId"]) == ("thread/resume", "01a2")
    (heard,) = hear(way, {"id": sign["id"], "result": {"thread": {"id": "01a2"}}})
    assert heard == Heard(mark="c")
    assert asked(way.prompt(b"x"))[0]["params"]["threadId"] == "01a2"


def test_codex_continues_the_thread_of_the_conversation() -> None:
    way = WAYS["codex"]({}, "01a2")
    (first,) = asked(way.ready("m"))
    (heard,) = hear(way, {"id": first["id"], "result": {}})
    thread = asked(heard.answer)[-1]
    assert (thread["method"], thread["params"]["threadId"]) == ("thread/resume", "01a2")
    (refused,) = hear(way, {"id": thread["id"], "error": {"message": "no rollout found"}})
    assert (refused.mark, refused.refused, way.is_known) == ("m", True, True)


def test_codex_that_has_other_permissions_than_asked_for_takes_no_prompt() -> None:
    for active, is_refused in (({"id": "fallbackd"}, False), (None, True)):
        way = WAYS["codex"]({"config": {"default_permissions": "fallbackd"}}, "01a2")
        (first,) = asked(way.ready("m"))
        (heard,) = hear(way, {"id": first["id"], "result": {}})
        thread = asked(heard.answer)[-1]
        found = {**RESULT, "activePermissionProfile": active}
        (heard,) = hear(way, {"id": thread["id"], "result": found})
        assert (heard.mark, heard.refused) == ("m", is_refused)


def test_an_interrupt_of_codex_waits_for_the_name_of_its_turn() -> None:
    way = WAYS["codex"]({}, None)
    opened(way)
    (turn,) = asked(way.prompt(b"x"))
    assert way.interrupt("i") == b""
    started = {"id": turn["id"], "result": {"turn": {"id": TURN, "status": "inProgress"}}}
    (heard,) = hear(way, started)
    (interrupt,) = asked(heard.answer)
    assert interrupt["params"] == {"threadId": THREAD, "turnId": TURN}


def test_a_turn_of_codex_ends_with_its_own_end_only() -> None:
    way = WAYS["codex"]({}, None)
    opened(way)
    way.prompt(b"x")
    begun, other, subagent, ended = hear(
        way,
        said("turn/started", turn={"id": TURN}),
        said("turn/completed", turn={"id": "an earlier one", "status": "completed"}),
        {"method": "turn/completed", "params": {"threadId": "other", "turn": {"id": TURN}}},
        said("turn/completed", turn={"id": TURN, "status": "failed"}),
    )
    assert (begun.began, begun.conversation) == (True, THREAD)
    assert other.exit_code is subagent.exit_code is None
    assert ended.exit_code == 1


def test_codex_is_granted_nothing_that_it_asks_for() -> None:
    way = WAYS["codex"]({}, None)
    approval, unknown = hear(
        way,
        {"id": 0, **said("item/commandExecution/requestApproval", itemId="c")},
        {"id": 1, **said("attestation/generate")},
    )
    assert asked(approval.answer) == [{"id": 0, "result": {"decision": "decline"}}]
    assert "error" in asked(unknown.answer)[0]


# --- what the parser reads of them ---------------------------------------------------------------


def read(*messages: dict[str, Any], head: bytes = b"") -> tuple[list[Observation], Any]:
    parser = KINDS["codex"].parser(Options())
    data = (head or lines({"id": "t", "result": RESULT})) + lines(*messages)
    seen = list(parser.feed(Chunk("stdout", data, 10.0)))
    return seen, parser.finish(ProcessExit(gone=True, code=0, at=11.0))


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": "i1", **fields}


DONE = said("turn/completed", turn={"id": TURN, "status": "completed", "error": None})


def test_an_answer_of_the_app_server_streams_and_counts() -> None:
    total = {"inputTokens": 120, "outputTokens": 9}
    seen, outcome = read(
        said("item/completed", item=item("userMessage")),
        said("item/started", item=item("agentMessage", text="")),
        said("item/agentMessage/delta", itemId="i1", delta="po"),
        said("item/agentMessage/delta", itemId="i1", delta="ng"),
        said("item/completed", item=item("agentMessage", text="pong")),
        said("thread/tokenUsage/updated", tokenUsage={"total": total}),
        DONE,
    )
    assert Conversation(id=THREAD) in seen
    assert [one.text for one in seen if isinstance(one, AgentText) and one.text] == [
        "po",
        "ng",
        "\n",
    ]
    assert isinstance(outcome, Reply)
    assert (outcome.text, outcome.usage.input_tokens) == ("pong", 120)


def test_a_later_turn_knows_its_thread_from_our_own_line() -> None:
    head = first_line({"conversation": THREAD})
    seen, outcome = read(
        said("item/completed", item=item("agentMessage", text="x")), DONE, head=head
    )
    assert Conversation(id=THREAD) in seen
    assert isinstance(outcome, Reply)


def test_what_a_subagent_says_is_no_answer() -> None:
    other = said("item/completed", item=item("agentMessage", text="x"))
    other["params"]["threadId"] = "other"
    _, outcome = read(other, DONE)
    assert isinstance(outcome, Evidence)


def test_tools_of_the_app_server_are_those_of_codex_exec() -> None:
    command = item("commandExecution", command="rm x", exitCode=None, status="inProgress")
    seen, _ = read(said("item/started", item=command), DONE)
    (tool,) = (one for one in seen if isinstance(one, ToolStarted))
    assert tool.name == "command_execution"


def test_a_retry_of_the_app_server_says_why() -> None:
    error = {
        "message": "Reconnecting... 2/5",
        "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": 429}},
        "additionalDetails": "exceeded retry limit, last status: 429 Too Many Requests",
    }
    seen, _ = read(said("error", error=error, willRetry=True))
    (retry,) = (one for one in seen if isinstance(one, Retrying))
    assert retry.evidence.http_status == 429


def test_a_spent_plan_has_its_figures_and_its_reset() -> None:
    primary = {"usedPercent": 100, "windowDurationMins": 300, "resetsAt": 1795764228}
    error = {"message": "You've hit your usage limit.", "codexErrorInfo": "usageLimitExceeded"}
    seen, outcome = read(
        said("account/rateLimits/updated", rateLimits={"limitId": "codex", "primary": primary}),
        said("turn/completed", turn={"id": TURN, "status": "failed", "error": error}),
    )
    (figures,) = (one.figures for one in seen if isinstance(one, FiguresSeen))
    assert (figures[0].window_s, figures[0].used_percent) == (18_000.0, 100.0)
    assert isinstance(outcome, Evidence)
    assert outcome.body == {"error": {"type": "usage_limit_reached", "resets_at": 1795764228.0}}


def test_a_turn_that_is_not_taken_says_why() -> None:
    refused = {"id": "turn.1", "error": {"code": -32600, "message": "model is not supported"}}
    _, outcome = read(refused)
    assert isinstance(outcome, Evidence)
    assert outcome.text == "model is not supported"
