"""Figures of the plans and keys of backends: kept with their meters, and shown."""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.events import QuotaSeen
from fallbackd.core.figures import (
    Figure,
    Figures,
    is_fresh,
    is_news,
    joined,
    newly_near,
    pace,
    runs_out_at,
)
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.records import Meter
from fallbackd.core.scopes import credential_scope, model_scope, plan_scope

Meters = Mapping[BackendId, Meter]


def quota_seen(case: Case, event: QuotaSeen) -> None:
    """Keep what is believable, and say once that a window of a plan is nearly used up."""
    used = case.meters.get(event.backend) or Meter(backend=event.backend)
    after = joined(used.figures, event.figures, now=case.now)
    if after == used.figures:
        return
    case.meters.put(structs.replace(used, figures=after))
    for one in newly_near(used.figures, event.figures, now=case.now):
        case.note(
            "plan.near",
            backend=event.backend,
            used_percent=one.used_percent,
            window_s=one.window_s,
            resets_at=one.resets_at,
        )


def news_of(meters: Meters, backend: BackendId, seen: Figures, *, now: float) -> QuotaSeen | None:
    """The event of what is worth keeping; None: nothing is."""
    meter = meters.get(backend)
    known = () if meter is None else meter.figures
    news = tuple(one for one in seen if is_news(known, one, now=now))
    return QuotaSeen(backend=backend, figures=news) if news else None


def figures_of(backend: Backend, policy: Policy, meters: Meters) -> Figures:
    """Its own, and those of the plan that it shares with other backends; the latest of each."""
    found: dict[object, Figure] = {}
    for name, one in policy.backends.items():
        is_own = name == backend.id
        is_shared = backend.quota is not None and one.quota == backend.quota
        if (is_own or is_shared) and (meter := meters.get(name)) is not None:
            for each in meter.figures:
                is_meant = is_own or (each.credential is None and each.model is None)
                before = found.get(each.place)
                if is_meant and (before is None or before.at < each.at):
                    found[each.place] = each
    return tuple(found.values())


def scope_of(one: Figure, backend: Backend) -> ScopeId:
    """Return the scope of a figure, by the name under which health is kept."""
    if one.model is not None:
        return model_scope(backend, one.model)
    if one.credential is not None:
        return credential_scope(backend, one.credential)
    return plan_scope(backend)


def shown(
    backend: Backend, policy: Policy, meters: Meters, *, now: float
) -> list[dict[str, Any]]:  # any JSON
    """Figures whose window has not begun anew since, short windows first."""
    found = [
        one
        for one in figures_of(backend, policy, meters)
        if one.resets_at is None or one.resets_at > now
    ]
    found.sort(key=lambda one: (one.window_s or 0.0, one.model or "", one.unit))
    return [
        {
            "window_s": one.window_s,
            "used_percent": one.used_percent,
            "unit": one.unit,
            "limit": one.limit,
            "left": one.left,
            "resets_at": one.resets_at,
            "scope": scope_of(one, backend),
            "model": one.model,
            "credential": one.credential,
            "source": one.source,
            "at": one.at,
            "age_s": max(0.0, now - one.at),
            "fresh": is_fresh(one, now=now),
            "percent_per_hour": pace(one),
            "runs_out_at": runs_out_at(one),
        }
        for one in found
    ]
