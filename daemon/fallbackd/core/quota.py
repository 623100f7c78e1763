"""Figures of the plans and keys of backends: kept with their meters, and shown."""

from collections.abc import Mapping
from typing import Any

from fallbackd.core.events import QuotaSeen
from fallbackd.core.figures import (
    Figure,
    Figures,
    is_fresh,
    is_news,
    pace,
    runs_out_at,
)
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.meter import figures_of
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.records import Meter
from fallbackd.core.scopes import credential_scope, model_scope, plan_scope

Meters = Mapping[BackendId, Meter]


def news_of(meters: Meters, backend: BackendId, seen: Figures, *, now: float) -> QuotaSeen | None:
    """The event of what is worth keeping; None: nothing is."""
    meter = meters.get(backend)
    known = () if meter is None else meter.figures
    news = tuple(one for one in seen if is_news(known, one, now=now))
    return QuotaSeen(backend=backend, figures=news) if news else None


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
