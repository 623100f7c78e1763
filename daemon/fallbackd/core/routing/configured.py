"""What the configuration alone says of a candidate, before anything is known of its health."""

from msgspec import Struct

from fallbackd.core.computed import once
from fallbackd.core.health.scopes import context_of, find_backend, model_of, scopes_of
from fallbackd.core.ids import ScopeId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Policy
from fallbackd.core.records import Verdict, VerdictWord

HANDED_BACK = 2
"""The rank of work that goes back to the caller: behind what recovers."""


class Choice(Struct, frozen=True, kw_only=True):
    entry: Entry
    backend: Backend
    model: str | None = None
    credential: str | None = None
    trial_scopes: tuple[ScopeId, ...] = ()
    """Scopes whose single trial this attempt has to lease; empty: no trial."""


class Candidate(Struct, frozen=True, kw_only=True):
    entry: Entry
    choice: Choice | None
    verdict: Verdict
    rank: int = 9
    returns_at: float | None = None
    stated: bool = False
    over_budget: bool = False


class Configured(Struct, frozen=True, kw_only=True):
    """What the configuration alone says of a candidate with one of its credentials."""

    entry: Entry
    backend: Backend
    model: str | None
    credential: str | None
    key: str
    same_as: str
    """See `sameness`."""
    scopes: tuple[ScopeId, ...]
    has_own_scopes: bool
    """Which of them count depends on what is known of them."""
    context_tokens: int | None
    never: tuple[VerdictWord, str] | None
    """What rules it out whatever is asked."""
    healthy: Candidate
    """As it is seen while nothing is known against it."""


@once
def configured(policy: Policy, entry: Entry, credential: str | None) -> Configured | None:
    """None: its backend is not configured."""
    backend = find_backend(policy, entry.backend)
    if backend is None:
        return None
    model = model_of(entry, backend)
    never: tuple[VerdictWord, str] | None = None
    if not backend.enabled:
        never = "disabled", "switched off in the configuration"
    elif backend.lacks is not None:
        never = "not_configured", backend.lacks
    elif credential is None and backend.credentials:
        never = "tried", "each of its credentials has failed for this work"
    return Configured(
        entry=entry,
        backend=backend,
        model=model,
        credential=credential,
        key=candidate_key(backend.id, entry.model),
        same_as=sameness(backend, model, credential),
        scopes=scopes_of(backend, model, credential),
        has_own_scopes=entry.tier == "model" or backend.implicit,
        context_tokens=context_of(policy, backend, model),
        never=never,
        healthy=Candidate(
            entry=entry,
            choice=Choice(entry=entry, backend=backend, model=model, credential=credential),
            verdict=Verdict(
                backend=backend.id,
                kind=backend.kind,
                account=backend.account,
                model=model,
                verdict="healthy",
                tier=entry.tier,
                credential=credential,
            ),
            rank=HANDED_BACK if backend.kind == IN_SESSION_KIND else 0,
        ),
    )


class Chain(Struct, frozen=True, kw_only=True):
    members: tuple[tuple[Entry, Configured | None], ...]
    """Each entry once, with what the configuration says of it, whichever credential is used."""
    has_stand_ins: bool


@once
def chain_of(policy: Policy, candidates: tuple[Entry, ...]) -> Chain:
    entries = tuple(dict.fromkeys(candidates))
    return Chain(
        members=tuple((entry, configured(policy, entry, None)) for entry in entries),
        has_stand_ins=any(entry.tier == "model" for entry in entries),
    )


def candidate_key(backend: str, model: str | None) -> str:
    return backend if model is None else f"{backend}|{model}"


def sameness(backend: Backend, model: str | None, credential: str | None) -> str:
    """
    Two entries with the same provider, model and credential fail together. What is not known is
    the same as nothing else.
    """
    if backend.provider is None or model is None:
        return f"{backend.id}|{model}|{credential}"
    return f"{backend.provider}|{model}|{credential}"
