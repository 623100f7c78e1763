"""What is heard of other machines, by the names that scopes have here and by this clock."""

from collections.abc import Callable, Iterator

from msgspec import structs

from fallbackd.core.events import SharedSeen
from fallbackd.core.health.scopes import is_scope_of
from fallbackd.core.ids import ScopeId
from fallbackd.core.share.folding import untold
from fallbackd.core.share.records import SharedLease, SharedRecord, moved
from fallbackd.core.share.scopes import SharedNames
from fallbackd.engine.loop import Performer
from fallbackd.engine.peers import Grouping
from fallbackd.engine.share_turns import ServerClock
from fallbackd.ports.share import ShareReading


class Hearing:
    """
    Args:
        names: Shared names of scopes, as they are now.
    """

    def __init__(
        self, engine: Performer, grouping: Grouping, *, names: Callable[[], SharedNames]
    ) -> None:
        self._engine = engine
        self._grouping = grouping
        self._names = names
        self._seen: dict[ScopeId, SharedRecord] = {}
        """As the server had them, by their shared names."""
        self.clock = ServerClock(engine, self._seen.clear)

    def is_ours(self, name: ScopeId) -> bool:
        """Whether a shared name is that of a scope on this machine."""
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
