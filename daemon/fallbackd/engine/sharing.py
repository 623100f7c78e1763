"""
Health shared with other machines: what is sent, what is received, and which makes a trial.

The records of this machine stay the truth for it. Nothing waits for the network but the lease of a
trial, and that at most `limit_s`. What was sent is not kept: what the others lack is seen by
comparing their record with ours, also after the server has lost its data.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import anyio
import structlog

from fallbackd.core.changes import Decision, PutHealth
from fallbackd.core.events import ClockStepped, Event, SharedSeen
from fallbackd.core.health.record import is_leased
from fallbackd.core.ids import ScopeId
from fallbackd.core.share.scopes import SharedNames
from fallbackd.engine.loop import Performer
from fallbackd.engine.peers import Grouping, HealthOf, Shared, Tested, Unasked
from fallbackd.engine.requests import Draining
from fallbackd.engine.share_advice import advice, missed
from fallbackd.engine.share_hearing import Hearing
from fallbackd.engine.share_telling import COMMAND_S, Telling
from fallbackd.engine.share_turns import ProbeTurns, is_running, unasked
from fallbackd.engine.share_words import scopes_meant, tested, warning, word_of
from fallbackd.ports.share import Card, Share, ShareAway, ShareRefused, ShareState

log = structlog.get_logger("share")

WAIT_S = 5.0
"""One wait for changes."""
LOOK_S = 30.0
"""Between two looks at everything, whatever was heard meanwhile."""
MAX_RETRY_S = 60.0
REFUSED_S = 60.0
SLOW_AFTER = 3
"""So many asks in a row without an answer, and none is made for a while."""
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
        engine: Performer,
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
        """When the last trial without a grant began, by the first clock, and of what."""
        self._deaf: str | None = None
        """Why changes are not heard at once."""
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
        """Whether there is an answer, and it is yes."""
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
        """Until cancelled."""
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
