"""
opencode: everything is in `opencode.db`; `opencode export` and `import` speak one object of JSON.

Version 2 has other tables, beside which those of version 1 are stale, and `session import`.

Source: the database and exports of opencode 1.18.33. Ids sort by time, those of sessions backwards.
For version 2 its documentation, and a contract generated from 2.1.2; unverified against the
program.
"""

import errno
import hashlib
import re
import sqlite3
import stat
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import structs

from fallbackd_conversations.files import as_json, decoded, encoded, fields, objects_in
from fallbackd_conversations.files import words as text_of
from fallbackd_conversations.turns import (
    NO_OUTPUT,
    TITLE_OF_PROGRAM,
    Attachment,
    Listener,
    OutcomeWord,
    OwnerWord,
    Stored,
    ToolUse,
    Utterance,
    alternating,
    attachment_at,
)
from fallbackd_conversations.words import file_line, in_order

SHELL = "bash"
_CUT_OFF = (
    "Tool execution aborted",
    "Tool execution interrupted",
    "Tool execution was interrupted",
)
MAX_MESSAGES = 2000
MAX_PARTS = 10_000
MAX_PART_CHARS = 6 * 1024 * 1024
"""Pictures, mostly."""
MAX_CHARS = 32 * 1024 * 1024
_HEAD_CHARS = 1000
_FIELD = re.compile(r'"(type|mime|filename)":"([^"\\]*)"')
TAKES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
_LATER_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'session_v[0-9]*'"
    " ORDER BY length(name) DESC, name DESC LIMIT 1"
)
_SECOND = "session_v2"
_SECOND_COLUMNS = (
    "SELECT s.id, s.parent_id, s.directory, s.title, s.model, s.time_updated,"
    " m.id, m.session_id, m.type, m.seq, m.data FROM session_v2 s, session_message m LIMIT 0"
)
_DIRECTORY = (
    "SELECT directory FROM session WHERE id = ?",
    "SELECT directory FROM session_v2 WHERE id = ?",
)
_NEWEST = (
    "SELECT time_updated, id FROM session WHERE parent_id IS NULL AND title <> ?"
    " ORDER BY time_updated DESC LIMIT ?",
    "SELECT time_updated, id FROM session_v2 WHERE parent_id IS NULL"
    " AND coalesce(title, '') <> ? ORDER BY time_updated DESC LIMIT ?",
)
_MODELS = (
    "SELECT data FROM message WHERE length(data) < ? ORDER BY id DESC LIMIT 20",
    "SELECT model FROM session_v2 WHERE length(model) < ? ORDER BY time_updated DESC LIMIT 20",
)
"""What is asked of version 1, and of version 2."""
_NAMES = {"shell": SHELL, "subagent": "task"}
"""Names in version 1 of tools of version 2."""
BUSY_S = 1.0
_STEPS_PER_LOOK, _MAX_LOOKS = 100_000, 2_000
"""Of SQLite: some seconds. The file may have been made to take for ever."""


class NewerStore(ValueError):
    """A database of a version whose tables are not known."""


def parse(data: bytes) -> Stored:
    """An export; whatever of it can be read."""
    export = fields(decoded(data))
    is_second = any("info" not in one for one in objects_in(export.get("messages")))
    return _stored_second(export) if is_second else _stored(export)


def _stored_second(export: dict[str, Any]) -> Stored:
    info = fields(export.get("info"))
    talk = Listener()
    for message in objects_in(export.get("messages")):
        match message.get("type"):
            case "user":
                attached = [_attached_second(one) for one in objects_in(message.get("files"))]
                talk.user(text_of(message.get("text")), attached)
            case "assistant":
                for part in objects_in(message.get("content")):
                    _read_content(talk, part)
            case "compaction" if message.get("status") in (None, "completed"):
                talk.clear()
                talk.agent(text_of(message.get("summary")))
            case _:
                pass
    place = fields(info.get("location")).get("directory")
    return Stored(id=text_of(info.get("id")), cwd=text_of(place), said=talk.said())


