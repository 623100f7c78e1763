"""
The steps of a rescue at the server: stop the turn, take the message back, send it to the next
model. Each step is on record before it is done, so that it is resumed after a crash.

    messages ─▶ abort ─▶ revert ─▶ prompt, under an id that was chosen before
                           └ only where the turn has changed no files; else the work stays, and
                             the next model is asked to continue from it

A failed compaction takes the same steps with the request for it; the last one is `summarize`.
A server forgets what is taken back as soon as the next message comes, so the messages are on record
from before the revert until each of them was sent.

Whether the user stops the session meanwhile shows in the events of its server: it says that the
session is idle once more than our own abort explains. Of two aborts at once it says so only once;
then its log tells how many were asked for, up to a second later, which is waited for before the
message is sent. What the user writes meanwhile shows in the messages. In all cases the session is
the user's again. A turn that is over is not aborted.
"""

from collections import deque
from collections.abc import Sequence, Set
from typing import Any, Literal

import anyio
import structlog
from msgspec import Struct

from fallbackd.core.records import Rescue
from fallbackd.engine.opencode import Again, Watched, message_id
from fallbackd.fronts.opencode.convert import (
    ABORTED,
    Around,
    Asked,
    At,
    Errored,
    EventFields,
    Fact,
    Failed,
    Idle,
    Lost,
    SessionGone,
    Stopped,
    is_automatic,
    is_of_user,
    model_of,
    parts_again,
    split_model,
    tell_parent,
    variant_of,
)
from fallbackd.lib.foreign_json import fields as _table
from fallbackd.lib.foreign_json import text as _text
from fallbackd.ports.opencode import STOPS_LAG_S, Called

# --- what was seen of a session ------------------------------------------------------------------
# One session of an opencode server, as far as it was seen.

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
        """List them in their order; empty: the server can be asked."""
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
        """Message of the user that is being answered."""
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
        """Number of times that the server said that nothing is under way here."""
        self.stops = 0
        """Number of times that a turn of it was stopped while its model answered."""
        self.idles_at_error = 0
        """Number of them before the latest error: a turn that failed is idle up to twice more."""
        self.changed = anyio.Event()
        """Something was heard."""
        self.begun_at_idle: dict[str, int] = {}
        """Number by message: how many of those came before its model was asked. The latest few."""
        self.facts: deque[Fact] = deque(maxlen=MAX_WAITING)
        self.is_working = False
        self.lock = anyio.Lock()

    def heard(self, fact: Fact) -> None:
        """Note a fact at once, whatever is still to be done about the facts before it."""
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
        """Return whether one waits to be looked at."""
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
    """The work of a session, or that at which it stopped, by its messages."""

    message: str
    """Message of the user, or the request for a compaction."""
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
    """Return whether a message without a reply was written when the last reply was over already."""
    ended_at = _table(_info(last).get("time")).get("completed")
    if newest is None or not isinstance(ended_at, int | float):
        return False
    written_at = _table(_info(newest).get("time")).get("created")
    return not isinstance(written_at, int | float) or written_at >= ended_at


def understand(track: Track, work: TurnWork) -> None:
    """
    Take over what its messages say. What was heard of it may be late; the messages are as the
    server has them now.
    """
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


# --- the steps -----------------------------------------------------------------------------------

log = structlog.get_logger("opencode")

BUSY_LIMIT_S = 30.0
"""Time that a stopped turn may take to let go of its session."""
BUSY_LOOK_S = 0.05
ASKED_LIMIT_S = 15.0
"""Time that a server may take to ask the next model; then what was heard until then counts."""
IDLES_OF_ABORT = 1
"""Number of times that a session is said to be idle that is stopped as it waits to try again."""
IDLES_OF_ERROR = 2
"""Number where a turn has ended with an error (measured)."""
IDLES_OF_TASK = 3
"""Number where a subagent is stopped, which its parent does once more (measured)."""

ReplayEnd = Literal["done", "failed", "stopped", "gone", "lost", "overtaken"]


class HeardSince(Struct, frozen=True, kw_only=True):
    """State of a session when the failure of its turn was heard of."""

    at: float
    """Instant by the wall clock, as the server writes it into its log."""
    idles: int
    """Number of times that it had been idle."""
    is_retry: bool
    """Its server waits to try again."""


