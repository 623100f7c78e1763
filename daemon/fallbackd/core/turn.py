"""
What was asked of a chain, and which of its candidates were tried so far.

One record for the three ways to ask: a delegation, a caller that makes the calls itself, and a
message in a session of an opencode server. All bounds on failing over are read from it.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.failures import Confidence, Failure, Reason
from fallbackd.core.health.record import Health, Outage
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Entry, OnOutage


class MadeMark(Struct, frozen=True, kw_only=True):
    """A mark that was made on the way, to be withdrawn when the prompt itself was the poison."""

    scope: ScopeId
    since_at: float
    before: Outage | None


def without_marks(
    health: Mapping[ScopeId, Health], marks: tuple[MadeMark, ...]
) -> dict[ScopeId, Health]:
    """The records that change when marks are taken back. What was marked again since stays."""
    found: dict[ScopeId, Health] = {}
    for made in marks:
        record = found.get(made.scope) or health.get(made.scope)
        if record is None or record.outage is None or record.outage.since_at != made.since_at:
            continue
        found[made.scope] = structs.replace(record, outage=made.before, trial=None)
    return found


class Tried(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A candidate that was tried, with what its failure says about the next one."""

    backend: BackendId
    model: str | None = None
    """The one of its entry, else the one of the backend."""
    credential: str | None = None
    tier: str | None = None
    reason: Reason | None = None
    """Null: it has not failed so far."""
    confidence: Confidence = "structured"
    hop: bool = False
    shrink_input: bool = False
    rotate_credential: bool = False

    def failed_with(self, failure: Failure | None) -> "Tried":
        if failure is None:
            return self
        return structs.replace(
            self,
            reason=failure.reason,
            confidence=failure.confidence,
            hop=failure.hop,
            shrink_input=failure.shrink_input,
            rotate_credential=failure.rotate_credential,
        )


class Turn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked is fixed at the beginning; `tried`, `hops` and `marks` grow."""

    candidates: tuple[Entry, ...] = ()
    role: str | None = None
    creative: bool = False
    """Of a creative role: no other family writes in its place unless a person says so."""
    on_outage: OnOutage = "fallback"
    allow_metered: bool = True
    """Whether a candidate that bills by use may follow one that does not."""
    differs_from: tuple[str, ...] = ()
    """Model families that must not serve it; `?` for one that is not known."""
    fallback_on: tuple[str, ...] | None = None
    max_hops: int = 3
    budget: int = 8
    """Calls in all, those of the same candidate included."""
    prompt_tokens: int | None = None
    at_server: bool = False
    """Models of a running opencode server are asked for."""
    is_own: bool = False
    """Kept by its caller, and not with the session, whose calls overlap."""
    inherited_tried: tuple[str, ...] = ()
    """Keys of candidates that were tried for the work of which this is a part."""
    tried: tuple[Tried, ...] = ()
    """One for each call, in order."""
    hops: int = 0
    """Moves that count."""
    marks: tuple[MadeMark, ...] = ()
    backend: BackendId | None = None
    """The candidate whose turn it is, where the call is not made by the daemon."""
    model: str | None = None
    credential: str | None = None
    at: float = 0.0
    """When a candidate was last named."""


Bound = Literal[
    "task",
    "poison",
    "format_error",
    "fallback_on",
    "max_fallback_depth",
    "max_attempts",
    "on_outage",
    "must_differ",
    "consent",
    "none_left",
]


class Halt(Struct, frozen=True, kw_only=True):
    """Why no other candidate is tried."""

    bound: Bound
    why: str
    """For people; names the key of the configuration where there is one."""
