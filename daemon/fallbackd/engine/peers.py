"""Interface of the sharing of health with other machines. Off by default."""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from msgspec import Struct

from fallbackd.core.decision import Decision
from fallbackd.core.events import Event
from fallbackd.core.health import Health
from fallbackd.core.ids import ScopeId
from fallbackd.ports.store import Card, ShareState

HealthOf = Mapping[ScopeId, Health]


class Unasked(Struct, frozen=True, kw_only=True):
    """The answer of a decision that was not kept: it begins a trial that the others may forbid."""

    scopes: tuple[ScopeId, ...]


class Shared(Struct, frozen=True, kw_only=True):
    """State of sharing, for `status`."""

    state: ShareState
    group: str
    machine: str
    problem: str | None = None
    """Reason why it is not connected, and what to do."""
    since_at: float | None = None
    """Time since which it is in this state."""
    machines: tuple[Card, ...] = ()
    offset_s: float | None = None
    """Lead of the server's clock over this machine's."""
    outbox: int = 0
    """Scopes whose news the others do not have yet."""
    ignored: tuple[str, ...] = ()
    """Records that could not be read, and why."""
    scopes: tuple[str, ...] = ()
    warning: str | None = None
    advice: tuple[str, ...] = ()
    """Findings of several machines that none of them can know alone."""
    is_arbiter_away: bool = False
    """No machine or server grants trials now."""
    alone_at: float | None = None
    """Time at which a trial last began without a grant."""
    alone_scopes: tuple[str, ...] = ()
    """Scopes probed by that trial."""


class Tested(Struct, frozen=True, kw_only=True):
    """One step of a test of the connection."""

    step: str
    ok: bool
    detail: str = ""
    took_s: float = 0.0


class Grouping(Struct, frozen=True, kw_only=True):
    """Configuration of the group that this machine belongs to."""

    group: str
    machine: str
    instance: str
    version: str = ""
    pid: int = 0
    lease_s: float = 60.0
    limit_s: float = 0.25
    warning: str | None = None

    @property
    def owner(self) -> str:
        """Owner of this daemon's leases."""
        return f"{self.machine}/{self.instance}"


class SharingPeers(Protocol):
    def weighed(
        self,
        before: HealthOf,
        decision: Decision,
        *,
        is_asked: bool,
        again: Callable[[HealthOf], Decision],
    ) -> Decision:
        """
        The decision, or `Unasked` in its place.

        Args:
            is_asked: The others were, in vain: it is the decision, and says so.
            again: The decision as it would be with other records of health.
        """
        ...

    @property
    def limit_s(self) -> float:
        """Longest delay of work by what follows."""
        ...

    async def ask(self, scopes: tuple[ScopeId, ...], *, deadline: float) -> None:
        """
        Ask for the trials of scopes. What another machine has is in the records when it returns.

        Args:
            deadline: On the clock of the event loop.
        """
        ...

    def learned(self, event: Event, before: HealthOf, decision: Decision) -> None:
        """Note what was kept and may be of interest to others. Never waits."""
        ...

    async def say(
        self,
        target: str | None,
        action: Literal["mark", "clear", "pause", "resume"],
        *,
        reason: str | None = None,
        ttl_s: float | None = None,
        note: str | None = None,
    ) -> tuple[ScopeId, ...]:
        """Set a manual override on all machines. Returns the scopes that it is about."""
        ...

    def shown(self) -> Shared: ...

    async def test(self) -> tuple[Tested, ...]: ...
