"""
Tiers of a chain: labels that say in which way a candidate helps.

    primary ──▶ model ──▶ … ──▶ api (once) ──▶ in_session
                  │                                └─ nothing is started: the caller does it
                  └─ the same backend with its fallback model, only where its model is missing
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from fallbackd.core.health.record import Health, view
from fallbackd.core.health.scopes import (
    find_backend,
    is_missing_model,
    missing_model_scope,
    model_of,
)
from fallbackd.core.ids import ScopeId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Policy
from fallbackd.core.records import VerdictWord
from fallbackd.core.routing.families import differs, family_of

ONCE = frozenset({"api"})
"""Tiers of which one candidate is enough."""


class Limits(Struct, frozen=True, kw_only=True):
    """What the role and the request forbid, whatever health says."""

    differs_from: frozenset[str] = frozenset()
    """Families of models that may not serve it."""
    allow_metered: bool = True
    spent_tiers: frozenset[str] = frozenset()
    """Tiers that are used up, as far as they are for one use."""


FREE = Limits()


def forbidden(
    entry: Entry, backend: Backend, model: str | None, limits: Limits
) -> tuple[VerdictWord, str] | None:
    """The verdict on a candidate that may not be used, with a sentence. None: it may."""
    if entry.tier is not None and entry.tier in limits.spent_tiers:
        return "tried", f"the tier {entry.tier} was tried already by this delegation"
    if limits.differs_from:
        family = family_of(backend, model)
        if not differs(family, limits.differs_from):
            others = ", ".join(sorted(limits.differs_from))
            return "must_differ", f"its family ({family or 'unknown'}) must differ from {others}"
    if backend.cost == "metered" and not limits.allow_metered:
        return "consent", "it is billed by use and has no consent"
    return None


def labelled(
    entries: Iterable[Entry], policy: Policy, *, fallback_model: str | None = None
) -> tuple[Entry, ...]:
    """
    The entries with their tiers, each followed by what stands in for a missing model.

    Args:
        fallback_model: Of the role, in place of those of the backends.
    """
    found: list[Entry] = []
    for number, entry in enumerate(entries):
        backend = find_backend(policy, entry.backend)
        if entry.tier is None:
            entry = _with_tier(entry, backend, is_first=number == 0)
        found.append(entry)
        if backend is None or backend.kind == IN_SESSION_KIND or entry.tier == "model":
            continue
        model = fallback_model or backend.fallback_model
        if model is not None and model != model_of(entry, backend):
            found.append(
                Entry(backend=entry.backend, model=model, tier="model", effort=entry.effort)
            )
    return tuple(found)


def _with_tier(entry: Entry, backend: Backend | None, *, is_first: bool) -> Entry:
    """An entry whose tier is not configured, with the one that follows from its kind and place."""
    if backend is not None and backend.kind == IN_SESSION_KIND:
        return structs.replace(entry, tier="in_session")
    return structs.replace(entry, tier="primary") if is_first else entry


def wanted(
    entries: Iterable[Entry], policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> list[Entry]:
    """The entries without those that stand in for a model which is not known to be missing."""
    found: list[Entry] = []
    before: Entry | None = None
    for entry in entries:
        if entry.tier != "model":
            before = entry
            found.append(entry)
            continue
        is_swap = before is not None and before.backend == entry.backend
        if not is_swap or (
            before is not None and _lacks_its_model(before, policy, health, now=now)
        ):
            found.append(entry)
    return found


def _lacks_its_model(
    entry: Entry, policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> bool:
    backend = find_backend(policy, entry.backend)
    if backend is None:
        return False
    scope = missing_model_scope(backend, model_of(entry, backend))
    record = health.get(scope)
    return is_missing_model(record) and view(record, now=now).state == "broken"


def stand_ins(policy: Policy, backend: Backend) -> tuple[str, ...]:
    """The models that are used where the backend's own one is missing, in any role."""
    found = [backend.fallback_model]
    found += [
        role.fallback_model
        for role in policy.roles.values()
        if any(entry.backend == backend.id for entry in role.chain)
    ]
    return tuple(dict.fromkeys(one for one in found if one not in (None, backend.model)))
