"""
Health shared with other machines: what is sent, what is received, and which makes a trial.

The records of this machine stay the truth for it. Nothing waits for the network but the lease of a
trial, and that at most `limit_s`. What was sent is not kept: what the others lack is seen by
comparing their record with ours, also after the server has lost its data.

Sharing is a mirror and an arbiter, never the store. What other machines have found comes in as one
event, `SharedSeen`, whose facts `core/share` joins with ours; the join is commutative, associative
and idempotent. What goes out is seen from the changes of a decision, and every 30 s by comparing
records, which is also how a server that lost its data gets them back: nothing is queued. The one
wait is in `Committing.decided`: a decision that would begin a trial of a shared scope is not kept,
the arbiter is asked for at most 250 ms, and it is decided again, by then with the other machine's
trial on record if the answer was no. The scripts on the server only fold; windows are those of the
reporting core.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Literal

import anyio
import structlog
from msgspec import Struct, structs

from fallbackd.core.decision import Decision, PutHealth
from fallbackd.core.events import ClockStepped, Event, SharedSeen
from fallbackd.core.health import Health, Outage, is_leased, view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import REASONS
from fallbackd.core.reasons import Reason
from fallbackd.core.scopes import find_backend, is_scope_of, touched
from fallbackd.core.share import (
    MAX_DETAIL,
    PersonWord,
    SharedLease,
    SharedNames,
    SharedRecord,
    WordAction,
    is_peer,
    is_shared_fact,
    mark_of,
    moved,
    news_in,
    untold,
)
from fallbackd.core.upkeep import reason_of
from fallbackd.engine.api import Engine
from fallbackd.engine.peers import Grouping, HealthOf, Shared, Tested, Unasked
from fallbackd.engine.requests import Draining, Unknown
from fallbackd.engine.share_turns import ProbeTurns, ServerClock, is_running, unasked
from fallbackd.ports.store import (
    Card,
    Failing,
    Share,
    ShareAway,
    ShareReading,
    ShareRefused,
    ShareState,
)
from fallbackd.ports.transport import Clock
from fallbackd_conversations.redact import redact

FRESH_S = 60.0
KIND = "provider:"


def missed(health: Mapping[ScopeId, Health], names: SharedNames, *, now: float) -> tuple[str, ...]:
    """Providers that this machine has found out of reach by itself."""
    return tuple(
        scope.removeprefix(KIND)
        for scope, one in sorted(health.items())
        if scope.startswith(KIND)
        and names.mirrored(scope) is not None
        and one.outage is not None
        and one.outage.source == "policy"
        and not is_shared_fact(one.outage)
        and view(one, now=now).state != "healthy"
    )


def advice(own: Iterable[str], name: str, cards: Iterable[Card]) -> tuple[str, ...]:
    """
    Args:
        own: Providers that this machine cannot reach.
        name: Of this machine.
    """
    found = {provider: {name} for provider in own}
    for card in cards:
        for provider in card.missed if card.seen_ago_s <= FRESH_S else ():
            if provider in found:
                found[provider].add(card.name)
    return tuple(
        f"{provider} cannot be reached from {', '.join(sorted(machines))}: it is likely the "
        "provider, and not the network of this machine"
        for provider, machines in found.items()
        if len(machines) > 1
    )


TEST_S = 5.0
"""Longest time that a step of a test may take."""


def scopes_meant(engine: Engine, target: str, *, only_own: bool) -> tuple[ScopeId, ...]:
    """
    The scopes of a backend, or a scope itself.

    Args:
        only_own: Of a backend its own scope alone.

    Raises:
        Unknown: It is neither.
    """
    policy, health = engine.settings.policy, engine.store.peek().health
    backend = find_backend(policy, BackendId(target))
    if backend is not None:
        own = touched(backend, health)
        return own[:1] if only_own else own
    scope = ScopeId(target)
    if scope in health or any(is_scope_of(one, scope) for one in policy.backends.values()):
        return (scope,)
    raise Unknown(f"no backend or scope {target!r}; known are {', '.join(policy.backends)}")


def failing(outage: Outage, machine: str, *, now: float) -> Failing:
    """An outage as the others hear of it: by its age, and without secrets."""
    mark = mark_of(outage, source=machine)
    detail = None if mark.detail is None else redact(mark.detail)[:MAX_DETAIL]
    age_s = max(0.0, now - outage.since_at)
    began_at = outage.since_at if outage.began_at is None else outage.began_at
    return Failing(
        mark=structs.replace(mark, detail=detail),
        age_s=age_s,
        began_ago_s=max(age_s, now - began_at),
        window_s=None if outage.until_at is None else outage.until_at - outage.since_at,
    )


def word_of(
    action: WordAction, reason: str | None, ttl_s: float | None, note: str | None, machine: str
) -> tuple[PersonWord, float | None]:
    """A manual override of any scope, and how long it holds."""
    known, detail = reason_of(reason)
    policy = REASONS.get(known) or REASONS[Reason.MANUAL]
    window_s = None
    if action == "mark":
        window_s = policy.window_s if ttl_s is None else ttl_s
    word = PersonWord(
        id="",
        action=action,
        at=0.0,
        state=policy.state,
        reason=known,
        note=(detail or note or "")[:MAX_DETAIL],
        source=machine,
    )
    return word, window_s


async def tested(share: Share, owner: str, instance: str, clock: Clock) -> tuple[Tested, ...]:
    """Read and lease, up to the first step that fails."""
    name = ScopeId(f"test:{instance}")

    async def read() -> str:
        began_at = clock.now()
        seen = await share.read([name], limit_s=TEST_S)
        ahead_s = seen.at - (began_at + clock.now()) / 2
        return f"its clock is {ahead_s:+.1f} s from this machine's"

    async def lease() -> str:
        found = await share.lease(name, owner=owner, ttl_s=1.0, early=False, limit_s=TEST_S)
        await share.release(name, owner=owner, gen=found.gen, limit_s=TEST_S)
        return "granted and given back" if found.granted else "denied"

    done: list[Tested] = []
    for step, run in (("read", read), ("lease", lease)):
        began_at = clock.now()
        try:
            detail, ok = await run(), True
        except (ShareAway, ShareRefused) as error:
            detail, ok = str(error), False
        took_s = max(0.0, clock.now() - began_at)
        done.append(Tested(step=step, ok=ok, detail=detail, took_s=took_s))
        if not ok:
            break
    return tuple(done)


def warning(
    grouping: Grouping, cards: Iterable[Card], *, deaf: str | None, look_s: float
) -> str | None:
    """
    Describe what does not keep the machines from sharing, but has to be set right.

    Args:
        deaf: Why changes are not heard at once.
        look_s: How often they are looked for then.
    """
    if deaf is not None:
        return f"what others find is heard late, every {look_s:g} s: {deaf}"
    twins = {one.instance for one in cards if one.name == grouping.machine}
    if twins - {grouping.instance}:
        return f"another machine of the group is called {grouping.machine}, too"
    return grouping.warning


class Hearing:
    """
    Args:
        names: Shared names of scopes, as they are now.
    """

    def __init__(
        self, engine: Engine, grouping: Grouping, *, names: Callable[[], SharedNames]
    ) -> None:
        self._engine = engine
        self._grouping = grouping
        self._names = names
        self._seen: dict[ScopeId, SharedRecord] = {}
        """Records as the server had them, by their shared names."""
        self.clock = ServerClock(engine, self._seen.clear)

    def is_ours(self, name: ScopeId) -> bool:
        """Test whether a shared name is that of a scope on this machine."""
        scope = self._names().local(name)
        if scope is None:
            return False
        policy, health = self._engine.settings.policy, self._engine.store.peek().health
        return scope in health or any(is_scope_of(one, scope) for one in policy.backends.values())

    async def take(self, seen: ShareReading, *, is_answer: bool = False) -> None:
        """
        Args:
            is_answer: It says why something was denied, which was perhaps heard before.
        """
        if self.clock.ahead_s is None:
            return
        by_s = self._engine.shifted_s - self.clock.ahead_s
        news: list[SharedRecord] = []
        for record in seen.records:
            scope = self._names().local(record.scope)
            if scope is None or (self._seen.get(record.scope) == record and not is_answer):
                continue
            self._seen[record.scope] = record
            found = moved(record, by_s, scope=scope)
            news.append(structs.replace(found, lease=self._of_others(found.lease)))
        if news:
            await self._engine.handle(SharedSeen(records=tuple(news)))

    def _of_others(self, lease: SharedLease | None) -> SharedLease | None:
        """A lease by the name of its machine; None where it is this one's own."""
        if lease is None or lease.owner == self._grouping.owner:
            return None
        return structs.replace(lease, owner=lease.owner.rpartition("/")[0] or lease.owner)

    def untold(self, seen: ShareReading) -> Iterator[ScopeId]:
        """The scopes of which the others lack what this machine knows."""
        health, now = self._engine.store.peek().health, self._engine.clock.now()
        by_s = self._engine.shifted_s - (self.clock.ahead_s or 0.0)
        names = self._names()
        for record in seen.records:
            scope = names.local(record.scope)
            known = None if scope is None else health.get(scope)
            if scope is None or known is None or names.mirrored(scope) is None:
                continue
            if untold(known, moved(record, by_s, scope=scope), now=now) is not None:
                yield scope


