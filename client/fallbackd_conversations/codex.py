"""
codex: `$CODEX_HOME/sessions/Y/M/D/rollout-TIME-ID.jsonl`, a line for each item of the API.

Source: files of codex 0.169.0. A first line and messages are enough to be resumed; the provider has
to be one of the configuration.
"""

import re
import shlex
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fallbackd_conversations.files import as_json, decoded, fields, lines_of, objects, objects_in
from fallbackd_conversations.files import words as text_of
from fallbackd_conversations.turns import (
    Attachment,
    Listener,
    OutcomeWord,
    OwnerWord,
    Stored,
    ToolUse,
    Utterance,
    attachment_at,
)
from fallbackd_conversations.words import file_line, in_order

_NOT_SAID = (
    "<environment_context>",
    "<skills_instructions>",
    "<user_instructions>",
    "<permissions instructions>",
    "<turn_aborted>",
    "<subagent_notification>",
    "# AGENTS.md instructions for ",
    "<image",
    "</image>",
)
"""Beginnings of texts in the user's name that the program itself writes."""
TAKES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Its messages have no other files."""
SHELL = "exec_command"
_SHELLS = frozenset({SHELL, "shell", "shell_command", "container.exec", "local_shell"})
_OF_A_PROGRAM = re.compile(rb'"source"\s*:\s*"exec"|"originator"\s*:\s*"fallbackd_resident"')
_CUT_OFF = re.compile(r"aborted|(?:Wall time: [\d.]+ seconds\s+)?aborted by user\b.*", re.S)
"""In the place of an output: the turn was interrupted."""
_EXIT = re.compile(r"(?:exited with code|[Ee]xit code:?) (-?\d+)")


def owner_of(head: bytes) -> OwnerWord:
    """
    The owner of a session.

    Args:
        head: The beginning of its file, whose first line says how the session was begun.
    """
    return "program" if _OF_A_PROGRAM.search(head.partition(b"\n")[0]) else "person"


def parse(data: bytes) -> Stored:
    """Whatever of it can be read."""
    talk = Listener()
    id, cwd = "", ""
    for line in objects(data):
        payload = fields(line.get("payload"))
        match line.get("type"):
            case "session_meta" if not id:
                id, cwd = text_of(payload.get("id")), text_of(payload.get("cwd"))
            case "turn_context":
                cwd = text_of(payload.get("cwd")) or cwd
            case "response_item":
                _read_item(talk, payload)
            case "compacted" if payload.get("replacement_history"):
                talk.clear()
                for item in objects_in(payload["replacement_history"]):
                    _read_item(talk, item)
            case "event_msg" if payload.get("type") == "thread_rolled_back":
                turns = payload.get("num_turns")
                talk.forget(turns if isinstance(turns, int) else 0)
    return Stored(id=id, cwd=cwd, said=talk.said())


def _read_item(talk: Listener, item: dict[str, Any]) -> None:
    call = text_of(item.get("call_id"))
    match item.get("type"):
        case "message" if item.get("role") == "user":
            parts = objects_in(item.get("content"))
            texts = [text_of(part["text"]) for part in parts if "text" in part]
            said = "\n".join(one for one in texts if not one.lstrip().startswith(_NOT_SAID))
            talk.user(said, [_attached(one) for one in parts if one.get("type") == "input_image"])
        case "message" if item.get("role") == "assistant":
            parts = objects_in(item.get("content"))
            talk.agent("\n".join(text_of(part.get("text")) for part in parts))
        case "function_call":
            name, given = text_of(item.get("name")), text_of(item.get("arguments"))
            arguments = fields(decoded(given.encode("utf-8", "replace")))
            talk.tool(call, ToolUse(name=name, command=_command(name, arguments), args=given))
        case "local_shell_call":
            action = fields(item.get("action"))
            command = _command("local_shell", action)
            talk.tool(call, ToolUse(name="local_shell", command=command, args=as_json(action)))
        case "custom_tool_call":
            use = ToolUse(name=text_of(item.get("name")), args=text_of(item.get("input")))
            talk.tool(call, use)
        case "function_call_output" | "custom_tool_call_output":
            called = talk.use_of(call)
            text, ended = _output(item.get("output"))
            if called is not None and called.command is not None:
                ended = ended or "no_result"  # a command ends with a status
            talk.result(call, text, outcome=ended or "done")


def _attached(part: dict[str, Any]) -> Attachment:
    return attachment_at(part.get("image_url"))


def _command(name: str, arguments: dict[str, Any]) -> str | None:
    if name not in _SHELLS:
        return None
    match arguments.get("cmd") or arguments.get("command"):
        case str(command):
            return command
        case [str(shell), "-lc" | "-c", str(command)] if shell.endswith("sh"):
            return command
        case list(argv) if argv and all(isinstance(word, str) for word in argv):
            return shlex.join(argv)
        case _:
            return None


def _output(value: Any) -> tuple[str, OutcomeWord | None]:
    """
    Return the output of a tool, without the frame around the output of a shell.

    Returns:
        Also how it ended; None: it does not say.
    """
    if isinstance(value, list):
        value = "\n".join(
            file_line(_attached(part)) if "image_url" in part else text_of(part.get("text"))
            for part in objects_in(value)
        )
    elif isinstance(value, dict):
        value = text_of(value.get("content")) or text_of(value.get("output"))
    text = text_of(value)
    if text.startswith("{"):
        framed = fields(decoded(text.encode("utf-8", "replace")))
        code = fields(framed.get("metadata")).get("exit_code")
        if isinstance(framed.get("output"), str):
            return framed["output"], _ended(code)
    head, frame, rest = text.partition("Output:\n")
    if frame and (ended := _EXIT.search(head)) is not None:
        return rest, _ended(int(ended[1]))
    if frame and "Process running with session ID" in head:
        return rest, "no_result"
    return text, "no_result" if _CUT_OFF.fullmatch(text) else None


def _ended(code: Any) -> OutcomeWord | None:
    if not isinstance(code, int):
        return None
    return "done" if code == 0 else "failed"


def render(
    said: Sequence[Utterance], *, id: str, cwd: str, now: float, provider: str, owner: OwnerWord
) -> bytes:
    """
    Args:
        provider: As `provider_of` has it.
    """
    at = _instant(now)
    meta = {
        "id": id,
        "session_id": id,
        "timestamp": at,
        "cwd": cwd,
        "originator": "fallbackd",
        "cli_version": "0.0.0",
        # `codex resume --last` passes those over that a program has made.
        "source": "cli" if owner == "person" else "exec",
        "thread_source": "user",
        "model_provider": provider,
    }
    lines: list[dict[str, Any]] = [{"timestamp": at, "type": "session_meta", "payload": meta}]
    lines += [
        {"timestamp": at, "type": "response_item", "payload": item} for item in items_of(said)
    ]
    return lines_of(lines)


def items_of(said: Sequence[Utterance]) -> list[dict[str, Any]]:
    """Convert to the input of the Responses API."""
    items: list[dict[str, Any]] = []
    for one in said:
        if one.role == "user":
            asked = _message("user", "input_text", one.text)
            parts = asked["content"] if one.text else []
            asked["content"] = parts + [
                {"type": "input_image", "image_url": f"data:{each.type};base64,{each.data}"}
                for each in one.files
            ]
            items.append(asked)
            continue
        for part in in_order(one):
            if isinstance(part, str):
                items.append(_message("assistant", "output_text", part))
                continue
            call = f"call_{len(items)}"
            arguments = as_json({"cmd": part.command})
            items += (
                {"type": "function_call", "name": SHELL, "arguments": arguments, "call_id": call},
                {"type": "function_call_output", "call_id": call, "output": _framed(part)},
            )
    return items


def _message(role: str, kind: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _framed(tool: ToolUse) -> str:
    return f"Process exited with code {0 if tool.outcome == 'done' else 1}\nOutput:\n{tool.result}"


def file_name(*, id: str, now: float) -> str:
    """Below `sessions/`."""
    at = datetime.fromtimestamp(now, UTC)
    return f"{at:%Y/%m/%d}/rollout-{at:%Y-%m-%dT%H-%M-%S}-{id}.jsonl"


def provider_of(config: str) -> str:
    """The provider that a `config.toml` chooses."""
    try:
        found = tomllib.loads(config)
    except (tomllib.TOMLDecodeError, RecursionError):
        return "openai"
    profile = fields(fields(found.get("profiles")).get(text_of(found.get("profile"))))
    chosen = text_of(profile.get("model_provider")) or text_of(found.get("model_provider"))
    return chosen or "openai"


def _instant(now: float) -> str:
    at = datetime.fromtimestamp(now, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
