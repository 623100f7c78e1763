"""Callers that talk to a provider themselves: whom to ask, what became of it, what is advised."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fallbackd_client.wire.aliases import one_of
from fallbackd_client.wire.bounds import (
    ChainName,
    DirectoryPath,
    Instant,
    Name,
    RoleName,
    SessionName,
    Tokens,
    Trigger,
    TurnWord,
)
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods.delegations import ChainEntry
from fallbackd_client.wire.shapes import (
    CandidateVerdict,
    Evidence,
    Failure,
    HealthEntry,
    TokenUsage,
)


class ResolveParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    session_id: SessionName | None = None
    role: RoleName | None = None
    backend: Name | None = None
    platform: Name | None = None
    chain: ChainName | tuple[Name | ChainEntry, ...] | None = None
    model: Name | None = None
    prompt_tokens: Tokens | None = None
    differs_from: tuple[Name, ...] = ()
    allow_metered: bool = False
    lease: bool = False
    """The caller will make the call itself, and reports with the lease."""
    owner: Name | None = None
    """Who that is, for people; absent: its process id."""

    def normalised(self) -> "ResolveParams":
        """
        The same under today's names.

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
    generation: int
    expires_at: float
    owner: str | None = None


class ResolveResult(Struct, frozen=True, kw_only=True):
    backend: str
    model: str | None = None
    credential: str | None = None
    tier: str | None = None
    trigger: Trigger | None = None
    """Null without a redirect."""
    position: int | None = None
    """Place of the chosen one among the candidates, 0 for the requested one."""
    candidates: tuple[CandidateVerdict, ...] = ()
    lease: Lease | UnsetType | None = UNSET
    """Only where asked for; null where none is needed."""
    turn: str | None = None
    """To be sent with a `report` of this call by a caller without a session."""
    warnings: tuple[str, ...] = ()


RESOLVE: Method[ResolveParams, ResolveResult] = Method(
    "resolve",
    params=ResolveParams,
    result=ResolveResult,
    read_only=False,  # with `lease` it takes one
    summary="Who would be used now, with a verdict for every candidate.",
)


class ReportParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    outcome: Literal["success", "failure", "released"]
    backend: Name | None = None
    """Required; may be given as `platform`."""
    platform: Name | None = None
    session: SessionName | None = None
    session_id: SessionName | None = None
    model: Name | None = None
    credential: Name | None = None
    attempt: Name | None = None
    lease: Name | None = None
    """The `id` of the lease that `resolve` or an earlier `report` gave."""
    turn: TurnWord | None = None
    """The `turn` of the answer that named this candidate: what was asked, and what failed before.
    A caller with a session need not send it."""
    next_lease: bool = False
    """The caller will go on with `next` by itself, and reports that with its lease."""
    role: RoleName | None = None
    """This and what follows: as it was sent to `resolve`. `next` is found by it."""
    chain: ChainName | tuple[Name | ChainEntry, ...] | None = None
    prompt_tokens: Tokens | None = None
    differs_from: tuple[Name, ...] = ()
    allow_metered: bool = False
    owner: Name | None = None
    """Who that is, for people; absent: its process id."""
    started_at: Instant | None = None
    evidence: Evidence | None = None
    usage: TokenUsage | None = None

    def normalised(self) -> "ReportParams":
        """
        The same under today's names.

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
    health: dict[str, HealthEntry] = field(default_factory=dict)
    """The backend's, after the report."""
    next: CandidateVerdict | None = None
    """The candidate to go on with: the same once more, another credential, or another backend."""
    position: int | None = None
    """Its place among the candidates."""
    candidates: tuple[CandidateVerdict, ...] = ()
    """Verdicts of all, after a failure."""
    turn: str | None = None
    """With `next`: to be sent with the report of that call."""
    bound: str | None = None
    """What ends it where `next` is null after a failure, such as `max_fallback_depth`."""
    why: str | None = None
    """The same in a sentence."""
    retry_at: float | None = None
    """Where `next` is null after a failure: the earliest return of anybody."""
    lease: Lease | UnsetType | None = UNSET
    """For `next`, only where asked for; null where none is needed."""
    ignored: bool = False
    """It came too late, or is about what was left before: it says nothing about health."""


REPORT: Method[ReportParams, ReportResult] = Method(
    "report",
    params=ReportParams,
    result=ReportResult,
    read_only=False,
    summary="Tell what became of a call that the caller made itself.",
)


class SuggestParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Absent and unknown words count as small, medium, none: callers pass what a person said."""

    goal: str
    project_size: str | None = None
    scope: str | None = None
    complexity: str | None = None
    project_root: DirectoryPath | None = None
    """Absolute path. Backends whose context its text does not fit are left out."""


class CapUse(Struct, frozen=True, kw_only=True):
    used: float
    cap: float | None = None
    unit: str = "calls"
    window_s: float = 3600.0


class SuggestResult(Struct, frozen=True, kw_only=True):
    suggestion: str | None = None
    """Null: no backend is available."""
    reason: str = ""
    eta_s: float | None = None
    eta_display: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    rate_limits: dict[str, CapUse] = field(default_factory=dict)
    available: tuple[str, ...] = ()
    unhealthy: dict[str, HealthEntry] = field(default_factory=dict)
    was_fallback: bool = False
    """The best by score was left out."""


SUGGEST: Method[SuggestParams, SuggestResult] = Method(
    "suggest",
    params=SuggestParams,
    result=SuggestResult,
    read_only=True,
    summary="Which backend suits a task, with scores and an estimate of time.",
)


METHODS = (
    RESOLVE,
    REPORT,
    SUGGEST,
)
