"""
How four model APIs say yes: whole bodies, and streams in two parts so that one can be cut short.

An `Answer` is a text or the call of a shell tool. A stream is server-sent events; `head` ends
after the second word of the text, `tail` is the rest with the sign that the answer is complete.
"""

import json
from typing import Any

from msgspec import Struct
from tests.support.provider_frames import (
    Answer,
    ToolCall,
    anthropic_frames,
    anthropic_whole,
    chat_frames,
    chat_whole,
    data,
    event,
    google_frames,
    google_whole,
    responses_frames,
    responses_whole,
)
from tests.support.provider_refusals import (
    Dialect,
    anthropic_error,
    google_error,
    openai_error,
)

SHELL_TOOLS = ("exec_command", "shell_command", "shell", "bash", "Bash", "run_shell_command")


class Stream(Struct, frozen=True, kw_only=True):
    head: tuple[str, ...]
    tail: tuple[str, ...]


def stream(dialect: Dialect, answer: Answer) -> Stream:
    match dialect:
        case "chat":
            frames = chat_frames(answer)
        case "responses":
            frames = responses_frames(answer)
        case "anthropic":
            frames = anthropic_frames(answer)
        case "google":
            frames = google_frames(answer)
    texts = [i for i, (is_text, _) in enumerate(frames) if is_text]
    cut = texts[1] + 1 if len(texts) > 1 else 1
    lines = tuple(line for _, line in frames)
    return Stream(head=lines[:cut], tail=lines[cut:])


def whole(dialect: Dialect, answer: Answer) -> dict[str, Any]:
    match dialect:
        case "chat":
            return chat_whole(answer)
        case "responses":
            return responses_whole(answer)
        case "anthropic":
            return anthropic_whole(answer)
        case "google":
            return google_whole(answer)


def error_event(dialect: Dialect, name: str) -> str:
    """The event of a failure that comes after output: `error_mid` or `rate_limit_mid`."""
    throttled = name == "rate_limit_mid"
    match dialect:
        case "chat":
            body = (
                openai_error("Rate limit reached for requests", "requests", "rate_limit_exceeded")
                if throttled
                else openai_error("The server had an error.", "server_error")
            )
            return data(body)
        case "responses":
            code = "rate_limit_exceeded" if throttled else "server_error"
            text = "Rate limit reached. Please try again in 3.5s." if throttled else "An error."
            failed = {"status": "failed", "error": {"code": code, "message": text}}
            return event("response.failed", {"response": failed, "sequence_number": 99})
        case "anthropic":
            return event(
                "error",
                anthropic_error("rate_limit_error", "This request would exceed your rate limit.")
                if throttled
                else anthropic_error("overloaded_error", "Overloaded"),
            )
        case "google":
            return data(
                google_error(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted.")
                if throttled
                else google_error(503, "UNAVAILABLE", "The model is overloaded.")
            )


def shell_call(dialect: Dialect, body: dict[str, Any], command: str) -> ToolCall | None:
    """The call of a shell tool that this request offers; None when it offers none."""
    offered = {name for tool in body.get("tools") or [] for name in _tool_names(tool)}
    for name in SHELL_TOOLS:
        if name not in offered:
            continue
        match name:
            case "exec_command":
                return ToolCall(name=name, arguments={"cmd": command})
            case "shell":
                return ToolCall(name=name, arguments={"command": ["bash", "-lc", command]})
            case _:
                arguments = {"command": command, "description": "Runs a command"}
                return ToolCall(name=name, arguments=arguments)
    return None


def offered_call(body: dict[str, Any], name: str, arguments: dict[str, Any]) -> ToolCall | None:
    """The call of a tool of an MCP server, whatever prefix the client has given it."""
    for tool in body.get("tools") or []:
        if tool.get("type") == "namespace":
            inner = [each["name"] for each in tool["tools"]]
            if tool["name"].startswith("mcp__") and name in inner:
                return ToolCall(name=name, arguments=arguments, namespace=tool["name"])
            continue
        for offered in _tool_names(tool):
            if offered.endswith(f"_{name}"):
                return ToolCall(name=offered, arguments=arguments)
    return None


def has_tool_result(body: dict[str, Any]) -> bool:
    text = json.dumps(body)
    marks = ('"function_call_output"', '"role": "tool"', '"tool_result"', '"functionResponse"')
    return any(mark in text for mark in marks)


def _tool_names(tool: dict[str, Any]) -> list[str]:
    declared = tool.get("functionDeclarations") or tool.get("function_declarations")
    if declared:
        return [str(each["name"]) for each in declared]
    return [str(tool.get("function", tool).get("name", ""))]