COMMAND_S = 2.0
RENEW_S = 20.0
UNUSED_S = 2.0
"""A lease that no attempt of ours took within this time is given back."""


class _Held(Struct):
    gen: int
    since: float
    is_used: bool = False


class Telling:
    """
    Args:
        names: Shared names of scopes, as they are now.
        connected: Set while the server is there.
        suspect: Something did not go through.
    """

    def __init__(
        self,
        engine: Engine,
        grouping: Grouping,
        *,
        names: Callable[[], SharedNames],
        connected: Callable[[], anyio.Event],
        suspect: Callable[[ShareAway | ShareRefused], None],
    ) -> None:
        self._engine = engine
        self._grouping = grouping
        self._names = names
        self._connected = connected
        self._suspect = suspect
        self._dirty: dict[ScopeId, None] = {}
        self._is_telling = False
        self._withdrawn: dict[ScopeId, float] = {}
        self._held: dict[ScopeId, _Held] = {}
        self._is_due = anyio.Event()

    @property
    def outbox(self) -> int:
        """Scopes of which the others do not know the newest."""
        return len(self._dirty) + self._is_telling

    def holds(self, scope: ScopeId) -> bool:
        return scope in self._held

    def hold(self, scope: ScopeId, *, gen: int) -> None:
        """A lease that the server has granted. Negative: it is no arbiter for us."""
        self._held[scope] = _Held(gen=gen, since=anyio.current_time())

    def add(self, scope: ScopeId) -> None:
        self._dirty[scope] = None

    def look(self) -> None:
        """The server is there again, or there is something to tell."""
        self._is_due.set()

    def learn(self, before: Health | None, after: Health) -> None:
        scope = after.scope
        if scope in self._held and after.trial is not None and not is_peer(after.trial.attempt):
            self._held[scope].is_used = True
        news = news_in(before, after)
        if news.withdrawn_at is not None:
            self._withdrawn[scope] = news.withdrawn_at
        if news.is_any or scope in self._withdrawn:
            self.add(scope)
            self.look()

    async def run(self, share: Share) -> None:
        while True:
            await self._is_due.wait()
            await self._connected().wait()
            self._is_due = anyio.Event()
            for scope in list(self._dirty):
                self._dirty.pop(scope, None)
                self._is_telling = True
                try:
                    await self._tell_one(share, scope)
                except (ShareAway, ShareRefused) as error:
                    self._dirty[scope] = None
                    self._suspect(error)
                    break
                finally:
                    self._is_telling = False

    async def _tell_one(self, share: Share, scope: ScopeId) -> None:
        """The newest that is known of a scope, with its age; then its lease is over."""
        name = self._names().mirrored(scope)
        health = self._engine.store.peek().health.get(scope)
        if name is None or health is None:
            return
        now = self._engine.clock.now()
        await self._report(share, name, health, now=now)
        self._withdrawn.pop(scope, None)
        held = self._held.get(scope)
        is_ours = is_leased(health, now=now) and not (
            health.trial is not None and is_peer(health.trial.attempt)
        )
        if held is not None and held.is_used and not is_ours:
            del self._held[scope]
            await share.release(name, owner=self._grouping.owner, gen=held.gen, limit_s=COMMAND_S)

    async def _report(self, share: Share, name: ScopeId, health: Health, *, now: float) -> None:
        outage, withdrawn_at = health.outage, self._withdrawn.get(health.scope)
        if outage is not None and is_shared_fact(outage):
            found = failing(outage, self._grouping.machine, now=now)
            await share.report_failure(name, found, limit_s=COMMAND_S)
        elif withdrawn_at is not None or health.proven_at is not None:
            began_at = max(withdrawn_at or 0.0, health.proven_at or 0.0)
            await share.report_success(
                name,
                began_ago_s=max(0.0, now - began_at),
                source=self._grouping.machine,
                limit_s=COMMAND_S,
            )

    async def renew(self, share: Share) -> None:
        """A lease lasts as long as its attempt; without one it is given back."""
        renewed = anyio.current_time()
        while True:
            await anyio.sleep(1.0)
            is_due = anyio.current_time() - renewed >= RENEW_S
            if is_due:
                renewed = anyio.current_time()
            for scope, held in list(self._held.items()):
                try:
                    await self._renew_one(share, scope, held, is_due=is_due)
                except (ShareAway, ShareRefused) as error:
                    self._suspect(error)

    async def _renew_one(self, share: Share, scope: ScopeId, held: _Held, *, is_due: bool) -> None:
        name = self._names().mirrored(scope)
        health = self._engine.store.peek().health.get(scope)
        trial = None if health is None else health.trial
        if name is None or (trial is not None and is_peer(trial.attempt)):
            self._held.pop(scope, None)
        elif is_leased(health, now=self._engine.clock.now()):
            if is_due and held.gen >= 0:
                await share.renew(
                    name,
                    owner=self._grouping.owner,
                    gen=held.gen,
                    ttl_s=self._grouping.lease_s,
                    limit_s=COMMAND_S,
                )
        elif held.is_used or anyio.current_time() - held.since > UNUSED_S:
            self._held.pop(scope, None)
            await share.release(name, owner=self._grouping.owner, gen=held.gen, limit_s=COMMAND_S)


