"""Health as the core shows it, in the types of the wire."""

from typing import Literal

import msgspec

from fallbackd.core import views
from fallbackd.core.health.scopes import is_scope_of
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import IN_SESSION_KIND, Policy
from fallbackd.core.records import Snapshot
from fallbackd_client.wire.health_shapes import HealthEntry

USABLE = frozenset({"healthy", "cooldown"})
"""States of backends that work may be given to."""
Entries = dict[str, HealthEntry]


def health_entries(
    snapshot: Snapshot, policy: Policy, *, now: float, only: Literal["unhealthy"] | None = None
) -> Entries:
    return msgspec.convert(views.health_entries(snapshot, policy, now=now, only=only), Entries)


def usable_names(snapshot: Snapshot, policy: Policy, *, now: float) -> list[str]:
    """Backends that can do work now, in the order of the chain for any work."""
    entries = health_entries(snapshot, policy, now=now)
    order = [str(entry.backend) for entry in policy.chains.get("*", ())]
    return [
        name
        for name in dict.fromkeys((*order, *policy.backends))
        if name in entries
        and entries[name].state in USABLE
        and policy.backends[BackendId(name)].kind != IN_SESSION_KIND
    ]


def health_entry(snapshot: Snapshot, policy: Policy, backend: str, *, now: float) -> HealthEntry:
    shown = views.health_entry(BackendId(backend), snapshot, policy, now=now)
    return msgspec.convert(shown, HealthEntry)


def scope_entry(
    snapshot: Snapshot, policy: Policy, scope: str, *, now: float
) -> HealthEntry | None:
    """The health of one scope by itself; None where it is neither on record nor configured."""
    name = ScopeId(scope)
    is_configured = any(is_scope_of(one, name) for one in policy.backends.values())
    if not is_configured and name not in snapshot.health:
        return None
    return msgspec.convert(views.scope_entry(ScopeId(scope), snapshot, now=now), HealthEntry)