class StoppedByUser(Exception):
    """The user has stopped the session, which is not to be overruled."""


class Replay:
    """One rescue, from its first step or from where another run of the daemon left it."""

    def __init__(
        self,
        watched: Watched,
        at: At,
        around: Around,
        rescue: Rescue,
        *,
        track: Track,
    ) -> None:
        """
        Args:
            track: What is heard of the session meanwhile.
        """
        self._watched = watched
        self._at = at
        self._around = around
        self._rescue = rescue
        self._track = track
        self._idles = self._stops = self._own_idles = 0
        self._aborted_at: float | None = None
        self._log = log.bind(session=at.session, rescue=rescue.id)

    async def run(self, since: HeardSince | None = None) -> ReplayEnd:
        """
        Args:
            since: None: an earlier owner began it, and may have done more than its record says.
        """
        is_resumed = since is None
        is_ours = not is_resumed or await self._watched.advance(
            self._at.session, self._rescue.id, "resumed"
        )
        if not is_ours:
            self._log.warning("rescue.expired", step=self._rescue.step)
            return "overtaken"
        try:
            messages = await self._at.messages()
            kept = await self._watched.kept(self._rescue.id) if is_resumed else []
            if is_resumed and (sent := self._sent(messages, kept)):
                await self._send_again(kept[1:], behind=sent)
                return await self._accepted(sent)
            return await self._run(messages, since, kept)
        except SessionGone:
            await self._end("gone")
            self._log.info("rescue.gone", step=self._rescue.step)
            return "gone"
        except Lost:
            self._log.warning("rescue.interrupted", step=self._rescue.step)
            return "lost"
        except StoppedByUser:
            await self._tell_parent("failed", "it was stopped by the user")
            await self._end("stopped")
            self._log.info("rescue.stopped", step=self._rescue.step)
            return "stopped"
        except Failed as problem:
            await self._tell_parent("failed", f"the change of its model failed at {problem}")
            await self._end("failed", detail=str(problem))
            self._log.error("rescue.failed", step=self._rescue.step, problem=str(problem))
            return "failed"

    async def _tell_parent(self, state: Literal["moving", "failed"], text: str = "") -> None:
        if self._track.parent:
            await tell_parent(self._at, state, text)

    def _sent(self, messages: Sequence[EventFields], kept: Sequence[Again]) -> str:
        """
        Find the id under which the next model has it already; empty: it has not.

        Raises:
            Failed: The user has continued the session, or has taken the message back.
        """
        rescue = self._rescue
        ids = [_id(one) for one in messages]
        if rescue.new_message in ids:
            return rescue.new_message
        if sent := self._compaction_in(messages):
            return sent
        if rescue.message not in ids and not (kept and rescue.step == "prompt"):
            raise Failed("finding the message again (it was taken back in the meantime)")
        if any(_id(one) > rescue.new_message and is_of_user(one) for one in messages):
            raise Failed("continuing (the session went on in the meantime)")
        return ""

    def _compaction_in(self, messages: Sequence[EventFields]) -> str:
        """The request for the repeated compaction, where that is what the rescue sends."""
        rescue = self._rescue
        return _request(messages, rescue.model, behind=rescue.message) if rescue.compacts else ""

    def _find(self, messages: Sequence[EventFields]) -> EventFields:
        """The user's message, or the request to compact. Raises `Failed`."""
        is_kind = _is_request if self._rescue.compacts else is_of_user
        for one in messages:
            if _id(one) == self._rescue.message and is_kind(one):
                return one
        raise Failed("finding the user's message (no user message)")

    async def _run(
        self, messages: Sequence[EventFields], since: HeardSince | None, kept: list[Again]
    ) -> ReplayEnd:
        """
        Args:
            kept: What an earlier owner was about to send.
        """
        rescue = self._rescue
        found = None if kept else self._find(messages)
        messages = await self._stop(since)
        known = frozenset(_id(one) for one in messages)
        again = kept or self._again(found or {}, messages)
        if rescue.reverts and rescue.message in known:
            await self._watched.keep(rescue.id, again)
            if not await self._go_on("revert"):
                return "overtaken"
            await self._revert(known)
        if not await self._go_on("prompt"):
            return "overtaken"
        await self._check_untouched(known, since)
        self._track.drop_errors()
        sent = await self._send(again[0])
        is_stopped = not again[0].compacts and await self._is_stopped_on_its_way()
        if is_stopped:
            await self._at.call("POST", "/abort")
            self._log.info("rescue.stopped", step="prompt")
        await self._send_again(again[1:], behind=sent, is_stopped=is_stopped)
        return await self._accepted(sent)

    def _again(self, found: EventFields, messages: Sequence[EventFields]) -> list[Again]:
        """
        List what is sent: the message, and what the user asked for behind it: it was waiting, and
        is taken back with it. Each goes to the model that was chosen for it, unless that is the one
        that failed.
        """
        rescue, info = self._rescue, dict(_info(found))
        parts = [{"type": "text", "text": continuation(rescue)}]
        if rescue.reverts:
            parts = parts_again(found.get("parts")) or [{"type": "text", "text": ""}]
        first = Again(model=rescue.model, info=info, parts=parts, id=rescue.new_message)
        if rescue.compacts:
            first = Again(model=rescue.model, info=info, parts=[], compacts=True)
            first.continues, first.behind = rescue.continues, rescue.message
        queued = _later(messages, rescue.message) if rescue.reverts or rescue.compacts else ()
        again = [first]
        for one in queued:
            info, parts = dict(_info(one)), parts_again(one.get("parts"))
            model = self._model_for(info)
            if _is_request(one) and not is_automatic(one):
                again.append(Again(model=model, info=info, parts=[], compacts=True))
            elif is_of_user(one) and parts:
                again.append(Again(model=model, info=info, parts=parts))
        return again

    async def _stop(self, since: HeardSince | None) -> list[EventFields]:
        """
        End the turn, unless it is over.

        Returns:
            The messages as they are now: nothing more comes to the turn.

        Raises:
            StoppedByUser: The user has ended it.
        """
        track = self._track
        is_retry = since is not None and since.is_retry
        is_busy = await self._is_busy(self._at.session)
        if since is not None and is_retry and (track.idles > since.idles or not is_busy):
            raise StoppedByUser
        if await self._is_parent_stopped():
            raise StoppedByUser
        await self._tell_parent("moving")  # it is to wait for the next model
        self._idles, self._stops = track.idles, track.stops
        if is_busy:
            self._own_idles = IDLES_OF_TASK if track.parent else IDLES_OF_ABORT
            called = await self._at.call("POST", "/abort")
            if not called.is_good:
                raise Failed(f"abort ({called.problem})")
            if called.body is False and not track.has_error:
                raise StoppedByUser  # nothing was left to be stopped
            self._aborted_at = anyio.current_time()
            self._log.info("replay.abort.ok")
        elif since is not None:
            self._idles, self._own_idles = track.idles_at_error, IDLES_OF_ERROR
        return await self._at.messages()

    async def _is_parent_stopped(self) -> bool:
        """
        Return whether the turn of a subagent is over: what is left of it is for nothing.
        """
        parent = self._track.parent
        return bool(parent) and not await self._is_busy(parent or "")

    async def _is_busy(self, session: str) -> bool:
        called = await self._at.link.call("GET", "/session/status", directory=self._at.directory)
        if not called.is_good or not isinstance(called.body, dict):
            return True  # a server that has no such call: an abort too many changes nothing
        return session in called.body

    def _is_stopped(self, idles: int) -> bool:
        """
        Return whether the user has stopped the session. Events may be late; then there are fewer.

        Args:
            idles: How often it has been idle, up to some instant behind our abort.
        """
        stops = self._track.stops - self._stops
        return idles - self._idles > self._own_idles + stops

    async def _is_stopped_in_log(self, since: HeardSince | None) -> bool:
        """Return whether others asked for aborts too. A subagent is stopped with its parent."""
        if since is None or self._aborted_at is None:
            return False
        parent = self._track.parent
        session, ours = (parent, 0) if parent else (self._at.session, 1)
        if await self._around.stops(session, since_at=since.at) is None:
            return False
        await anyio.sleep_until(self._aborted_at + STOPS_LAG_S)
        return (await self._around.stops(session, since_at=since.at) or 0) > ours

    async def _is_stopped_on_its_way(self) -> bool:
        """
        Return whether the user stopped the session after the last look and before the next model
        was asked. That shows once the question is heard: events come in their order.
        """
        track, name = self._track, self._rescue.new_message
        with anyio.move_on_after(ASKED_LIMIT_S):
            while name not in track.begun_at_idle and not track.has_error:
                await track.changed.wait()
        if name not in track.begun_at_idle and track.has_error:
            return False  # the next model has failed before it was asked
        is_stopped = self._is_stopped(track.begun_at_idle.get(name, track.idles))
        return is_stopped or await self._is_parent_stopped()

    async def _revert(self, known: frozenset[str]) -> None:
        body = {"messageID": self._rescue.message}
        called = Called(status=409)
        with anyio.move_on_after(BUSY_LIMIT_S):
            while True:
                called = await self._at.call("POST", "/revert", body=body)
                if called.status != 409:
                    break
                _check_known(await self._at.messages(), known)
                await anyio.sleep(BUSY_LOOK_S)  # the turn is being stopped
        if called.is_good:
            self._log.info("replay.revert.ok")
            return
        reverted = (await self._at.info()).get("revert")
        if isinstance(reverted, dict) and reverted.get("messageID") == self._rescue.message:
            self._log.warning("replay.revert.verified", problem=called.problem)
            return
        raise Failed(f"revert ({called.problem or 'the session stays busy'})")

    async def _check_untouched(self, known: frozenset[str], since: HeardSince | None) -> None:
        """
        Raises:
            StoppedByUser, Failed: The session is the user's again.
        """
        is_stopped = await self._is_stopped_in_log(since) or await self._is_parent_stopped()
        _check_known(await self._at.messages(), known)
        if is_stopped or self._is_stopped(self._track.idles):
            if self._rescue.reverts:  # the message stands where the user left it
                await self._at.call("POST", "/unrevert")
            raise StoppedByUser

    async def _prompt(
        self,
        message: str,
        info: EventFields,
        parts: list[dict[str, Any]],
        *,
        model: str,
        is_asked: bool,
    ) -> None:
        """
        Args:
            is_asked: False: the message is put into the session, and no model is asked.
        """
        body: dict[str, Any] = {} if is_asked else {"noReply": True}
        body |= {
            "messageID": message,
            "model": split_model(model),
            "parts": parts,
        }
        agent = info.get("agent")
        if isinstance(agent, str) and agent and agent != "unknown":
            body["agent"] = agent
        body.update({key: info[key] for key in ("system", "tools", "format") if info.get(key)})
        if variant := variant_of(info):
            body["variant"] = variant
        called = await self._at.call("POST", "/prompt_async", body=body)
        if not called.is_good and not await self._is_taken(message):
            raise Failed(f"prompt ({called.problem})")
        self._log.info("replay.prompt.ok", model=model)

    async def _is_taken(self, message: str) -> bool:
        """Return whether the server has the message although it did not say so."""
        at = self._at
        path = f"/session/{at.session}/message/{message}"
        called = await at.link.call("GET", path, directory=at.directory)
        return called.is_good or any(_id(one) == message for one in at.heard())

    async def _compact(self, model: str, *, auto: bool, behind: str) -> str:
        """
        The call is answered when the compaction has ended, which may take minutes.

        Args:
            behind: The last message before it.

        Returns:
            The request for it: the server chooses its id.
        """
        body = {**split_model(model), "auto": auto}
        found, answered = "", anyio.Event()
        called = Called(status=0, problem="no answer")

        async def ask() -> None:
            nonlocal called
            called = await self._at.call("POST", "/summarize", body=body)
            answered.set()

        async with anyio.create_task_group() as asking:
            asking.start_soon(ask)
            while not found and not (answered.is_set() and not called.is_good):
                is_last = answered.is_set()
                found = _request(await self._at.messages(), model, behind=behind)
                if is_last:
                    break
                with anyio.move_on_after(BUSY_LOOK_S):
                    await answered.wait()
            asking.cancel_scope.cancel()
        if not found:
            raise Failed(f"compacting ({called.problem or 'the server has not begun it'})")
        self._log.info("replay.compact.ok", model=model)
        return found

    async def _send(self, one: Again, *, is_asked: bool = True) -> str:
        """Send one of them; returns the id that it has."""
        if one.compacts:
            return await self._compact(one.model, auto=one.continues, behind=one.behind)
        await self._prompt(one.id, one.info, one.parts, model=one.model, is_asked=is_asked)
        return one.id

    async def _send_again(
        self, queued: Sequence[Again], *, behind: str, is_stopped: bool = False
    ) -> None:
        """
        Send what stood behind the first message, unless its server has it already. Once the user
        has stopped an answer, the others stand in the session and no model is asked.
        """
        sent, was_stopped = {behind}, is_stopped
        for number, one in enumerate(queued):
            messages = await self._at.messages()
            is_stopped = is_stopped or _is_answer_stopped(messages, sent)
            if one.compacts and is_stopped:
                continue
            if not one.id and not one.behind:
                one.id = "" if one.compacts else message_id(behind, now=self._watched.now)
                one.behind = behind
                # The first one stands for what was sent already.
                await self._watched.keep(self._rescue.id, [queued[0], *queued[number:]])
            found = one.id if any(_id(each) == one.id for each in messages) else ""
            if one.compacts:
                found = _request(messages, one.model, behind=one.behind)
            behind = found or await self._send(one, is_asked=not is_stopped)
            sent.add(behind)
        if not queued or was_stopped:
            return
        if is_stopped or _is_answer_stopped(await self._at.messages(), sent):
            await self._at.call("POST", "/abort")  # the next one was on its way

    def _model_for(self, info: EventFields) -> str:
        chosen = model_of(info)
        if chosen is None or self._watched.backend_of(chosen) == self._rescue.left:
            return self._rescue.model
        return chosen

    async def _go_on(self, step: Literal["revert", "prompt"]) -> bool:
        return await self._watched.advance(self._at.session, self._rescue.id, step)

    async def _accepted(self, message: str) -> ReplayEnd:
        is_ours = await self._watched.advance(
            self._at.session, self._rescue.id, "done", message=message
        )
        if not is_ours:
            return "overtaken"
        await self._watched.keep(self._rescue.id, [])
        self._log.info(
            "rescue.done", left=self._rescue.left, to=self._rescue.to, reason=self._rescue.reason
        )
        return "done"

    async def _end(
        self, outcome: Literal["failed", "stopped", "gone"], *, detail: str = ""
    ) -> None:
        await self._watched.advance(self._at.session, self._rescue.id, outcome, detail=detail)
        await self._watched.keep(self._rescue.id, [])


