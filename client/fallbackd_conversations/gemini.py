"""
Gemini CLI: `tmp/PROJECT/chats/session-MINUTE-ID8.jsonl`, messages and patches of the whole.

Source: files of gemini 0.61.0, which takes one as `--session-file` too, as lines or as one object.
A message is written again when there is more of it, with the same id. One that ends with a call of
a tool is sent with the words that it was interrupted.
"""

import hashlib
import re
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from fallbackd_conversations.files import as_json, decoded, encoded, fields, objects, objects_in
from fallbackd_conversations.files import words as text_of
from fallbackd_conversations.turns import (
    Attachment,
    Listener,
    OutcomeWord,
    Stored,
    ToolUse,
    Utterance,
    alternating,
    attachment,
)
from fallbackd_conversations.words import file_line, in_order

TAKES = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf"})
SHELL = "run_shell_command"
_NOT_SAID = ("<session_context>", "This is the Gemini CLI. We are setting up the context")


def parse(data: bytes) -> Stored:
    """Whatever of it can be read."""
    id, messages = "", dict[tuple[str, str], dict[str, Any]]()
    whole = decoded(data) if b'"messages"' in data else None
    for line in [whole] if isinstance(whole, dict) else objects(data):
        id = text_of(line.get("sessionId")) or id
        patch = fields(line.get("$set"))
        for changed in (line, patch):
            if isinstance(changed.get("messages"), list):
                messages = {_key(one): one for one in objects_in(changed["messages"])}
        back_to = text_of(line.get("$rewindTo"))
        if back_to in {id for id, _ in messages}:
            end = [id for id, _ in messages].index(back_to)
            messages = dict(list(messages.items())[:end])
        if "type" in line:
            messages[_key(line)] = line
    talk = Listener()
    for message in messages.values():
        _read_message(talk, message)
    return Stored(id=id, said=talk.said())


def _key(message: dict[str, Any]) -> tuple[str, str]:
    """Return the key of a message: in a resumed session a call and its response share their id."""
    return text_of(message.get("id")) or as_json(message), text_of(message.get("type"))


def _read_answer(talk: Listener, parts: Iterable[dict[str, Any]]) -> None:
    for part in parts:
        if _is_file(part):
            talk.agent(file_line(_attached(part)))
        elif part.get("thought") is not True:
            talk.agent(text_of(part.get("text")))
        if call := fields(part.get("functionCall")):
            talk.tool(text_of(call.get("id")), _use(call))


def _read_message(talk: Listener, message: dict[str, Any]) -> None:
    content = message.get("content")
    parts = [{"text": content}] if isinstance(content, str) else objects_in(content)
    match message.get("type"):
        case "user":
            for part in parts:
                _read_result(talk, part)
            texts = [text_of(part.get("text")) for part in parts]
            talk_to = "\n".join(one for one in texts if not one.lstrip().startswith(_NOT_SAID))
            attached = [_attached(part) for part in parts if _is_file(part)]
            if talk_to.strip() or attached:
                talk.user(talk_to, attached)
        case "gemini":
            _read_answer(talk, parts)
            for call in objects_in(message.get("toolCalls")):
                talk.tool(text_of(call.get("id")), _use(call))
                for part in objects_in(call.get("result")):
                    _read_result(talk, part, status=text_of(call.get("status")))


def _is_file(part: dict[str, Any]) -> bool:
    return "inlineData" in part or "fileData" in part


def _attached(part: dict[str, Any]) -> Attachment:
    given = fields(part.get("inlineData")) or fields(part.get("fileData"))
    return attachment(given.get("mimeType"), given.get("data"), name=given.get("displayName"))


def _use(call: dict[str, Any]) -> ToolUse:
    name, given = text_of(call.get("name")), fields(call.get("args"))
    command = text_of(given.get("command")) if name == SHELL else None
    return ToolUse(name=name, command=command, args=as_json(given))


_FRAME = ("<untrusted_context>\n", "\n</untrusted_context>")
_SHELL_RESULT = re.compile(
    r"(?:.*?^)?Output: (?P<output>.*?)(?P<error>\nError: [^\n]*)?"
    r"(?:\nExit Code: (?P<code>-?\d+|\(none\)))?(?P<signal>\nSignal: [^\n]*)?"
    r"(?:\nBackground PIDs: [^\n]*)?(?:\nProcess Group PGID: \d+)?",
    re.S | re.M,
)
"""Of a command that came to its end; the status of its call is `success` however it ended."""


def _read_result(talk: Listener, part: dict[str, Any], *, status: str = "success") -> None:
    """
    Args:
        status: Of the call; a response without one comes in the place of one that was seen.
    """
    response = fields(part.get("functionResponse"))
    call = text_of(response.get("id"))
    use = talk.use_of(call)
    if use is None or use.result or use.outcome != "no_result":
        return  # said before
    given = fields(response.get("response"))
    text = text_of(given.get("output")) or text_of(given.get("error"))
    text = text.removeprefix(_FRAME[0]).removesuffix(_FRAME[1])
    outcome: OutcomeWord = "no_result"
    if status == "error" or (status == "success" and "error" in given):
        outcome = "failed"
    elif status == "success":
        outcome = "done"
    if use.command is not None and outcome == "done":
        text, outcome = _of_shell(text)
    talk.result(call, text, outcome=outcome)


def _of_shell(text: str) -> tuple[str, OutcomeWord]:
    found = _SHELL_RESULT.fullmatch(text)
    if found is None:
        return text, "no_result"  # in the background, or cancelled
    if found["code"] in (None, "0", "(none)") and not found["signal"]:
        # The last line may be gemini's own, or one that the command printed.
        return found["output"], "no_result" if found["error"] else "done"
    return found["output"], "failed"


def render(said: Sequence[Utterance], *, id: str, cwd: str, now: float) -> bytes:
    """Write it as one object."""
    at = datetime.fromtimestamp(now, UTC)
    instant = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
    messages: list[dict[str, Any]] = []

    def add(kind: str, content: Any, **more: Any) -> None:
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{id}/{len(messages)}"))
        message = {"id": name, "timestamp": instant, "type": kind, "content": content}
        messages.append({**message, **more})

    for one in alternating(said):
        if one.role == "user":
            parts: list[dict[str, Any]] = [{"text": one.text}] if one.text else []
            parts += [{"inlineData": {"mimeType": f.type, "data": f.data}} for f in one.files]
            add("user", parts)
            continue
        for part in in_order(one):
            if isinstance(part, str):
                add("gemini", part)
                continue
            call = f"{SHELL}_{len(messages)}"
            ended = "" if part.outcome == "done" else "\nExit Code: 1"
            result = {"output": f"Output: {part.result}{ended}"}
            answer = {"id": call, "name": SHELL, "response": result}
            use = {"id": call, "name": SHELL, "args": {"command": part.command}}
            use |= {"status": "success", "timestamp": instant}
            add("gemini", "", toolCalls=[{**use, "result": [{"functionResponse": answer}]}])
    return encoded(
        {
            "sessionId": id,
            "projectHash": hashlib.sha256(cwd.encode("utf-8", "surrogateescape")).hexdigest(),
            "startTime": instant,
            "lastUpdated": instant,
            "messages": messages,
        }
    )
