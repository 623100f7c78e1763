"""
What is reported to the other machines, and the leases that this one holds for its trials.

Only what the others lack is reported: the newest of a scope, with its age.
"""

from collections.abc import Callable

import anyio
from msgspec import Struct

from fallbackd.core.health.record import Health, is_leased
from fallbackd.core.ids import ScopeId
from fallbackd.core.share.folding import is_peer, news_in
from fallbackd.core.share.scopes import SharedNames, is_shared_fact
from fallbackd.engine.loop import Performer
from fallbackd.engine.peers import Grouping
from fallbackd.engine.share_words import failing
from fallbackd.ports.share import Share, ShareAway, ShareRefused

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
        engine: Performer,
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
