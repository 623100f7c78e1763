"""
The engine: takes an event, lets the store run `decide`, then performs the effects.

It holds what cannot be stored (prompts, waiters, live attempts) and decides nothing. Each call of a
caller becomes an event, and whatever an effect starts comes back as one.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, assert_never

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup
from msgspec import structs

from fallbackd.core.authority import PERSON, Authority, as_given, is_below_all
from fallbackd.core.decision import (
    Answer,
    AskPerson,
    Decision,
    Effect,
    Export,
    GoOn,
    Note,
    OpenWindow,
    PutDelegation,
    PutStory,
    StartAttempt,
    StopAttempt,
    WakeAt,
    WakeWaiting,
)
from fallbackd.core.events import (
    CancelRequested,
    ClockStepped,
    ConfigReloaded,
    DelegateRequested,
    Event,
    KeepRequested,
    RecordsFound,
    Resumed,
    SessionCompacted,
    SessionEnded,
)
from fallbackd.core.figures import Figures
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, SessionId
from fallbackd.core.quota import news_of
from fallbackd.core.records import Delegation, Keys, Session, Snapshot
from fallbackd.core.work.standby import in_order
from fallbackd.engine import admission, judging
from fallbackd.engine.admission import Directory, admit, digest, directory_of
from fallbackd.engine.attempts import RunningAttempts
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.exchanges import Exchanges
from fallbackd.engine.live import Audience, Held, Listener, LiveAttempt, Progress, Texts
from fallbackd.engine.logs import find_attempt, no_log, parser_of, read_part
from fallbackd.engine.loop import KEPT_FIRST, Committing, keys_of
from fallbackd.engine.peers import SharingPeers
from fallbackd.engine.probing import Ladder
from fallbackd.engine.readiness import Readiness
from fallbackd.engine.repairing import KnownRepairs
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
from fallbackd.engine.runs import (
    KeptAnswer,
    Names,
    Runs,
    end_strays,
    later_records,
    list_directories,
    tidy,
)
from fallbackd.engine.timers import Attendance, Wakes, Waking
from fallbackd.engine.workspaces import Planted, Workspaces, why_not_there
from fallbackd.lib.directories import identities
from fallbackd.lib.failpoints import hit
from fallbackd.ports.store import ALL, Outlives, Selection, Store, StoreUnwritable
from fallbackd.ports.transport import Clock

WITH_DAEMON = "stopped with the daemon"
MAX_WITHDRAWN = 1000
log = structlog.get_logger("engine")


class Engine:
    def __init__(self, store: Store, clock: Clock, settings: Settings, world: World) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self.world = world
        self.runs = Runs(world.runs_root)
        self.readiness = Readiness(self)
        self.ladder = Ladder(self)
        self.workspaces = Workspaces()
        self.attendance = Attendance(self._orphan_s, self._abandon)
        self.attaching = anyio.Lock()
        self.beginning = self.admitting = 0
        self.started_at = clock.now()
        self.last_tick_at: float | None = None
        self.on_export: Callable[[], None] = lambda: None
        self.on_news: Callable[[Delegation], None] = lambda _record: None
        self.peers: SharingPeers | None = None
        """The sharing of health with other machines."""
        self.clock_facts: Callable[[], tuple[tuple[str, str], ...]] = lambda: ()
        """Kept with the records when they move with a clock that was set: they move once."""
        self._held: dict[DelegationId, Held] = {}
        self._running = RunningAttempts(self)
        self._audience = Audience()
        self._committing = Committing(self, self._audience)
        self._withdrawn: OrderedDict[str | None, None] = OrderedDict()
        """Ids of requests that were cancelled before they came. Oldest first."""
        self.exchanges = Exchanges()
        self.texts = Texts()
        self.repairs = KnownRepairs()
        self.planted = Planted(self.runs, world.kinds, home=world.home)
        self._draining = False
        self._obstacles: dict[str, str] = {}
        """Reasons why no new work is taken now, by kind."""
        self.waking = Waking(self)
        self._wakes = Wakes(clock, self.waking.wake)
        self.tasks: TaskGroup | None = None
        """Tasks of the service; None: it does not serve: the next process acts on decisions."""
        self.stopping: list[DelegationId] | None = None
        """Unfinished work that is being stopped with the daemon. All other begins with the next."""
        self._freed = anyio.Event()
        self.strays_ended = anyio.Event()
        self.shifted_s = 0.0
        """Sum of the steps by which the clock was set since the start."""

    # --- life ------------------------------------------------------------------------------

    async def run(self, *, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until cancelled. `ready` is called once work can be taken."""
        before = await anyio.to_thread.run_sync(list_directories, self.runs.root)
        try:
            async with anyio.create_task_group() as tasks:
                self.tasks = tasks
                self.attendance.serve(tasks)
                await self._restore(before)
                active = self.store.peek().active
                tasks.start_soon(
                    self._end_strays, before, {name: len(active[name].attempts) for name in active}
                )
                await self._resume()
                tasks.start_soon(self._wakes.run)
                await self.readiness.look(self.settings.policy.backends)
                ready()
                await tidy(self.runs, self.store, before, lambda: self.store.peek().active)
                await judging.be_ready(self.world.taught)
                await anyio.sleep_forever()
        finally:
            self.tasks = None
            self.workspaces.release_all()

    async def _restore(self, before: Names) -> None:
        """Take over what run directories know and the records do not: those are lost, or older."""
        known = self.store.peek().active
        unknown = await self.store.unknown(before)
        found = await anyio.to_thread.run_sync(later_records, self.runs, known, unknown)
        for records in found:
            await self.handle(RecordsFound(records=records))
        if found:
            log.warning("records.restored", delegations=sum(map(len, found)))

    async def _end_strays(self, before: Names, active: Mapping[DelegationId, int]) -> None:
        left = await end_strays(self.runs, before, active, self.world.end_leftover)
        if left:
            self.hold_work(
                "stray",
                "attempts that no record knows of could not be stopped: "
                + ", ".join(left)
                + "; end their processes, then start the daemon again",
            )
        self.strays_ended.set()

    async def _resume(self) -> None:
        """Go on with what an earlier run has left unfinished."""
        left = in_order(self.store.peek().active.values())
        for one in left:
            prompt = await anyio.to_thread.run_sync(self.runs.take_up, one.delegation)
            self._held[one.delegation] = Held(prompt, {}, missing=one.env_names)
        for one in left:
            log.info("delegation.resumed", delegation=one.delegation, session=one.session)
            hit("delegation.resumed")
            await self.handle(
                Resumed(
                    delegation=one.delegation,
                    attempt=None if one.running is None else one.running.attempt,
                    boot=self.world.boot_id,
                    cwd_ids=identities(one.cwd) if one.cwd else (),
                    luck=self.world.luck(),
                )
            )
            if (found := self.store.peek().active.get(one.delegation)) is not None:
                self.workspaces.hold(found)
                self.attendance.watch(one.delegation)
        await self.waking.fill_places()

    def drain(self) -> None:
        """Stop accepting work and let running work finish."""
        self._draining = True
        self._tell_freed()

    async def undrain(self) -> None:
        """New work again, and what was queued meanwhile."""
        self._draining = False
        await self.waking.wake_waiting()

    def hold_work(self, kind: str, why: str | None) -> None:
        """Accept no work for this reason, until it is None; running work continues."""
        if why is None:
            self._obstacles.pop(kind, None)
        else:
            self._obstacles[kind] = why

    @property
    def is_draining(self) -> bool:
        return self._draining

    # --- the loop --------------------------------------------------------------------------

    async def handle(self, event: Event, *, outlives: Outlives = "machine") -> Decision:
        """
        Decide on one event, make the changes durable, then act.

        Args:
            outlives: `nothing`: of a call that ends with this process, and leads to no effect that
                another process would see.

        Raises:
            StoreUnwritable: Only of `KEPT_FIRST`: nothing was kept and nothing done.
        """
        if outlives == "nothing":
            await self.follow_clock()
            now_decided = self._committing.transact_now(keys_of(event, self.store.peek()), event)
            if now_decided is not None:
                self._follow(now_decided, shifted_s=self.shifted_s)
                return now_decided
        # A caller that goes away must not part what is kept from what is done.
        with anyio.CancelScope(shield=True):
            await self.follow_clock()
            shifted_s = self.shifted_s
            keys = keys_of(event, self.store.peek())
            try:
                decision = await self._committing.decided(keys, event, outlives=outlives)
            except StoreUnwritable as error:
                if isinstance(event, KEPT_FIRST):
                    raise
                # What it is about has ended, and cannot be read back from the disk: no news.
                log.error("event.lost", event_type=type(event).__name__, problem=str(error))
                return Decision()
            self._follow(decision, shifted_s=shifted_s)
        return decision

    async def keep_figures(self, backend: BackendId, seen: Figures) -> None:
        """Keep what is news of the figures of a plan or a key."""
        news = news_of(self.store.peek().meters, backend, seen, now=self.clock.now())
        if news is not None:
            await self.handle(news, outlives="nothing")

    def _follow(self, decision: Decision, *, shifted_s: float) -> None:
        """Do what was decided at a clock shifted by so much: it may have been set since."""
        hit("event.kept")
        for change in decision.changes:
            if isinstance(change, PutDelegation):
                self._note(change.delegation)
        for effect in decision.effects:
            if isinstance(effect, WakeAt):
                effect = structs.replace(effect, at=effect.at + self.shifted_s - shifted_s)
            self._perform(effect)
        hit("event.done")

    def _note(self, record: Delegation) -> None:
        held, now = self._held.get(record.delegation), (len(record.attempts), record.is_ended)
        if held is not None and now > held.noted:
            held.noted = now
            self.runs.note_record(record)
            hit("run.record")
            self.on_news(record)

    async def look_at_clock(self) -> None:
        """Do what is due now, also after the machine was suspended or the clock was set."""
        with anyio.CancelScope(shield=True):
            await self.follow_clock()
        self._wakes.look()

    def _follow_sleep(self) -> None:
        """An agent that was suspended with the machine was not silent meanwhile."""
        by_s = self.clock.slept()
        if by_s > 0.0:
            log.info("machine.slept", for_s=round(by_s, 1))
            self._running.shift(by_s)

    async def follow_clock(self) -> None:
        """Let everything move with the clock, where it was set."""
        self._follow_sleep()
        by_s = self.clock.step()
        if by_s == 0.0:
            return
        log.warning("clock.stepped", by_s=round(by_s, 1))
        # Before any other task runs: what comes from now on is seen by the new clock.
        self.shifted_s += by_s
        self._wakes.shift(by_s)
        self.started_at += by_s
        self.exchanges.shift(by_s)
        self._running.shift(by_s)
        stepped = ClockStepped(by_s=by_s, facts=self.clock_facts())
        with anyio.CancelScope(shield=True):
            self._follow(await self._committing.transact(Keys(), stepped), shifted_s=self.shifted_s)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case StartAttempt():
                hit("effect.start_attempt")
                self._start_attempt(effect)
            case StopAttempt():
                hit("effect.stop_attempt")
                self._running.stop(effect)
            case Answer():
                hit("effect.answer")
                self._answer(effect.delegation)
            case AskPerson():
                self._let_go(effect.delegation)
            case GoOn():
                self._hold_again(effect.delegation)
            case WakeAt():
                hit("effect.wake_at")
                if effect.delegation in self._held:
                    self._wakes.set(effect)
            case WakeWaiting():
                hit("effect.wake_waiting")
                if self.tasks is not None:
                    self.tasks.start_soon(self.waking.wake_waiting)
            case OpenWindow():
                self.world.open_window(effect.delegation, effect.most)
            case Export():
                hit("effect.export")
                self.on_export()
            case _:
                assert_never(effect)

    def _start_attempt(self, order: StartAttempt) -> None:
        is_over = self.stopping is not None and order.delegation not in self.stopping
        if self.tasks is not None and not is_over:
            self._running.start(order, self.tasks)

    def _hold_again(self, name: DelegationId) -> None:
        if (asked := self._held.get(name)) is not None:
            asked.finished = anyio.Event()

    def held(self, delegation: DelegationId) -> Held | None:
        """Return what is kept in memory of unfinished work."""
        return self._held.get(delegation)

    def is_held(self, delegation: DelegationId) -> bool:
        """Test whether a delegation is unfinished."""
        return delegation in self._held

    def live(self, attempt: AttemptId) -> LiveAttempt | None:
        return self._running.get(attempt)

    def beginnings(self) -> int:
        """Attempts that will need descriptors and have none yet."""
        return self.admitting + self._running.unopened()

    def is_following(self) -> bool:
        return self._running.is_following()

    async def follow_workspaces(self) -> None:
        """Directories of unfinished work may have been renamed: see where they are now."""
        for event in self.workspaces.moved():
            await self.handle(event)

    def why_not_there(self, delegation: Delegation) -> str | None:
        """Reason why nothing may be started in its directory; None: it may."""
        return why_not_there(delegation, self.store.peek(), self.settings.policy)

    def recall(self, delegation: DelegationId, pid: int | None) -> None:
        """Read the caller's variables back from the process of a re-attached attempt."""
        held = self._held.get(delegation)
        if held is None or pid is None or not held.missing:
            return
        held.env.update(self.world.variables_of(pid, held.missing))
        held.missing = tuple(name for name in held.missing if name not in held.env)

    def _let_go(self, delegation: DelegationId) -> None:
        """Wake every caller that waits, for the end or for an open question."""
        held = self._held.get(delegation)
        if held is not None:
            held.finish()
        self._tell_freed()

    def _answer(self, delegation: DelegationId) -> None:
        self._let_go(delegation)
        self._held.pop(delegation, None)
        self._wakes.forget(delegation)
        self.attendance.forget(delegation)
        self.workspaces.release(delegation)
        self.runs.drop_reserve(delegation)

    async def keep(self, delegation: DelegationId) -> None:
        """Let it outlive its callers, from now on."""
        await self.handle(KeepRequested(delegation=delegation))

    def _orphan_s(self, delegation: DelegationId) -> float | None:
        found = self.store.peek().active.get(delegation)
        return None if found is None else found.orphan_s

    async def _abandon(self, delegation: DelegationId, why: str) -> None:
        log.info("delegation.abandoned", delegation=delegation)
        await self.handle(CancelRequested(delegation=delegation, why=why))

    def _tell_freed(self) -> None:
        """Let everything that waits for a place, or for the end of all work, look again."""
        self._freed.set()
        self._freed = anyio.Event()

    # --- telling ---------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Hear of every commit, at once and in order. Returns how to stop hearing."""
        return self._audience.add(listener)

    def progress(self, progress: Progress) -> None:
        held = self._held.get(DelegationId(progress.delegation))
        if held is not None:
            held.settled.set()
        self._audience.tell(progress)

    # --- work ------------------------------------------------------------------------------

    def authority_of(self, attempts: tuple[str, ...] | None) -> Authority:
        """Authority of a process that works for these attempts; None: for none."""
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
        event = structs.replace(event, standby=admission.standby(work, now=self.clock.now()))
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
        Recorded request of a delegation, to be repeated.

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
        Find what a repeated request began, by what was asked alone: the directory may be gone
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
        """Unfinished work but for what outlives the daemon: open questions, and work on standby."""
        active = self.store.peek().active
        return [name for name, one in active.items() if not one.outlives_daemon]

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
        """Stop it, say `why` at its end, and return when the work is proven stopped."""
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
        """Reason why a restarted daemon may not know how this has ended; None: it does."""
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
        """Add what its running attempt shows and the record does not say yet."""
        running = found.running
        live = None if running is None else self._running.get(running.attempt)
        return found if live is None else live.as_seen(found)

    async def delegations(
        self, wanted: Selection = ALL, *, limit: int = 100
    ) -> Sequence[Delegation]:
        return [self.as_seen(one) for one in await self.store.delegations(wanted, limit=limit)]

    async def prompt_starts(
        self, delegations: Sequence[Delegation], *, max_bytes: int
    ) -> Mapping[DelegationId, str]:
        """Beginnings of the prompts that can still be read, without secrets."""
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
        parser = parser_of(self.settings, self.world, wanted.backend) if as_text else None
        return await read_part(
            self.world, self.runs, wanted, parser, offset=offset, max_bytes=max_bytes
        )

    async def story(self, delegation: str) -> Sequence[PutStory]:
        found = await self.delegation(delegation)
        return await self.store.story(found.delegation)

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
        self.settings = settings = settings.with_seen(old.policy)
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