def _read_content(talk: Listener, part: dict[str, Any]) -> None:
    match part.get("type"):
        case "text":
            talk.agent(text_of(part.get("text")))
        case "tool":
            name, state = text_of(part.get("name")), fields(part.get("state"))
            content = objects_in(state.get("content"))
            said = [text_of(one.get("text")) for one in content if one.get("type") == "text"]
            error = text_of(fields(state.get("error")).get("message"))
            first = {**state, "output": "\n".join(said), "error": error}
            _read_part(talk, {**part, "tool": _NAMES.get(name, name), "state": first})


def _attached_second(file: dict[str, Any]) -> Attachment:
    url = text_of(fields(file.get("source")).get("uri")) or text_of(file.get("uri"))
    if data := text_of(file.get("data")):
        url = f"data:{text_of(file.get('mime'))};base64,{data}"
    return _attached({"url": url, "mime": file.get("mime"), "filename": file.get("name")})


def _stored(export: dict[str, Any]) -> Stored:
    info = fields(export.get("info"))
    talk = Listener()
    for message in objects_in(export.get("messages")):
        role = fields(message.get("info")).get("role")
        if fields(message.get("info")).get("summary") is True:
            talk.clear()  # a compaction: what stands before is not sent any more
        parts = objects_in(message.get("parts"))
        if role == "user":
            texts = [part for part in parts if part.get("type") == "text"]
            said = [text_of(one.get("text")) for one in texts if one.get("synthetic") is not True]
            attached = [_attached(part) for part in parts if part.get("type") == "file"]
            talk.user("\n".join(said), attached)
        elif role == "assistant":
            for part in parts:
                _read_part(talk, part)
    return Stored(id=text_of(info.get("id")), cwd=text_of(info.get("directory")), said=talk.said())


def _read_part(talk: Listener, part: dict[str, Any]) -> None:
    match part.get("type"):
        case "text" if part.get("synthetic") is not True:
            talk.agent(text_of(part.get("text")))
        case "tool":
            name, state = text_of(part.get("tool")), fields(part.get("state"))
            given = fields(state.get("input"))
            command = text_of(given.get("command")) if name == SHELL else None
            attached = map(_attached, objects_in(state.get("attachments")))
            result = text_of(state.get("output")) or text_of(state.get("error"))
            result = "\n".join((result, *map(file_line, attached)))
            call = text_of(part.get("id")) or as_json(part)
            talk.tool(call, ToolUse(name=name, command=command, args=as_json(given)))
            talk.result(call, result, outcome=_outcome(name, state))


def _attached(part: dict[str, Any]) -> Attachment:
    found = attachment_at(part.get("url"), type=part.get("mime"), name=part.get("filename"))
    size = part.get("size")
    return structs.replace(found, size_bytes=size) if isinstance(size, int) else found


def _outcome(tool: str, state: dict[str, Any]) -> OutcomeWord:
    metadata = fields(state.get("metadata"))
    match state.get("status"):
        case "completed" if isinstance(code := metadata.get("exit"), int):
            return "done" if code == 0 else "failed"
        case "completed" if tool != SHELL:
            return "done"
        case "error" if metadata.get("interrupted") is not True:
            is_cut_off = text_of(state.get("error")).startswith(_CUT_OFF)
            return "no_result" if is_cut_off else "failed"
        case _:
            return "no_result"


