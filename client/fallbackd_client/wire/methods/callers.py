"""Callers that talk to a provider themselves: whom to ask, what became of it, what is advised."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fallbackd_client.wire.bounds import (
    ChainName,
    DirectoryPath,
    Instant,
    Name,
    Permissions,
    RoleName,
    SessionName,
    TierWord,
    Tokens,
    Trigger,
    TurnWord,
    UnitWord,
    one_of,
)
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods.delegations import ChainEntry
from fallbackd_client.wire.shapes import (
    CandidateVerdict,
    Evidence,
    Failure,
    HealthEntry,
    Limit,
    TokenUsage,
)


class ResolveParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    """The caller's conversation, which keeps related work on the same backend."""
    session_id: SessionName | None = None
    """The same as `session`, for older callers."""
    role: RoleName | None = None
    """A configured role: its chain and its rules."""
    backend: Name | None = None
    """The backend to prefer."""
    platform: Name | None = None
    """The same as `backend`, for older callers."""
    chain: ChainName | tuple[Name | ChainEntry, ...] | None = None
    """Candidates in order, or the name of a configured chain."""
    model: Name | None = None
    """The model to use."""
    prompt_tokens: Tokens | None = None
    """Size of the prompt; leaves out candidates with a smaller context."""
    differs_from: tuple[Name, ...] = ()
    """Model families or delegations; their model families are left out."""
    allow_metered: bool = False
    """Allow backends that are billed by use."""
    lease: bool = False
    """The caller will make the call itself and report its outcome with the lease."""
    owner: Name | None = None
    """Name of the caller, for people; absent: its process id."""

    def normalised(self) -> "ResolveParams":
        """
        Return these params under today's names.

        Raises:
            msgspec.ValidationError: Two names of one field contradict each other.
        """
        return msgspec.structs.replace(
            self,
            backend=one_of(backend=self.backend, platform=self.platform),
            platform=None,
            session=one_of(session=self.session, session_id=self.session_id),
            session_id=None,
        )


class Lease(Struct, frozen=True, kw_only=True):
    id: str
    """Send it with the `report`."""
    generation: int
    """Rises each time the lease is given anew."""
    expires_at: float
    """When it expires if nothing is reported."""
    owner: str | None = None
    """Name of the holder, for people."""


class ResolveResult(Struct, frozen=True, kw_only=True):
    backend: str
    """The backend that would be used now."""
    model: str | None = None
    """The model to use; null: the backend's own default."""
    credential: str | None = None
    """Label of the credential to use."""
    tier: TierWord | None = None
    """Tier of the candidate."""
    trigger: Trigger | None = None
    """Why it is not the preferred one; null: it is."""
    position: int | None = None
    """Place of the chosen candidate in the chain, from 0."""
    candidates: tuple[CandidateVerdict, ...] = ()
    """All candidates with their verdicts."""
    lease: Lease | UnsetType | None = UNSET
    """Only if requested; null: none is needed."""
    limits: tuple[Limit, ...] = ()
    """How much of its plan or keys is used, where that was said."""
    turn: str | None = None
    """Send it with the `report` of this call, unless there is a session."""
    warnings: tuple[str, ...] = ()
    """What the caller should know, in sentences."""


RESOLVE: Method[ResolveParams, ResolveResult] = Method(
    "resolve",
    params=ResolveParams,
    result=ResolveResult,
    read_only=False,  # with `lease` it takes one
    who="any",
    promises="nothing",
    errors=("unknown", "refused", "draining", "not_permitted"),
    summary="Show which backend would be used now, with a verdict for every candidate.",
    example=(
        {"backend": "codex", "lease": True},
        {
            "backend": "opencode",
            "trigger": "preemptive",
            "position": 1,
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
            "lease": None,
        },
    ),
)


class PrepareParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    backend: Name | None = None
    """The backend to prefer."""
    role: RoleName | None = None
    """A configured role: its chain and its rules."""
    chain: ChainName | tuple[Name | ChainEntry, ...] | None = None
    """Candidates in order, or the name of a configured chain."""
    session: SessionName | None = None
    """The session that the prompt will belong to."""
    cwd: DirectoryPath | None = None
    """Directory of the prompt; absent: nothing is started."""
    model: Name | None = None
    """The model to use."""
    permissions: Permissions | None = None
    """Permissions of the prompt; absent: as for a prompt without any."""
    allow_metered: bool = False
    """Allow backends that are billed by use."""


class PrepareResult(Struct, frozen=True, kw_only=True):
    backend: str
    """The backend that would be used now."""
    model: str | None = None
    """The model to use; null: the backend's own default."""
    ready: bool
    """A program of it is ready for the prompt, or starting; false: the prompt will start one."""


PREPARE: Method[PrepareParams, PrepareResult] = Method(
    "prepare",
    params=PrepareParams,
    result=PrepareResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("unknown", "refused", "draining", "not_permitted"),
    summary="Start the program for a prompt that comes soon, without a call of a model.",
    example=(
        {"backend": "claude", "cwd": "/home/ada/project"},
        {"backend": "claude", "ready": True},
    ),
)


class ReportParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    outcome: Literal["success", "failure", "released"]
    """`success`, `failure`, or `released`: the call was not made."""
    backend: Name | None = None
    """The backend that was called; required."""
    platform: Name | None = None
    """The same as `backend`, for older callers."""
    session: SessionName | None = None
    """The caller's conversation, which keeps related work on the same backend."""
    session_id: SessionName | None = None
    """The same as `session`, for older callers."""
    model: Name | None = None
    """The model that was called."""
    credential: Name | None = None
    """Label of the credential that was used."""
    attempt: Name | None = None
    """The caller's own id of the call; a failure is counted once for each."""
    lease: Name | Lease | None = None
    """The lease that `resolve` or an earlier `report` gave, or its `id`."""
    turn: TurnWord | None = None
    """The `turn` of the answer that named this candidate; not needed with a session."""
    next_lease: bool = False
    """The caller will call `next` itself and report that with its lease."""
    role: RoleName | None = None
    """As sent to `resolve`; `next` is chosen by it."""
    chain: ChainName | tuple[Name | ChainEntry, ...] | None = None
    """As sent to `resolve`."""
    prompt_tokens: Tokens | None = None
    """As sent to `resolve`."""
    differs_from: tuple[Name, ...] = ()
    """As sent to `resolve`."""
    allow_metered: bool = False
    """As sent to `resolve`."""
    owner: Name | None = None
    """Name of the caller, for people; absent: its process id."""
    started_at: Instant | None = None
    """When the call began; a report about an older call does not change newer health."""
    evidence: Evidence | None = None
    """What the caller saw; required for a failure to be understood."""
    prompt: str = ""
    """The prompt of the call: nothing of it is kept where the provider repeats it in its error."""
    usage: TokenUsage | None = None
    """Tokens and cost of the call."""

    def normalised(self) -> "ReportParams":
        """
        Return these params under today's names.

        Raises:
            msgspec.ValidationError: No backend, or two names that contradict each other.
        """
        backend = one_of(backend=self.backend, platform=self.platform)
        if backend is None:
            raise msgspec.ValidationError("Object missing required field `backend`")
        return msgspec.structs.replace(
            self,
            backend=backend,
            platform=None,
            session=one_of(session=self.session, session_id=self.session_id),
            session_id=None,
        )


class ReportResult(Struct, frozen=True, kw_only=True):
    failure: Failure | None = None
    """What the evidence means; null for a success."""
    health: dict[str, HealthEntry] = field(default_factory=dict)
    """Health of the backend after the report."""
    next: CandidateVerdict | None = None
    """The candidate to continue with: the same again, another credential or another backend."""
    position: int | None = None
    """Place of `next` in the chain, from 0."""
    candidates: tuple[CandidateVerdict, ...] = ()
    """All candidates with their verdicts, after a failure."""
    turn: str | None = None
    """Send it with the report of the call to `next`."""
    bound: str | None = None
    """The limit that ends the failover if `next` is null, such as `max_fallback_depth`."""
    why: str | None = None
    """The same in a sentence."""
    retry_at: float | None = None
    """When a candidate is expected to be available again, if `next` is null."""
    lease: Lease | UnsetType | None = UNSET
    """For `next`, only if requested; null: none is needed."""
    ignored: bool = False
    """The report came too late and changed nothing."""


