"""
One server and its sessions: facts are handled one after the other.

Facts of a session wait while one of its rescues is under way; those of other sessions do not.
Held in memory is only what the next facts need to be understood (which message a model answers).
Whatever must outlive the daemon is on record, and the rest can be asked of the server.

A rescue ends with the user. The server says how often a session became idle; once more than our own
abort explains is the user's Esc. Of two aborts at once it says so once: then its log is read.
"""

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import anyio
import anyio.abc
import structlog

from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.opencode.turns import Ruled
from fallbackd.core.protocol import Evidence, Usage
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Session
from fallbackd.engine.opencode import Watched, Where
from fallbackd.fronts.opencode.convert import (
    Answered,
    Around,
    Asked,
    At,
    Compacted,
    Completed,
    Deleted,
    Errored,
    EventFields,
    Fact,
    Failed,
    Idle,
    Lost,
    Retried,
    SessionGone,
    Stopped,
    ToolUsed,
    facts,
    is_task_of,
    may_have_written,
    session_of,
    tell_parent,
)
from fallbackd.fronts.opencode.replay import (
    OF_MESSAGES,
    HeardSince,
    Replay,
    Track,
    TurnWork,
    understand,
    work_of,
)
from fallbackd.lib.clock import wall_clock
from fallbackd.ports.opencode import Link, ProjectFiles, Whose

# --- a look at a failed turn ---------------------------------------------------------------------
# How a session is at its server, at the word that a turn of it has failed.

END_LOOK_S = 0.05
END_LOOKS = 20
"""An error is said shortly before its session is idle (measured: up to 30 ms)."""


class Look:
    def __init__(self, at: At) -> None:
        self._at = at
        self.messages: list[EventFields] | None = None
        self.is_late = False
        self.is_gone = False
        self.is_lost = False

    async def at_messages(self) -> None:
        try:
            self.messages = await self._at.messages()
        except SessionGone:
            self.is_gone = True
        except Lost:
            self.is_lost = True
        except Failed:
            pass  # said by the rescue, if there is one

    async def at_retry(self, evidence: Evidence) -> None:
        """Return whether the server still retries what the evidence tells of."""
        states = await self._states()
        if states is None:
            return  # a server that has no such call: the event is all there is
        status = states.get(self._at.session)
        is_retrying = isinstance(status, dict) and status.get("type") == "retry"
        text = status.get("message") if isinstance(status, dict) else None
        self.is_late = not (is_retrying and text in (None, evidence.text))

    async def for_end(self) -> None:
        """Wait for the turn to end; if the session keeps working, the error was not its end."""
        for _ in range(END_LOOKS):
            if self._at.session not in (await self._states() or {}):
                return
            await anyio.sleep(END_LOOK_S)
        self.is_late = True

    async def _states(self) -> EventFields | None:
        called = await self._at.link.call("GET", "/session/status", directory=self._at.directory)
        return called.body if called.is_good and isinstance(called.body, dict) else None


# --- all sessions of a server --------------------------------------------------------------------

log = structlog.get_logger("opencode")

MAX_TRACKED = 2000
"""Sessions that are held in memory; of the others the server is asked again."""

StartSoon = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]


def _work_seen(track: Track, look: Look) -> TurnWork | None:
    """Read the work of the session from the messages of its server."""
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
    """Sessions of one server."""

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
        return bool(await self._around.is_awaited(found, message, certainly=True))

    async def _is_awaited(self, track: Track, look: Look, *, is_retry: bool) -> bool:
        """
        Return whether a program waits for the turn. A request that was answered before the turn
        ended waited for something else, such as a session in another project.
        """
        still = await self._around.is_awaited(look.messages or (), track.message)
        is_running = is_retry and not look.is_late and bool(look.messages)
        if is_running and still is False:
            track.awaited = ""
        return bool(still) or track.awaited == track.message

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
            is_awaited=await self._is_awaited(track, look, is_retry=is_retry),
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
        """
        Explain that a task was cancelled, which is all that opencode says: its part in the parent
        says why.
        """
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


# --- one server ----------------------------------------------------------------------------------
# One opencode server, for as long as it is known: found, followed, lost, found again.
#
#     known ──▶ answers ──▶ models learned, sessions caught up with, rescues resumed
#                 │                                 │
#                 └──── waits, up to 10 s ◀── stream of events ends

HEALTH_LIMIT_S = 1.0
"""A request in the first moment of its socket is never answered (measured)."""
MAX_DIRECTORIES = 200
FIRST_WAIT_S = 0.2
MAX_WAIT_S = 10.0
MAX_REFUSED_WAIT_S = 300.0
"""Longest wait until a person has changed its version or its password."""