def read_database(path: Path, id: str) -> Stored | None:
    """One session. None: it is not there, or the database cannot be read as this version has it."""
    try:
        with closing(_opened(path)) as database:
            if _is_second(database):
                return _read_second(database, id)
            row = database.execute(_DIRECTORY[False], (id,)).fetchone()
            if row is None:
                return None
            messages = database.execute(
                "SELECT id, data FROM message WHERE session_id = ? AND length(data) < ?"
                " ORDER BY id DESC LIMIT ?",
                (id, MAX_PART_CHARS, MAX_MESSAGES),
            ).fetchall()
            parts = _bounded(
                database.execute(
                    "SELECT message_id, id, length(data),"
                    " CASE WHEN length(data) < ? THEN data ELSE substr(data, 1, ?) END"
                    " FROM part WHERE session_id = ? ORDER BY id DESC LIMIT ?",
                    (MAX_PART_CHARS, _HEAD_CHARS, id, MAX_PARTS),
                )
            )
    except (sqlite3.Error, OSError, ValueError):
        return None
    by_message: dict[Any, list[dict[str, Any]]] = {}
    for message, name, part in reversed(parts):
        by_message.setdefault(message, []).append({**part, "id": name})
    return _stored(
        {
            "info": {"id": id, "directory": row[0]},
            "messages": [
                {"info": _object(data), "parts": by_message.get(name, [])}
                for name, data in reversed(messages)
            ],
        }
    )


def _read_second(database: sqlite3.Connection, id: str) -> Stored | None:
    row = database.execute(_DIRECTORY[True], (id,)).fetchone()
    if row is None:
        return None
    found = _bounded(
        database.execute(
            "SELECT type, id, length(data),"
            " CASE WHEN length(data) < ? THEN data ELSE substr(data, 1, ?) END"
            " FROM session_message WHERE session_id = ? ORDER BY seq DESC LIMIT ?",
            (MAX_PART_CHARS, _HEAD_CHARS, id, MAX_MESSAGES),
        )
    )
    messages = [{**one, "id": name, "type": kind} for kind, name, one in reversed(found)]
    info = {"id": id, "location": {"directory": row[0]}}
    return _stored_second({"info": info, "messages": messages})


def _bounded(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, Any, dict[str, Any]]]:
    """The latest ones; of one that is too large for this, what it is."""
    found = []
    room = MAX_CHARS
    for message, name, length, data in rows:
        room -= min(length, MAX_PART_CHARS)
        if room < 0:
            break
        part = _object(data) if length < MAX_PART_CHARS else _begun(data, length)
        found.append((message, name, part))
    return found


