"""
Events of opencode servers as facts about sessions, and parts of messages as they are sent again.

| event | fact |
| --- | --- |
| `message.updated` of a model | `Asked` once it exists, `Answered` by its usage, `Completed` |
| `message.part.updated`, `message.part.delta` | `Answered`, `ToolUsed`; of kind `retry` `Retried` |
| `session.status` with `retry` | `Retried` |
| `session.error` | `Errored`; an abort is `Stopped` |
| `session.idle`, `session.status` with `idle` | `Idle` |
| `session.compacted`, `session.deleted` | `Compacted`, `Deleted` |

Servers of several versions are read: fields stand in `properties` or in `data`, a session is
named by `sessionID`, `session_id` or the `id` of its `info`, a model by two fields or by one
text. What is of another kind is no fact.

Source: recorded events of opencode 1.18.33, and the types of its SDK.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from anyio import to_thread
from msgspec import Struct

from fallbackd.backends.opencode_server import (
    error_evidence,
    message_usage,
    retry_evidence,
    tool_effects,
)
from fallbackd.core.protocol import Evidence, Usage
from fallbackd.lib.foreign_json import fields as _table
from fallbackd.lib.foreign_json import text as _text
from fallbackd.ports.opencode import INSIDE, Called, Link, Owner, Whose, Written

EventFields = Mapping[str, Any]  # any JSON


class Asked(Struct, frozen=True, kw_only=True):
    """A model is asked about a message of the user."""

    session: str
    message: str
    """Id of the user's message."""
    reply: str
    """The message that the model writes."""
    model: str
    agent: str | None = None


class Answered(Struct, frozen=True, kw_only=True):
    """A sign that only the provider can cause."""

    session: str
    reply: str


class ToolUsed(Struct, frozen=True, kw_only=True):
    session: str
    reply: str
    may_write: bool


class Completed(Struct, frozen=True, kw_only=True):
    session: str
    message: str
    reply: str
    model: str
    usage: Usage
    at: float
    is_unfinished: bool = False
    """The provider's stream ended without an end; opencode asks again at once."""


class Retried(Struct, frozen=True, kw_only=True):
    """The provider failed, and the server will try again."""

    session: str
    evidence: Evidence
    attempt: int = 1
    reply: str | None = None


class Errored(Struct, frozen=True, kw_only=True):
    """The turn is over without an answer."""

    session: str
    evidence: Evidence


class Stopped(Struct, frozen=True, kw_only=True):
    """The turn was stopped, by the user or by us."""

    session: str


class Idle(Struct, frozen=True, kw_only=True):
    session: str
    is_first: bool = True
    """First of the two events in which 1.18 says it each time; the second one is `session.idle`."""


class Compacted(Struct, frozen=True, kw_only=True):
    session: str


class Deleted(Struct, frozen=True, kw_only=True):
    session: str


Fact = (
    Asked | Answered | ToolUsed | Completed | Retried | Errored | Stopped | Idle | Compacted
    | Deleted
)  # fmt: skip

_ID = re.compile(r"msg_([0-9a-f]{12})")
_ID_MS = (1 << 36) - 1
LONGEST_NAMED_MS = 60_000
"""Longest time from an id that an interface chose to its message; else the id tells no time."""
"""An id holds the lowest 36 bits of the millisecond in which it was made."""
ABORTED = frozenset({"MessageAbortedError", "AbortError"})
UNEVENTFUL = frozenset({"server.connected", "server.heartbeat", "session.updated", "session.diff"})


_OF_SESSIONS: Mapping[str, Callable[[str], Fact]] = {
    "session.idle": lambda session: Idle(session=session, is_first=False),
    "session.compacted": lambda session: Compacted(session=session),
    "session.deleted": lambda session: Deleted(session=session),
}


