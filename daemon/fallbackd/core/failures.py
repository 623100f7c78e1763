"""One classified fact about a backend: `Failure`. What follows from its reason: `reasons`."""

from typing import Literal

from msgspec import Struct

from fallbackd.core.reasons import Reason as Reason

Confidence = Literal["exit_code", "structured", "text"]
"""In this order of trust. `exit_code`: known from the exit status of the program alone."""

LimitScope = Literal["model", "credential"]
"""The thing that a limit may name: one model of the login, or one key of its account."""

DAEMON_LOST_DETAIL = "daemon_lost"
"""Of a `crash` that was the end of the daemon: what ran inside it is asked for again."""


NO_CONVERSATION = "no_conversation"
"""Detail where an agent could not resume its conversation: it says nothing of the backend."""


REPAIRABLE = "repairable"
"""Detail of a request whose form was refused, and that is changed accordingly for the next try."""


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """
    A failure: what broke, for whom, and what would help.

    `stated_reset_at` / `stated_reset_s` keep what the provider said, both filled when either is
    known; `wait_until_at` / `wait_s` are what is believed of that, bounded by reason (see
    `ReasonPolicy.max_wait_s`).
    `evidence` is a redacted excerpt, `signature` the id of the rule that decided.
    """

    reason: Reason
    detail: str | None = None
    scope: str | None = None
    """The scope that it names by itself, or a `LimitScope`; null: by the row of the reason."""
    retryable: bool = False
    retry_same: bool = False
    rotate_credential: bool = False
    hop: bool = False
    shrink_input: bool = False
    needs_human: bool = False
    marks_health: bool = False
    stated_reset_at: float | None = None
    stated_reset_s: float | None = None
    wait_until_at: float | None = None
    wait_s: float | None = None
    confidence: Confidence = "exit_code"
    confidence_score: float = 1.0
    """0 to 1. Of a text that was guessed at: how likely it is this reason; else 1."""
    signature: str = ""
    evidence: str = ""


USAGE_RETRYABLE_S = 900.0
"""A usage limit whose stated time is this near counts as retryable."""


LONG_THROTTLE_S = 3600.0
"""A throttle whose stated time is this far is not over within minutes, whatever it counts."""

PAST_S = 60.0
"""A stated time that is over for longer says nothing about the end of a limit that still holds:
clocks differ, or an old answer was repeated. It is kept, and nothing waits for it."""


def _wait_s(reset_s: float | None, at_least_s: float | None) -> float | None:
    """Return how long the limit lasts, by what was stated and by its kind; None: neither says."""
    stated_s = None if reset_s is None or reset_s < -PAST_S else max(0.0, reset_s)
    if at_least_s is None:
        return stated_s
    return max(stated_s or 0.0, at_least_s)


def _is_retryable(reason: Reason, *, stated_s: float | None, wait_s: float | None) -> bool:
    """Return whether the same request may succeed soon: a long limit is not worth another try."""
    if reason is Reason.USAGE_LIMIT:
        return wait_s is not None and wait_s <= USAGE_RETRYABLE_S
    if reason is Reason.RATE_LIMIT and stated_s is not None and stated_s >= LONG_THROTTLE_S:
        return False
    return reason.row.flags.retryable


def make_failure(
    reason: Reason,
    *,
    now: float,
    max_wait_s: float | None = None,
    detail: str | None = None,
    scope: str | None = None,
    reset_s: float | None = None,
    at_least_s: float | None = None,
    confidence: Confidence = "structured",
    confidence_score: float = 1.0,
    signature: str = "",
    evidence: str = "",
    rotate: bool | None = None,
    hop: bool | None = None,
    retry: bool | None = None,
    retry_same: bool | None = None,
    marks: bool = True,
) -> Failure:
    """
    Fill the flags of a reason by its row.

    Args:
        reset_s: Seconds from `now` that the provider stated, if any; negative for the past.
        at_least_s: How long the limit lasts by its own kind; believed before a shorter `reset_s`.
        max_wait_s: Bound on what is believed of `reset_s`; null: believed as it is.
        rotate: Overrides the table (an aggregator's upstream limit leaves the key healthy).
        retry: Overrides the table (the same again would find the same).
        retry_same: Overrides `retry` and the table for the engine alone.
        marks: False: no backend is to blame.
        hop: Overrides the table (a request above one account's limit per minute fits elsewhere).
    """
    flags = reason.row.flags
    stated_s = None if reset_s is None else max(0.0, reset_s)
    wait_s = _wait_s(reset_s, at_least_s)
    if retry is None:
        retryable = _is_retryable(reason, stated_s=stated_s, wait_s=wait_s)
    else:
        retryable = retry
    if wait_s is not None and max_wait_s is not None:
        wait_s = min(wait_s, max_wait_s)
    return Failure(
        reason=reason,
        detail=detail,
        scope=scope,
        retryable=retryable,
        retry_same=next((one for one in (retry_same, retry) if one is not None), flags.retry_same),
        rotate_credential=flags.rotate_credential if rotate is None else rotate,
        hop=flags.hop if hop is None else hop,
        shrink_input=flags.shrink_input,
        needs_human=flags.needs_human or (reason is Reason.AUTH and detail == "revoked"),
        marks_health=marks and reason.row.window is not None,
        stated_reset_at=None if reset_s is None else now + reset_s,
        stated_reset_s=stated_s,
        wait_until_at=None if wait_s is None else now + wait_s,
        wait_s=wait_s,
        confidence=confidence,
        confidence_score=confidence_score,
        signature=signature,
        evidence=evidence,
    )
