"""Types of single fields, with the bounds that hold for them on the wire."""

from typing import Annotated, Literal, TypeVar

from msgspec import Meta, ValidationError

# Names that older callers use for a field.


T = TypeVar("T")


def one_of(**values: T | None) -> T | None:
    """
    The one value that was given under any of its names.

    Raises:
        ValidationError: Two names were given different values.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return None
    first, *others = given
    for other in others:
        if given[other] != given[first]:
            raise ValidationError(
                f"`{first}` and `{other}` mean the same and differ: give one - at `$.{other}`"
            )
    return given[first]


PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+$(?![\s\S])"
# `$` alone would let a trailing line end pass in Python; the look-ahead is plain ECMA too.

SessionName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        pattern=PRINTABLE,
        description="The caller's conversation: 1 to 200 printable characters.",
    ),
]
RoleName = Annotated[str, Meta(min_length=1, max_length=128, pattern=PRINTABLE)]
Name = Annotated[str, Meta(min_length=1, max_length=300, pattern=PRINTABLE)]
"""An id of a backend, model, credential, chain, scope or delegation."""
ChainName = Annotated[str, Meta(min_length=1, max_length=300)]
"""
Like `Name`, for unions with an array.

No pattern there: msgspec 0.22 frees memory twice for `Annotated[str, pattern] | tuple[...]`.
"""
MAX_TURN = 65_536
TurnWord = Annotated[str, Meta(min_length=1, max_length=MAX_TURN, pattern=r"^[A-Za-z0-9_=-]+$")]
RequestName = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]

PromptText = Annotated[str, Meta(min_length=1, description="Text for the backend, without NUL.")]
DirectoryPath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4096,
        pattern=r"^[^\x00]+$(?![\s\S])",
        description="A path, without NUL.",
    ),
]
Note = Annotated[str, Meta(max_length=2000)]

Instant = Annotated[float, Meta(ge=0, description="Unix seconds, UTC.")]
CalendarInstant = Annotated[
    float, Meta(ge=0, le=250_000_000_000, description="Unix seconds, UTC; before the year 9900.")
]
"""From which dates are computed."""
DurationS = Annotated[float, Meta(ge=0, description="Seconds.")]
SettleS = Annotated[float, Meta(ge=0, le=60, description="Seconds.")]
WaitS = Annotated[float, Meta(ge=0, le=604800, description="Seconds; bounds only the waiting.")]
DeadlineS = Annotated[float, Meta(gt=0, le=604800, description="Seconds; stops the work.")]
StandbyS = Annotated[float, Meta(gt=0, le=2_592_000, description="Seconds; 30 days at most.")]
Priority = Annotated[int, Meta(ge=-100, le=100)]
CountLimit = Annotated[int, Meta(ge=1, le=10000)]
Cursor = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[0-9a-zA-Z.:_+-]+$")]
Tokens = Annotated[int, Meta(ge=0)]
Offset = Annotated[int, Meta(ge=0, description="Bytes from the start of the log.")]

Mode = Literal["interactive", "batch"]
Stream = Literal["stdout", "stderr", "jsonl", "http", "exception", "unknown"]
WaitFor = Literal["accepted", "settled", "finished"]
Permissions = Literal["read", "workspace", "full"]
OnPartial = Literal["continue", "ask", "fail"]
Trigger = Literal["reactive", "preemptive", "recovery", "manual"]
Effects = Literal["none", "possible", "seen", "external"]
HealthState = Literal["healthy", "rate_limited", "cooldown", "broken", "paused"]
DelegationState = Literal[
    "queued",
    "running",
    "waiting",
    "succeeded",
    "failed",
    "refused",
    "cancelled",
    "awaiting_answer",
    "handed_back",
]

Verdict = Literal[
    "chosen",
    "healthy",
    "unproven",
    "in_trial",
    "cooldown",
    "rate_limited",
    "broken",
    "paused",
    "tried",
    "same_as_failed",
    "disabled",
    "not_installed",
    "not_configured",
    "context",
    "budget",
    "must_differ",
    "consent",
    "local_network",
    "affinity",
    "protocol",
]


# Words of answers. A reader takes any text, since a later version may know more of them; the schema
# names those of this version.


def _one_of(*words: str) -> Meta:
    return Meta(extra_json_schema={"enum": list(words)})


ReasonWord = Annotated[
    str,
    _one_of(
        "rate_limit", "usage_limit", "local_budget", "overloaded", "server_error", "network",
        "timeout", "stalled", "crash", "unknown", "empty_result", "billing", "auth",
        "not_installed", "not_configured", "permission", "tls", "model_not_found", "manual",
        "context_overflow", "payload_too_large", "format_error", "content_policy",
        "provider_policy", "task_failed", "approval_required", "cancelled", "local_network",
        "session",
    ),
]  # fmt: skip
"""A reason of the taxonomy."""
ConfidenceWord = Annotated[str, _one_of("exit_code", "structured", "text")]
AttemptStateWord = Annotated[
    str, _one_of("starting", "running", "stopping", "succeeded", "failed", "cancelled")
]
QuestionKindWord = Annotated[str, _one_of("outage", "consent", "partial", "must_differ")]
HealthSourceWord = Annotated[str, _one_of("policy", "provider", "person", "import")]
LimitUnitWord = Annotated[str, _one_of("percent", "requests", "tokens")]
LimitSourceWord = Annotated[str, _one_of("headers", "event", "session", "statusline", "asked")]
TierWord = Annotated[str, _one_of("primary", "model", "api", "in_session")]
UnitWord = Annotated[str, _one_of("requests", "tokens")]
CostWord = Annotated[str, _one_of("subscription", "metered", "local")]
PeriodWord = Annotated[str, _one_of("hour", "day", "week", "total", "since", "model")]
DaemonStateWord = Annotated[str, _one_of("running", "draining")]
CheckWord = Annotated[str, _one_of("program", "login", "models", "quota", "request")]
SignatureSourceWord = Annotated[str, _one_of("yours", "vendor", "common")]
