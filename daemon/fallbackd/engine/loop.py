"""
The loop: takes an event, lets the store run `decide`, then performs the effects.

It holds what cannot be stored (prompts, waiters, live attempts) and decides nothing. Whatever
an effect starts comes back as one event. Where machines share health, a trial of what is common to
all is decided with them.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, assert_never, get_args

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup
from msgspec import structs

from fallbackd.core.changes import Decision, Journaled, PutDelegation
from fallbackd.core.decide import decide
from fallbackd.core.effects import (
    Answer,
    AskPerson,
    Effect,
    Export,
    GoOn,
    OpenWindow,
    StartAttempt,
    StopAttempt,
    WakeAt,
    WakeWaiting,
)
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptEnded,
    AttemptGaveUp,
    AttemptRetrying,
    AttemptStarted,
    CancelRequested,
    ClockStepped,
    ConversationSeen,
    DelegateRequested,
    Event,
    KeepRequested,
    QuestionAnswered,
    RecordsFound,
    Reported,
    ResolveRequested,
    Resumed,
    SessionCompacted,
    SessionEnded,
    Woke,
    WorkspaceMoved,
)
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import AttemptId, DelegationId, SessionId, delegation_of
from fallbackd.core.records import Delegation, Keys, Snapshot
from fallbackd.core.turn_events import (
    RedirectAsked,
    RescueAdvanced,
    TurnAnswered,
    TurnBegan,
    TurnEnded,
    TurnFailed,
    TurnUsed,
)
from fallbackd.engine import judging
from fallbackd.engine.attempts import run_attempt
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.exchanges import Exchanges
from fallbackd.engine.interactive import Plans
from fallbackd.engine.live import Audience, Held, Listener, LiveAttempt, Prepared, Progress, Texts
from fallbackd.engine.peers import HealthOf, SharingPeers, Unasked
from fallbackd.engine.probing import Ladder
from fallbackd.engine.readiness import Readiness
from fallbackd.engine.repairing import KnownRepairs
from fallbackd.engine.runs import Names, Runs, end_strays, later_records, list_directories, tidy
from fallbackd.engine.timers import Attendance, Wakes, Waking
from fallbackd.engine.workspaces import Planted, Workspaces, why_not_there
from fallbackd.lib.descriptors import is_shortage
from fallbackd.lib.directories import identities
from fallbackd.lib.failpoints import hit
from fallbackd.ports.clock import Clock
from fallbackd.ports.store import Outlives, Store, StoreUnwritable

_OfAttempt = (
    AttemptStarted
    | ConversationSeen
    | AttemptAnswered
    | AttemptRetrying
    | AttemptGaveUp
    | AttemptEnded
)
_OfDelegation = Woke | CancelRequested | KeepRequested | Resumed | QuestionAnswered | WorkspaceMoved
_OfSession = (
    ResolveRequested
    | Reported
    | SessionEnded
    | SessionCompacted
    | TurnBegan
    | TurnFailed
    | TurnAnswered
    | TurnEnded
    | TurnUsed
    | RescueAdvanced
    | RedirectAsked
)


def keys_of(event: Event, seen: Snapshot) -> Keys:
    """`seen` knows the session of every unfinished delegation."""
    return KEYS[type(event)](event, seen)


def _of_request(event: DelegateRequested, seen: Snapshot) -> Keys:
    return Keys(session=event.session, request_id=event.request_id)


def _of_attempt(event: _OfAttempt, seen: Snapshot) -> Keys:
    return _of_work(delegation_of(event.attempt), seen)


def _of_delegation(event: _OfDelegation, seen: Snapshot) -> Keys:
    return _of_work(event.delegation, seen)


def _of_records(event: RecordsFound, seen: Snapshot) -> Keys:
    if len(event.records) != 1:
        return Keys()
    (one,) = event.records
    return Keys(delegation=one.delegation, session=one.session)


def _of_session(event: _OfSession, seen: Snapshot) -> Keys:
    return Keys(session=event.session)


def _of_none(event: Event, seen: Snapshot) -> Keys:
    return Keys()


def _of_work(delegation: DelegationId, seen: Snapshot) -> Keys:
    active = seen.active.get(delegation)
    session: SessionId | None = None if active is None else active.session
    return Keys(delegation=delegation, session=session)


KEYS: Mapping[type, Callable[[Any, Snapshot], Keys]] = {
    **dict.fromkeys(get_args(Event), _of_none),
    DelegateRequested: _of_request,
    RecordsFound: _of_records,
    **dict.fromkeys(get_args(_OfAttempt), _of_attempt),
    **dict.fromkeys(get_args(_OfDelegation), _of_delegation),
    **dict.fromkeys(get_args(_OfSession), _of_session),
}
"""By the type of the event."""


KEPT_FIRST = (DelegateRequested, QuestionAnswered)
"""What begins work: nothing is done about it unless it can be put on record."""

_OF_THIS_BOOT = (AttemptStarted, AttemptAnswered)
"""What ends with the machine: an attempt of an earlier boot is closed, however far it had come."""

WRITTEN_WITHIN_S = 1.0

MAX_ASKS = 8
"""Other trials that may come in the place of one that another machine makes."""


class Committing:
    def __init__(self, host: "Performer", audience: Audience) -> None:
        self._host = host
        self._audience = audience
        self._is_to_write = False

    def _decide(self, seen: Snapshot, event: Event, *, now: float) -> Decision:
        if self._host.is_draining:
            seen = structs.replace(seen, draining=True)
        return decide(seen, event, self._host.settings.policy, now=now)

    async def transact(
        self,
        keys: Keys,
        event: Event,
        *,
        outlives: Outlives = "machine",
        is_asked: bool = False,
    ) -> Decision:
        # Fixed here: decisions are made in the order of their instants, also around a set clock.
        now = self._host.clock.now()
        peers = self._host.peers
        before: HealthOf = {}

        def run(seen: Snapshot) -> Decision:
            nonlocal before
            before = seen.health
            decision = self._decide(seen, event, now=now)
            if peers is None:
                return decision
            return peers.weighed(before, decision, is_asked=is_asked, again=again(seen))

        def again(seen: Snapshot) -> Callable[[HealthOf], Decision]:
            return lambda health: self._decide(structs.replace(seen, health=health), event, now=now)

        decision, notes = await self._host.store.transact(
            keys,
            run,
            must_keep=isinstance(event, KEPT_FIRST),
            outlives="process" if type(event) in _OF_THIS_BOOT else outlives,
        )
        self._kept(notes, outlives=outlives)
        if peers is not None:
            peers.learned(event, before, decision)
        return decision

    def transact_now(self, keys: Keys, event: Event) -> Decision | None:
        """What outlives nothing, where it need not wait; None: it has to, nothing was decided."""
        if self._host.peers is not None:
            return None
        now = self._host.clock.now()
        found = self._host.store.transact_now(keys, lambda seen: self._decide(seen, event, now=now))
        if found is None:
            return None
        decision, notes = found
        self._kept(notes, outlives="nothing")
        return decision

    def _kept(self, notes: Sequence[Journaled], *, outlives: Outlives) -> None:
        hit("journal.kept")
        if outlives == "nothing":
            self._write_soon()
        self._audience.publish(notes)

    def _write_soon(self) -> None:
        """What is in memory alone is on disk within a second, together."""

        async def write() -> None:
            await anyio.sleep(WRITTEN_WITHIN_S)
            self._is_to_write = False
            await self._host.store.flush()

        if self._host.tasks is not None and not self._is_to_write:
            self._is_to_write = True
            self._host.tasks.start_soon(write)

    async def decided(self, keys: Keys, event: Event, *, outlives: Outlives) -> Decision:
        """The other machines are asked before a trial of what is common to all begins."""
        transact = partial(self.transact, keys, event, outlives=outlives)
        decision = await transact()
        peers = self._host.peers
        if peers is None:
            return decision
        deadline = anyio.current_time() + peers.limit_s
        for _ in range(MAX_ASKS):
            if not isinstance(decision.answer, Unasked):
                return decision
            if anyio.current_time() >= deadline:
                break
            await peers.ask(decision.answer.scopes, deadline=deadline)
            decision = await transact()
        if not isinstance(decision.answer, Unasked):
            return decision
        return await transact(is_asked=True)


log = structlog.get_logger("engine")

READY_PAUSE_S = 1.0


class Performer:
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
        self.peers: SharingPeers | None = None
        """Who shares health with other machines."""
        self.clock_facts: Callable[[], tuple[tuple[str, str], ...]] = lambda: ()
        """Kept with the records when they move with a clock that was set: they move once."""
        self._held: dict[DelegationId, Held] = {}
        self._live: dict[AttemptId, LiveAttempt] = {}
        self._audience = Audience()
        self._committing = Committing(self, self._audience)
        self._withdrawn: OrderedDict[str | None, None] = OrderedDict()
        """Ids of requests that were cancelled before they came. Oldest first."""
        self.exchanges = Exchanges()
        self.texts = Texts()
        self.repairs = KnownRepairs()
        self.planted = Planted(self.runs, world.kinds, home=world.home)
        self.plans = Plans()
        self._draining = False
        self._obstacles: dict[str, str] = {}
        """Why no new work is taken now, by kind."""
        self.waking = Waking(self)
        self._wakes = Wakes(clock, self.waking.wake)
        self.tasks: TaskGroup | None = None
        """None: it does not serve. What is decided then is left to the next process."""
        self.stopping: list[DelegationId] | None = None
        """Unfinished work that is being stopped with the daemon. All other begins with the next."""
        self._freed = anyio.Event()
        self._strays_ended = anyio.Event()
        self.shifted_s = 0.0
        """By how much the clock was set since the start, in sum."""

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
                await _get_ready()
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
        self._strays_ended.set()

    async def _resume(self) -> None:
        """Go on with what an earlier run has left unfinished."""
        left = list(self.store.peek().active.values())
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

    async def look_at_clock(self) -> None:
        """After the machine was suspended, or the clock was set: do now what is due now."""
        with anyio.CancelScope(shield=True):
            await self.follow_clock()
        self._wakes.look()

    def _follow_sleep(self) -> None:
        """An agent that was suspended with the machine was not silent meanwhile."""
        by_s = self.clock.slept()
        if by_s > 0.0:
            log.info("machine.slept", for_s=round(by_s, 1))
            for live in self._live.values():
                live.shift(by_s)

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
        for live in self._live.values():
            live.shift(by_s)
        stepped = ClockStepped(by_s=by_s, facts=self.clock_facts())
        with anyio.CancelScope(shield=True):
            await self._committing.transact(Keys(), stepped)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case StartAttempt():
                hit("effect.start_attempt")
                self._start_attempt(effect)
            case StopAttempt():
                hit("effect.stop_attempt")
                self._stop_attempt(effect)
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

    def _start_attempt(self, effect: StartAttempt) -> None:
        is_over = self.stopping is not None and effect.delegation not in self.stopping
        if self.tasks is None or is_over:
            return
        live = LiveAttempt(effect, started_at=self._started_at(effect))
        self._live[effect.attempt] = live
        self.tasks.start_soon(self._attempt, live, name=effect.attempt)

    def _hold_again(self, name: DelegationId) -> None:
        if (asked := self._held.get(name)) is not None:
            asked.finished = anyio.Event()

    def _stop_attempt(self, effect: StopAttempt) -> None:
        if (found := self._live.get(effect.attempt)) is not None:
            found.stop(effect.grace_s)

    def _started_at(self, order: StartAttempt) -> float:
        if order.taken_up and (found := self.store.peek().active.get(order.delegation)) is not None:
            attempt = found.attempt(order.attempt)
            if attempt is not None:
                return attempt.started_at
        return self.clock.now()

    async def _attempt(self, live: LiveAttempt) -> None:
        delegation = self.store.peek().active.get(live.order.delegation)
        held = self._held.get(live.order.delegation)
        try:
            if delegation is not None and held is not None:
                backend = find_backend(self.settings.policy, live.order.backend)
                allowed = () if backend is None else backend.allow_env
                prepared = Prepared(
                    prompt=held.prompt,
                    env={k: v for k, v in held.env.items() if k in allowed},
                    missing=tuple(name for name in held.missing if name in allowed),
                    looked=held.looked,
                    delegation=delegation,
                )
                if not live.order.taken_up:
                    await self._strays_ended.wait()
                await run_attempt(self, live, prepared)
        finally:
            self._live.pop(live.order.attempt, None)

    def is_held(self, delegation: DelegationId) -> bool:
        """It is unfinished."""
        return delegation in self._held

    def live(self, attempt: AttemptId) -> LiveAttempt | None:
        return self._live.get(attempt)

    def beginnings(self) -> int:
        """Attempts that will need descriptors and have none yet."""
        return self.admitting + sum(one.running is None for one in self._live.values())

    def is_following(self) -> bool:
        return any(live.running is not None for live in self._live.values())

    async def follow_workspaces(self) -> None:
        """Directories of unfinished work may have been renamed: see where they are now."""
        for event in self.workspaces.moved():
            await self.handle(event)

    def why_not_there(self, delegation: Delegation) -> str | None:
        """Why nothing may be started in its directory; None: it may."""
        return why_not_there(delegation, self.store.peek(), self.settings.policy)

    def recall(self, delegation: DelegationId, pid: int | None) -> None:
        """Read the caller's variables back from the process of a re-attached attempt."""
        held = self._held.get(delegation)
        if held is None or pid is None or not held.missing:
            return
        held.env.update(self.world.variables_of(pid, held.missing))
        held.missing = tuple(name for name in held.missing if name not in held.env)

    def _let_go(self, delegation: DelegationId) -> None:
        """Give the open question to every caller that waits for the end."""
        held = self._held.get(delegation)
        if held is not None:
            held.settled.set()
            held.finished.set()
        self._tell_freed()

    def _answer(self, delegation: DelegationId) -> None:
        held = self._held.pop(delegation, None)
        self._wakes.forget(delegation)
        self.attendance.forget(delegation)
        self.workspaces.release(delegation)
        self.runs.drop_reserve(delegation)
        if held is not None:
            held.settled.set()
            held.finished.set()
        self._tell_freed()

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


async def _get_ready() -> None:
    """Later where the system has nothing left to give: what classifies is then loaded on demand."""
    is_said = False
    while True:
        try:
            if not await anyio.to_thread.run_sync(judging.get_ready):
                log.error("weights.damaged", effect="rules alone decide", fix="reinstall fallbackd")
            return
        except Exception as error:
            if not is_shortage(error):
                raise
            if not is_said:
                log.warning("classifier.postponed", error=str(error))
            is_said = True
            await anyio.sleep(READY_PAUSE_S)
