"""
What all connections together may hold, and who has to go when it is too much.

One connection has limits of its own. A thousand of them, each just below, would still be too much:
so the bytes of unfinished lines, the unread bytes and the waiting requests are counted for all. The
connection that holds most is closed first; one that asks and reads is never closed.
"""

from time import monotonic
from typing import Protocol

from msgspec import Struct

from fallbackd_client.wire.framing import MAX_LINE_BYTES


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    max_connections: int = 1024
    silent_s: float = 1.0
    """Where all are taken: after this long without any request a connection may be closed."""
    idle_s: float = 60.0
    """The same for one that has asked before, and for which nothing is done or waited for."""
    max_line_bytes: int = MAX_LINE_BYTES
    line_s: float = 60.0
    """From the first byte of a line to its end."""
    max_lines_bytes: int = 64 * 1024 * 1024
    """Unfinished lines of all connections."""
    max_in_flight: int = 1000
    """Requests of one connection that wait for their answer."""
    max_in_flight_of_all: int = 20_000
    fair_in_flight: int = 16
    """So many are taken of each connection whatever others do."""
    max_outbox_bytes: int = 1024 * 1024
    """With more than this unsent, nothing more is read."""
    max_unsent_bytes: int = 64 * 1024 * 1024
    """With more than one answer and more than this unsent, the peer is gone."""
    max_unsent_bytes_of_all: int = 128 * 1024 * 1024
    send_s: float = 30.0
    """A peer that takes nothing for this long is gone."""
    turn_s: float = 0.002
    """After this the other connections have their turn."""


class Holder(Protocol):
    """A connection, as far as it holds something."""

    @property
    def number(self) -> int: ...

    @property
    def is_idle(self) -> bool:
        """No request, answer or event of it is under way."""
        ...

    @property
    def has_asked(self) -> bool:
        """It has sent a request, and not only bytes."""
        ...

    @property
    def active_at(self) -> float:
        """When something came from it for the last time, by `time.monotonic`."""
        ...

    @property
    def line_bytes(self) -> int: ...

    @property
    def line_began_at(self) -> float: ...

    @property
    def backlog_bytes(self) -> int: ...

    def drop(self, why: str) -> None: ...


class Shares:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.line_bytes = 0
        self.unsent_bytes = 0
        self.in_flight = 0
        self._holders: set[Holder] = set()

    def join(self, holder: Holder) -> None:
        self._holders.add(holder)

    def leave(self, holder: Holder) -> None:
        """What it held is free; it must not count anything more."""
        if holder in self._holders:
            self._holders.remove(holder)
            self.line_bytes -= holder.line_bytes
            self.unsent_bytes -= holder.backlog_bytes

    def make_place(self) -> Holder | None:
        """Close the connection that can be missed most, and say which. None: each is in use."""
        now = monotonic()
        limits = self.limits
        spare = [
            one
            for one in self._holders
            if one.is_idle
            and now - one.active_at >= (limits.idle_s if one.has_asked else limits.silent_s)
        ]
        if not spare:
            return None
        chosen = min(spare, key=lambda one: (one.has_asked, one.active_at))
        chosen.drop("its place is needed")
        return chosen

    def count_line(self, by_bytes: int) -> None:
        """An unfinished line has grown, or has come to its end."""
        self.line_bytes += by_bytes
        while self.line_bytes > self.limits.max_lines_bytes:
            # The share of each: who has less is not in the way.
            fair = self.limits.max_lines_bytes // max(1, self.limits.max_connections)
            large = [one for one in self._holders if one.line_bytes > fair]
            if not large:
                return
            min(large, key=lambda one: one.line_began_at).drop("too many long lines come slowly")

    def count_unsent(self, by_bytes: int) -> None:
        self.unsent_bytes += by_bytes
        while self.unsent_bytes > self.limits.max_unsent_bytes_of_all:
            worst = max(self._holders, key=lambda one: one.backlog_bytes)
            worst.drop("it does not read, and much is unsent to all")

    def may_wait(self, in_flight: int) -> bool:
        """Whether a connection with so many waiting requests may have one more."""
        if in_flight >= self.limits.max_in_flight:
            return False
        is_much = self.in_flight >= self.limits.max_in_flight_of_all
        return not is_much or in_flight < self.limits.fair_in_flight
