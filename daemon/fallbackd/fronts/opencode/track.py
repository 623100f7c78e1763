"""One session of an opencode server, as far as it was seen."""

from collections import deque
from collections.abc import Sequence

import anyio
from msgspec import Struct

from fallbackd.fronts.opencode.convert import (
    ABORTED,
    Asked,
    Errored,
    EventFields,
    Fact,
    Idle,
    Stopped,
    model_of,
)
from fallbackd.lib.foreign_json import fields as _table
from fallbackd.lib.foreign_json import text as _text

NOT_WHOLE = frozenset({"tool-calls", "unknown", "error"})
"""Ends of a reply after which the same turn continues, or has failed."""
OF_MESSAGES = frozenset({"message.updated", "message.part.updated", "message.removed"})
MAX_BEGUN = 20
MAX_HEARD = 100
"""Messages of one session that are kept."""
MAX_WAITING = 1000
"""Facts of one session that wait behind a rescue; more are dropped, the oldest first."""


class HeardMessages:
    """
    Messages of a session, from its first one with a `format` on, as its events show them: opencode
    answers with an error where it is asked for them (1.18.33).
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[EventFields, dict[str, EventFields]]] = {}

    def hear(self, kind: object, properties: EventFields) -> None:
        match kind:
            case "message.updated":
                info = _table(properties.get("info"))
                if name := _text(info.get("id")) if self._found or info.get("format") else "":
                    _, parts = self._found.get(name, ({}, {}))
                    self._found[name] = info, parts
                    while len(self._found) > MAX_HEARD:
                        self._found.pop(next(iter(self._found)))
            case "message.part.updated":
                part = _table(properties.get("part"))
                if found := self._found.get(_text(part.get("messageID"))):
                    found[1][_text(part.get("id"))] = part
            case "message.removed":
                self._found.pop(_text(properties.get("messageID")), None)

    def listed(self) -> list[EventFields]:
        """In their order; empty: the server can be asked."""
        return [
            {"info": info, "parts": list(parts.values())}
            for _, (info, parts) in sorted(self._found.items())
        ]


class Track:
    """One session, as far as it was seen."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.messages = HeardMessages()
        self.directory = ""
        self.message = ""
        """Of the user: the one that is being answered."""
        self.reply = ""
        self.model = ""
        self.agent: str | None = None
        self.is_answered = False
        self.may_have_written = False
        self.awaited = ""
        """The last message for whose answer a program waits."""
        self.unfinished = 0
        self.retried_reply = ""
        self.retries_since_at = 0.0
        self.parent: str | None = None
        """The session that waits for this one; empty: none does. None: not known yet."""
        self.idles = 0
        """How often the server said that nothing is under way here."""
        self.stops = 0
        """How often a turn of it was stopped while its model answered."""
        self.idles_at_error = 0
        """How often before the latest error: a turn that failed is idle up to twice more."""
        self.changed = anyio.Event()
        """Something was heard."""
        self.begun_at_idle: dict[str, int] = {}
        """By message: how many of those came before its model was asked. The latest few."""
        self.facts: deque[Fact] = deque(maxlen=MAX_WAITING)
        self.is_working = False
        self.lock = anyio.Lock()

    def heard(self, fact: Fact) -> None:
        """At once, whatever is still to be done about the facts before it."""
        match fact:
            case Idle(is_first=True):
                self.idles += 1
            case Stopped():
                self.stops += 1
            case Errored():
                self.idles_at_error = self.idles
            case Asked(message=message):
                self.begun_at_idle.setdefault(message, self.idles)
                while len(self.begun_at_idle) > MAX_BEGUN:
                    self.begun_at_idle.pop(next(iter(self.begun_at_idle)))
            case _:
                pass
        self.changed.set()
        self.changed = anyio.Event()

    def retries(self, now: float) -> float:
        """The server asks for a reply again: since when it does."""
        if self.retried_reply != self.reply or not self.retries_since_at:
            self.retried_reply, self.retries_since_at = self.reply, now
        return self.retries_since_at

    @property
    def has_error(self) -> bool:
        """Whether one waits to be looked at."""
        return any(isinstance(one, Errored) for one in self.facts)

    def drop_errors(self) -> None:
        """
        Errors that wait are of the model that is left. They name no message: looked at later,
        they would be taken for errors of the next one.
        """
        kept = [one for one in self.facts if not isinstance(one, Errored)]
        self.facts.clear()
        self.facts.extend(kept)


