"""Calls that an agent refused by its own rules: named in the answer, with what allows them."""

from typing import Any

import msgspec
import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.outside import MAX_REFUSED, call_words
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import Chunk, ProcessExit, Reply

ANSWER = "I could not push."
PUSH = "git push origin main"


def claude(*commands: str) -> list[dict[str, Any]]:
    denials = [
        {"tool_name": "Bash", "tool_use_id": f"t{number}", "tool_input": {"command": each}}
        for number, each in enumerate(commands)
    ]
    result = {"type": "result", "subtype": "success", "is_error": False, "result": ANSWER}
    return [result | {"permission_denials": denials}]


def codex(*commands: str) -> list[dict[str, Any]]:
    items = [
        {"id": f"i{number}", "type": "command_execution", "command": each, "status": "declined"}
        for number, each in enumerate(commands)
    ]
    return [
        *({"type": "item.completed", "item": item} for item in items),
        {"type": "item.completed", "item": {"id": "m", "type": "agent_message", "text": ANSWER}},
        {"type": "turn.completed", "usage": {}},
    ]


def gemini(*commands: str) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    error = {"type": "policy_violation", "message": "Tool execution denied by policy."}
    for number, each in enumerate(commands):
        used = {"tool_name": "run_shell_command", "parameters": {"command": each}}
        said.append({"type": "tool_use", "tool_id": f"t{number}", **used})
        said.append(
            {"type": "tool_result", "tool_id": f"t{number}", "status": "error", "error": error}
        )
    said.append({"type": "message", "role": "assistant", "content": ANSWER})
    return [*said, {"type": "result", "status": "success", "stats": {}}]


def opencode(*commands: str) -> list[dict[str, Any]]:
    error = "The user has specified a rule which prevents you from using this specific tool call."
    said: list[dict[str, Any]] = []
    for number, each in enumerate(commands):
        state = {"status": "error", "input": {"command": each}, "error": error}
        part = {"id": f"p{number}", "type": "tool", "tool": "bash", "callID": "c", "state": state}
        said.append({"type": "tool_use", "sessionID": "ses_1", "part": part})
    of = {"messageID": "msg_1", "sessionID": "ses_1"}
    start = {"type": "step_start", "part": {"id": "s", "type": "step-start", **of}}
    text = {"type": "text", "part": {"id": "t", "type": "text", "text": ANSWER, **of}}
    end = {
        "type": "step_finish",
        "part": {"id": "f", "type": "step-finish", "reason": "stop", **of},
    }
    return [*said, *({"sessionID": "ses_1", **each} for each in (start, text, end))]


SAYS = {"claude": claude, "codex": codex, "gemini": gemini, "opencode": opencode}
ALLOWED_BY = {
    "claude": "permissions.allow",
    "codex": "~/.codex",
    "gemini": "policy",
    "opencode": "opencode.json",
}


def answer(kind: str, *commands: str) -> Reply:
    parser = KINDS[kind].parser(Options())
    for event in SAYS[kind](*commands):
        parser.feed(Chunk(at=1.0, stream="stdout", data=msgspec.json.encode(event) + b"\n"))
    outcome = parser.finish(ProcessExit(code=0, at=2.0, gone=True))
    assert isinstance(outcome, Reply), outcome
    assert outcome.text == ANSWER
    return outcome


@pytest.mark.parametrize("kind", SAYS)
def test_an_answer_names_what_was_refused_and_what_allows_it(kind: str) -> None:
    [warning] = answer(kind, PUSH, PUSH).warnings
    assert warning.startswith("the agent's own rules refused: ")
    assert warning.count(f"({PUSH})") == 1
    assert ALLOWED_BY[kind] in warning
    assert "permission `full`" in warning


@pytest.mark.parametrize("kind", SAYS)
def test_without_a_refusal_there_is_no_warning(kind: str) -> None:
    assert answer(kind).warnings == ()


def test_many_are_counted() -> None:
    [warning] = answer("claude", *(f"cmd{number}" for number in range(MAX_REFUSED + 3))).warnings
    assert f"(cmd{MAX_REFUSED - 1}) and 3 more; " in warning


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": "a\n  b\x1b[31m"}, "Bash (a b[31m)"),
        ({"file_path": "/etc/x"}, "Bash (/etc/x)"),
        ({"command": ["git", "push"]}, "Bash (git push)"),
        ({"command": 7}, "Bash"),
        ({}, "Bash"),
        (None, "Bash"),
        ("x" * 200, f"Bash ({'x' * 80})"),
    ],
)
def test_a_call_is_short_and_holds_no_control_characters(arguments: object, words: str) -> None:
    assert call_words("Bash", arguments) == words


@pytest.mark.parametrize("denials", [None, "x", [None, {}, {"tool_name": 3}], {"a": 1}])
def test_strange_denials_are_no_error(denials: object) -> None:
    [event] = claude()
    parser = KINDS["claude"].parser(Options())
    data = msgspec.json.encode(event | {"permission_denials": denials}) + b"\n"
    parser.feed(Chunk(at=1.0, stream="stdout", data=data))
    outcome = parser.finish(ProcessExit(code=0, at=2.0, gone=True))
    assert isinstance(outcome, Reply)
    assert outcome.warnings == ()
