"""Account of a delegation: the output of its attempts, and the decisions about it."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from fallbackd_client.wire.bounds import Name, Offset
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import CandidateVerdict, Question, TokenUsage


class DelegationLogParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    """Id of the delegation."""
    attempt: Name | Annotated[int, Meta(ge=1)] | None = None
    """Id or number of the attempt; null: the last one."""
    offset: Offset = 0
    """First byte to return."""
    max_bytes: Annotated[int, Meta(ge=1, le=1048576)] | None = None
    """At most this many bytes; a character is never cut."""
    form: Literal["raw", "text"] = "raw"
    """`raw`: what the program printed. `text`: what the agent said and did, a tool call per line
    that begins with `>`, a failure per line that begins with `!`; offsets still count the recorded
    bytes, and about `max_bytes` of them are read."""


class DelegationLogResult(Struct, frozen=True, kw_only=True):
    """Ask again from `next_offset`. All is read when `ended` and `next_offset == size_bytes`."""

    delegation: str
    """Id of the delegation."""
    text: str
    """The output as UTF-8; invalid bytes are replaced."""
    offset: int
    """First byte that was returned."""
    next_offset: int
    """Where the next piece begins."""
    size_bytes: int
    """Size of the log now."""
    ended: bool
    """The log will not grow any more."""
    attempt: str | None = None
    """The attempt; null: none has started."""
    log_path: str | None = None
    """File of the log."""


DELEGATION_LOG: Method[DelegationLogParams, DelegationLogResult] = Method(
    "delegation.log",
    params=DelegationLogParams,
    result=DelegationLogResult,
    read_only=True,
    who="own",
    errors=("unknown",),
    summary="A piece of the recorded output of one attempt.",
    example=(
        {"delegation": "d4f0c2a91b7e", "offset": 0, "max_bytes": 4096},
        {
            "delegation": "d4f0c2a91b7e",
            "text": "Reading parser.py\n",
            "offset": 0,
            "next_offset": 18,
            "size_bytes": 18,
            "ended": True,
            "attempt": "d4f0c2a91b7e.1",
        },
    ),
)


class ExplainParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    """Id of the delegation, or of a gateway call (`exchange.list`)."""


class Step(Struct, frozen=True, kw_only=True):
    """One decision."""

    at: float
    """When it was taken."""
    event: str
    """The event that led to it, such as `DelegateRequested` or `AttemptEnded`."""
    text: str = ""
    """The same as a sentence."""
    attempt: str | None = None
    """The attempt that it is about."""
    candidates: tuple[CandidateVerdict, ...] = ()
    """All candidates with their verdicts at that time."""
    policy: dict[str, Any] = field(default_factory=dict)  # knobs by name, as they were used
    """The settings that were used, by name."""
    evidence: dict[str, Any] | None = None  # fields of the failure or of its evidence, redacted
    """The failure that led to it, redacted."""
    changes: tuple[str, ...] = ()
    """What was recorded, in sentences."""
    effects: tuple[str, ...] = ()
    """What was started, in sentences."""


class ExplainResult(Struct, frozen=True, kw_only=True):
    delegation: str
    """Id of the delegation, or of the gateway call."""
    decisions: tuple[Step, ...] = ()
    """Every decision, in order."""
    warnings: tuple[str, ...] = ()
    """What the caller should know, in sentences: tools that an agent refused, for one."""
    state: str | None = None
    """Its state."""
    requested: str | None = None
    """The backend that it was to run on first."""
    asked_by: str | None = None
    """The attempt from inside which it was requested; null: a person requested it."""
    served_by: str | None = None
    """The backend that answered."""
    usage: TokenUsage = TokenUsage()
    """What it used, as far as the providers said it."""
    questions: tuple[Question, ...] = ()
    """The questions that were asked about it, in order."""
    truncated: bool = False
    """Older decisions were dropped."""


EXPLAIN: Method[ExplainParams, ExplainResult] = Method(
    "explain",
    params=ExplainParams,
    result=ExplainResult,
    read_only=True,
    who="own",
    errors=("unknown",),
    summary="Every decision taken about one delegation, with candidates, policy and evidence.",
    example=(
        {"delegation": "d4f0c2a91b7e"},
        {
            "delegation": "d4f0c2a91b7e",
            "state": "succeeded",
            "requested": "codex",
            "served_by": "opencode",
            "decisions": [
                {
                    "at": 1767268800.0,
                    "event": "DelegateRequested",
                    "candidates": [
                        {
                            "backend": "codex",
                            "verdict": "rate_limited",
                            "reason": "usage_limit",
                            "state": "rate_limited",
                            "until_at": 1767272400.0,
                        },
                        {"backend": "opencode", "verdict": "chosen", "state": "healthy"},
                    ],
                }
            ],
        },
    ),
)


METHODS = (DELEGATION_LOG, EXPLAIN)
