"""`report`: what a caller that talks to a provider itself has seen."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fallbackd_client.wire.aliases import one_of
from fallbackd_client.wire.bounds import (
    ChainName,
    Instant,
    Name,
    RoleName,
    SessionName,
    Tokens,
    TurnWord,
)
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods.delegate import ChainEntry
from fallbackd_client.wire.methods.resolve import Lease
from fallbackd_client.wire.shapes import (
    CandidateVerdict,
    Evidence,
    Failure,
    HealthEntry,
    TokenUsage,
)


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
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

    def normalised(self) -> "Params":
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


class Result(Struct, frozen=True, kw_only=True):
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


METHOD: Method[Params, Result] = Method(
    "report",
    params=Params,
    result=Result,
    read_only=False,
    summary="Tell what became of a call that the caller made itself.",
)
