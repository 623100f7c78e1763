"""`ApiError`, the one exception that a handler raises on purpose."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

ErrorKind = Literal[
    "invalid_params",
    "unknown",
    "busy",
    "refused",
    "draining",
    "not_permitted",
    "config_invalid",
    "wait_over",
    "too_many",
]


class ApiError(Exception):
    """
    An error answer.

    Args:
        kind: What kind of error it is; a front gives it the code of its protocol.
        message: A sentence that says what to do.
        data: More fields for programs, any JSON; a `kind` among them is a narrower word.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        data: dict[str, Any] | None = None,  # error data of the wire, any JSON
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.data = data or {}


def refuse_unknown(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """
    Refuse a word that is none of a fixed set.

    Raises:
        ApiError: Names the nearest known word, or all of them.
    """
    from difflib import get_close_matches

    for word in given:
        if word in known:
            continue
        near = get_close_matches(word[:100], known, n=1, cutoff=0.6)
        help_ = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
        raise ApiError("invalid_params", f"unknown {what} {word[:100]!r}: {help_}")
