"""What a tool call may have done, by its name alone: it may be refused, or fail."""

from typing import Any

import msgspec
import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import Chunk, ToolStarted


def claude(name: str) -> list[dict[str, Any]]:
    used = {"type": "tool_use", "id": "t1", "name": name, "input": {"file_path": "a"}}
    refused = {"type": "tool_result", "tool_use_id": "t1", "is_error": True}
    return [
        {"type": "assistant", "message": {"model": "m", "content": [used]}},
        {"type": "user", "message": {"content": [refused]}},
    ]


def codex(name: str) -> list[dict[str, Any]]:
    item = {"id": "i1", "type": name, "changes": [{"path": "a", "kind": "add"}]}
    return [
        {"type": "item.started", "item": item | {"status": "in_progress"}},
        {"type": "item.completed", "item": item | {"status": "failed"}},
    ]


def gemini(name: str) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "tool_name": name, "tool_id": "t1", "parameters": {}},
        {"type": "tool_result", "tool_id": "t1", "status": "error"},
    ]


def opencode(name: str) -> list[dict[str, Any]]:
    state = {"status": "error", "input": {}, "error": "The user rejected permission"}
    part = {"id": "p1", "type": "tool", "tool": name, "callID": "c1", "state": state}
    return [{"type": "tool_use", "sessionID": "ses_1", "part": part}]


SAYS = {"claude": claude, "codex": codex, "gemini": gemini, "opencode": opencode}


@pytest.mark.parametrize(
    ("kind", "tool", "effects"),
    [
        ("claude", "Read", "none"),
        ("claude", "Bash", "possible"),
        ("claude", "Write", "possible"),
        ("claude", "mcp__x__y", "possible"),
        ("codex", "web_search", "none"),
        ("codex", "command_execution", "possible"),
        ("codex", "file_change", "possible"),
        ("gemini", "read_file", "none"),
        ("gemini", "replace", "possible"),
        ("gemini", "run_shell_command", "possible"),
        ("opencode", "grep", "none"),
        ("opencode", "edit", "possible"),
        ("opencode", "bash", "possible"),
    ],
)
def test_a_refused_tool_has_at_most_possible_effects(kind: str, tool: str, effects: str) -> None:
    parser = KINDS[kind].parser(Options())
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in SAYS[kind](tool))
    seen = [one for one in parser.feed(Chunk("stdout", lines, 0.0)) if isinstance(one, ToolStarted)]
    assert [one.effects for one in seen] == [effects]
