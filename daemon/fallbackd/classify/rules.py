"""Failure signatures. Signatures are data: built in per vendor, extended by the user."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from fallbackd.core.reasons import Reason

MAX_PATTERN_BYTES = 1 << 20
"""Bound for a user's pattern, compiled."""
MAX_SCREEN_BYTES = 1 << 24


class Found(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...
    def __getitem__(self, group: int, /) -> str: ...


class Pattern(Protocol):
    def search(self, text: str, /) -> Found | None: ...
    def match(self, text: str, /) -> Found | None: ...


class Rule(Struct, frozen=True):
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
    stands: bool = False
    """The words are one provider's own, so the model is not asked."""
    yields: bool = False
    """True for a rule that decides only where no other one does."""
    is_users: bool = False
    """Written by a user: searched by an engine that takes linear time whatever the pattern is."""

    def __hash__(self) -> int:
        return hash(self.id)


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


class Screen:
    """
    The patterns of many that may be found in a text, by one pass over it in linear time.

    It knows no lookaround and no limits of words beyond ASCII, so it names too many rather than
    too few; the search proper is left for these.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        # Here: it is slow to load, and asked only where something has failed.
        import re2

        options = re2.Options()
        options.case_sensitive = False
        options.max_mem = MAX_SCREEN_BYTES
        self._patterns = tuple(patterns)
        self._set = re2.Set.SearchSet(options)
        for pattern in self._patterns:
            self._set.Add(_widened(pattern))
        self._set.Compile()

    def may_find(self, text: str) -> frozenset[str]:
        return frozenset(self._patterns[at] for at in self._set.Match(text) or ())


def _widened(pattern: str) -> str:
    """One that finds at least as much."""
    parts: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        two = pattern[at : at + 2]
        if not in_class and re.match(r"\(\?<?[=!]", pattern[at:]):
            at = _end_of_group(pattern, at)
        elif two[0] == "\\":
            parts.append(_wide(two, in_class=in_class))
            at += 2
        else:
            in_class = two[0] == "[" if not in_class else two[0] != "]"
            parts.append(two[0])
            at += 1
    return "".join(parts)


def _wide(escape: str, *, in_class: bool) -> str:
    if escape == r"\b" and not in_class:
        return ""
    wide = {
        r"\w": r"0-9A-Za-z_\x{80}-\x{10FFFF}",
        r"\d": r"0-9\x{80}-\x{10FFFF}",
        r"\s": r"\s\x{80}-\x{10FFFF}",
    }.get(escape)
    if wide is None:
        return escape
    return wide if in_class else f"[{wide}]"


def _end_of_group(pattern: str, at: int) -> int:
    depth, in_class = 0, False
    while at < len(pattern):
        one = pattern[at]
        if one == "\\":
            at += 1
        elif in_class:
            in_class = one != "]"
        elif one == "[":
            in_class = True
        else:
            depth += (one == "(") - (one == ")")
            if depth == 0:
                return at + 1
        at += 1
    return at
