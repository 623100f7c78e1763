"""What a failure signature is. Signatures are data: built in per vendor, extended by the user."""

import re
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from fallbackd.core.failures import Reason

MAX_PATTERN_BYTES = 1 << 20
"""Of a user's pattern, compiled."""


class Found(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...
    def __getitem__(self, group: int, /) -> str: ...


class Pattern(Protocol):
    def search(self, text: str, /) -> Found | None: ...
    def match(self, text: str, /) -> Found | None: ...


class Rule(Struct, frozen=True, kw_only=True):
    """
    One signature. It fits a statement when its pattern, one of its words or its status does.

    Vendors' rules and users' signatures come before the common ones.
    """

    id: str
    reason: Reason
    pattern: str = ""
    """Regular expression, searched per line, case ignored; empty: only the other fields decide."""
    streams: tuple[str, ...] = ()
    """Channels in which the pattern counts; empty: structured ones, stderr and unknown."""
    codes: tuple[str, ...] = ()
    """The vendor's machine-readable words, error names, exception types; lower case."""
    statuses: tuple[int, ...] = ()
    """HTTP statuses; alone or, with a pattern, in addition to it."""
    exits: tuple[int, ...] = ()
    """Exit statuses of this vendor's program. They decide where nothing else does."""
    anywhere: bool = False
    """The pattern may stand inside a line that does not open like an error."""
    opens: bool = False
    """The vendor's mark of an error line: what follows is its statement, read by all rules."""
    requires_exit: bool = True
    """False: counts too for a program that ended with status 0."""
    detail: str | None = None
    scope: str | None = None
    rotate: bool | None = None
    hop: bool | None = None
    retry: bool | None = None
    retry_same: bool | None = None
    """False: the program has tried again by itself, so the engine does not."""
    marks: bool = True
    """False: no backend is to blame, so none is taken out of rotation."""
    until_midnight_in: str = ""
    """Zone (IANA) in which the limit ends with the day, whatever shorter time is advised."""
    yields: bool = False
    """It decides only where no other rule does."""
    is_users: bool = False
    """Written by a user: searched by an engine that takes linear time whatever the pattern is."""


def words(text: str) -> tuple[str, ...]:
    """Machine-readable words, as they are listed over lines."""
    return tuple(text.split())


@lru_cache(maxsize=1024)
def _built_in(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@lru_cache(maxsize=256)
def linear(pattern: str) -> Pattern:
    """
    Compile a user's pattern.

    Raises:
        ValueError: It is no regular expression, or of a sort that linear time cannot search.
    """
    # Here: only who has signatures of his own pays for it. It ships no types.
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = MAX_PATTERN_BYTES
    try:
        found: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else error
        raise ValueError(said.decode() if isinstance(said, bytes) else str(said)) from None
    return found


def compiled(rule: Rule) -> Pattern:
    return linear(rule.pattern) if rule.is_users else _built_in(rule.pattern)