def facts(event: EventFields, *, now: float) -> Sequence[Fact] | None:
    """Read what an event says, in order; None: it is of a kind that is not known."""
    properties = _table(event.get("properties")) or _table(event.get("data"))
    session = session_of(properties)
    match event.get("type"):
        case "message.updated":
            return _message(_table(properties.get("info")), session)
        case "message.part.updated":
            return _part(_table(properties.get("part")), session)
        case "message.part.delta":
            reply = _text(properties.get("messageID"))
            is_said = bool(_text(properties.get("delta")))
            return (Answered(session=session, reply=reply),) if session and is_said else ()
        case "session.status":
            return _status(_table(properties.get("status")), session, now=now)
        case "session.error":
            return _error(_table(properties.get("error")), session)
        case str() as kind if kind in _OF_SESSIONS:
            return (_OF_SESSIONS[kind](session),) if session else ()
        case str() as kind if kind in UNEVENTFUL:
            return ()
        case _:
            return None


def session_of(properties: EventFields) -> str:
    info = _table(properties.get("info"))
    for found in (
        properties.get("sessionID"),
        properties.get("session_id"),
        info.get("sessionID"),
        info.get("id") if _text(info.get("id")).startswith("ses") else None,
        _table(properties.get("part")).get("sessionID"),
    ):
        if isinstance(found, str) and found:
            return found
    return ""


def model_of(info: EventFields) -> str | None:
    """`provider/model` of a message, of the user or of a model."""
    given = info.get("model")
    if isinstance(given, str) and "/" in given:
        return given
    table = _table(given)
    provider = _text(info.get("providerID")) or _text(table.get("providerID"))
    model = _text(info.get("modelID")) or _text(table.get("modelID")) or _text(table.get("id"))
    return f"{provider}/{model}" if provider and model else None


def variant_of(info: EventFields) -> str:
    """Read how hard the model of a message is to think, by name; empty: as it does by itself."""
    return _text(_table(info.get("model")).get("variant")) or _text(info.get("variant"))


def split_model(model: str) -> dict[str, str]:
    """A model may have slashes of its own behind that of its provider."""
    provider, _, name = model.partition("/")
    return {"providerID": provider, "modelID": name}


def _message(info: EventFields, session: str) -> Sequence[Fact]:
    reply, message, model = (
        _text(info.get("id")),
        _text(info.get("parentID")),
        model_of(info),
    )
    if info.get("role") != "assistant" or not (session and reply and message and model):
        return ()
    if info.get("summary") is True or info.get("mode") == "compaction":
        return ()
    agent = _text(info.get("agent")) or _text(info.get("mode")) or None
    found: list[Fact] = [
        Asked(session=session, message=message, reply=reply, model=model, agent=agent)
    ]
    usage = message_usage(info)
    if usage != Usage():
        found.append(Answered(session=session, reply=reply))
    at = _completed_of(_table(info.get("time")))
    if at is not None:
        found.append(
            Completed(
                session=session,
                message=message,
                reply=reply,
                model=model,
                usage=usage,
                at=at,
                is_unfinished=info.get("finish") == "unknown",
            )
        )
    return found


def _completed_of(time: EventFields) -> float | None:
    """Read when a reply was begun that is complete; None: it is not complete."""
    completed, created = time.get("completed"), time.get("created")
    if not isinstance(completed, int | float):
        return None
    return (created if isinstance(created, int | float) else completed) / 1000


def _part(part: EventFields, session: str) -> Sequence[Fact]:
    reply = _text(part.get("messageID"))
    if not session or not reply:
        return ()
    match part.get("type"):
        case "tool":
            effects = tool_effects(_text(part.get("tool")))
            is_begun = _table(part.get("state")).get("status") in (
                "running",
                "completed",
                "error",
            )
            used = ToolUsed(session=session, reply=reply, may_write=is_begun and effects != "none")
            return (Answered(session=session, reply=reply), used)
        case "patch":
            return (ToolUsed(session=session, reply=reply, may_write=bool(part.get("files"))),)
        case "text" | "reasoning" if _text(part.get("text")):
            return (Answered(session=session, reply=reply),)
        case "retry":
            attempt = part.get("attempt")
            return (
                Retried(
                    session=session,
                    evidence=error_evidence(_table(part.get("error"))),
                    attempt=attempt if isinstance(attempt, int) else 1,
                    reply=reply,
                ),
            )
        case _:
            return ()


