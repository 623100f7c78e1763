"""A store that forgets everything when the daemon ends."""

from collections.abc import Callable, Collection, Iterable, Sequence

from anyio import to_thread
from anyio.lowlevel import checkpoint

from fallbackd.core.decision import Decision, Journaled, PutStory
from fallbackd.core.history import HourUse, hour_of
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.records import Delegation, Keys, Snapshot
from fallbackd.ports.store import ALL, Outlives, ReportT, Selection, StoreUnwritable
from fallbackd.stores.mirror import Draft, Mirror, ReadsMirror, newest_first


class MemoryStore(ReadsMirror):
    """
    Everything in dicts.

    Attributes:
        unwritable: A sentence: from now on this store behaves as one whose disk is full.
    """

    kind = "memory"
    set_aside: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.unwritable: str | None = None
        super().__init__(Mirror())
        self._stories: dict[DelegationId, list[PutStory]] = {}
        self._hours: dict[tuple[int, str], HourUse] = {}

    @property
    def problem(self) -> str | None:
        return self.unwritable

    async def transact(
        self,
        keys: Keys,
        run: Callable[[Snapshot], Decision],
        *,
        must_keep: bool = True,
        outlives: Outlives = "machine",
    ) -> tuple[Decision, Sequence[Journaled]]:
        await checkpoint()
        return self._decide(keys, run, must_keep=must_keep)

    def transact_now(
        self, keys: Keys, run: Callable[[Snapshot], Decision]
    ) -> tuple[Decision, Sequence[Journaled]]:
        return self._decide(keys, run, must_keep=False)

    def _decide(
        self, keys: Keys, run: Callable[[Snapshot], Decision], *, must_keep: bool
    ) -> tuple[Decision, Sequence[Journaled]]:
        draft = Draft(self._mirror)
        decision = run(draft.snapshot(keys))
        notes = draft.add(decision.changes)
        if self.unwritable is not None and must_keep and decision.changes:
            raise StoreUnwritable(self.unwritable)
        self._mirror.apply(draft)
        for story in draft.stories:
            self._stories.setdefault(story.delegation, []).append(story)
        for one in draft.hours:
            self._hours[one.hour, one.backend] = one
        return decision, notes

    async def unknown(self, names: Collection[DelegationId]) -> Sequence[DelegationId]:
        return ()

    def is_kept(self, delegation: DelegationId) -> bool:
        return self.unwritable is None

    async def delegation(self, delegation: DelegationId) -> Delegation | None:
        return self._mirror.delegation(delegation)

    async def delegations(
        self, wanted: Selection = ALL, *, limit: int = 100
    ) -> Sequence[Delegation]:
        return newest_first(self._mirror.in_memory(), wanted, limit=limit)

    async def story(self, delegation: DelegationId) -> Sequence[PutStory]:
        return tuple(self._stories.get(delegation, ()))

    async def hours(
        self, use: Callable[[Iterable[HourUse]], ReportT], *, since_hour: int
    ) -> ReportT:
        found = [one for key, one in sorted(self._hours.items()) if key[0] >= since_hour]
        return await to_thread.run_sync(use, found)

    async def journal(self, *, after_seq: int, limit: int = 1000) -> Sequence[Journaled]:
        return self._mirror.journal(after_seq=after_seq, limit=limit)

    async def set_meta(self, key: str, value: str) -> None:
        self._mirror.facts[key] = value

    async def flush(self) -> bool:
        return self.unwritable is None

    async def checkpoint(self) -> None:
        """There is no file."""

    async def prune(
        self,
        *,
        delegations_before_at: float,
        journal_before_at: float,
        max_journal: int,
        max_sessions: int,
        sessions_before_at: float,
        hours_before_at: float = 0.0,
    ) -> tuple[Sequence[DelegationId], Sequence[SessionId]]:
        dropped = [
            one.delegation
            for one in self._mirror.ended.values()
            if one.ended_at is not None and one.ended_at < delegations_before_at
        ]
        for delegation in dropped:
            self._mirror.forget(delegation)
            self._stories.pop(delegation, None)
        for key in [key for key in self._hours if key[0] < hour_of(hours_before_at)]:
            del self._hours[key]
        self._mirror.forget_journal(
            before_at=journal_before_at, up_to_seq=self._mirror.last_seq - max_journal
        )
        due = self._mirror.due_sessions(max_sessions=max_sessions, before_at=sessions_before_at)
        return dropped, due

    async def aclose(self) -> None:
        """Nothing is held."""
