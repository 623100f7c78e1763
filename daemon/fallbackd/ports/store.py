"""The store of records."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from fallbackd.core.decision import Decision, Journaled, PutStory
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.records import Delegation, Keys, Session, Snapshot

Outlives = Literal["machine", "process", "nothing"]
"""
What changes outlive: a loss of power; the end of this process, however it comes; or nothing:
they are kept in memory and reach the disk with the next ones that need it, or with `flush`.
"""


class StoreUnwritable(Exception):
    """The records cannot be made durable now (full disk, read-only directory): says why."""


class Selection(Struct, frozen=True, kw_only=True):
    """
    The delegations that are asked for. They are ordered by when they were created, and by when they
    ended where only ended ones are wanted; equal instants by id, so that every store gives the same
    list.
    """

    session: SessionId | None = None
    state: str | None = None
    is_ended: bool | None = None
    """True: only those that have ended; False: only the others."""
    since_at: float | None = None
    prefix: str = ""
    """Their ids begin with it."""
    before: tuple[float, DelegationId] | None = None
    """The place of one of them: those behind it are wanted."""

    def place(self, one: Delegation) -> tuple[float, DelegationId]:
        at = one.ended_at if self.is_ended and one.ended_at is not None else one.created_at
        return at, one.delegation

    def fits(self, one: Delegation) -> bool:
        place = self.place(one)
        return (
            self.session in (None, one.session)
            and self.state in (None, one.state)
            and self.is_ended in (None, one.is_ended)
            and (self.since_at is None or place[0] >= self.since_at)
            and one.delegation.startswith(self.prefix)
            and (self.before is None or place < self.before)
        )


ALL = Selection()


class StoreFacts(Protocol):
    """Facts that `status` shows about the store."""

    @property
    def kind(self) -> str: ...

    @property
    def problem(self) -> str | None:
        """The reason why nothing can be written now; None while all is well."""
        ...

    @property
    def set_aside(self) -> tuple[str, ...]:
        """
        Paths of damaged files that were put aside, now or by an earlier run, while they lie
        there: records may be missing. Also names single records that could not be read.
        """
        ...


class Store(StoreFacts, Protocol):
    async def transact(
        self,
        keys: Keys,
        run: Callable[[Snapshot], Decision],
        *,
        must_keep: bool = True,
        outlives: Outlives = "machine",
    ) -> tuple[Decision, Sequence[Journaled]]:
        """
        Let `run` decide on one consistent snapshot, and keep its changes, all or none.

        `run` is pure and may be called again. Transactions are one after the other. When this
        returns, the changes are as durable as `outlives` says; the notes come back with the place
        in the journal.

        Args:
            keys: Records to read besides health, meters and unfinished delegations.
            must_keep: True: raise `StoreUnwritable` and keep nothing when the changes cannot be
                made durable. False: keep them in memory, write them with the next transaction
                that succeeds, and report the trouble in `problem` (work that runs is finished
                and answered even when the disk is full).
            outlives: What the changes need to outlive. They never reach the disk before those of
                an earlier transaction.
        """
        ...

    def transact_now(
        self, keys: Keys, run: Callable[[Snapshot], Decision]
    ) -> tuple[Decision, Sequence[Journaled]] | None:
        """
        Transact at once, for changes that outlive nothing. None: it has to wait for others, or for
        the disk; `run` was not called.
        """
        ...

    async def unknown(self, names: Collection[DelegationId]) -> Sequence[DelegationId]:
        """
        Return the delegations that should have a record and have none. A store that forgets misses
        none.
        """
        ...

    def is_kept(self, delegation: DelegationId) -> bool:
        """Return whether the record is as durable as it is known. False: it is in memory alone."""
        ...

    async def delegation(self, delegation: DelegationId) -> Delegation | None: ...

    async def delegations(
        self, wanted: Selection = ALL, *, limit: int = 100
    ) -> Sequence[Delegation]:
        """Newest first, ended ones too."""
        ...

    async def session(self, session: SessionId) -> Session | None: ...

    async def sessions(self, *, limit: int = 100) -> Sequence[Session]:
        """Most recently used first."""
        ...

    def peek(self) -> Snapshot:
        """Health, meters and unfinished work as of the last commit, without waiting."""
        ...

    async def story(self, delegation: DelegationId) -> Sequence[PutStory]:
        """Oldest first."""
        ...

    async def journal(self, *, after_seq: int, limit: int = 1000) -> Sequence[Journaled]: ...

    @property
    def last_seq(self) -> int: ...

    async def finished_counts(self) -> dict[str, int]:
        """Number of ended delegations by state, over all time."""
        ...

    async def get_meta(self, key: str) -> str | None: ...

    async def set_meta(self, key: str, value: str) -> None:
        """Small facts about the run: boot id, clock offset, imported files."""
        ...

    async def flush(self) -> bool:
        """Try to write what is in memory alone. True when nothing is left."""
        ...

    async def checkpoint(self) -> None:
        """Bring what is durable into one file, so that a copy of it is a backup."""
        ...

    async def prune(
        self,
        *,
        delegations_before_at: float,
        journal_before_at: float,
        max_journal: int,
        max_sessions: int,
        sessions_before_at: float,
    ) -> tuple[Sequence[DelegationId], Sequence[SessionId]]:
        """
        Drop ended delegations (with stories) and journal entries that are older.

        Args:
            max_journal: Entries of the journal that stay, the last ones.

        Returns:
            Delegations that were dropped (their run directories may go), and idle sessions that
            are past their time or over the maximum: those are for `Ticked` to drop.
        """
        ...

    async def aclose(self) -> None: ...