def _status(status: EventFields, session: str, *, now: float) -> Sequence[Fact]:
    if not session:
        return ()
    match status.get("type"):
        case "idle":
            return (Idle(session=session),)
        case "retry":
            attempt = status.get("attempt")
            number = attempt if isinstance(attempt, int) else 1
            return (
                Retried(
                    session=session,
                    evidence=retry_evidence(status, now=now),
                    attempt=number,
                ),
            )
        case _:
            return ()


def _error(error: EventFields, session: str) -> Sequence[Fact]:
    if not session or not error:
        return ()
    if str(error.get("name")) in ABORTED:
        return (Stopped(session=session),)
    return (Errored(session=session, evidence=error_evidence(error)),)


# --- messages that are sent again ------------------------------------------------------------


_FIELDS = {
    "text": ("text", "metadata"),
    "file": ("mime", "filename", "url", "source"),
    "agent": ("name", "source"),
    "subtask": ("prompt", "description", "agent", "model", "command"),
}
"""Parts that a person has given, and what of them is sent again. Others the server has made."""


def parts_again(parts: object) -> list[dict[str, Any]]:
    """The parts of a message of the user in their order, without those that it did not write."""
    found = []
    for part in parts if isinstance(parts, list) else ():
        fields = _table(part)
        wanted = _FIELDS.get(_text(fields.get("type")))
        if wanted is None or fields.get("synthetic") is True or fields.get("ignored") is True:
            continue
        found.append(
            {"type": fields["type"], **{key: fields[key] for key in wanted if key in fields}}
        )
    return found


def is_of_user(message: EventFields) -> bool:
    """Return whether a person wrote it: a compaction writes in the name of the user too."""
    if _table(message.get("info")).get("role") != "user":
        return False
    parts = message.get("parts")
    kinds = {_text(_table(one).get("type")) for one in parts} if isinstance(parts, list) else set()
    return "compaction" not in kinds


def is_automatic(message: EventFields) -> bool:
    """Return whether a compaction was begun by the server itself."""
    parts = message.get("parts")
    asked = map(_table, parts if isinstance(parts, list) else ())
    return any(one.get("type") == "compaction" and one.get("auto") is True for one in asked)


def written_of(messages: Sequence[EventFields], message: str) -> list[Written]:
    """Keep the messages of the user from one on. A request to compact has no answer to wait for."""
    found = []
    for one in messages:
        info = _table(one.get("info"))
        name, created = _text(info.get("id")), _table(info.get("time")).get("created")
        is_asked = is_of_user(one) and name >= message
        if is_asked and isinstance(created, int | float):
            found.append(Written(at=created / 1000, named_at=_named_at(name, int(created))))
    return found


def _named_at(name: str, created_ms: int) -> float | None:
    ticks = _ID.match(name)
    before_ms = _ID_MS if ticks is None else (created_ms - (int(ticks[1], 16) >> 12)) & _ID_MS
    if before_ms > LONGEST_NAMED_MS:
        return 0.0
    return (created_ms - before_ms) / 1000 if before_ms else None


def is_task_of(part: object, child: str) -> bool:
    """Return whether a part is the failed task that a subagent's session was made for."""
    state = _table(_table(part).get("state"))
    return (
        state.get("status") == "error" and _table(state.get("metadata")).get("sessionId") == child
    )