class ServerWatch:
    """
    Attributes:
        is_up: It answers, and its events are followed.
        is_refused: It answers, and cannot be followed until its version or password changes.
        seen_at: When it showed itself last. Of no meaning while it is up.
    """

    def __init__(
        self,
        watched: Watched,
        link: Link,
        files: ProjectFiles,
        whose: Whose,
        *,
        is_announced: bool,
        seen_at: float,
    ) -> None:
        self.link = link
        self.is_announced = is_announced
        self.seen_at = seen_at
        self.is_up = False
        self.is_refused = False
        self.version: str | None = None
        self.since_at: float | None = None
        self.problem = ""
        self.sessions: Sessions | None = None
        self._watched = watched
        self._files = files
        self._around = Around(whose, link)
        self._directories: dict[str, None] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._sooner = anyio.Event()

    @property
    def url(self) -> str:
        return self.link.url

    def look_now(self) -> None:
        """Look at a server that has just shown itself."""
        self.seen_at = self._watched.now
        self._sooner.set()

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(self._directories)

    def works_in(self, directory: str) -> None:
        """Note that it has said that it has sessions there, which may be on no record."""
        if not directory or directory in self._directories:
            return
        self._directories[directory] = None
        while len(self._directories) > MAX_DIRECTORIES:
            self._directories.pop(next(iter(self._directories)))
        if self.is_up and self._tasks is not None and self.sessions is not None:
            self._tasks.start_soon(self._look_around, self.sessions, (directory,))

    async def run(self) -> None:
        """Run until cancelled."""
        wait_s = FIRST_WAIT_S
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self.sessions = Sessions(
                self._watched,
                self.link,
                self._files,
                self._around,
                lambda work: tasks.start_soon(work),
            )
            while True:
                try:
                    if await self._answers() and await self._is_to_follow():
                        await self._follow(tasks)
                except Exception:  # a bug with one server must not end the watch of all
                    log.exception("server.broke", server=self.url)
                if self.is_up:
                    wait_s = FIRST_WAIT_S
                    self.is_up = False
                    self.seen_at = self._watched.now
                    log.warning("server.lost", server=self.url)
                with anyio.move_on_after(wait_s):
                    await self._sooner.wait()
                    wait_s = FIRST_WAIT_S
                self._sooner = anyio.Event()
                wait_s = min(wait_s * 2, MAX_REFUSED_WAIT_S if self.is_refused else MAX_WAIT_S)

    async def _answers(self) -> bool:
        called = await self.link.call("GET", "/global/health", limit_s=HEALTH_LIMIT_S)
        if called.status == 404:  # a server that does not know the call
            called = await self.link.call("GET", "/config", limit_s=HEALTH_LIMIT_S)
        problem = called.problem
        is_locked = called.status in (401, 403)
        if is_locked:
            problem = f"{called.problem}: it wants a password that is not known here"
        self.is_refused = is_locked or called.is_unsupported
        if self.is_refused and problem != self.problem:
            log.warning("server.refused", server=self.url, problem=problem)
        self.problem = problem
        if (called.is_good or called.is_unsupported) and isinstance(called.body, dict):
            version = called.body.get("version")
            self.version = version if isinstance(version, str) else None
        return called.is_good

    async def _is_to_follow(self) -> bool:
        if await self._around.look() == "engine":
            self.problem = "it works for a delegation, which fails over by itself"
            return False
        return True

    async def _follow(self, tasks: anyio.abc.TaskGroup) -> None:
        sessions = self.sessions
        assert sessions is not None
        events = self.link.events()
        try:
            async for heard in events:
                if not self.is_up:
                    # Only now nothing is missed any more.
                    self.is_up = True
                    self.since_at = self._watched.now
                    log.info("server.followed", server=self.url, version=self.version)
                    tasks.start_soon(self._catch_up, sessions)
                sessions.hear(heard.event, directory=heard.directory)
        finally:
            await events.aclose()

    async def _catch_up(self, sessions: Sessions) -> None:
        try:
            models = models_of(await self._get("/config/providers"))
            contexts = {name: size for name, size in models.items() if size is not None}
            self._watched.know(models, contexts=contexts)
            known = await self._watched.living_at(self.url)
            await sessions.catch_up(known, directories=self.directories)
            for session in await self._watched.unfinished():
                if session.server == self.url:  # elsewhere it would continue unseen
                    await sessions.resume(session)
        except Exception:
            log.exception("server.broke", server=self.url)

    async def _look_around(self, sessions: Sessions, directories: Sequence[str]) -> None:
        try:
            await sessions.catch_up((), directories=directories)
        except Exception:
            log.exception("server.broke", server=self.url)

    async def _get(self, path: str) -> Any:
        called = await self.link.call("GET", path)
        return called.body if called.is_good else None


def models_of(found: object) -> dict[str, int | None]:
    """`provider/model` of everything that a server lists, with the tokens that it holds."""
    providers = found.get("providers") if isinstance(found, Mapping) else None
    models: dict[str, int | None] = {}
    for provider in providers if isinstance(providers, list) else ():
        table: EventFields = provider if isinstance(provider, dict) else {}
        listed = table.get("models")
        for name, model in listed.items() if isinstance(listed, dict) else ():
            limit = model.get("limit") if isinstance(model, dict) else None
            size = limit.get("context") if isinstance(limit, dict) else None
            models[f"{table.get('id')}/{name}"] = size if isinstance(size, int) and size else None
    return models