log = structlog.get_logger("share")

WAIT_S = 5.0
"""One wait for changes."""
LOOK_S = 30.0
"""Time between two looks at everything, whatever was heard meanwhile."""
MAX_RETRY_S = 60.0
REFUSED_S = 60.0
SLOW_AFTER = 3
"""Unanswered requests in a row after which none is made for a while."""
SLOW_S = 10.0

Identities = Callable[[], Awaitable[Mapping[ScopeId, ScopeId]]]


class Sharing:
    """
    Args:
        share: None: it cannot be used at all, for the reason that `problem` says.
        identities: Of the credentials that are shared.
    """

    def __init__(
        self,
        engine: Engine,
        share: Share | None,
        grouping: Grouping,
        *,
        identities: Identities,
        problem: str | None = None,
        luck: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self._engine = engine
        self._share = share
        self._grouping = grouping
        self._identities = identities
        self._luck = luck
        self._state: ShareState = "off" if share is None else "connecting"
        self._problem = problem
        self._since_at = engine.clock.now()
        self._names = SharedNames()
        self._hearing = Hearing(engine, grouping, names=lambda: self._names)
        self._clock = self._hearing.clock
        self._telling = Telling(
            engine,
            grouping,
            names=lambda: self._names,
            connected=lambda: self._is_connected,
            suspect=self._suspect,
        )
        self._machines: tuple[Card, ...] = ()
        self._ignored: tuple[str, ...] = ()
        self._alone: tuple[float, tuple[ScopeId, ...]] | None = None
        """Start of the last trial without a grant, by the first clock, and its scopes."""
        self._deaf: str | None = None
        """Reason why changes are not heard at once."""
        self._asking = anyio.Lock()
        self._failed_asks = 0
        self._muted_until = -math.inf
        self._retry = 0
        self._is_connected = anyio.Event()
        self._look_now = anyio.Event()

    # --- what the loop asks ------------------------------------------------------------------

    @property
    def limit_s(self) -> float:
        return self._grouping.limit_s

    @property
    def _may_ask(self) -> bool:
        return self._state == "connected" and anyio.current_time() >= self._muted_until

    def weighed(
        self,
        before: HealthOf,
        decision: Decision,
        *,
        is_asked: bool,
        again: Callable[[HealthOf], Decision],
    ) -> Decision:
        scopes = tuple(one.scope for one in unasked(before, decision, self._is_ours))
        if not scopes:
            return decision
        if self._may_ask and not is_asked:
            return Decision(answer=Unasked(scopes=scopes))
        engine, state = self._engine, self._state
        turns = ProbeTurns(
            self._grouping.instance,
            self._machines,
            ahead_s=(self._clock.ahead_s or 0.0) - engine.shifted_s,
        )
        found, alone = turns.weigh(
            decision,
            before,
            again,
            is_ours=self._is_ours,
            name_of=lambda scope: self._names.mirrored(scope) or scope,
            now=engine.clock.now(),
            why=f"arbiter away ({'no answer' if state == 'connected' else state})",
        )
        if alone:
            self._alone = (engine.clock.now() - engine.shifted_s, alone)
        return found

    def _is_ours(self, scope: ScopeId) -> bool:
        return self._telling.holds(scope) or self._names.mirrored(scope) is None

    async def ask(self, scopes: tuple[ScopeId, ...], *, deadline: float) -> None:
        with anyio.move_on_at(deadline):
            async with self._asking:  # others of this machine may be asking for the same
                for scope in scopes:
                    if not await self._ask(scope, deadline=deadline):
                        return

    async def _ask(self, scope: ScopeId, *, deadline: float) -> bool:
        """Ask for one trial. Returns whether there was an answer, and it was yes."""
        name = self._names.mirrored(scope)
        health = self._engine.store.peek().health.get(scope)
        is_taken = is_leased(health, now=self._engine.clock.now())
        if name is None or self._share is None or is_taken or self._telling.holds(scope):
            return True
        early = is_running(health, now=self._engine.clock.now())
        try:
            found = await self._share.lease(
                name,
                owner=self._grouping.owner,
                ttl_s=self._grouping.lease_s,
                early=early,
                limit_s=max(0.001, deadline - anyio.current_time()),
            )
        except (ShareAway, ShareRefused) as error:
            self._unanswered(error)
            return False
        self._failed_asks = 0
        if found.granted:
            self._telling.hold(scope, gen=found.gen)
            return True
        if not found.seen.records:  # of a newer version: it is no arbiter for us
            self._telling.hold(scope, gen=-1)
            return True
        await self._hearing.take(found.seen, is_answer=True)
        return False

    def _unanswered(self, error: ShareAway | ShareRefused) -> None:
        """The trial is made as if there were no other machine."""
        self._failed_asks += 1
        self._muted_until = anyio.current_time() + 1.0
        if self._failed_asks >= SLOW_AFTER:
            self._muted_until = anyio.current_time() + SLOW_S
            self._moved("slow", f"{error}; trials begin without the others for {SLOW_S:g} s")
            self._look_now.set()

    def learned(self, event: Event, before: HealthOf, decision: Decision) -> None:
        if isinstance(event, SharedSeen | ClockStepped):
            return
        for one in decision.changes:
            if isinstance(one, PutHealth) and self._names.mirrored(one.health.scope) is not None:
                self._telling.learn(before.get(one.health.scope), one.health)

    # --- life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Share until cancelled."""
        if self._share is None:
            log.error("share.off", problem=self._problem)
            return
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep, self._share)
                tasks.start_soon(self._follow, self._share)
                tasks.start_soon(self._telling.run, self._share)
                tasks.start_soon(self._telling.renew, self._share)
        finally:
            with anyio.CancelScope(shield=True):
                await self._share.aclose()

    async def _keep(self, share: Share) -> None:
        """Be there, and look at everything from time to time."""
        while True:
            self._look_now = anyio.Event()
            delay_s = LOOK_S
            try:
                await self._look(share)
            except ShareRefused as error:
                self._lost("refused", error)
                delay_s = REFUSED_S
            except ShareAway as error:
                self._lost("full" if "maxmemory" in str(error) else "unreachable", error)
                self._retry = min(self._retry + 1, 7)
                delay_s = min(2.0 ** (self._retry - 1), MAX_RETRY_S) * (0.75 + self._luck() / 2)
            with anyio.move_on_after(delay_s):
                await self._look_now.wait()
            if self._state == "slow":
                await anyio.sleep(max(0.0, self._muted_until - anyio.current_time()))

    async def _look(self, share: Share) -> None:
        grouping = self._grouping
        await self._rename()
        card = Card(
            name=grouping.machine,
            instance=grouping.instance,
            version=grouping.version,
            pid=grouping.pid,
            boot=self._engine.clock.boot_id(),
            missed=self._missed(),
        )
        _, before = await share.present(card, limit_s=COMMAND_S)
        self._machines = before
        health = self._engine.store.peek().health
        scopes = [
            name
            for scope in self._names.known(self._engine.settings.policy, health)
            if (name := self._names.named(scope)) is not None
        ]
        seen = await self._clock.timed(share.read(scopes, limit_s=COMMAND_S))
        self._ignored = seen.ignored
        self._retry = 0
        if self._state != "connected":
            self._moved("connected", None)
            self._failed_asks = 0
        await self._hearing.take(seen)
        for scope in self._hearing.untold(seen):
            self._telling.add(scope)
        self._is_connected.set()
        self._telling.look()

    def _missed(self) -> tuple[str, ...]:
        health, now = self._engine.store.peek().health, self._engine.clock.now()
        return missed(health, self._names, now=now)

    async def _rename(self) -> None:
        policy = self._engine.settings.policy
        backends = policy.backends.values()
        self._names = SharedNames(
            remote=frozenset(str(one.id) for one in backends if one.is_http and not one.is_local),
            private=frozenset(one.provider for one in backends if one.provider and one.is_local),
            identities=await self._identities(),
        )

    async def _follow(self, share: Share) -> None:
        after: str | None = None
        while True:
            await self._is_connected.wait()
            try:
                after, names = await share.changes(after, wait_s=WAIT_S)
                mine = [one for one in names if self._hearing.is_ours(one)]
                if mine:
                    await self._hearing.take(
                        await self._clock.timed(share.read(mine, limit_s=COMMAND_S))
                    )
                self._deaf = None
            except (ShareAway, ShareRefused) as error:
                self._deaf = str(error) if isinstance(error, ShareRefused) else None
                self._suspect(error)
                await anyio.sleep(1.0)

    def _suspect(self, error: ShareAway | ShareRefused) -> None:
        """Something did not go through: whether the server is there, the next look says."""
        if self._state == "connected":
            log.info("share.suspected", problem=str(error))
        self._disconnect()
        self._look_now.set()

    def _lost(self, state: ShareState, error: Exception) -> None:
        self._disconnect()
        self._moved(state, str(error))

    def _disconnect(self) -> None:
        """Tasks that wait for the connection keep waiting for the same event."""
        if self._is_connected.is_set():
            self._is_connected = anyio.Event()

    def _moved(self, state: ShareState, problem: str | None) -> None:
        self._problem = problem
        if state == self._state:
            return
        self._state = state
        self._since_at = self._engine.clock.now()
        if state == "connected":
            log.info("share.connected", group=self._grouping.group, machine=self._grouping.machine)
        elif state == "refused":
            log.error("share.refused", problem=problem)
        else:
            log.warning(f"share.{state}", problem=problem)

    # --- people ------------------------------------------------------------------------------

    async def say(
        self,
        target: str | None,
        action: Literal["mark", "clear", "pause", "resume"],
        *,
        reason: str | None = None,
        ttl_s: float | None = None,
        note: str | None = None,
    ) -> tuple[ScopeId, ...]:
        """
        Set a manual override on all machines, also on those that connect later.

        Raises:
            Unknown: Of no backend or scope.
            Draining: The others cannot be reached. Nothing was changed.
        """
        scopes = (
            self._known_scopes()
            if target is None
            else scopes_meant(self._engine, target, only_own=action in ("mark", "pause"))
        )
        if self._share is None or self._state != "connected":
            raise Draining(
                f"nothing was changed: the other machines cannot be reached ({self._state}: "
                f"{self._problem or 'not connected yet'}); leave --everywhere out to change this "
                "machine alone"
            )
        word, window_s = word_of(action, reason, ttl_s, note, self._grouping.machine)
        names = {scope: name for scope in scopes if (name := self._names.named(scope)) is not None}
        for name in names.values():
            try:
                seen = await self._share.say(name, word, window_s=window_s, limit_s=COMMAND_S)
            except (ShareAway, ShareRefused) as error:
                self._suspect(error)
                raise Draining(f"the other machines could not be reached: {error}") from error
            await self._hearing.take(seen)
        if not names:
            raise Draining(
                f"{target} has no name that other machines know: set group_secret_env in [share]"
            )
        return tuple(names)

    def _known_scopes(self) -> tuple[ScopeId, ...]:
        engine = self._engine
        return self._names.known(engine.settings.policy, engine.store.peek().health)

    def look_now(self) -> None:
        """Compare everything with the server now, and not when it is due."""
        self._look_now.set()

    # --- looking -----------------------------------------------------------------------------

    def shown(self) -> Shared:
        offset_s = self._clock.ahead_s
        return Shared(
            state=self._state,
            group=self._grouping.group,
            machine=self._grouping.machine,
            problem=self._problem,
            since_at=self._since_at,
            machines=self._machines,
            offset_s=None if offset_s is None else offset_s - self._engine.shifted_s,
            outbox=self._telling.outbox,
            ignored=self._ignored,
            scopes=tuple(
                one for one in self._known_scopes() if self._names.mirrored(one) is not None
            ),
            warning=warning(self._grouping, self._machines, deaf=self._deaf, look_s=LOOK_S),
            advice=advice(self._missed(), self._grouping.machine, self._machines),
            is_arbiter_away=not self._may_ask,
            alone_at=self._alone and self._alone[0] + self._engine.shifted_s,
            alone_scopes=() if self._alone is None else self._alone[1],
        )

    async def test(self) -> tuple[Tested, ...]:
        if self._share is None:
            return (Tested(step="configuration", ok=False, detail=self._problem or ""),)
        return await tested(
            self._share, self._grouping.owner, self._grouping.instance, self._engine.clock
        )
