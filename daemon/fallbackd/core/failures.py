"""
One classified fact about a backend: `Failure`, and the flags that follow from its reason.

The reasons are the one taxonomy of the daemon; `FLAGS` is the table by which the engine acts.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class Reason(StrEnum):
    RATE_LIMIT = "rate_limit"
    USAGE_LIMIT = "usage_limit"
    LOCAL_BUDGET = "local_budget"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    NETWORK = "network"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    CRASH = "crash"
    UNKNOWN = "unknown"
    EMPTY_RESULT = "empty_result"
    BILLING = "billing"
    AUTH = "auth"
    NOT_INSTALLED = "not_installed"
    NOT_CONFIGURED = "not_configured"
    PERMISSION = "permission"
    TLS = "tls"
    MODEL_NOT_FOUND = "model_not_found"
    MANUAL = "manual"
    CONTEXT_OVERFLOW = "context_overflow"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    FORMAT_ERROR = "format_error"
    CONTENT_POLICY = "content_policy"
    PROVIDER_POLICY = "provider_policy"
    TASK_FAILED = "task_failed"
    APPROVAL_REQUIRED = "approval_required"
    CANCELLED = "cancelled"
    LOCAL_NETWORK = "local_network"


NEVER_MARKS = frozenset(
    {
        Reason.CONTEXT_OVERFLOW,
        Reason.PAYLOAD_TOO_LARGE,
        Reason.FORMAT_ERROR,
        Reason.CONTENT_POLICY,
        Reason.PROVIDER_POLICY,
        Reason.TASK_FAILED,
        Reason.APPROVAL_REQUIRED,
        Reason.CANCELLED,
        Reason.LOCAL_NETWORK,
    }
)

Confidence = Literal["exit_code", "structured", "text"]
"""In this order of trust. What is told apart by the status of the program alone is `exit_code`."""

LOW_CONFIDENCE = frozenset({Reason.CRASH, Reason.UNKNOWN, Reason.TIMEOUT})
"""Reasons that two candidates of one delegation may owe to the prompt (poison work)."""


DAEMON_LOST_DETAIL = "daemon_lost"
"""Of a `crash` that was the end of the daemon: what ran inside it is asked for again."""


NO_CONVERSATION = "no_conversation"
"""Detail where an agent could not resume its conversation: it says nothing of the backend."""


class Flags(Struct, frozen=True, kw_only=True):
    retryable: bool = False
    """The same request to the same backend may succeed within about 15 minutes."""
    retry_same: bool = False
    """The engine does that by itself, now."""
    rotate_credential: bool = False
    hop: bool = False
    shrink_input: bool = False
    needs_human: bool = False


_PASSING = Flags(retryable=True, retry_same=True, hop=True)
_BLIND = Flags(retryable=True, hop=True)
_ELSEWHERE = Flags(hop=True)
_REPAIR = Flags(hop=True, needs_human=True)
_NEXT_CREDENTIAL = Flags(rotate_credential=True, hop=True)
_TOO_LARGE = Flags(shrink_input=True)

FLAGS: dict[Reason, Flags] = {
    Reason.RATE_LIMIT: Flags(retryable=True, rotate_credential=True, hop=True),
    Reason.USAGE_LIMIT: _NEXT_CREDENTIAL,
    Reason.LOCAL_BUDGET: _ELSEWHERE,
    Reason.OVERLOADED: _PASSING,
    Reason.SERVER_ERROR: _PASSING,
    Reason.NETWORK: _PASSING,
    Reason.TIMEOUT: _BLIND,
    Reason.STALLED: _BLIND,
    Reason.CRASH: _BLIND,
    Reason.UNKNOWN: _BLIND,
    Reason.EMPTY_RESULT: _PASSING,
    Reason.BILLING: Flags(rotate_credential=True, hop=True, needs_human=True),
    Reason.AUTH: _NEXT_CREDENTIAL,
    Reason.NOT_INSTALLED: _REPAIR,
    Reason.NOT_CONFIGURED: _REPAIR,
    Reason.PERMISSION: _REPAIR,
    Reason.TLS: _REPAIR,
    Reason.MODEL_NOT_FOUND: _ELSEWHERE,
    Reason.MANUAL: _ELSEWHERE,
    Reason.CONTEXT_OVERFLOW: _TOO_LARGE,
    Reason.PAYLOAD_TOO_LARGE: _TOO_LARGE,
    Reason.FORMAT_ERROR: _ELSEWHERE,
    Reason.CONTENT_POLICY: _ELSEWHERE,
    Reason.PROVIDER_POLICY: _ELSEWHERE,
    Reason.TASK_FAILED: Flags(),
    Reason.APPROVAL_REQUIRED: Flags(needs_human=True),
    Reason.CANCELLED: Flags(),
    Reason.LOCAL_NETWORK: Flags(retryable=True, hop=True),
}


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """
    What broke, for whom, and what would help.

    `stated_reset_at` / `stated_reset_s` keep what the provider said, both filled when either is
    known; `wait_until_at` / `wait_s` are what is believed of that, bounded by reason (see
    `policy.MAX_WAIT_S`).
    `evidence` is a redacted excerpt, `signature` the id of the rule that decided.
    """

    reason: Reason
    detail: str | None = None
    scope: str | None = None
    """The scope that the failure names by itself; null: by the table of the reason."""
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
    signature: str = ""
    evidence: str = ""


USAGE_RETRYABLE_S = 900.0
"""A usage limit whose stated time is this near counts as retryable."""


LONG_THROTTLE_S = 3600.0
"""A throttle whose stated time is this far is not over within minutes, whatever it counts."""

PAST_S = 60.0
"""A stated time that is over for longer says nothing about the end of a limit that still holds:
clocks differ, or an old answer was repeated. It is kept, and nothing waits for it."""


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
    signature: str = "",
    evidence: str = "",
    rotate: bool | None = None,
    hop: bool | None = None,
    retry: bool | None = None,
) -> Failure:
    """
    Fill the flags of a reason by the table.

    Args:
        reset_s: Seconds from `now` that the provider stated, if any; negative for the past.
        at_least_s: How long the limit lasts by its own kind; believed before a shorter `reset_s`.
        max_wait_s: Bound on what is believed of `reset_s`; null: believed as it is.
        rotate: Overrides the table (an aggregator's upstream limit leaves the key healthy).
        retry: Overrides the table (the same again would find the same).
        hop: Overrides the table (a request above one account's limit per minute fits elsewhere).
    """
    flags = FLAGS[reason]
    wait_s = None
    stated_at = None if reset_s is None else now + reset_s
    is_past = reset_s is not None and reset_s < -PAST_S
    if reset_s is not None:
        reset_s = max(0.0, reset_s)
        if not is_past:
            wait_s = reset_s
    if at_least_s is not None:
        wait_s = max(wait_s or 0.0, at_least_s)
    retryable = flags.retryable
    if reason is Reason.USAGE_LIMIT:
        retryable = wait_s is not None and wait_s <= USAGE_RETRYABLE_S
    elif reason is Reason.RATE_LIMIT and reset_s is not None and reset_s >= LONG_THROTTLE_S:
        retryable = False
    if retry is not None:
        retryable = retry
    if wait_s is not None and max_wait_s is not None:
        wait_s = min(wait_s, max_wait_s)
    return Failure(
        reason=reason,
        detail=detail,
        scope=scope,
        retryable=retryable,
        retry_same=flags.retry_same if retry is None else retry,
        rotate_credential=flags.rotate_credential if rotate is None else rotate,
        hop=flags.hop if hop is None else hop,
        shrink_input=flags.shrink_input,
        needs_human=flags.needs_human or (reason is Reason.AUTH and detail == "revoked"),
        marks_health=reason not in NEVER_MARKS,
        stated_reset_at=stated_at,
        stated_reset_s=reset_s,
        wait_until_at=None if wait_s is None else now + wait_s,
        wait_s=wait_s,
        confidence=confidence,
        signature=signature,
        evidence=evidence,
    )
