"""
What is seen of each session of one server, and what is done about it: one fact after the other.

Facts of a session wait while one of its rescues is under way; those of other sessions do not.
Held in memory is only what the next facts need to be understood (which message a model answers).
Whatever must outlive the daemon is on record, and the rest can be asked of the server.
"""

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import anyio
import structlog

from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.opencode.rulings import Ruled
from fallbackd.core.protocol import Evidence, Usage
from fallbackd.core.records import Session
from fallbackd.engine.opencode import Watched, Where
from fallbackd.fronts.opencode.around import Around
from fallbackd.fronts.opencode.at import At, Failed, Lost, SessionGone, tell_parent
from fallbackd.fronts.opencode.convert import (
    Answered,
    Asked,
    Compacted,
    Completed,
    Deleted,
    Errored,
    EventFields,
    Fact,
    Idle,
    Retried,
    Stopped,
    ToolUsed,
    facts,
    is_task_of,
    may_have_written,
    session_of,
)
from fallbackd.fronts.opencode.looking import Look
from fallbackd.fronts.opencode.replay import HeardSince, Replay
from fallbackd.fronts.opencode.track import (
    OF_MESSAGES,
    Track,
    TurnWork,
    understand,
    work_of,
)
from fallbackd.lib.clock import wall_clock
from fallbackd.ports.opencode import Link, ProjectFiles

log = structlog.get_logger("opencode")

MAX_TRACKED = 2000
"""Sessions that are held in memory; of the others the server is asked again."""

StartSoon = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]


def _work_seen(track: Track, look: Look) -> TurnWork | None:
    """What the session is at, by the messages of its server."""
    work = None if look.messages is None else work_of(look.messages)
    if work is not None:
        understand(track, work)
    if look.messages and (work is None or work.is_aborted):
        look.is_late = True  # whole answers and what the user has stopped do not fail
    return work


def _looping(evidence: Evidence, *, now: float) -> Failure:
    return make_failure(
        Reason.STALLED,
        now=now,
        detail="loop",
        confidence="structured",
        signature="fallbackd/loop",
        evidence=evidence.text,
    )


