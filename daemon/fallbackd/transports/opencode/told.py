"""
What has been handed on of one prompt's events, and what of a server's state is news to that.

A server repeats no event. Who has not listened for a while asks it for its state and gets from
`Told.missed` what must have happened, as events of the same shape. Text that is still being
written is not part of that state: it comes whole when it is complete.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

ToldEvent = dict[str, Any]


class ToldSnapshot(Struct, frozen=True, kw_only=True):
    """The state of a prompt's session, and of those of its subagents."""

    main: str
    children: tuple[Mapping[str, Any], ...]
    """Sessions, parents first."""
    statuses: Mapping[str, Any]
    """Of those that are at work. Asked for before the messages: what is idle has said all."""
    messages: Mapping[str, list[Any]]
    """`[{"info", "parts"}]` by session."""
    asked: tuple[ToldEvent, ...] = ()
    """`permission.asked` and `question.asked` that wait for an answer."""

    @property
    def is_busy(self) -> bool:
        status = self.statuses.get(self.main)
        return isinstance(status, dict) and status.get("type") != "idle"

    @property
    def last_answer(self) -> Mapping[str, Any] | None:
        """`info` of the last message of the assistant that is no summary."""
        return next(
            (info for info in reversed(self._answers()) if info.get("summary") is not True), None
        )

    @property
    def is_settled(self) -> bool:
        """Idle, and the end of its last turn is written down."""
        last = self._answers()[-1:]
        return not self.is_busy and bool(last) and (_is_complete(last[0]) or "error" in last[0])

    def _answers(self) -> list[Mapping[str, Any]]:
        infos = (_fields(each).get("info") for each in self.messages.get(self.main, ()))
        return [each for each in infos if isinstance(each, dict) and each.get("role") != "user"]


class Told:
    """Takes every event that is handed on, the recorded ones first."""

    def __init__(self) -> None:
        self._seen: dict[str, bytes] = {}
        self._whole: set[str] = set()
        self._asked: set[str] = set()
        self.has_session = False
        self.children: dict[str, str] = {}
        """Parent by child session."""

    def take(self, event: Mapping[str, Any]) -> None:
        properties = _fields(event.get("properties"))
        key = _key(event)
        if key:
            self._seen[key] = _digest(event)
        match event.get("type"):
            case "fallbackd.session":
                self.has_session = True
            case "session.created":
                info = _fields(properties.get("info"))
                if info.get("parentID"):
                    self.children[str(info.get("id"))] = str(info["parentID"])
            case "permission.asked" | "question.asked":
                self._asked.add(str(properties.get("id")))
            case "message.part.updated":
                part = _fields(properties.get("part"))
                if part.get("text"):
                    self._whole.add(str(part.get("id")))
                else:
                    self._whole.discard(str(part.get("id")))

    def has(self, event: Mapping[str, Any]) -> bool:
        """Whether it says nothing new: the same state again, or a piece of a text that is whole."""
        if event.get("type") == "message.part.delta":
            return str(_fields(event.get("properties")).get("partID")) in self._whole
        if event.get("type") in ("permission.asked", "question.asked"):
            return str(_fields(event.get("properties")).get("id")) in self._asked
        key = _key(event)
        return bool(key) and self._seen.get(key) == _digest(event)

    def missed(self, now: ToldSnapshot) -> Iterator[ToldEvent]:
        """What has happened since the last event that was taken. Takes what it yields."""
        for each in self._missed(now):
            if not self.has(each):
                self.take(each)
                yield each

    def _missed(self, now: ToldSnapshot) -> Iterator[ToldEvent]:
        for child in now.children:
            yield _event("session.created", str(child.get("id")), info=child)
        for session, messages in now.messages.items():
            for message in messages:
                yield from self._message(session, _fields(message), is_main=session == now.main)
        for session in (now.main, *(str(each.get("id")) for each in now.children)):
            if isinstance(status := now.statuses.get(session), dict):
                yield _event("session.status", session, status=status)
        yield from now.asked

    def _message(
        self, session: str, message: Mapping[str, Any], *, is_main: bool
    ) -> Iterator[ToldEvent]:
        info = _fields(message.get("info"))
        updated = _event("message.updated", session, info=info)
        is_news = not self.has(updated)
        yield updated  # first: its parts are read by its role
        parts = message.get("parts")
        for part in parts if isinstance(parts, list) else []:
            yield _event("message.part.updated", session, part=_fields(part))
        if is_main and is_news and info.get("summary") is True and _is_complete(info):
            yield _event("session.compacted", session)


def _is_complete(info: Mapping[str, Any]) -> bool:
    return bool(info.get("finish")) or "completed" in _fields(info.get("time"))


def _event(kind: str, session: str, **properties: Any) -> ToldEvent:
    return {"type": kind, "properties": {"sessionID": session, **properties}}


def _key(event: Mapping[str, Any]) -> str:
    """What an event says the state of; empty: it is something that happens, each time anew."""
    properties = _fields(event.get("properties"))
    kind = str(event.get("type"))
    match kind:
        case "message.updated":
            return f"message/{_fields(properties.get('info')).get('id')}"
        case "message.part.updated":
            return f"part/{_fields(properties.get('part')).get('id')}"
        case "session.status":
            return f"status/{properties.get('sessionID')}"
        case "session.created":
            return f"session/{_fields(properties.get('info')).get('id')}"
        case "fallbackd.final":
            return kind
        case _:
            return ""


def _digest(event: Mapping[str, Any]) -> bytes:
    """Of what it says: not of when, nor of which event said it."""
    properties = _fields(event.get("properties"))
    match event.get("type"):
        case "session.created":
            return b"made"  # its totals change all the time
        case "message.part.updated":
            said: object = properties.get("part")
        case "message.updated":
            said = properties.get("info")
        case _:
            said = properties
    encoded = msgspec.json.encode(said, order="sorted")
    return hashlib.blake2b(encoded, digest_size=16).digest()


def _fields(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