def _begun(data: Any, length: int) -> dict[str, Any]:
    """A file of which only the beginning was read."""
    known = dict(_FIELD.findall(text_of(data)))
    return {**known, "size": length * 3 // 4} if known.get("type") == "file" else {}


def newest_in(path: Path, *, limit: int) -> list[tuple[float, str]]:
    """(last change, id) of sessions of people; those of subagents have a parent."""
    try:
        with closing(_opened(path)) as database:
            query = _NEWEST[_is_second(database)]
            rows = database.execute(query, (TITLE_OF_PROGRAM, limit)).fetchall()
    except (sqlite3.Error, OSError, ValueError):
        return []
    return [
        (at / 1000, id) for at, id in rows if isinstance(at, int | float) and isinstance(id, str)
    ]


def last_model(path: Path) -> str:
    """Return the model its user used last, as `provider/model`; empty: it cannot be seen."""
    try:
        with closing(_opened(path)) as database:
            is_second = _is_second(database)
            rows = database.execute(_MODELS[is_second], (MAX_PART_CHARS,)).fetchall()
    except (sqlite3.Error, OSError, ValueError):
        return ""
    for (data,) in rows:
        model = _object(data) if is_second else fields(_object(data).get("model"))
        name = text_of(model.get("id" if is_second else "modelID"))
        if text_of(model.get("providerID")) and name:
            return f"{model['providerID']}/{name}"
    return ""


def is_second(path: Path) -> bool:
    """Return whether a database is of version 2."""
    try:
        with closing(_opened(path)) as database:
            return _is_second(database)
    except (sqlite3.Error, OSError, ValueError):
        return False


def _is_second(database: sqlite3.Connection) -> bool:
    return database.execute(_LATER_TABLES).fetchone() is not None


def _opened(path: Path) -> sqlite3.Connection:
    """
    The database, for a bounded number of steps.

    Raises:
        NewerStore: Its tables are not known, and the old ones beside them are stale.
        OSError: It is not there; or it, or a file that SQLite opens beside it, is no file: SQLite
            would wait for the other end of a pipe.
    """
    for suffix in ("", "-wal", "-shm", "-journal"):
        beside = Path(f"{path}{suffix}")
        if (not suffix or beside.exists()) and not stat.S_ISREG(beside.stat().st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(beside))
    database = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_S)
    looks = iter(range(_MAX_LOOKS))
    database.set_progress_handler(lambda: next(looks, None) is None, _STEPS_PER_LOOK)
    try:
        later = database.execute(_LATER_TABLES).fetchone()
        if later is not None and later[0] != _SECOND:
            why = "is of a later opencode than 2, whose sessions are not read yet"
            raise NewerStore(f"{path} {why}")
        if later is not None:
            _check_columns(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _check_columns(database: sqlite3.Connection, path: Path) -> None:
    try:
        database.execute(_SECOND_COLUMNS)
    except sqlite3.OperationalError as error:
        why = f"has tables of opencode 2 that are not known: {error}"
        raise NewerStore(f"{path} {why}") from error


def why_unread(path: Path) -> str:
    """
    Return why nothing is read from a database or written into it; empty: it is none of that kind.
    """
    try:
        _opened(path).close()
    except NewerStore as error:
        return str(error)
    except (sqlite3.Error, OSError, ValueError):
        pass  # it is missing or damaged
    return ""


def _object(data: Any) -> dict[str, Any]:
    return fields(decoded(data.encode("utf-8", "replace"))) if isinstance(data, str) else {}


def render_second(
    said: Sequence[Utterance], *, id: str, cwd: str, now: float, model: str, owner: OwnerWord
) -> bytes:
    """Write it as `session import` of version 2 takes it. Arguments as in `render`."""
    ms = int(now * 1000)
    provider, _, name = model.partition("/")
    named = {"providerID": provider, "id": name}
    tokens = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    messages: list[dict[str, Any]] = []

    def add(kind: str, **more: Any) -> None:
        number = (ms - 1000) * 0x1000 + len(messages) + 1
        time = {"created": ms, **({"completed": ms} if kind == "assistant" else {})}
        own = {"id": _sorted_id("msg", number, seed=id), "type": kind, "time": time}
        messages.append({**own, **more})

    for one in alternating(said):
        if one.role == "user":
            files = [
                {"data": f.data, "mime": f.type, "name": f.name or "file", "source": _inline(f)}
                for f in one.files
            ]
            add("user", text=one.text, **({"files": files} if files else {}))
            continue
        content: list[dict[str, Any]] = []
        for number, piece in enumerate(in_order(one)):
            if isinstance(piece, str):
                content.append({"type": "text", "text": piece})
                continue
            state = _state(piece)
            done: dict[str, Any] = {"status": state["status"], "input": state["input"]}
            if piece.outcome == "failed":
                done["error"] = {"type": "tool.execution", "message": state["error"]}
            else:
                output = [{"type": "text", "text": state["output"]}]
                done |= {"content": output, "metadata": {"exit": 0}}
            call = f"call_{len(messages)}_{number}"
            tool = {"type": "tool", "id": call, "name": "shell", "state": done}
            content.append({**tool, "time": {"created": ms, "ran": ms, "completed": ms}})
        add("assistant", agent="build", model=named, content=content, finish="stop", cost=0)
        messages[-1]["tokens"] = tokens
    title = TITLE_OF_PROGRAM
    if owner == "person":
        title = Stored(said=tuple(said)).first_words or "Continued conversation"
    session: dict[str, Any] = {
        "id": id,
        "projectID": "global",
        "title": title,
        "agent": "build",
        "model": named,
    }
    session |= {"cost": 0, "tokens": tokens, "time": {"created": ms, "updated": ms}}
    session["location"] = {"directory": cwd}
    return encoded({"info": session, "messages": messages})


def _inline(file: Attachment) -> dict[str, str]:
    return {"type": "uri", "uri": f"data:{file.type};base64,{file.data}"}


def render(
    said: Sequence[Utterance], *, id: str, cwd: str, now: float, model: str, owner: OwnerWord
) -> bytes:
    """
    Write it as `opencode import` takes it.

    Args:
        model: `provider/model`, which a prompt that names none is sent to.
    """
    ms = int(now * 1000)
    provider, _, name = model.partition("/")
    messages: list[dict[str, Any]] = []
    counter = 0

    def fresh(prefix: str) -> str:
        nonlocal counter
        counter += 1
        return _sorted_id(prefix, (ms - 1000) * 0x1000 + counter, seed=id)

    def add(info: dict[str, Any]) -> None:
        info = {"id": fresh("msg"), "sessionID": id, "agent": "build", **info}
        messages.append({"info": info, "parts": []})

    def part(kind: str, **more: Any) -> None:
        last = messages[-1]
        own = {"id": fresh("prt"), "sessionID": id, "messageID": last["info"]["id"], "type": kind}
        last["parts"].append({**own, **more})

    asked = ""
    both = {"providerID": provider, "modelID": name}
    tokens = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    agents: dict[str, Any] = {**both, "mode": "build", "path": {"cwd": cwd, "root": cwd}, "cost": 0}
    agents |= {"role": "assistant", "tokens": tokens, "time": {"created": ms, "completed": ms}}
    for one in alternating(said):
        if one.role == "user":
            add({"role": "user", "time": {"created": ms}, "model": both})
            asked = messages[-1]["info"]["id"]
            if one.text:
                part("text", text=one.text)
            for each in one.files:
                url = f"data:{each.type};base64,{each.data}"
                part("file", mime=each.type, filename=each.name or "file", url=url)
            continue
        # A message each: of one message the texts are sent in front of the calls.
        for said_or_run in in_order(one):
            is_text = isinstance(said_or_run, str)
            add({**agents, "parentID": asked, "finish": "stop" if is_text else "tool-calls"})
            if isinstance(said_or_run, str):
                part("text", text=said_or_run)
                continue
            state = {**_state(said_or_run), "time": {"start": ms, "end": ms}}
            part("tool", tool=SHELL, callID=f"call_{counter}", state=state)
    session: dict[str, Any] = {
        "id": id,
        "slug": "handed-over",
        "projectID": "global",
        "directory": cwd,
    }
    title = TITLE_OF_PROGRAM
    if owner == "person":
        title = Stored(said=tuple(said)).first_words or "Continued conversation"
    session |= {"title": title, "version": "1.0.0", "time": {"created": ms, "updated": ms}}
    return encoded({"info": session, "messages": messages})


def _state(run: ToolUse) -> dict[str, Any]:
    """Return the state of a call: its model is sent the output or the error, and nothing else."""
    given = {"command": run.command, "description": "an earlier command"}
    if run.outcome == "failed":
        return {"status": "error", "input": given, "error": run.result or NO_OUTPUT}
    metadata = {"output": run.result, "exit": 0}
    more = {"output": run.result, "title": run.command, "metadata": metadata}
    return {"status": "completed", "input": given, **more}


def new_session_id(now: float, seed: str) -> str:
    """The newest sorts first."""
    return _sorted_id("ses", ~(int(now * 1000) * 0x1000), seed=seed)


def _sorted_id(prefix: str, value: int, *, seed: str) -> str:
    digest = hashlib.sha256(f"{seed}/{prefix}/{value}".encode()).hexdigest()
    return f"{prefix}_{value & 0xFFFFFFFFFFFF:012x}{digest[:14]}"
