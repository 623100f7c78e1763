"""
The steps of a rescue at the server: stop the turn, take the message back, send it to the next
model. Each step is on record before it is done, so that it is resumed after a crash.

    messages ─▶ abort ─▶ revert ─▶ prompt, under an id that was chosen before
                           └ only where the turn has changed no files; else the work stays, and
                             the next model is asked to continue from it

A failed compaction takes the same steps with the request for it; the last one is `summarize`.

Whether the user stops the session meanwhile shows in the events of its server: it says that the
session is idle once more than our own abort explains. Of two aborts at once it says so only once;
then its log tells how many were asked for, up to a second later, which is waited for before the
message is sent. What the user writes meanwhile shows in the messages. In all cases the session is
the user's again. A turn that is over is not aborted.
"""

from collections.abc import Sequence
from typing import Any, Literal

import anyio
import structlog
from msgspec import Struct

from fallbackd.core.rescue import Rescue
from fallbackd.engine.opencode import Watched, message_id
from fallbackd.fronts.opencode.around import Around
from fallbackd.fronts.opencode.at import At, Failed, Lost, SessionGone, tell_parent
from fallbackd.fronts.opencode.convert import (
    EventFields,
    is_automatic,
    is_of_user,
    model_of,
    parts_again,
    split_model,
    variant_of,
)
from fallbackd.fronts.opencode.track import Track
from fallbackd.ports.opencode import STOPS_LAG_S, Called

log = structlog.get_logger("opencode")

BUSY_LIMIT_S = 30.0
"""How long a stopped turn may take to let go of its session."""
BUSY_LOOK_S = 0.05
ASKED_LIMIT_S = 15.0
"""How long a server may take to ask the next model; then what was heard until then counts."""
IDLES_OF_ABORT = 1
"""How often a server says that a session is idle when it is stopped while it waits to try again."""
IDLES_OF_ERROR = 2
"""When a turn has ended with an error (measured)."""
IDLES_OF_TASK = 3
"""When a subagent is stopped, which its parent does once more (measured)."""

ReplayEnd = Literal["done", "failed", "stopped", "gone", "lost", "overtaken"]


class HeardSince(Struct, frozen=True, kw_only=True):
    """How a session was when the failure of its turn was heard of."""

    at: float
    """By the wall clock, as the server writes it into its log."""
    idles: int
    """How often it had been idle."""
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
            if is_resumed and (sent := self._sent(messages)):
                return await self._accepted(sent)
            return await self._run(messages, since)
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

    def _sent(self, messages: Sequence[EventFields]) -> str:
        """
        Under which id the next model has it already; empty: it has not.

        Raises:
            Failed: The user has continued the session, or has taken the message back.
        """
        rescue = self._rescue
        ids = [_id(one) for one in messages]
        if rescue.new_message in ids:
            return rescue.new_message
        if sent := self._compaction_in(messages):
            return sent
        if rescue.message not in ids:
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

    async def _run(self, messages: Sequence[EventFields], since: HeardSince | None) -> ReplayEnd:
        rescue = self._rescue
        found = self._find(messages)
        messages = await self._stop(since)
        known = frozenset(_id(one) for one in messages)
        if rescue.reverts:
            if not await self._go_on("revert"):
                return "overtaken"
            await self._revert(known)
        if not await self._go_on("prompt"):
            return "overtaken"
        await self._check_untouched(known, since)
        self._track.drop_errors()
        if rescue.compacts:
            sent = await self._compact(rescue.model, auto=rescue.continues, behind=rescue.message)
            await self._send_queued(messages, behind=sent)
            return await self._accepted(sent)
        parts = [{"type": "text", "text": continuation(rescue)}]
        if rescue.reverts:
            parts = parts_again(found.get("parts")) or [{"type": "text", "text": ""}]
        info = found.get("info") or {}
        await self._prompt(rescue.new_message, info, parts, model=rescue.model)
        if await self._is_stopped_on_its_way():
            await self._at.call("POST", "/abort")
            self._log.info("rescue.stopped", step="prompt")
        elif rescue.reverts:
            await self._send_queued(messages, behind=rescue.new_message)
        return await self._accepted(rescue.new_message)

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
            self._aborted_at = anyio.current_time()
            self._log.info("replay.abort.ok")
        elif since is not None:
            self._idles, self._own_idles = track.idles_at_error, IDLES_OF_ERROR
        return await self._at.messages()

    async def _is_parent_stopped(self) -> bool:
        """Whether the turn is over in which a subagent works: what is left of it is for nothing."""
        parent = self._track.parent
        return bool(parent) and not await self._is_busy(parent or "")

    async def _is_busy(self, session: str) -> bool:
        called = await self._at.link.call("GET", "/session/status", directory=self._at.directory)
        if not called.is_good or not isinstance(called.body, dict):
            return True  # a server that has no such call: an abort too many changes nothing
        return session in called.body

    def _is_stopped(self, idles: int) -> bool:
        """
        Whether the user has stopped the session. Events may be late; then there are fewer.

        Args:
            idles: How often it has been idle, up to some instant behind our abort.
        """
        stops = self._track.stops - self._stops
        return idles - self._idles > self._own_idles + stops

    async def _is_stopped_in_log(self, since: HeardSince | None) -> bool:
        """Whether more aborts were asked for than ours. A subagent is stopped with its parent."""
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
        Whether the user stopped the session after the last look and before the next model was
        asked. That shows once the question is heard: events come in their order.
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
        self, message: str, info: EventFields, parts: list[dict[str, Any]], *, model: str
    ) -> None:
        body: dict[str, Any] = {
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
        """Whether the server has the message although it did not say so."""
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

    async def _send_queued(self, messages: Sequence[EventFields], *, behind: str) -> None:
        """
        Send what the user asked for behind the failed message: it was waiting, and went with it.
        Each goes to the model that was chosen for it, unless that is the one that failed.
        """
        for one in _later(messages, self._rescue.message):
            info = one.get("info") or {}
            parts = parts_again(one.get("parts"))
            if _is_request(one) and not is_automatic(one):
                behind = await self._compact(self._model_for(info), auto=False, behind=behind)
            elif is_of_user(one) and parts:
                behind = message_id(behind, now=self._watched.now)
                await self._prompt(behind, info, parts, model=self._model_for(info))

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
        self._log.info(
            "rescue.done", left=self._rescue.left, to=self._rescue.to, reason=self._rescue.reason
        )
        return "done"

    async def _end(
        self, outcome: Literal["failed", "stopped", "gone"], *, detail: str = ""
    ) -> None:
        await self._watched.advance(self._at.session, self._rescue.id, outcome, detail=detail)


def _check_known(messages: Sequence[EventFields], known: frozenset[str]) -> None:
    if any(_id(one) not in known and is_of_user(one) for one in messages):
        raise Failed("continuing (the session went on in the meantime)")


def _is_request(message: EventFields) -> bool:
    """For a compaction."""
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


def _id(message: EventFields) -> str:
    info = message.get("info")
    found = info.get("id") if isinstance(info, dict) else None
    return found if isinstance(found, str) else ""
