"""Stores of records, and of what several machines keep together."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from fallbackd.core.decision import Decision, Journaled, PutStory
from fallbackd.core.history import HourUse
from fallbackd.core.ids import DelegationId, ScopeId, SessionId
from fallbackd.core.records import Delegation, Keys, Session, Snapshot
from fallbackd.core.share import PersonWord, SharedMark, SharedRecord

# Records kept by several machines: a mirror of shared health, and the arbiter of its trials.


class ShareAway(Exception):
    """The server cannot be used now: says why. Nothing is known of what was under way."""


class ShareRefused(Exception):
    """The server wants no more of us (password, permissions): a person has to act."""


class ShareReading(Struct, frozen=True, kw_only=True):
    """Records as of one instant. All their instants are Unix seconds of the server's clock."""

    at: float
    records: tuple[SharedRecord, ...] = ()
    ignored: tuple[str, ...] = ()
    """Keys that could not be read, and why."""


class Leased(Struct, frozen=True, kw_only=True):
    granted: bool
    gen: int
    seen: ShareReading
    """The record after it, which says why where it was not granted."""


class Failing(Struct, frozen=True, kw_only=True):
    """A mark by its ages, so that the clock of the machine makes no difference."""

    mark: SharedMark
    age_s: float
    began_ago_s: float
    """Start of the attempt that failed."""
    window_s: float | None
    """From the mark on; None: without an end."""


class Card(Struct, frozen=True, kw_only=True):
    """A machine of the group."""

    name: str
    instance: str
    """Of its state directory: two machines with one name are two instances."""
    version: str = ""
    pid: int = 0
    boot: str = ""
    missed: tuple[str, ...] = ()
    """Providers that it cannot reach now."""
    seen_ago_s: float = 0.0


class Share(Protocol):
    """
    Every call may raise `ShareAway` or `ShareRefused`, and is bounded by `limit_s` where it takes
    one. Scopes go by the names that all machines know.
    """

    async def read(self, scopes: Sequence[ScopeId], *, limit_s: float) -> ShareReading: ...

    async def report_failure(
        self, scope: ScopeId, failing: Failing, *, limit_s: float
    ) -> ShareReading: ...

    async def report_success(
        self, scope: ScopeId, *, began_ago_s: float, source: str, limit_s: float
    ) -> ShareReading: ...

    async def lease(
        self, scope: ScopeId, *, owner: str, ttl_s: float, early: bool, limit_s: float
    ) -> Leased:
        """
        Ask for the one trial of a scope.

        Args:
            early: Before the end of its window, because no other candidate is usable.
        """
        ...

    async def renew(
        self, scope: ScopeId, *, owner: str, gen: int, ttl_s: float, limit_s: float
    ) -> bool:
        """False: it ran out or was overtaken."""
        ...

    async def release(self, scope: ScopeId, *, owner: str, gen: int, limit_s: float) -> bool: ...

    async def say(
        self, scope: ScopeId, word: PersonWord, *, window_s: float | None, limit_s: float
    ) -> ShareReading:
        """Set a manual override on all machines. The server gives it its instant and its id."""
        ...

    async def changes(self, after: str | None, *, wait_s: float) -> tuple[str, tuple[ScopeId, ...]]:
        """
        Wait for changes.

        Args:
            after: As the last call gave it; None: those of the last hour.

        Returns:
            What to ask from next time, and the scopes that changed.
        """
        ...

    async def present(self, card: Card, *, limit_s: float) -> tuple[float, tuple[Card, ...]]:
        """Say that this machine is there. The time of the server, and who is there."""
        ...

    async def aclose(self) -> None: ...


ShareState = Literal["connecting", "connected", "unreachable", "slow", "full", "refused", "off"]


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


ReportT = TypeVar("ReportT")


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

    async def hours(
        self, use: Callable[[Iterable[HourUse]], ReportT], *, since_hour: int
    ) -> ReportT:
        """
        Let `use` read the hours that are over, in a thread of its own: nothing waits for it.

        Raises:
            StoreUnwritable: They cannot be read.
        """
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
        hours_before_at: float = 0.0,
    ) -> tuple[Sequence[DelegationId], Sequence[SessionId]]:
        """
        Drop ended delegations (with stories) and journal entries that are older.

        Args:
            max_journal: Entries of the journal that stay, the last ones.
            hours_before_at: Hours of use that are older go too.

        Returns:
            Delegations that were dropped (their run directories may go), and idle sessions that
            are past their time or over the maximum: those are for `Ticked` to drop.
        """
        ...

    async def aclose(self) -> None: ...
