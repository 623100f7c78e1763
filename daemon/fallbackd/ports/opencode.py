"""An opencode server that was not started by the daemon."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from fallbackd.classify.rules import Rule

INSIDE = "/fallbackd/"
"""Prefix of the paths that are a plugin's own."""


class Called(Struct, frozen=True, kw_only=True):
    """The answer to a call."""

    status: int
    """Status of HTTP; 0: no answer came."""
    body: Any = None
    """Its JSON, of any shape; None where it had none, or none that can be read."""
    problem: str = ""
    """In words, where it is no success."""
    is_unsupported: bool = False
    """The server is of a version that does not know these calls; `problem` names it."""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class Heard(Struct, frozen=True, kw_only=True):
    """One event, bare."""

    directory: str
    """Of the instance that it comes from; empty where the server does not say."""
    event: Mapping[str, Any]
    """`{"id", "type", "properties"}`, from outside: any JSON."""


class Link(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """The process at the other end, where the connection says it."""
        ...

    @property
    def is_inside(self) -> bool:
        """A plugin of ours is reached as well, which answers to `/fallbackd/child`."""
        ...

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        directory: str = "",
        limit_s: float = 15.0,
    ) -> Called:
        """One call. Never raises for what the other side does."""
        ...

    def events(self) -> AsyncGenerator[Heard, None]:
        """
        Events of all directories. Ends when the stream does, for whatever reason: also when not
        even a heartbeat came. To be iterated once; may be asked for again.
        """
        ...

    async def aclose(self) -> None: ...


Owner = Literal["engine", "program", "person"]
"""
Whose the turns of a process are: of an attempt of ours, which the engine moves on; of a program
that ends with its turn; else of a person.
"""


class Written(Struct, frozen=True, kw_only=True):
    """A message of a turn, as far as it says who waits for the answer."""

    at: float
    named_at: float | None
    """
    Its writer chose the id then, as interfaces do that show a message before the server has it; 0:
    at an unknown time. None: the server chose it.
    """


class Whose(Protocol):
    """
    Owners of the processes around opencode, and who waits at them. Every way to a session asks here
    before it changes anything. It may block.
    """

    def owner(self, pid: int | None) -> Owner:
        """
        Return the owner of a process; None: one that cannot be seen from here, which is a person's.
        """
        ...

    def server_at(self, url: str) -> int | None:
        """The process behind an address; None: it cannot be seen from here."""
        ...

    def is_awaited(self, url: str, written: Sequence[Written], *, certainly: bool) -> bool | None:
        """
        Return whether a program waits at a server for the answer to one of these messages; None:
        that cannot be seen.

        Args:
            certainly: False: as far as it cannot be ruled out.
        """
        ...

    def stops(self, pid: int | None, session: str, *, since_at: float) -> int | None:
        """
        Return how often a session was asked to stop, whether or not anything was left to be
        stopped.

        None: the server does not say. What happened less than `STOPS_LAG_S` ago may be missing.
        """
        ...


STOPS_LAG_S = 1.1
"""opencode writes its log once a second (measured)."""


class OpenLink(Protocol):
    def __call__(self, url: str, *, password: str | None) -> Link: ...


class ProjectFiles(Protocol):
    """The files in which projects say how their sessions fall back."""

    async def look(self, directory: str) -> None:
        """Read what holds in a directory, where that is not known yet."""
        ...

    def rules(self, directory: str) -> tuple[Rule, ...]:
        """Its own failure signatures."""
        ...

    def warned(self, directory: str) -> tuple[str, ...]:
        """Return what of a directory's files cannot be used, each with its place."""
        ...
