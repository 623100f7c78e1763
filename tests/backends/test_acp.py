"""Leave that an agent asks for over the Agent Client Protocol, and what its messages mean."""

import json
from typing import Any

import pytest
from tests.backends.test_ways import asked, hear, lines

from fallbackd.backends import KINDS
from fallbackd.backends.residents import WAYS, Heard, Way
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import (
    AgentText,
    Chunk,
    Conversation,
    Evidence,
    Observation,
    ProcessExit,
    Reply,
    Retrying,
    ToolStarted,
)

SESSION = "s-1"
OPTIONS = [
    {"optionId": "x", "kind": "allow_always"},
    {"optionId": "y", "kind": "allow_once"},
    {"optionId": "z", "kind": "allow_once"},
    {"optionId": "n", "kind": "reject_once"},
]


def reply_to(line: bytes, **result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": result}


def update(what: str, **more: Any) -> dict[str, Any]:
    said = {"sessionId": SESSION, "update": {"sessionUpdate": what, **more}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": said}


def opened(
    permission: str = "workspace", *, new: dict[str, Any] | None = None, **session: Any
) -> tuple[Way, list[dict[str, Any]]]:
    """A way that is ready, and the calls that it took."""
    way = WAYS["acp"]({"cwd": "/work", "permission": permission, **session}, None)
    said, calls = way.ready("m"), []
    heard = Heard()
    while said:
        calls += asked(said)
        found = {"sessionId": SESSION, **(new or {})} if len(calls) == 2 else {}
        (heard,) = hear(way, reply_to(said, **found))
        said = heard.answer
    assert heard == Heard(mark="m")
    return way, calls


def chosen(way: Way, call: dict[str, Any], options: list[dict[str, Any]] = OPTIONS) -> Any:
    params = {"sessionId": SESSION, "toolCall": call, "options": options}
    message = {"jsonrpc": "2.0", "id": 7, "method": "session/request_permission"}
    (heard,) = hear(way, {**message, "params": params})
    (answer,) = asked(heard.answer)
    assert answer["id"] == 7
    return answer["result"]["outcome"]


YES, NO = ({"outcome": "selected", "optionId": id} for id in "yn")
INSIDE = [{"path": "/work/a.py"}]


@pytest.mark.parametrize(
    ("call", "read", "workspace"),
    [
        ({"kind": "read"}, YES, YES),
        ({"kind": "fetch"}, YES, YES),
        ({"kind": "edit", "locations": INSIDE}, NO, YES),
        ({"kind": "move", "locations": [*INSIDE, {"path": "/work/../etc/x"}]}, NO, NO),
        ({"kind": "edit", "locations": [{"path": "/workshop/x"}]}, NO, NO),
        ({"kind": "delete"}, NO, NO),
        ({"kind": "execute", "rawInput": {"command": "make"}}, NO, NO),
        ({"kind": "other"}, NO, NO),
        ({"toolCallId": "workspace-indexing-permission"}, NO, NO),
    ],
)
def test_leave_is_given_by_the_permission(call: dict[str, Any], read: Any, workspace: Any) -> None:
    for permission, expected in (("read", read), ("workspace", workspace), ("full", YES)):
        way, _ = opened(permission)
        assert chosen(way, call) == expected, permission


@pytest.mark.parametrize(
    ("command", "expected"),
    [("make test", YES), ("git commit -m x", YES), ("git push", NO), ("make && git push", NO)],
)
def test_a_confined_shell_runs_what_stays_on_the_machine(command: str, expected: Any) -> None:
    way, _ = opened(runs_commands=True)
    assert chosen(way, {"kind": "execute", "rawInput": {"command": command}}) == expected


def test_a_request_without_substance_is_read_from_the_call_that_it_names() -> None:
    way, _ = opened()
    hear(way, update("tool_call", toolCallId="t", title="Edit", status="pending"))
    hear(way, update("tool_call_update", toolCallId="t", kind="edit", locations=INSIDE))
    assert chosen(way, {"toolCallId": "t"}) == YES
    assert chosen(way, {"toolCallId": "another"}) == NO


def test_arguments_that_are_shown_as_a_text_are_read() -> None:
    way, _ = opened(runs_commands=True)
    text = {"type": "text", "text": json.dumps({"command": "git push"})}
    shown = [{"type": "content", "content": text}]
    for command, expected in (("git push", NO), ("make", YES)):
        text["text"] = json.dumps({"command": command})
        hear(way, update("tool_call", toolCallId=command, kind="execute", content=shown))
        assert chosen(way, {"toolCallId": command, "title": "Bash"}) == expected


def test_a_request_without_a_fitting_option_is_cancelled() -> None:
    way, _ = opened("read")
    assert chosen(way, {"kind": "edit"}, [{"optionId": "y", "kind": "allow_once"}]) == {
        "outcome": "cancelled"
    }


def test_a_daemon_that_found_the_turn_allows_what_reads() -> None:
    way = WAYS["acp"]({}, None)
    assert chosen(way, {"kind": "read"}) == YES
    assert chosen(way, {"kind": "edit", "locations": INSIDE}) == NO


MODES = {"currentModeId": "auto", "availableModes": [{"id": "auto"}, {"id": "ask"}]}
URL = "https://agentclientprotocol.com/protocol/session-modes#"
MODE = {
    "id": "m",
    "category": "mode",
    "currentValue": f"{URL}autopilot",
    "options": [{"value": f"{URL}{one}"} for one in ("plan", "agent", "autopilot")],
}
MODEL = {"id": "llm", "category": "model", "currentValue": "a"}


@pytest.mark.parametrize(
    ("new", "call"),
    [
        ({"modes": MODES}, ("session/set_mode", {"modeId": "ask"})),
        (
            {"configOptions": [MODE]},
            ("session/set_config_option", {"configId": "m", "value": f"{URL}agent"}),
        ),
        ({}, ("_fallbackd/ping", {})),
    ],
)
def test_each_prompt_is_taken_in_a_mode_that_asks(
    new: dict[str, Any], call: tuple[str, dict[str, Any]]
) -> None:
    way, calls = opened(new=new)
    (again,) = asked(way.before("b", SESSION))
    for one in (calls[-1], again):
        assert (one["method"], one["params"]) == (call[0], {"sessionId": SESSION, **call[1]})


@pytest.mark.parametrize(
    ("new", "call"),
    [
        ({}, ("session/set_model", {"modelId": "big"})),
        (
            {"configOptions": [MODEL]},
            ("session/set_config_option", {"configId": "llm", "value": "big"}),
        ),
    ],
)
def test_the_model_is_set_where_the_command_does_not(
    new: dict[str, Any], call: tuple[str, dict[str, Any]]
) -> None:
    _, calls = opened(new=new, model="big")
    assert (calls[-1]["method"], calls[-1]["params"]) == (
        call[0],
        {"sessionId": SESSION, **call[1]},
    )


def test_what_another_session_says_is_not_of_the_turn() -> None:
    way, _ = opened()
    way.prompt(b"x")
    other = update("agent_message_chunk")
    other["params"]["sessionId"] = "another"
    assert hear(way, other) == [Heard()]
    assert not hear(way, update("available_commands_update"))[0].began
    assert hear(way, update("agent_message_chunk"))[0].began


def test_a_turn_ends_with_the_answer_to_its_own_call() -> None:
    way, _ = opened()
    (turn,) = asked(way.prompt(b"x"))
    stray = {"jsonrpc": "2.0", "id": "turn.0", "result": {"stopReason": "end_turn"}}
    own = {**stray, "id": turn["id"]}
    assert [one.exit_code for one in hear(way, stray, own)] == [None, 0]
    assert json.dumps(own, separators=(",", ":")).startswith(way.ends())


# --- what is read of it ---------------------------------------------------------------------------


def read(
    *messages: dict[str, Any], command: str = "agent"
) -> tuple[list[Observation], Reply | Evidence]:
    parser = KINDS["acp"].parser(Options(command=(command,)))
    seen = parser.feed(Chunk("stdout", lines(*messages), 1.0))
    outcome = parser.finish(ProcessExit(code=0, gone=True, at=2.0))
    assert isinstance(outcome, Reply | Evidence)
    return seen, outcome


def chunk(text: str) -> dict[str, Any]:
    return update("agent_message_chunk", content={"type": "text", "text": text})


END = {"jsonrpc": "2.0", "id": "turn.4", "result": {"stopReason": "end_turn"}}
NEW = {"jsonrpc": "2.0", "id": "open.2.session/new", "result": {"sessionId": SESSION}}


def test_text_is_passed_on_as_it_comes() -> None:
    seen, outcome = read(NEW, chunk("one "), chunk("two"), END)
    assert Conversation(id=SESSION) in seen
    assert [one.text for one in seen if isinstance(one, AgentText)] == ["one ", "two"]
    assert isinstance(outcome, Reply)
    assert outcome.text == "one two"


def test_a_tool_that_is_told_in_parts_is_seen_with_what_it_does_outside() -> None:
    call = {"toolCallId": "t", "title": "Bash", "kind": "execute"}
    seen, _ = read(
        NEW,
        update("tool_call", **call, status="pending"),
        update("tool_call_update", toolCallId="t", rawInput={"command": "git push"}),
        update("tool_call_update", toolCallId="t", status="completed"),
        chunk("pushed"),
        END,
    )
    (started,) = [one for one in seen if isinstance(one, ToolStarted)]
    assert started.outside == "git push"


def test_a_failure_in_prose_is_no_answer_and_is_not_passed_on() -> None:
    text = "Error: 429 Rate limit reached. Please try again in 1h0m0s."
    seen, outcome = read(NEW, chunk(text), END, command="/usr/bin/copilot")
    assert isinstance(outcome, Evidence)
    assert (outcome.http_status, outcome.text) == (429, text)
    assert not any(isinstance(one, AgentText) for one in seen)
    _, outcome = read(NEW, chunk(text), END)
    assert isinstance(outcome, Reply), "of an agent that is not known for it"
    seen, outcome = read(NEW, chunk(text), chunk(" I found this."), END, command="copilot")
    assert isinstance(outcome, Reply)
    assert AgentText(f"{text} I found this.") in seen


def test_what_an_agent_repeats_after_a_retry_is_passed_on_once() -> None:
    again = "Info: Response was interrupted due to a server error. Retrying..."
    seen, outcome = read(
        *(NEW, chunk("one "), chunk("two "), chunk(again)),
        *(chunk("one "), chunk("two "), chunk("three"), END),
        command="copilot",
    )
    assert [type(one) for one in seen if isinstance(one, Retrying)] == [Retrying]
    told = "".join(one.text for one in seen if isinstance(one, AgentText))
    assert isinstance(outcome, Reply)
    assert (told, outcome.text) == ("one two three", "one two three")


def test_a_retry_that_an_agent_announces_is_seen() -> None:
    said = {"sessionId": SESSION, "category": "rate_limited", "detail": "HTTP 429"}
    message = {"jsonrpc": "2.0", "method": "_session/retrying", "params": said}
    seen, _ = read(NEW, message)
    (one,) = [one for one in seen if isinstance(one, Retrying)]
    assert (one.evidence.http_status, one.evidence.code) == (429, "rate_limited")


def test_a_refused_call_that_ends_the_turn_is_named() -> None:
    call = {"toolCallId": "t", "title": "Bash", "kind": "execute", "rawInput": {"command": "x"}}
    ask = {"jsonrpc": "2.0", "id": 1, "method": "session/request_permission"}
    _, outcome = read(
        NEW,
        {**ask, "params": {"sessionId": SESSION, "toolCall": call, "options": []}},
        update("tool_call_update", toolCallId="t", status="failed"),
        chunk("Info: Operation cancelled by user"),
        END,
        command="copilot",
    )
    assert isinstance(outcome, Evidence)
    assert (outcome.code, "Bash (x)" in outcome.text) == ("call_refused", True)
