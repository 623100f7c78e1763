"""Where records are kept."""

from collections.abc import Callable, Sequence
from typing import Protocol

from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.records import (
    Decision,
    Delegation,
    Journaled,
    Keys,
    PutStory,
    Session,
    Snapshot,
)


class StoreUnwritable(Exception):
    """The records cannot be made durable now (full disk, read-only directory): says why."""


class StoreFacts(Protocol):
    """What `status` tells about the store."""

    @property
    def kind(self) -> str: ...

    @property
    def problem(self) -> str | None:
        """Why nothing can be written now; None while all is well."""
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
        self, keys: Keys, run: Callable[[Snapshot], Decision], *, must_keep: bool = True
    ) -> tuple[Decision, Sequence[Journaled]]:
        """
        Let `run` decide on one consistent snapshot, and keep its changes, all or none.

        `run` is pure and may be called again. Transactions are one after the other. When this
        returns, the changes are durable; the notes come back with the place in the journal.

        Args:
            keys: Records to read besides health, meters and unfinished delegations.
            must_keep: True: raise `StoreUnwritable` and keep nothing when the changes cannot be
                made durable. False: keep them in memory, write them with the next transaction
                that succeeds, and report the trouble in `problem` (work that runs is finished
                and answered even when the disk is full).
        """
        ...

    async def delegation(self, delegation: DelegationId) -> Delegation | None: ...

    async def delegations(
        self, *, session: SessionId | None = None, state: str | None = None, limit: int = 100
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
        """Try to write what `must_keep=False` left behind. True when nothing is left."""
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
