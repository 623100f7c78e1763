"""
Which credential of a backend makes the next call.

Of those that are free, the strategy picks one; where none is free, the one that is nearest to it.
"""

from collections.abc import Mapping

from fallbackd.core.health.record import Health, is_leased, severity, view
from fallbackd.core.health.scopes import scopes_of, worst
from fallbackd.core.ids import ScopeId
from fallbackd.core.policy import Backend
from fallbackd.core.records import Meter

THROTTLE_MEMORY_S = 60.0
"""A second throttle within this long after the first one marks."""


def pick(
    backend: Backend,
    model: str | None,
    health: Mapping[ScopeId, Health],
    used: Meter | None,
    *,
    only: str | None = None,
    kept: str | None = None,
    without: frozenset[str] = frozenset(),
    now: float,
    luck: float,
) -> str | None:
    """
    The label of one credential; None where the backend has none, or none is left.

    Args:
        only: This one, whatever the strategy says.
        kept: This one while it is free, whatever the strategy says.
        without: Those that have failed already for the work at hand.
        luck: In [0, 1), for the strategy `random`.
    """
    if only in backend.credentials:
        return only
    labels = tuple(one for one in backend.credentials if one not in without)
    if len(labels) < 2:
        return next(iter(labels), None)
    ranks = {label: _rank(backend, model, label, health, now=now) for label in labels}
    free = tuple(label for label in labels if ranks[label][0] == 0)
    if not free:
        return min(labels, key=ranks.__getitem__)
    if kept in free:
        return kept
    return _by_strategy(backend, free, used, luck=luck)


def _rank(
    backend: Backend, model: str | None, label: str, health: Mapping[ScopeId, Health], *, now: float
) -> tuple[int, bool, float]:
    """A sort key: 0 is free; then severity, whether a trial runs, and when it is available."""
    scopes = scopes_of(backend, model, label)
    found, _ = worst(health, scopes, now=now)
    in_trial = any(
        is_leased(health.get(scope), now=now) and view(health.get(scope), now=now).unproven
        for scope in scopes
    )
    is_free = found.state == "healthy" and not in_trial
    until_at = found.until_at if found.state in ("rate_limited", "broken") else None
    never = float("inf") if found.state == "broken" else 0.0
    return (0 if is_free else max(1, severity(found)), in_trial, until_at or never)


def _by_strategy(
    backend: Backend, free: tuple[str, ...], used: Meter | None, *, luck: float
) -> str:
    counts = {} if used is None else dict(used.credential_uses)
    match backend.credential_strategy:
        case "fill_first":
            return free[0]
        case "random":
            return free[min(int(luck * len(free)), len(free) - 1)]
        case "least_used":
            return min(free, key=lambda label: counts.get(label, 0))
        case "round_robin":
            last = None if used is None else used.last_credential
            if last not in backend.credentials:
                return free[0]
            at = backend.credentials.index(last)
            turn = (*backend.credentials[at + 1 :], *backend.credentials[: at + 1])
            return next(label for label in turn if label in free)


def usable(
    backend: Backend, model: str | None, health: Mapping[ScopeId, Health], *, now: float
) -> tuple[str, ...]:
    """Those that may be used now, freely or as second choice."""
    return tuple(
        label
        for label in backend.credentials
        if worst(health, scopes_of(backend, model, label), now=now)[0].state
        in ("healthy", "cooldown")
    )
