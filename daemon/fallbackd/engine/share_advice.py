"""
A provider that several machines cannot reach: advice for people, and never a mark.

A broken connection belongs to one machine, so the others do not take its provider for
unavailable. Each machine lists on its card which providers it cannot reach.
"""

from collections.abc import Iterable, Mapping

from fallbackd.core.health.record import Health, view
from fallbackd.core.ids import ScopeId
from fallbackd.core.share.scopes import SharedNames, is_shared_fact
from fallbackd.ports.share import Card

FRESH_S = 60.0
KIND = "provider:"


def missed(health: Mapping[ScopeId, Health], names: SharedNames, *, now: float) -> tuple[str, ...]:
    """Providers that this machine has found out of reach by itself."""
    return tuple(
        scope.removeprefix(KIND)
        for scope, one in sorted(health.items())
        if scope.startswith(KIND)
        and names.mirrored(scope) is not None
        and one.outage is not None
        and one.outage.source == "policy"
        and not is_shared_fact(one.outage)
        and view(one, now=now).state != "healthy"
    )


def advice(own: Iterable[str], name: str, cards: Iterable[Card]) -> tuple[str, ...]:
    """
    Args:
        own: Providers that this machine cannot reach.
        name: Of this machine.
    """
    found = {provider: {name} for provider in own}
    for card in cards:
        for provider in card.missed if card.seen_ago_s <= FRESH_S else ():
            if provider in found:
                found[provider].add(card.name)
    return tuple(
        f"{provider} cannot be reached from {', '.join(sorted(machines))}: it is likely the "
        "provider, and not the network of this machine"
        for provider, machines in found.items()
        if len(machines) > 1
    )
