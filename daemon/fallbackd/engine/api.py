"""What callers can ask of the engine. Each call becomes an event; none decides anything."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import anyio
import anyio.to_thread
import structlog
from msgspec import structs

from fallbackd.core.authority import PERSON, Authority, as_given, is_below_all
from fallbackd.core.changes import Decision, Note, PutDelegation, PutStory
from fallbackd.core.events import (
    CancelRequested,
    ConfigReloaded,
    DelegateRequested,
    Event,
    QuestionAnswered,
    SessionCompacted,
    SessionEnded,
)
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import AttemptId, DelegationId, SessionId
from fallbackd.core.protocol import Usage
from fallbackd.core.questions import Question, delegation_asking
from fallbackd.core.records import Delegation, Keys, Session, Snapshot
from fallbackd.core.watch import worse
from fallbackd.engine import admission, logs
from fallbackd.engine.admission import Directory, admit, digest, directory_of
from fallbackd.engine.environment import Settings
from fallbackd.engine.live import Held
from fallbackd.engine.logs import find_attempt, no_log, read_part
from fallbackd.engine.loop import Performer
from fallbackd.engine.requests import (
    Draining,
    Invalid,
    LogPart,
    NewWork,
    NotKept,
    NotPermitted,
    Refused,
    Unknown,
    Withdrawn,
)
from fallbackd.engine.runs import KeptAnswer
from fallbackd.lib.failpoints import hit
from fallbackd.ports.store import ALL, Selection, Store, StoreUnwritable

MAX_SEARCHED = 1000
"""Of the delegations, the newest: where questions that are closed are looked for."""


class AskedHost(Protocol):
    async def handle(self, event: Event) -> Decision: ...


async def answer(
    host: AskedHost, question: str, *, choice: str, note: str | None, **by: Any
) -> Question:
    """
    Take what a person has chosen. Returns the question as it is on record now.

    Args:
        by: `uid`, `pid` and `attempt` of `QuestionAnswered`.

    Raises:
        Unknown, Refused: There is no such question, no such choice, or it is closed.
        Draining: The answer cannot be kept.
    """
    delegation = delegation_asking(question)
    if delegation is None:
        raise Unknown(f"no question {question!r}; see `fallbackd-client questions`")
    event = QuestionAnswered(
        question=question, delegation=delegation, choice=choice, note=note, **by
    )
    try:
        decision = await host.handle(event)
    except StoreUnwritable as error:
        raise Draining(f"the answer is not taken: {error}", kind="store_unwritable") from error
    if decision.rejection is not None:
        raise Refused(decision.rejection)
    assert isinstance(decision.answer, Question)
    return decision.answer


async def questions(
    store: Store, *, session: str | None, only_open: bool, limit: int
) -> Sequence[Question]:
    """Newest first."""
    name = None if session is None else SessionId(session)
    found: Sequence[Delegation] = tuple(store.peek().active.values())
    if not only_open:
        found = await store.delegations(Selection(session=name), limit=MAX_SEARCHED)
    listed = [
        one
        for delegation in found
        if name in (None, delegation.session)
        for one in delegation.questions
        if one.is_open or not only_open
    ]
    return sorted(listed, key=lambda one: (-one.opened_at, one.question))[:limit]


WITH_DAEMON = "stopped with the daemon"
MAX_WITHDRAWN = 1000
log = structlog.get_logger("engine")


class Engine(Performer):
    # --- work ------------------------------------------------------------------------------

    def authority_of(self, attempts: tuple[str, ...] | None) -> Authority:
        """What a process may ask that works for these attempts; None: for none."""
        return admission.authority_of(attempts, self.store, self.runs, self._held)

    async def delegate(
        self,
        work: NewWork,
        *,
        authority: Authority = PERSON,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Delegation:
        """
        Take work on. Returns at once, with the delegation as it was accepted.

        Args:
            authority: Of its caller; the work gets no more.
            is_wanted: False: its caller has gone, and begins nothing any more.

        Raises:
            Refused, NotPermitted, Invalid, Draining, Withdrawn: No delegation exists.
        """
        work = structs.replace(
            work,
            parent=authority.attempt or work.parent,
            inside=authority.inside or work.inside,
            request_id=None if work.request_id is None else authority.own(work.request_id),
        )
        try:
            policy = self.settings.policy
            cwd = work.cwd or policy.defaults.default_cwd
            directory = directory_of(cwd, policy, self.world)
            admission.require_within(work, directory.path, authority, self.settings, self.world)
            return await self._begin(work, directory, is_wanted, authority)
        except (Refused, NotPermitted, Invalid, Draining):
            # What was taken on before is known whatever keeps it from being taken on now.
            known = await self._same_request(work)
            if known is None:
                raise
            return known

    async def _begin(
        self,
        work: NewWork,
        directory: Directory,
        is_wanted: Callable[[], bool],
        authority: Authority,
    ) -> Delegation:
        if self._draining:
            raise Draining
        self.require_room()
        await self.readiness.look_at_candidates(
            backend=work.backend, role=work.role, chain=work.chain
        )
        differs_from = await admission.families(
            self.store, self.settings.policy, work.differs_from, authority
        )
        seen = self.store.peek()  # when all has been waited for
        event = admit(
            work, directory, self.settings.policy, self.world, seen, differs_from=differs_from
        )
        self.require_room()  # others were accepted meanwhile
        try:
            self.runs.create(event.delegation, work.prompt, admission.kept(work))
        except OSError as error:
            raise Draining(
                f"no new work: {self.runs.root} cannot be written "
                f"({error.strerror or error}); make room or correct the permissions",
                kind="store_unwritable",
            ) from error
        held = Held(work.prompt, work.env)
        self._held[event.delegation] = held
        accepted: Delegation | None = None
        self.admitting += 1
        try:
            # However long it took until here: a disk may have hung.
            self._require_wanted(work, is_wanted)
            decision = await self._admitted(event)
            accepted = _accepted(decision, event.delegation)
            if not accepted.is_ended:
                self.workspaces.hold(accepted)
        finally:
            self.admitting -= 1
            if accepted is None or accepted.delegation != event.delegation:
                self._held.pop(event.delegation, None)
                self.runs.remove(event.delegation)
                self._tell_freed()
        if work.request_id in self._withdrawn:  # while it was admitted
            return await self.cancel(accepted.delegation)
        return accepted

    def _require_wanted(self, work: NewWork, is_wanted: Callable[[], bool]) -> None:
        """
        Raises:
            Withdrawn: Nothing is begun.
        """
        if work.request_id in self._withdrawn:
            raise Withdrawn(
                f"nothing was begun: the request id {as_given(work.request_id)!r} was cancelled"
                " before its request came; send it with another id"
            )
        if not is_wanted():
            log.info("request.unwanted", request_id=as_given(work.request_id))
            raise Withdrawn("nothing was begun: the caller hung up before its request was taken")

    async def request_of(self, delegation: str) -> NewWork:
        """
        What was asked, to be asked once more.

        Raises:
            Unknown: No such delegation, or its prompt is not on record any more.
            Invalid: It has not ended, or cannot be repeated as it was.
        """
        found = await self.delegation(delegation)
        return await anyio.to_thread.run_sync(
            admission.request_of, self.runs, found, limiter=self.runs.readers
        )

    async def reply_to(self, delegation: str, prompt: str) -> NewWork:
        """A further prompt for the session of a delegation; see `retrying.reply_to`."""
        found = await self.delegation(delegation)
        return await anyio.to_thread.run_sync(
            admission.reply_to, self.runs, found, prompt, limiter=self.runs.readers
        )

    def require_room(self) -> None:
        for kind, why in self._obstacles.items():
            raise Draining(f"no new work: {why}", kind=kind)
        if (few := self.world.shortage(self.beginnings())) is not None:
            raise Draining(
                f"no new work: {few}; wait for running work to end, or close connections",
                kind="shortage",
            )

    async def _same_request(self, work: NewWork) -> Delegation | None:
        """
        What a repeated request began. Looked up by what was asked alone: the directory may be gone
        by now, and a daemon that drains still knows it.
        """
        known = None if work.request_id is None else await self._begun_by(work.request_id)
        if known is None or not is_below_all(known, work.inside):
            return None
        # Other parameters are refused where every request is.
        return known if known.digest == digest(work) else None

    async def _begun_by(self, request_id: str) -> Delegation | None:
        decision, _ = await self.store.transact(
            Keys(request_id=request_id),
            lambda seen: Decision(answer=seen.same_request),
            must_keep=False,
        )
        known = decision.answer
        return known if isinstance(known, Delegation) else None

    async def _admitted(self, event: DelegateRequested) -> Decision:
        await self.follow_workspaces()
        try:
            decision = await self.handle(event)
        except StoreUnwritable as error:
            raise Draining(f"no new work: {error}", kind="store_unwritable") from error
        if decision.rejection is not None:
            raise Refused(decision.rejection)
        return decision

    async def finish_work(self, *, limit_s: float, stop_rest: bool = True) -> None:
        """Wait for the running work, then stop what is left, proven; or leave it as it is."""
        with anyio.move_on_after(limit_s):
            while self._working():
                await self._freed.wait()
            await self.exchanges.until_ended()
        if stop_rest:
            self.stopping = self._working()
            async with anyio.create_task_group() as tasks:
                for delegation in self.stopping:
                    tasks.start_soon(self.cancel, delegation, WITH_DAEMON)
        await anyio.to_thread.run_sync(self.runs.write_held)

    def _working(self) -> list[DelegationId]:
        """Unfinished work that no question holds: an open question outlives the daemon."""
        active = self.store.peek().active
        return [name for name, one in active.items() if one.question is None]

    async def wait(
        self,
        delegation: DelegationId,
        *,
        until: Literal["settled", "finished"],
        timeout_s: float | None,
    ) -> tuple[Delegation, bool]:
        """The delegation, and False when the time was over first."""
        held = self._held.get(delegation)
        is_over = True
        if held is not None:
            event = held.settled if until == "settled" else held.finished
            with anyio.move_on_after(timeout_s):
                await event.wait()
            is_over = event.is_set()
        return await self.delegation(delegation), is_over

    async def cancel(
        self, delegation: DelegationId, why: str | None = None, *, by: AttemptId | None = None
    ) -> Delegation:
        """
        Returns when the work is proven stopped.

        Args:
            why: What its end says; None: its caller wants it.
            by: The attempt from inside which it is asked for.
        """
        found = await self.delegation(delegation)
        if found.is_ended:
            return found
        await self.handle(CancelRequested(delegation=delegation, why=why, asked_by=by))
        ended, _ = await self.wait(delegation, until="finished", timeout_s=None)
        return ended

    async def cancel_request(self, request_id: str, authority: Authority = PERSON) -> Delegation:
        """
        Stop what a request has begun, as `cancel` does.

        Raises:
            Unknown: It has begun nothing; if it still comes, it will not.
        """
        own = authority.own(request_id)
        found = await self._begun_by(own)
        if not authority.is_person and (found is None or not authority.has_begun(found)):
            raise Unknown(f"no delegation has the request id {request_id!r}")
        self._withdrawn[own] = None
        if found is None:
            while len(self._withdrawn) > MAX_WITHDRAWN:
                self._withdrawn.popitem(last=False)
            raise Unknown(
                f"no delegation has the request id {request_id!r}; if its request still comes,"
                " nothing is begun"
            )
        self._withdrawn.pop(own, None)  # sent again, it is known
        return await self.cancel(found.delegation, by=authority.attempt)

    async def cancel_session(self, session: str, authority: Authority = PERSON) -> Delegation:
        """
        Stop everything that is unfinished in a session: what waits before what runs, so that it
        does not begin. Returns what was begun first, or what ended last where all has ended.
        """
        name = SessionId(session)
        active = self.store.peek().active.values()
        unfinished = [one for one in active if one.session == name and authority.has_begun(one)]
        if not unfinished:
            last = await self.store.delegations(Selection(session=name), limit=1)
            unfinished = [one for one in last if authority.has_begun(one)]
        if not unfinished:
            raise Unknown(f"no delegation in session {session!r}; see `fallbackd-client sessions`")
        for one in sorted(unfinished, key=lambda one: one.created_at, reverse=True):
            ended = await self.cancel(one.delegation, by=authority.attempt)
        return ended

    async def require_kept(self, what: str) -> None:
        """
        Raises:
            NotKept: Something that was done is not on record.
        """
        if not await self.store.flush():
            raise NotKept(
                f"{what}: it is done, but cannot be put on record ({self.store.problem}); it is"
                " undone if the daemon ends before it can be: make room, and it is written"
            )

    async def why_not_kept(self, found: Delegation) -> str | None:
        """Why a start of the daemon may know nothing of how this has ended; None: it does."""
        name = found.delegation
        if not found.is_ended or (self.store.is_kept(name) and not self.runs.is_held(name)):
            return None
        await anyio.to_thread.run_sync(self.runs.write_held)
        if await self.store.flush() and not self.runs.is_held(name):
            return None
        why = self.store.problem or f"{self.runs.path(name)} cannot be written"
        return (
            f"its end is not on record ({why}): it is unfinished again, and its answer lost, if the"
            " daemon ends before there is room"
        )

    async def delegation(self, delegation: str, authority: Authority = PERSON) -> Delegation:
        """
        Raises:
            Unknown: There is none, or none that this caller has begun.
        """
        found = await self.store.delegation(DelegationId(delegation))
        if found is None or not authority.has_begun(found):
            raise Unknown(f"no delegation {delegation!r}; see `fallbackd-client status`")
        return self.as_seen(found)

    def as_seen(self, found: Delegation) -> Delegation:
        """With what its running attempt shows, of which the record knows nothing yet."""
        running = found.running
        live = None if running is None else self._live.get(running.attempt)
        if running is None or live is None:
            return found
        watch = live.watch
        effects = worse(running.effects, watch.effects)
        seen = structs.replace(
            running, effects=effects, outside=watch.outside, unfinished=watch.unfinished
        )
        return structs.replace(
            found,
            attempts=tuple(seen if one is running else one for one in found.attempts),
            phase=watch.phase,
            last_activity_at=watch.last_output_at or found.last_activity_at,
            usage=found.usage if watch.usage == Usage() else watch.usage,
        )

    async def delegations(
        self, wanted: Selection = ALL, *, limit: int = 100
    ) -> Sequence[Delegation]:
        return [self.as_seen(one) for one in await self.store.delegations(wanted, limit=limit)]

    async def prompt_starts(
        self, delegations: Sequence[Delegation], *, max_bytes: int
    ) -> Mapping[DelegationId, str]:
        """How the prompts of these begin, without secrets; those that can still be read."""
        names = [one.delegation for one in delegations]
        found = await anyio.to_thread.run_sync(
            lambda: {one: self.runs.read_prompt_start(one, max_bytes=max_bytes) for one in names},
            limiter=self.runs.readers,
        )
        return {one: self.world.redact(text) for one, text in found.items() if text is not None}

    async def text(self, delegation: Delegation) -> str | None:
        found = await self.kept_answer(delegation)
        return None if found is None else found.text

    async def kept_answer(self, delegation: Delegation) -> KeptAnswer | None:
        """The answer of a delegation; None: there is none, or none any more."""
        if delegation.state != "succeeded":
            return None
        name = delegation.delegation
        return self.runs.recent_answer(name) or await anyio.to_thread.run_sync(
            self.runs.read_answer, name, limiter=self.runs.readers
        )

    async def log(
        self,
        delegation: str,
        *,
        attempt: str | int | None,
        offset: int,
        max_bytes: int,
        as_text: bool = False,
    ) -> LogPart:
        """
        Args:
            as_text: What the agent said and did, instead of what its program printed.
        """
        found = await self.delegation(delegation)
        if attempt is None and not found.attempts:
            return no_log(found, offset=offset)
        wanted = found.attempts[-1] if attempt is None else find_attempt(found, attempt)
        directory = self.runs.attempt_path(wanted.attempt)
        backend = find_backend(self.settings.policy, wanted.backend)
        kind = None if backend is None else self.world.kinds.get(backend.kind)
        options = self.settings.options_of(wanted.backend)
        if as_text and kind is not None and logs.is_readable(kind, options):
            return await anyio.to_thread.run_sync(
                lambda: logs.read_text(
                    self.world,
                    wanted,
                    directory,
                    kind,
                    options,
                    offset=offset,
                    max_bytes=max_bytes,
                ),
                limiter=self.runs.readers,
            )
        return await read_part(
            self.world.read_log,
            wanted,
            directory,
            offset=offset,
            max_bytes=max_bytes,
            values=self.world.secret_values,
            limiter=self.runs.readers,
        )

    async def story(self, delegation: str) -> Sequence[PutStory]:
        found = await self.delegation(delegation)
        return await self.store.story(found.delegation)

    # --- questions -------------------------------------------------------------------------

    async def answer(self, question: str, *, choice: str, note: str | None, **by: Any) -> Question:
        """See `asked.answer`."""
        note = None if note is None else self.world.redact(note)
        await self.follow_workspaces()
        return await answer(self, question, choice=choice, note=note, **by)

    async def questions(
        self, *, session: str | None = None, only_open: bool = True, limit: int = 100
    ) -> Sequence[Question]:
        """Newest first."""
        return await questions(self.store, session=session, only_open=only_open, limit=limit)

    # --- sessions, configuration ----------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return self.store.peek()

    async def session(self, session: str, authority: Authority = PERSON) -> Session:
        """
        Raises:
            Unknown: There is none, or none that this caller has begun.
        """
        found = await self.store.session(SessionId(session))
        if found is None or not authority.has_begun(found):
            raise Unknown(f"no session {session!r}; see `fallbackd-client sessions`")
        return found

    async def sessions(self, *, limit: int = 100) -> Sequence[Session]:
        return await self.store.sessions(limit=limit)

    async def end_session(self, session: str) -> None:
        await self.session(session)
        await self.handle(SessionEnded(session=SessionId(session)))

    async def compact_session(self, session: str) -> None:
        await self.session(session)
        await self.handle(SessionCompacted(session=SessionId(session)))

    async def set_settings(self, settings: Settings) -> None:
        """Take a new configuration over without touching what runs."""
        old = self.settings
        # What was seen of opencode servers and projects is not in the file.
        seen = old.policy
        policy = structs.replace(
            settings.policy,
            served=seen.served,
            contexts=seen.contexts,
            projects=seen.projects,
            windows=seen.windows,
        )
        self.settings = settings = structs.replace(settings, policy=policy)
        changed = tuple(
            name
            for name in {**old.policy.backends, **settings.policy.backends}
            if old.policy.backends.get(name) != settings.policy.backends.get(name)
            or old.options.get(name) != settings.options.get(name)
        )
        hit("config.before")
        await self.handle(ConfigReloaded(changed=changed))
        hit("config.taken")
        await self.readiness.look(settings.policy.backends)
        await self.waking.wake_waiting()

    async def note_config(self, *, accepted: bool, fields: dict[str, Any]) -> None:
        """Journal that a configuration was taken over, or why it was not."""
        await self.note("config.reloaded" if accepted else "config.rejected", fields)

    async def note(self, kind: str, fields: dict[str, Any]) -> None:
        """Journal something that happened to the daemon itself, and tell subscribers."""
        note = Note(kind=kind, at=self.clock.now(), fields=fields)
        _, notes = await self.store.transact(
            Keys(), lambda _: Decision(changes=(note,)), must_keep=False
        )
        self._audience.publish(notes)


def _accepted(decision: Decision, delegation: DelegationId) -> Delegation:
    if isinstance(decision.answer, Delegation):
        return decision.answer
    for change in decision.changes:
        if isinstance(change, PutDelegation) and change.delegation.delegation == delegation:
            return change.delegation
    raise Invalid("the request was neither taken nor refused")