class TurnWork(Struct, frozen=True, kw_only=True):
    """What a session is at, or was at when it stopped, by its messages."""

    message: str
    """Of the user, or the request for a compaction."""
    model: str
    reply: str = ""
    """Empty: the model was not asked yet."""
    agent: str | None = None
    compacts: bool = False
    continues: bool = False
    """The server began the compaction by itself, and works on behind it."""
    is_aborted: bool = False
    """Its reply has ended without an error and without an end."""


def _unanswered(
    asked: dict[str, EventFields], replies: Sequence[EventFields]
) -> EventFields | None:
    """The newest message, where it has no reply."""
    newest = next(reversed(asked.values()), None)
    replied = {str(_info(one).get("parentID")) for one in replies}
    return None if newest is None or _id(newest) in replied else newest


def work_of(messages: Sequence[EventFields]) -> TurnWork | None:
    """
    The reply that is not whole, or the newest message that was never replied to. None: every
    message has its whole answer, and whatever failed was none of them.
    """
    asked = {_id(one): one for one in messages if _info(one).get("role") == "user"}
    replies = [one for one in messages if _info(one).get("role") == "assistant"]
    newest = _unanswered(asked, replies)
    last = replies[-1] if replies else None
    if last is not None and not _is_whole(_info(last)) and not _is_behind(newest, last):
        return _work(asked.get(str(_info(last).get("parentID"))), last, reply=_id(last))
    return None if newest is None else _work(newest, newest)


def _is_behind(newest: EventFields | None, last: EventFields) -> bool:
    """Whether a message without a reply was written when the last reply was over already."""
    ended_at = _table(_info(last).get("time")).get("completed")
    if newest is None or not isinstance(ended_at, int | float):
        return False
    written_at = _table(_info(newest).get("time")).get("created")
    return not isinstance(written_at, int | float) or written_at >= ended_at


def understand(track: Track, work: TurnWork) -> None:
    """What was heard of it may be late; the messages are as the server has them now."""
    if track.message != work.message:
        track.is_answered = False
        track.unfinished = 0
    track.message, track.reply, track.model = work.message, work.reply, work.model
    track.agent = work.agent or track.agent


def _work(question: EventFields | None, newest: EventFields, *, reply: str = "") -> TurnWork | None:
    """
    Args:
        newest: Of question and reply.
    """
    model = model_of(_info(newest))
    if question is None or model is None:
        return None
    parts = question.get("parts")
    asks = map(_table, parts if isinstance(parts, list) else ())
    compaction = next((one for one in asks if one.get("type") == "compaction"), None)
    agent = _info(question).get("agent")
    return TurnWork(
        message=_id(question),
        model=model,
        reply=reply,
        agent=agent if isinstance(agent, str) else None,
        compacts=compaction is not None,
        continues=compaction is not None and compaction.get("auto") is True,
        is_aborted=bool(reply) and _is_aborted(_info(newest)),
    )


def _is_whole(info: EventFields) -> bool:
    finish = info.get("finish")
    return bool(finish) and finish not in NOT_WHOLE and not info.get("error")


def _is_aborted(info: EventFields) -> bool:
    error = _table(info.get("error"))
    if error:
        return str(error.get("name")) in ABORTED
    is_over = isinstance(_table(info.get("time")).get("completed"), int | float)
    return is_over and not info.get("finish")


def _info(message: EventFields) -> EventFields:
    return _table(message.get("info"))


def _id(message: EventFields) -> str:
    found = _info(message).get("id")
    return found if isinstance(found, str) else ""