class Sessions:
    """Of one server."""

    def __init__(
        self,
        watched: Watched,
        link: Link,
        files: ProjectFiles,
        around: Around,
        start_soon: StartSoon,
    ) -> None:
        self._watched = watched
        self._link = link
        self._files = files
        self._around = around
        self._start_soon = start_soon
        self._tracks: OrderedDict[str, Track] = OrderedDict()
        self._unknown: set[str] = set()

    # --- what comes in -------------------------------------------------------------------------

    def hear(self, event: EventFields, *, directory: str) -> None:
        found = facts(event, now=self._watched.now)
        if found is None:
            self._say_unknown(str(event.get("type"))[:80])
        properties = event.get("properties")
        if isinstance(properties, dict) and event.get("type") in OF_MESSAGES:
            track = self.track(session_of(properties), directory)
            track.messages.hear(event.get("type"), properties)
        for fact in found or ():
            track = self.track(fact.session, directory)
            track.heard(fact)
            if self._is_news(track, fact):
                track.facts.append(fact)
                self._work(track)

    def track(self, session: str, directory: str = "") -> Track:
        track = self._tracks.get(session)
        if track is None:
            track = self._tracks[session] = Track(session)
            while len(self._tracks) > MAX_TRACKED:
                self._tracks.popitem(last=False)
        self._tracks.move_to_end(session)
        track.directory = directory or track.directory
        return track

    def _say_unknown(self, kind: str) -> None:
        if kind not in self._unknown and len(self._unknown) < 200:
            self._unknown.add(kind)
            log.debug("event.skipped", server=self._link.url, type=kind)

    @staticmethod
    def _is_news(track: Track, fact: Fact) -> bool:
        """Hundreds of events a second say only that a model still answers."""
        if isinstance(fact, Answered):
            return not (track.is_answered and fact.reply == track.reply)
        if isinstance(fact, ToolUsed):
            return fact.may_write and not track.may_have_written
        return True

    def _work(self, track: Track) -> None:
        if not track.is_working:
            track.is_working = True
            self._start_soon(lambda: self._drain(track))

    async def _drain(self, track: Track) -> None:
        try:
            while track.facts:
                fact = track.facts.popleft()
                try:
                    async with track.lock:
                        await self._take(track, fact)
                except Exception:  # a bug with one session must not end the watch of all
                    log.exception("fact.broke", session=track.session, fact=type(fact).__name__)
        finally:
            track.is_working = False

    # --- facts ---------------------------------------------------------------------------------

    async def _answered(self, track: Track, fact: Answered) -> None:
        if fact.reply == track.reply and not track.is_answered:
            track.is_answered = True
            await self._watched.answered(track.session, message=track.message, model=track.model)

    async def _take(self, track: Track, fact: Fact) -> None:
        match fact:
            case Asked():
                await self._asked(track, fact)
            case Answered():
                await self._answered(track, fact)
            case ToolUsed():
                track.may_have_written |= fact.reply == track.reply or not track.reply
            case Completed():
                await self._completed(track, fact)
            case Retried():
                if fact.reply in (None, track.reply):
                    await self._failed(track, fact.evidence, is_retry=True)
            case Errored():
                await self._failed(track, fact.evidence, is_retry=False)
            case Stopped() | Idle():
                await self._watched.ended(track.session)
            case Compacted():
                await self._watched.compacted(track.session)
            case Deleted():
                await self._watched.deleted(track.session)
                self._tracks.pop(track.session, None)

    async def _asked(self, track: Track, fact: Asked) -> None:
        if track.reply == fact.reply:
            return
        if track.message != fact.message:
            track.may_have_written = False
            track.unfinished = 0
            track.is_answered = False
            if await self._is_awaited_from_the_start(track, fact.message):
                track.awaited = fact.message
        track.message, track.reply = fact.message, fact.reply
        track.model, track.agent = fact.model, fact.agent or track.agent
        await self._watched.began(await self._where(track), message=fact.message, model=fact.model)

    async def _is_awaited_from_the_start(self, track: Track, message: str) -> bool:
        """Looked at while the turn is young: one that failed may have been answered already."""
        path = f"/session/{track.session}/message/{message}"
        called = await self._link.call("GET", path, directory=track.directory)
        is_found = called.is_good and isinstance(called.body, dict)
        found = (called.body,) if is_found else track.messages.listed()
        return await self._around.is_awaited(found, message, certainly=True)

    async def _where(self, track: Track) -> Where:
        if track.directory:
            await self._files.look(track.directory)
        return Where(
            session=track.session,
            server=self._link.url,
            project=track.directory,
            agent=track.agent,
        )

    async def _completed(self, track: Track, fact: Completed) -> None:
        if fact.usage != Usage():
            await self._watched.used(
                track.session, message=fact.reply, model=fact.model, usage=fact.usage, at=fact.at
            )
        if fact.message != track.message:
            return
        track.unfinished = track.unfinished + 1 if fact.is_unfinished else 0
        if track.unfinished >= self._watched.loop_steps:
            track.unfinished = 0
            text = "the provider's stream ends without an end, again and again"
            await self._failed(track, Evidence(text=text, stream="jsonl"), is_loop=True)

    # --- failures ------------------------------------------------------------------------------

    async def _judged(
        self,
        track: Track,
        where: Where,
        evidence: Evidence,
        messages: list[EventFields],
        *,
        is_loop: bool,
    ) -> Failure:
        if is_loop:
            return _looping(evidence, now=self._watched.now)
        rules = self._files.rules(where.project)
        said = (one for one in messages if one["info"].get("role") == "user")
        asked = [part.get("text") for one in said for part in one.get("parts") or ()]
        return await self._watched.judge(evidence, model=track.model, rules=rules, asked=asked)

    async def _failed(
        self, track: Track, evidence: Evidence, *, is_retry: bool = False, is_loop: bool = False
    ) -> None:
        """A turn has failed. Nothing is done on the word of an event alone: it may be late."""
        at = self._at(track)
        since = HeardSince(at=wall_clock(), idles=track.idles, is_retry=is_retry)
        look = await self._looked(track, at, evidence, is_retry=is_retry, is_loop=is_loop)
        if look.is_gone:
            await self._watched.deleted(track.session)
            return
        if look.is_lost:
            return  # the server has exited; the session is looked at when it is back
        messages = look.messages
        work = _work_seen(track, look)
        if not track.message or not track.model:
            log.warning("fallback.skipped", session=track.session, why="no user message")
            return
        where = await self._where(track)
        failure = await self._judged(track, where, evidence, messages or [], is_loop=is_loop)
        wrote = track.may_have_written
        if messages is not None:
            wrote = may_have_written(messages, track.message)
        ruled = await self._watched.failed(
            where,
            message=track.message,
            model=track.model,
            failure=failure,
            wrote=wrote,
            is_child=bool(track.parent),
            can_move=self._link.is_inside,
            is_awaited=track.awaited == track.message
            or await self._around.is_awaited(messages or (), track.message),
            is_late=look.is_late,
            compacts=work is not None and work.compacts,
            continues=work is not None and work.continues,
            latest="" if not messages else str(messages[-1]["info"]["id"]),
            retries_since_at=track.retries(self._watched.now) if is_retry else None,
        )
        log.info(
            "fallback.ruled",
            session=track.session,
            ruling=ruled.ruling,
            model=track.model,
            reason=ruled.failure.reason.value,
            why=ruled.text,
        )
        await self._follow(at, track, ruled, since)

    def _at(self, track: Track) -> At:
        return At(
            link=self._link,
            session=track.session,
            directory=track.directory,
            heard=track.messages.listed,
        )

    async def _looked(
        self, track: Track, at: At, evidence: Evidence, *, is_retry: bool, is_loop: bool
    ) -> Look:
        look = Look(at)
        async with anyio.create_task_group() as looking:  # all at once: a model waits
            looking.start_soon(self._know_parent, track, at, look)
            if is_retry:
                looking.start_soon(look.at_retry, evidence)
            elif not is_loop:
                await look.for_end()
            looking.start_soon(look.at_messages)
        return look

    async def _follow(self, at: At, track: Track, ruled: Ruled, since: HeardSince) -> None:
        """Do at the server what was ruled."""
        if ruled.rescue is not None:
            await Replay(self._watched, at, self._around, ruled.rescue, track=track).run(since)
        elif ruled.ruling == "child" and (ruled.stops or not since.is_retry):
            await tell_parent(at, "failed", ruled.text)
            if ruled.stops:
                await self._stop(at, track.parent or "", ruled.text)

    async def _stop(self, at: At, parent: str, why: str) -> None:
        """A subagent whose retries would go on for long."""
        try:
            called = await at.call("POST", "/abort")
        except SessionGone:
            await self._watched.deleted(at.session)
            return
        except Lost:
            return  # its status is looked at when the server is back
        if not called.is_good:
            log.error("subagent.unstopped", session=at.session, problem=called.problem)
            return
        log.info("subagent.stopped", session=at.session)
        try:
            await self._explain(parent, at, why)
        except (SessionGone, Lost, Failed) as problem:
            log.info("subagent.unexplained", session=at.session, problem=type(problem).__name__)

    async def _explain(self, parent: str, child: At, why: str) -> None:
        """That a task was cancelled is all that opencode says: its part in the parent says why."""
        at = self._at(self.track(parent, child.directory))
        parts = [part for one in await at.messages() for part in one.get("parts") or ()]
        for part in parts:
            if is_task_of(part, child.session):
                path = f"/message/{part['messageID']}/part/{part['id']}"
                state = {**part["state"], "error": f"Subagent failed: {why}"}
                await at.call("PATCH", path, body={**part, "state": state})

    async def _know_parent(self, track: Track, at: At, look: Look) -> None:
        if track.parent is not None:
            return
        try:
            info = await at.info()
        except SessionGone:
            look.is_gone = True
            return
        except Lost:
            look.is_lost = True
            return
        if info:
            track.parent = str(info.get("parentID") or "")
            directory = info.get("directory")
            if not track.directory and isinstance(directory, str):
                track.directory = directory

    # --- after a gap ---------------------------------------------------------------------------

    async def catch_up(self, known: Sequence[Session], *, directories: Sequence[str] = ()) -> None:
        """
        Handle what happened while no daemon listened: turns that ended, retries that still run.

        Args:
            known: Sessions on record that live at this server.
            directories: More of them, in which sessions may be on no record.
        """
        busy: set[str] = set()
        is_complete = True
        for directory in {"", *directories, *(one.project for one in known)}:
            called = await self._link.call("GET", "/session/status", directory=directory)
            is_complete = is_complete and called.is_good and isinstance(called.body, dict)
            if is_complete:
                busy |= called.body.keys()
                self._hear_retries(called.body, directory)
        for session in known if is_complete else ():
            self.track(session.session, session.project)
            message = session.message
            is_at_rest = session.session not in busy and session.rescue is None
            if is_at_rest and message is not None and message.running:
                await self._watched.ended(session.session)

    def _hear_retries(self, states: Mapping[str, Any], directory: str) -> None:
        for name, status in states.items():
            if isinstance(status, dict) and status.get("type") == "retry":
                said = {"sessionID": name, "status": status}
                self.hear({"type": "session.status", "properties": said}, directory=directory)

    async def resume(self, session: Session) -> None:
        """Go on with a rescue that an earlier run of the daemon, or a lost server, left."""
        track = self.track(session.session, session.project)
        at = self._at(track)
        async with track.lock:  # what comes meanwhile waits
            now = await self._watched.session(session.session)
            rescue = None if now is None else now.rescue
            if rescue is None:
                return
            log.warning("rescue.resumed", session=session.session, step=rescue.step)
            await Replay(self._watched, at, self._around, rescue, track=track).run()