def _check_known(messages: Sequence[EventFields], known: frozenset[str]) -> None:
    if any(_id(one) not in known and is_of_user(one) for one in messages):
        raise Failed("continuing (the session went on in the meantime)")


def _is_answer_stopped(messages: Sequence[EventFields], sent: Set[str]) -> bool:
    """Return whether the user has stopped the answer to one of the messages that were sent."""
    return any(
        str(_info(one).get("parentID")) in sent and _is_aborted(_info(one)) for one in messages
    )


def _is_request(message: EventFields) -> bool:
    """Return whether it is a request for a compaction."""
    info = message.get("info")
    return isinstance(info, dict) and info.get("role") == "user" and not is_of_user(message)


def _request(messages: Sequence[EventFields], model: str, *, behind: str) -> str:
    """The first request to compact with a model; empty: there is none."""
    found = (
        _id(one)
        for one in messages
        if _is_request(one) and _id(one) > behind and model_of(one["info"]) == model
    )
    return next(found, "")


def continuation(rescue: Rescue) -> str:
    return (
        f"Continue the task above from where it stands. {rescue.left} was working on it and failed"
        f" ({rescue.reason}); what it has done so far, changed files included, is kept. Look at"
        " what is there before you continue."
    )


def _later(messages: Sequence[EventFields], message: str) -> Sequence[EventFields]:
    ids = [_id(one) for one in messages]
    return messages[ids.index(message) + 1 :] if message in ids else ()
