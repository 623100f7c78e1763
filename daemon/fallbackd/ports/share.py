"""Records kept by several machines: a mirror of shared health, and the arbiter of its trials."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from fallbackd.core.ids import ScopeId
from fallbackd.core.share import PersonWord, SharedMark, SharedRecord


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
