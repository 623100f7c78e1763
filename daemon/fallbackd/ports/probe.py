"""Looks at a backend that cost nothing: its version, and the list of its models."""

from typing import Protocol

from msgspec import Struct

from fallbackd.core.protocol import Exit, HttpRequest


class Fetched(Struct, frozen=True, kw_only=True):
    exit: Exit
    body: bytes = b""
    """At most a megabyte."""


class Probe(Protocol):
    async def version(self, program: str) -> str | None:
        """Return what a program says about its version, in a line; None: nothing within seconds."""
        ...

    def known_version(self, program: str) -> str | None:
        """
        Return the version without running the program: from an earlier answer, or the package that
        it is in.
        """
        ...

    async def fetch(self, request: HttpRequest) -> Fetched:
        """One request that is never billed. Bounded in time and size; never raises for it."""
        ...