def may_have_written(messages: Sequence[EventFields], message: str) -> bool:
    """Return whether tools of the turn of a message may have changed files."""
    for one in messages:
        info = _table(one.get("info"))
        if _text(info.get("parentID")) != message:
            continue
        for part in one.get("parts") or ():
            for fact in _part({**_table(part), "messageID": "-"}, "-"):
                if isinstance(fact, ToolUsed) and fact.may_write:
                    return True
    return False


# --- a session at its server ---------------------------------------------------------------------
# A session at its server: its calls, and what they say when it or the server is gone.


class Failed(Exception):
    """A step could not be done: says which one and why."""


class SessionGone(Exception):
    """The session is not there any more."""


class Lost(Exception):
    """The server is not there any more. It may come back, and the session with it."""


class At(Struct, frozen=True, kw_only=True):
    """A session at its server."""

    link: Link
    session: str
    directory: str = ""
    heard: Callable[[], list[EventFields]] = list
    """Its messages by its events, where the server cannot say them."""

    async def call(self, method: str, path: str = "", *, body: EventFields | None = None) -> Called:
        """
        Raises:
            SessionGone, Lost.
        """
        called = await self.link.call(
            method, f"/session/{self.session}{path}", body=body, directory=self.directory
        )
        if called.status == 404:
            raise SessionGone
        if called.status == 0 and not await self._is_there():
            raise Lost
        return called

    async def _is_there(self) -> bool:
        for path in ("/global/health", "/config"):
            found = await self.link.call("GET", path, limit_s=2.0)
            if found.is_good:
                return True
        return False

    async def messages(self) -> list[EventFields]:
        """
        Raises:
            Failed, SessionGone, Lost.
        """
        called = await self.call("GET", "/message")
        if called.status == 400 and (heard := self.heard()):
            return heard
        if not called.is_good or not isinstance(called.body, list):
            why = called.problem or "an answer that is not a list"
            raise Failed(f"reading the session's messages ({why})")
        return [one for one in called.body if isinstance(one, dict)]

    async def info(self) -> EventFields:
        """Fetch the session itself. Raises `SessionGone`, `Lost`; what cannot be read is empty."""
        called = await self.call("GET")
        return called.body if isinstance(called.body, dict) else {}


async def tell_parent(at: At, state: Literal["moving", "failed"], text: str = "") -> None:
    """Tell the parent of a subagent what to make of its end. Known only inside of opencode."""
    if at.link.is_inside:
        body = {"session": at.session, "state": state, "text": text}
        await at.link.call("POST", f"{INSIDE}child", body=body)


# --- around a server -----------------------------------------------------------------------------
# Whose a server is, and who waits at it for the end of a turn.


class Around:
    """
    One server.

    Attributes:
        pid: Its process, as far as it can be seen.
        owner: Whose its turns are.
    """

    def __init__(self, whose: Whose, link: Link) -> None:
        self._whose = whose
        self._link = link
        self.pid: int | None = None
        self.owner: Owner = "person"

    async def look(self) -> Owner:
        self.owner = await to_thread.run_sync(self._look)
        return self.owner

    def _look(self) -> Owner:
        url = self._link.url
        self.pid = self._link.pid or (self._whose.server_at(url) if "://" in url else None)
        return self._whose.owner(self.pid)

    async def is_awaited(
        self,
        messages: Sequence[EventFields],
        message: str,
        *,
        certainly: bool = False,
    ) -> bool | None:
        """
        Return whether a program waits for the turn of a message, which ends for it where it is
        stopped; None: that cannot be seen.

        Args:
            messages: Of the session, that one among them.
            certainly: False: as far as it cannot be ruled out.
        """
        if self.owner == "program":
            return True
        written = written_of(messages, message)
        ask = partial(self._whose.is_awaited, self._link.url, written, certainly=certainly)
        return await to_thread.run_sync(ask)

    async def stops(self, session: str, *, since_at: float) -> int | None:
        """Count how often a session was asked to stop; None: that is not known here."""
        ask = partial(self._whose.stops, self.pid, session, since_at=since_at)
        return await to_thread.run_sync(ask)
