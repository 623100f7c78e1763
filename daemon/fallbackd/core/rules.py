"""What a failure signature is. Signatures are data: built in per vendor, extended by the user."""

from msgspec import Struct

from fallbackd.core.failures import Reason


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
