"""
Subscriptions to events.

    events.subscribe ──▶ replay from the journal ──▶ live ──▶ dropped: does not read
                         (only with `since`)           │
                                                       └────▶ ended: unsubscribed, or gone

A subscriber is at one place of the journal (`cursor`). Replay reads pages until it has reached
the end of the journal in an instant in which nothing else can run; from then on every event that
is committed is written at once. So nothing is missed and nothing comes twice. Events never wait
for a reader: one whose backlog grows too long gets a last event that says so.

A subscriber to one delegation is at one place of its text too (`text_at`), and is sent what is
kept from there on: also what was written before it came. Its last event is the end of the
delegation or its question, even where that lies in the past.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from fallbackd.api import shapes
from fallbackd.api.host import Caller
from fallbackd.core.decision import Journaled, Note
from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.core.records import Delegation
from fallbackd.core.views import last_event
from fallbackd.engine.live import MAX_PIECE_CHARS, Progress
from fallbackd.fronts.rpc.dispatch import RpcError
from fallbackd_client.progress import LAST
from fallbackd_client.wire import codes
from fallbackd_client.wire.methods.events import EventsSubscribeParams, TextPlace

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

MAX_OF_CONNECTION = 16
MAX_OF_ALL = 1024
FAIR = 2
"""Number that a connection may have whatever others have."""
MAX_BACKLOG_BYTES = 1024 * 1024
PROGRESS_BACKLOG_BYTES = 64 * 1024
"""Unsent bytes above which progress is left out: the next one says the same and more."""
PAGE = 500
PROGRESS_KINDS = frozenset({"attempt.output", "attempt.phase", "attempt.text"})
"""Kinds that come often, and have to be named."""
DROPPED_KIND = "subscription.dropped"

BEGAN_ANEW = (
    "There is no event {since} yet, the last one is {last}: the journal was begun again, or that"
    " number is from another daemon. Events begin now; `since`: 0 replays all that are kept."
)

_log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


class Subscription:
    __slots__ = (
        "cursor",
        "delegation",
        "has_ended",
        "head",
        "id",
        "is_live",
        "kinds",
        "owner",
        "session",
        "text_at",
    )

    def __init__(
        self,
        name: str,
        owner: Caller,
        *,
        wanted: EventsSubscribeParams,
        cursor: int,
    ) -> None:
        self.id = name
        self.owner = owner
        self.kinds = None if wanted.kinds is None else frozenset(wanted.kinds)
        self.session = wanted.session
        self.delegation = wanted.delegation
        self.text_at = wanted.text_since or TextPlace(attempt="", offset=0)
        """Up to where it has the text of its delegation."""
        self.has_ended = False
        """True once it was sent the last event of its delegation."""
        self.cursor = cursor
        self.is_live = False
        self.head = (
            b'{"jsonrpc":"2.0","method":"event","params":{"subscription":' + _encode(name) + b","
        )

    def wants(self, kind: str, session: str | None, delegation: str | None) -> bool:
        if self.delegation is not None and self.delegation != delegation:
            return False
        if self.kinds is None:
            if kind in PROGRESS_KINDS:
                return False
        elif kind not in self.kinds:
            return False
        return self.session is None or self.session == session

    def send(self, body: bytes) -> None:
        """`body` is an encoded event object."""
        self.owner.write(self.head + body[1:] + b"}\n")


class Subscriptions:
    """All of one server. Asks the engine for its events once, however many want them."""

    def __init__(self, engine: "Engine", *, max_backlog_bytes: int = MAX_BACKLOG_BYTES) -> None:
        self._engine = engine
        self._max_backlog_bytes = max_backlog_bytes
        self._by_owner: dict[Caller, dict[str, Subscription]] = {}
        self._live: dict[str, Subscription] = {}
        self._next = 1
        self._stop: Callable[[], None] = engine.subscribe(self._happened)

    def close(self) -> None:
        self._stop()

    def open(self, owner: Caller, wanted: EventsSubscribeParams) -> tuple[str, int, str | None]:
        """
        Begin a subscription.

        Returns:
            Its name, the `seq` of the last journaled event at this moment, and what the
            subscriber has to know about its `since`, if anything.
        """
        mine = self._by_owner.get(owner)
        if mine is None:
            mine = self._by_owner[owner] = {}
            owner.on_close(lambda: self._forget(owner))
        of_all = sum(len(each) for each in self._by_owner.values())
        if len(mine) >= MAX_OF_CONNECTION or (of_all >= MAX_OF_ALL and len(mine) >= FAIR):
            raise RpcError(
                codes.TOO_MANY,
                f"This connection has {len(mine)} subscriptions, of {of_all} in all, which is the"
                " most. End one with `events.unsubscribe`, or ask for several kinds in one.",
                kind="too_many_subscriptions",
            )
        last_seq, since = self._engine.store.last_seq, wanted.since
        one = Subscription(
            f"s{self._next}",
            owner,
            wanted=wanted,
            cursor=last_seq if since is None else min(since, last_seq),
        )
        self._next += 1
        mine[one.id] = one
        if one.delegation is None and one.cursor == last_seq:
            self._go_live(one)
        else:
            owner.start_soon(lambda: self._replay(one))
        warning = None
        if since is not None and since > last_seq:
            warning = BEGAN_ANEW.format(since=since, last=last_seq)
        return one.id, last_seq, warning

    def end(self, owner: Caller, name: str) -> bool:
        if self._by_owner.get(owner, {}).pop(name, None) is None:
            return False  # there is none, or another connection's
        self._live.pop(name, None)
        return True

    def _forget(self, owner: Caller) -> None:
        for name in self._by_owner.pop(owner, {}):
            self._live.pop(name, None)

    def _go_live(self, one: Subscription) -> None:
        one.is_live = True
        self._live[one.id] = one

    async def _replay(self, one: Subscription) -> None:
        followed = None
        if one.delegation is not None:
            followed = await self._engine.store.delegation(DelegationId(one.delegation))
            if followed is None or not one.owner.authority.has_begun(followed):
                self._drop(one, f"There is no delegation {one.delegation!r}.")
        while one.owner.is_open and one.id in self._by_owner.get(one.owner, {}):
            if not self._send_text(one):
                await one.owner.until_drained()
                continue
            end = self._engine.store.last_seq
            if one.cursor >= end:
                self._go_live(one)
                if followed is not None and not one.has_ended:
                    self._send_last(one, followed)
                return
            page = await self._engine.store.journal(after_seq=one.cursor, limit=PAGE)
            for each in page:
                if one.wants(each.note.kind, each.note.session, each.note.delegation):
                    one.send(_encode(shapes.event(each)))
                    one.has_ended = one.has_ended or each.note.kind in LAST
                one.cursor = each.seq
            if not page:
                one.cursor = end  # what is left was pruned
            await one.owner.until_drained()

    def _happened(self, what: Journaled | Progress) -> None:
        match what:
            case Journaled():
                self._tell_event(what)
            case Progress():
                self._tell_progress(what)

    def _tell_event(self, what: Journaled) -> None:
        note = what.note
        body: bytes | None = None
        for one in tuple(self._live.values()):
            if what.seq <= one.cursor:
                continue
            is_wanted = one.wants(note.kind, note.session, note.delegation)
            if is_wanted and not self._send_text(one):
                self._go_back(one)  # what it has not read of the text comes first
                continue
            one.cursor = what.seq
            if is_wanted:
                body = body or _encode(shapes.event(what))
                self._push(one, body)

    def _tell_progress(self, what: Progress) -> None:
        body: bytes | None = None
        for one in tuple(self._live.values()):
            if one.delegation == what.delegation:
                self._send_text(one)
                if what.kind == "attempt.text" and not _is_at(one, what):
                    continue
            is_wanted = one.wants(what.kind, what.session, what.delegation)
            if is_wanted and one.owner.backlog_bytes <= PROGRESS_BACKLOG_BYTES:
                body = body or _encode(_progress(what))
                one.send(body)

    def _go_back(self, one: Subscription) -> None:
        one.is_live = False
        self._live.pop(one.id, None)
        one.owner.start_soon(lambda: self._replay(one))

    def _send_text(self, one: Subscription) -> bool:
        """
        Send what is kept of the text of its delegation from its place on.

        Returns:
            False: more of it is there than the subscriber reads.
        """
        if one.delegation is None or not one.wants("attempt.text", one.session, one.delegation):
            return True
        texts = self._engine.texts.of(one.delegation)
        known = [each.attempt for each in texts]
        if one.text_at.attempt in known:
            texts = texts[known.index(AttemptId(one.text_at.attempt)) :]
        for text in texts:
            offset = _offset_in(one, text.attempt, text.run)
            while offset < text.kept_chars:
                if one.owner.backlog_bytes > PROGRESS_BACKLOG_BYTES:
                    return False
                piece = text.since(offset, MAX_PIECE_CHARS)
                one.send(_encode(_progress(text.said(piece, offset))))
                offset += len(piece)
                one.text_at = TextPlace(attempt=text.attempt, run=text.run, offset=offset)
        return True

    def _send_last(self, one: Subscription, followed: Delegation) -> None:
        """Send the event after which nothing happens, where it lies before the subscription."""
        asked = followed.question
        if asked is None and not followed.is_ended:
            return
        kind, backend, fields = last_event(followed)
        at = followed.ended_at if asked is None else asked.opened_at
        note = Note(
            kind=kind,
            at=self._engine.clock.now() if at is None else at,
            delegation=followed.delegation,
            session=followed.session,
            backend=backend,
            fields=fields,
        )
        if one.wants(kind, note.session, note.delegation):
            one.send(_encode(shapes.noted(note)))

    def _push(self, one: Subscription, body: bytes) -> None:
        if one.owner.backlog_bytes <= self._max_backlog_bytes:
            one.send(body)
            return
        _log.warning("subscription.dropped", connection=one.owner.number, subscription=one.id)
        self._drop(
            one,
            "This subscription ended because its events were not read."
            f" Subscribe again with `since`: {one.cursor - 1}.",
        )

    def _drop(self, one: Subscription, why: str) -> None:
        one.send(_encode({"at": self._engine.clock.now(), "kind": DROPPED_KIND, "text": why}))
        self.end(one.owner, one.id)


def _is_at(one: Subscription, what: Progress) -> bool:
    """Return whether a piece, which is sent as it came, follows what the subscriber has."""
    return what.offset >= _offset_in(one, what.attempt, what.run)


def _offset_in(one: Subscription, attempt: str, run: str) -> int:
    """Return how much the subscriber has of the text that this run of an attempt writes."""
    at = one.text_at
    return at.offset if (at.attempt, at.run) == (attempt, run) else 0


def _progress(one: Progress) -> dict[str, Any]:
    said: dict[str, Any] = {"offset": one.offset}
    if one.kind == "attempt.phase":
        said = {"phase": one.phase}
    elif one.kind == "attempt.text":
        said["text"] = one.text
        if one.run:
            said["run"] = one.run
    return {
        "at": one.at,
        "kind": one.kind,
        "delegation": one.delegation,
        "session": one.session,
        "backend": one.backend,
        "attempt": one.attempt,
        **said,
    }