REPORT: Method[ReportParams, ReportResult] = Method(
    "report",
    params=ReportParams,
    result=ReportResult,
    read_only=False,
    who="own",
    promises="nothing",
    errors=("unknown", "refused", "draining"),
    summary="Report the outcome of a call that the caller made itself.",
    example=(
        {
            "backend": "codex",
            "outcome": "failure",
            "evidence": {"http_status": 429, "headers": {"retry-after": "60"}},
        },
        {
            "failure": {
                "reason": "rate_limit",
                "retryable": True,
                "rotate_credential": True,
                "hop": True,
                "marks_health": True,
                "stated_reset_s": 60.0,
                "wait_s": 60.0,
                "confidence": "structured",
                "signature": "http/429",
            },
            "health": {
                "codex": {
                    "state": "rate_limited",
                    "reason": "rate_limit",
                    "until_at": 1767268860.0,
                    "count": 1,
                    "source": "provider",
                }
            },
            "next": {"backend": "opencode", "verdict": "chosen", "state": "healthy"},
            "position": 1,
        },
    ),
)


class SuggestParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Words that are absent are read from the goal; unknown ones count as small, medium, none."""

    goal: str
    """What is to be done, in words."""
    project_size: str | None = None
    """`tiny`, `small`, `medium`, `large` or `xlarge`."""
    scope: str | None = None
    """What the task is about, such as `code`, `refactor`, `research` or `security`."""
    complexity: str | None = None
    """`low`, `medium`, `high` or `extreme`."""
    project_root: DirectoryPath | None = None
    """Directory of the project; backends with a context too small for its text are left out."""


class CapUse(Struct, frozen=True, kw_only=True):
    used: float
    """What was used within the window."""
    cap: float | None = None
    """The cap; null: none is known."""
    unit: UnitWord = "requests"
    """`requests` or `tokens`."""
    window_s: float = 3600.0
    """Length of the window in seconds."""


class SuggestResult(Struct, frozen=True, kw_only=True):
    suggestion: str | None = None
    """The backend that suits best; null: none is available."""
    reason: str = ""
    """Why, in a sentence."""
    eta_s: float | None = None
    """Estimated duration in seconds."""
    estimate_s: float | None = None
    """The same before it was corrected by measured times: the `metadata.estimate_s` of the work."""
    eta_display: str | None = None
    """The same for people."""
    scores: dict[str, float] = field(default_factory=dict)
    """Points of each backend."""
    rate_limits: dict[str, CapUse] = field(default_factory=dict)
    """Use of each backend that has a cap."""
    available: tuple[str, ...] = ()
    """Backends that can be used now."""
    unhealthy: dict[str, HealthEntry] = field(default_factory=dict)
    """Backends that cannot, with their health."""
    was_fallback: bool = False
    """The backend with the most points was not available."""


SUGGEST: Method[SuggestParams, SuggestResult] = Method(
    "suggest",
    params=SuggestParams,
    result=SuggestResult,
    read_only=True,
    errors=("not_permitted",),
    who="any",
    summary="Which backend suits a task, with scores and an estimate of time.",
    example=(
        {"goal": "port the tool to Rust", "complexity": "high"},
        {
            "suggestion": "claude",
            "reason": "claude: complexity high",
            "eta_s": 540.0,
            "eta_display": "9 min",
            "scores": {"claude": 70.0, "codex": 50.0},
            "available": ["claude", "codex"],
        },
    ),
)


METHODS = (
    RESOLVE,
    PREPARE,
    REPORT,
    SUGGEST,
)
